"""Custom scores and masks: functions of symbols, traced once, which kernels evaluate as they compute scores.

    >>> import ferroflash
    >>> alibi = ferroflash.Score(lambda s, at: s - at.tensor_f32("slopes")[at.head] * abs(at.distance()))
    >>> document = ferroflash.Mask(lambda at: at.same("document"))

`ferroflash.attention(q, k, v, score=alibi, mask=document, score_inputs={"slopes": slopes, "document": document_of_token})` computes with them.

The function is called once, with symbols:

- `s` is the score, q · k times softmax_scale; the returned value replaces it before the softmax. A mask's function returns which keys a
  query sees, of those that `causal`, `window` and lengths show.
- `at.batch`, `at.head`, `at.kv_head`, `at.q`, `at.k`, `at.seqlen_q`, `at.seqlen_k`: the position of the score; integers. `at.q` and `at.k` count
  from the first query and key of the sequence, which has `at.seqlen_q` queries and `at.seqlen_k` keys. `at.place()` is the key at the query's own
  place, `at.q + at.seqlen_k - at.seqlen_q`; `at.distance()` is how far the key lies before it.
- `at.f32("cap")`, `at.i32("window")`: parameters, numbers that each call gives by name. New values do not compile new kernels.
- `at.tensor_f32("bias")[at.head, at.q, at.k]`, and `tensor_f16`, `tensor_bf16`, `tensor_i32`: elements of tensors that each call gives by name, of 1
  to 4 dimensions. An index outside the tensor is clamped to the nearest one inside. `at.same("document")`: whether query and key have the same
  number in a tensor of int32, `[batch, seqlen_k]`.

Numbers are float32, integers int32; an integer combined with a number becomes a number. Constants may stand on either side.

| | |
|---|---|
| numbers, integers | `+ - * /`, `-x`, `abs(x)`, `x.min(y)`, `x.max(y)`, `< <= > >= == !=`, `x ** n` for constants n from 1 to 16; `2 ** x` |
| numbers | `x.soft_cap(cap)`; `exp exp2 ln tanh sigmoid sqrt`, each as exact as one GPU instruction, and `exp_full()` and so on, within some units of the last place; `to_i32()` |
| integers | `// %`, bitwise `& \\| ^ ~ << >>`, `to_f32()` |
| booleans | `& \\| ^ ~`, `condition.select(a, b)` |

`//` and `%` are those of the kernels: `//` rounds towards zero, `%` has the sign of its left operand, division by 0 gives 0, and its
remainder is the dividend. (Python's round down.) Integers wrap around. `/` of integers gives a number. `and`, `or`, `not` and `if` cannot
be
traced: they raise a TypeError that says what to write.

Gradients of q, k and v are exact, by the derivative of the expression. So is that of a tensor of floats that the score reads at one place,
with the indices
`at.batch`, `at.head` or `at.kv_head`, `at.q` and `at.k`, each once, the last two always, or 0: a bias, `bias[at.batch, at.head, at.q, at.k]`, or one that batch
entries and heads share, `bias[0, 0, at.q, at.k]`. Other tensors and parameters have none. An expression that gives NaN or +inf gives NaN
results. Expressions live as long as the process, as do the kernels compiled for them: make each once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NamedTuple

from . import _native
from ._symbols import At, Cond, Int, Num, Trace, kind_of, within

__all__ = ["Mask", "Score"]

# Of how many tensors it is kept that they have a gradient.
_N_GRADIENTS = 256


class _Expression:
    """The common part of both. Attributes are plain, not slots, so that torch.compile sees them, from PyTorch 2.6 on."""

    def _trace(self, function: Callable[..., Any], of: type[Num] | type[Cond], allowed: str) -> None:
        """The function's result on symbols, called once."""
        if not callable(function):
            raise TypeError(f"function is {type(function).__name__}; allowed: a function of symbols")
        trace = Trace()
        at = At(trace)
        value = function(at) if of is Cond else function(trace.add(Num, "score"), at)
        if kind_of(value) not in ((Cond,) if of is Cond else (Num, Int)):
            raise TypeError(f"the function returned {type(value).__name__}; allowed: {allowed}")
        self._is(type(self)._NATIVE.parse(trace.text(within(trace, value, of))))

    def _is(self, native: Any) -> None:
        self._native, self._text, self._shown = native, native.text(), str(native)
        params, tensors = native.takes()
        self._params = dict(params)
        self._tensors = {name: (dtype, rank) for name, dtype, rank in tensors}

    @classmethod
    def parse(cls, text: str) -> Any:
        """The expression of this text."""
        self = cls.__new__(cls)
        self._is(cls._NATIVE.parse(text))
        return self

    @property
    def text(self) -> str:
        """The whole expression as text, which `parse` reads. Equal expressions have equal texts."""
        return self._text

    @property
    def params(self) -> dict[str, str]:
        """The parameters that calls give, with their types: "float32" or "int32"."""
        return dict(self._params)

    @property
    def tensors(self) -> dict[str, tuple[str, int]]:
        """The tensors that calls give, with the types of their elements, and how many dimensions they have."""
        return dict(self._tensors)

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and other._text == self._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return type(self).parse, (self._text,)


