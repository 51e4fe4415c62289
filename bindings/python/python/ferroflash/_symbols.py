"""The symbols that scores and masks are traced with. A function's computation with them becomes the text from which the library reads
expressions.

A value is a node, a line of that text. An integer combined with a number becomes a number; a boolean stays one. The library checks names,
dimensions and sizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NoReturn

# The largest power that is written as products.
_MAX_POWER = 16

# The most dimensions that a line can have.
_MAX_RANK = 4


class Trace:
    """An expression while its function is called."""

    def __init__(self) -> None:
        # What each node computes, of which nodes.
        self._nodes: dict[tuple[str, tuple[int, ...]], int] = {}
        self._params: list[str] = []
        self._tensors: list[str] = []

    def add(self, of: type[_Symbol], words: str, *operands: _Symbol) -> Any:
        """The value of this node, which is added unless it exists."""
        node = words, tuple(x.id for x in operands)
        return of(self, self._nodes.setdefault(node, len(self._nodes)))

    def param(self, name: str, dtype: str) -> int:
        """The index of a parameter."""
        return _place(self._params, f"param {_word(name)} {dtype}")

    def tensor(self, name: str, dtype: str, rank: int) -> int:
        """The index of a tensor."""
        return _place(self._tensors, f"tensor {_word(name)} {dtype} {rank}")

    def text(self, value: _Symbol) -> str:
        """The expression of this value: the nodes that it needs, with itself as the last."""
        nodes, needed = list(self._nodes), {value.id}
        for at in range(value.id, -1, -1):
            needed |= set(nodes[at][1]) if at in needed else set()
        places = {at: str(place) for place, at in enumerate(sorted(needed))}
        lines = (" ".join((place, nodes[at][0], *(places[x] for x in nodes[at][1]))) for at, place in places.items())
        return "\n".join(("expression 1", *self._params, *self._tensors, *lines)) + "\n"


def _place(known: list[str], line: str) -> int:
    if line not in known:
        known.append(line)
    return known.index(line)


def _word(name: str) -> str:
    if len(name.split()) != 1:
        raise ValueError(f'"{name}" is no name: a name is made of letters, digits and underscores')
    return name


def _refuse_foreign() -> NoReturn:
    raise ValueError("a value is used in the tracing of an expression that it is not of")


class _Symbol:
    """A value of an expression."""

    # Scalars of numpy leave operators to the other operand.
    __array_ufunc__ = None
    # Values are compared as expressions.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, at: int) -> None:
        self.trace, self.id = trace, at

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a value of an expression is neither true nor false while its function is traced; write a & b for `a and b`, a | b for `a or b`, ~a for "
            "`not a`, condition.select(a, b) for `a if condition else b`, (a <= x) & (x < b) for `a <= x < b`, a.min(b) and a.max(b) for min and max"
        )


def kind_of(given: Any) -> type[_Symbol] | None:
    """Whether an operand is a number, an integer or a boolean: a symbol, or a constant of Python or numpy, but not a tensor."""
    if isinstance(given, _Symbol):
        return type(given)
    if isinstance(given, bool):
        return Cond
    return Int if isinstance(given, Integral) else Num if isinstance(given, Real) else None


def _common(*operands: Any) -> type[_Symbol] | None:
    """The common kind of operands; None if there is none."""
    kinds = {kind_of(x) for x in operands}
    if len(kinds) == 1:
        return kinds.pop()
    return Num if kinds == {Num, Int} else None


def within(trace: Trace, given: Any, kind: type[_Symbol]) -> _Symbol:
    """An operand as a value of a trace, converted to this kind."""
    if isinstance(given, _Symbol):
        if given.trace is not trace:
            _refuse_foreign()
        return given.to_f32() if kind is Num and isinstance(given, Int) else given
    if kind is Cond:
        return trace.add(Cond, f"bool {str(given).lower()}")
    if isinstance(given, Integral) and not -(2**31) <= given < 2**31:
        raise ValueError(f"the constant {given} was given; allowed: whole numbers of 32 bits")
    if kind is Int:
        return trace.add(Int, f"i32 {int(given)}")
    try:
        return trace.add(Num, f"f32 {struct.pack('>f', given).hex()}")
    except OverflowError:
        raise ValueError(f"the constant {given} was given; allowed: numbers that float32 has") from None


def _node(name: str, kind: type[_Symbol], *operands: Any, of: type[_Symbol] | None = None) -> Any:
    """The result of a function of operands of one kind, at least one of which is a symbol."""
    trace = next(x.trace for x in operands if isinstance(x, _Symbol))
    return trace.add(of or kind, name, *(within(trace, x, kind) for x in operands))


def _operator(name: str, kinds: Callable[[], tuple[type[_Symbol], ...]], turned: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        a, b = (other, self) if turned else (self, other)
        kind = _common(a, b)
        return _node(name, kind, a, b) if kind in kinds() else NotImplemented

    return operate


def _comparison(name: str, turned: bool = False) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        kind = _common(self, other)
        operands = (other, self) if turned else (self, other)
        return _node(name, kind, *operands, of=Cond) if kind in (Num, Int) else NotImplemented

    return compare


def _wrong(name: str, given: Any, allowed: str) -> TypeError:
    return TypeError(f"{name} was given {type(given).__name__}; allowed: {allowed}")


class _Number(_Symbol):
    """The common part of numbers and integers."""

    __add__, __radd__ = _operator("add", lambda: (Num, Int)), _operator("add", lambda: (Num, Int), True)
    __sub__, __rsub__ = _operator("sub", lambda: (Num, Int)), _operator("sub", lambda: (Num, Int), True)
    __mul__, __rmul__ = _operator("mul", lambda: (Num, Int)), _operator("mul", lambda: (Num, Int), True)
    __lt__, __le__ = _comparison("lt"), _comparison("le")
    __gt__, __ge__ = _comparison("lt", True), _comparison("le", True)
    __eq__, __ne__ = _comparison("eq"), _comparison("ne")  # type: ignore[assignment]

    def __truediv__(self, other: Any) -> Num:
        return _node("div", Num, self, other) if _common(self, other) in (Num, Int) else NotImplemented

    def __rtruediv__(self, other: Any) -> Num:
        return _node("div", Num, other, self) if _common(self, other) in (Num, Int) else NotImplemented

    def __pow__(self, exponent: Any, modulo: None = None) -> Any:
        kind = kind_of(exponent)
        if isinstance(self, Num) and kind is Num and not isinstance(exponent, _Symbol) and exponent == 0.5:
            return self.sqrt()
        if kind is not Int or isinstance(exponent, _Symbol) or not 1 <= exponent <= _MAX_POWER:
            raise TypeError(
                f"** was given the exponent {exponent}; allowed: constants, whole numbers from 1 to {_MAX_POWER}, and of numbers 0.5. For others "
                "write (y * x.ln()).exp()"
            )
        # Squared for every binary digit, and multiplied by the base where that is 1.
        power = self
        for digit in f"{int(exponent):b}"[1:]:
            power = power * power * self if digit == "1" else power * power
        return power

    def __rpow__(self, base: Any, modulo: None = None) -> Num:
        if kind_of(base) not in (Num, Int) or isinstance(base, _Symbol) or not base > 0:
            raise _wrong("**", base, "a base that is a constant greater than 0")
        exponent = within(self.trace, self, Num)
        return (exponent if base == 2 else exponent * math.log2(base)).exp2()

    def __neg__(self) -> Any:
        return _node("neg", type(self), self)

    def __abs__(self) -> Any:
        return _node("abs", type(self), self)

    def min(self, other: Any) -> Any:
        """The smaller one; of a number and NaN, the number."""
        return self._extreme("min", other)

    def max(self, other: Any) -> Any:
        """The greater one; of a number and NaN, the number."""
        return self._extreme("max", other)

    def _extreme(self, name: str, other: Any) -> Any:
        kind = _common(self, other)
        if kind not in (Num, Int):
            raise _wrong(name, other, "a number")
        return _node(name, kind, self, other)


def _function(name: str, what: str) -> Callable[[Num], Num]:
    def function(self: Num) -> Num:
        return _node(name, Num, self)

    function.__doc__ = what + (", within a few units of the last place." if name.endswith("_full") else ", of one instruction's exactness.")
    return function


class Num(_Number):
    """A number for each pair of a query and a key, in float32."""

    exp2, exp2_full = (_function(f"exp2{full}", "2ˣ") for full in ("", "_full"))
    ln, ln_full = (_function(f"ln{full}", "The natural logarithm") for full in ("", "_full"))
    tanh, tanh_full = (_function(f"tanh{full}", "The hyperbolic tangent") for full in ("", "_full"))
    sigmoid, sigmoid_full = (_function(f"sigmoid{full}", "1 / (1 + e⁻ˣ)") for full in ("", "_full"))
    sqrt, sqrt_full = (_function(f"sqrt{full}", "The square root") for full in ("", "_full"))

    def exp(self) -> Num:
        """eˣ, of one instruction's exactness."""
        return (self * math.log2(math.e)).exp2()

    def exp_full(self) -> Num:
        """eˣ, within a few units of the last place; the error grows with x."""
        return (self * math.log2(math.e)).exp2_full()

    def soft_cap(self, cap: Any) -> Num:
        """`cap * tanh(self / cap)`, which lies between -cap and cap."""
        if kind_of(cap) not in (Num, Int):
            raise _wrong("soft_cap", cap, "a number")
        return cap * (self / cap).tanh()

    def to_i32(self) -> Int:
        """The integer towards zero; saturates, and is 0 for NaN."""
        return _node("to_i32", Num, self, of=Int)


class Int(_Number):
    """An integer for each pair of a query and a key, of 32 bits; arithmetic wraps around."""

    __floordiv__, __rfloordiv__ = _operator("div", lambda: (Int,)), _operator("div", lambda: (Int,), True)
    __mod__, __rmod__ = _operator("rem", lambda: (Int,)), _operator("rem", lambda: (Int,), True)
    __lshift__, __rlshift__ = _operator("shl", lambda: (Int,)), _operator("shl", lambda: (Int,), True)
    __rshift__, __rrshift__ = _operator("shr", lambda: (Int,)), _operator("shr", lambda: (Int,), True)
    __and__ = __rand__ = _operator("and", lambda: (Int,))
    __or__ = __ror__ = _operator("or", lambda: (Int,))
    __xor__ = __rxor__ = _operator("xor", lambda: (Int,))

    def __invert__(self) -> Int:
        return _node("not", Int, self)

    def to_f32(self) -> Num:
        """The number, rounded to the nearest."""
        return _node("to_f32", Int, self, of=Num)


class Cond(_Symbol):
    """A boolean for each pair of a query and a key."""

    __and__ = __rand__ = _operator("and", lambda: (Cond,))
    __or__ = __ror__ = _operator("or", lambda: (Cond,))
    __xor__ = __rxor__ = _operator("xor", lambda: (Cond,))

    def __invert__(self) -> Cond:
        return _node("not", Cond, self)

    def select(self, a: Any, b: Any) -> Any:
        """`a if self else b`. Both are computed."""
        kind = _common(a, b)
        if kind is None:
            raise _wrong("select", b, "two numbers, or two truth values")
        return self.trace.add(kind, "select", self, *(within(self.trace, x, kind) for x in (a, b)))