class Score(_Expression):
    """A replacement for every score before the softmax: a function of the score and its position, whose value is a number.

    >>> str(Score(lambda s, at: s.soft_cap(at.f32("cap"))))
    'cap * tanh(score / cap)'
    """

    _NATIVE = _native.Score

    def __init__(self, function: Callable[[Num, At], Num | Int | float]) -> None:
        self._trace(function, Num, "a number")


class Mask(_Expression):
    """Which keys a query sees: a function of the position of a score, whose value is a boolean.

    >>> str(Mask(lambda at: (at.q - at.k) % at.i32("step") == 0))
    '(q - k) % step == 0'
    """

    _NATIVE = _native.Mask

    def __init__(self, function: Callable[[At], Cond | bool]) -> None:
        self._trace(function, Cond, "a truth value, as of a comparison")


class Given(NamedTuple):
    """The expressions of a call and their inputs, in the order of the native module."""

    score: Score | None
    mask: Mask | None
    params: tuple[float, ...]
    tensors: tuple[Any, ...]

    def texts(self) -> tuple[str | None, str | None]:
        """Both expressions, as text."""
        return None if self.score is None else self.score._text, None if self.mask is None else self.mask._text


def given_by(
    score: Score | None,
    mask: Mask | None,
    score_inputs: Mapping[str, Any] | None,
    form_of: Callable[[str, Any], tuple[str, int]],
) -> Given | None:
    """The expressions of a call with their inputs, or None without expressions. `form_of` returns the type and the dimensions of a tensor,
    or raises a TypeError that names it."""
    if score is None and mask is None and not score_inputs:
        return None
    for argument, expression, allowed in (("score", score, Score), ("mask", mask, Mask)):
        if expression is not None and type(expression) is not allowed:
            allowed = f"ferroflash.{allowed.__name__}, made once of a function, or None"
            raise TypeError(f"{argument} is {type(expression).__name__}; allowed: {allowed}")
    inputs = {} if score_inputs is None else score_inputs
    if not isinstance(inputs, Mapping):
        raise TypeError(f"score_inputs is {type(inputs).__name__}; allowed: a dict of parameters and tensors by name, or None")
    # The score's, then those that the mask has beside them: the order of the native module.
    names: dict[str, str | tuple[str, int]] = {}
    for expression in (score, mask):
        for name, needed in () if expression is None else (*expression._params.items(), *expression._tensors.items()):
            if names.setdefault(name, needed) != needed:
                raise ValueError(
                    f"{name} is {_described(names[name])} in the score, and in the mask {_described(needed)}; allowed: one of them"
                )
    for name, needed in names.items():
        if name not in inputs:
            raise ValueError(f"score_inputs: {name} is missing; needed: {_described(needed)}")
    for name in inputs:
        if name not in names:
            raise ValueError(f"score_inputs: {name} was given; allowed: what the score and the mask name, {', '.join(names) or 'none'}")
    for name, needed in names.items():
        if not isinstance(needed, str):
            form = form_of(name, inputs[name])
            if form != needed:
                error = TypeError if form[0] != needed[0] else ValueError
                raise error(f"score_inputs: {name} is {_described(form)}; needed: {_described(needed)}")
    params = tuple(_number(name, inputs[name], needed) for name, needed in names.items() if isinstance(needed, str))
    tensors = tuple(inputs[name] for name, needed in names.items() if not isinstance(needed, str))
    return Given(score, mask, params, tensors)


def tensors_of(score: Score | None, mask: Mask | None) -> list[str]:
    """The tensors that expressions take, in the order of the native module."""
    taken = (*(() if score is None else score._tensors), *(() if mask is None else mask._tensors))
    return list(dict.fromkeys(taken))


@lru_cache(maxsize=_N_GRADIENTS)
def check_gradient(score: Score | None, mask: Mask | None, name: str) -> None:
    """Whether a tensor that expressions take has a gradient: a NotImplementedError says why not."""
    expressions = {"score": None if score is None else score._native, "mask": None if mask is None else mask._native}
    # Whatever the shapes are.
    _native.Problem("float32", (1, 1, 1, 1), (1, 1, 1, 1), **expressions).score_gradient_shape(name)


def _described(needed: str | tuple[str, int]) -> str:
    """A parameter of a type, or a tensor of a type and this many dimensions."""
    if isinstance(needed, str):
        return f"a number of {needed}"
    dtype, rank = needed
    return f"a tensor of {dtype} with {rank} dimensions"


def _number(name: str, value: Any, needed: str) -> float:
    """A parameter's value."""
    if needed == "int32":
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"score_inputs: {name} is {type(value).__name__}; needed: an int")
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"score_inputs: {name} is {value}; allowed: whole numbers of 32 bits")
        return operator.index(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"score_inputs: {name} is {type(value).__name__}; needed: a number")
    return float(value)