class Tensor:
    """A tensor of a call, to be indexed."""

    __iter__ = None

    def __init__(self, trace: Trace, name: str, dtype: str) -> None:
        self._trace, self._name, self._dtype = trace, name, dtype

    def __getitem__(self, index: Any) -> Any:
        """An element. An index outside the tensor is clamped to the nearest one inside."""
        indices = index if isinstance(index, tuple) else (index,)
        for given in indices:
            if kind_of(given) is not Int:
                text = f"{self._name} is indexed by {type(given)}; allowed: whole numbers, as many as it has dimensions"
                raise TypeError(text)
        slot = self._trace.tensor(self._name, self._dtype, len(indices))
        of = Int if self._dtype == "i32" else Num
        return self._trace.add(of, f"read {slot}", *(within(self._trace, given, Int) for given in indices[:_MAX_RANK]))


class At:
    """The position of a score, and the parameters and tensors of a call. `q` and `k` count from the sequence's first query and key."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        indices = ("batch", "head", "kv_head", "q", "k", "seqlen_q", "seqlen_k")
        self.batch, self.head, self.kv_head, self.q, self.k, self.seqlen_q, self.seqlen_k = (
            trace.add(Int, f"index {name}") for name in indices
        )

    def place(self) -> Int:
        """The key at the query's own place: `q + seqlen_k - seqlen_q`, as masks are aligned to the bottom right."""
        return self.q + self.seqlen_k - self.seqlen_q

    def distance(self) -> Int:
        """The distance from the key to the query's own place: 0 there, positive before it, negative after it."""
        return self.place() - self.k

    def same(self, name: str) -> Cond:
        """Whether query and key have the same number in a tensor of int32 `[batch, seqlen_k]` that each call gives: of a document, an image."""
        number = self.tensor_i32(name)
        return number[self.batch, self.place()] == number[self.batch, self.k]  # type: ignore[no-any-return]

    def f32(self, name: str) -> Num:
        """A number that each call gives."""
        return self._trace.add(Num, f"param {self._trace.param(name, 'f32')}")

    def i32(self, name: str) -> Int:
        """An integer that each call gives."""
        return self._trace.add(Int, f"param {self._trace.param(name, 'i32')}")

    def tensor_f32(self, name: str) -> Tensor:
        """A tensor of float32 that each call gives."""
        return Tensor(self._trace, name, "f32")

    def tensor_f16(self, name: str) -> Tensor:
        """A tensor of float16 that each call gives."""
        return Tensor(self._trace, name, "f16")

    def tensor_bf16(self, name: str) -> Tensor:
        """A tensor of bfloat16 that each call gives."""
        return Tensor(self._trace, name, "bf16")

    def tensor_i32(self, name: str) -> Tensor:
        """A tensor of int32 that each call gives."""
        return Tensor(self._trace, name, "i32")
