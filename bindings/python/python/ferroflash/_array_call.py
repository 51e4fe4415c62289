"""One call on arrays that support DLPack: keeps their memory alive, checks them, and runs the pass."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from types import NoneType
from typing import Any

from . import _native
from ._inputs import TABLE, given_of, sizes_of, unwanted
from ._native import Array
from .expression import Given, Mask, Score, given_by

Window = tuple[int | None, int | None]

# DLPack's numbers of devices: the host, a CUDA device, memory of the host that CUDA has pinned.
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3

_FLOATS = ("float32", "float16", "bfloat16")
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}


class Call:
    """Arguments of one call, checked and kept alive."""

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        softmax_scale: float | None,
        causal: bool,
        window: Window,
        seqused_q: Any,
        seqused_k: Any,
        score: Score | None,
        mask: Mask | None,
        score_inputs: Mapping[str, Any] | None,
        dropout_p: float,
        rng_state: tuple[int, int] | None,
        precision: str | None,
        **inputs: Any,
    ) -> None:
        optional = given_of(inputs)
        left, right = _sides(window)
        batch, head_dim = self._begin(q, softmax_scale)
        self.tensors["k"] = self._tensor("k", k, (self.dtype,), (batch, None, None, head_dim))
        self.tensors["v"] = self._tensor("v", v, (self.dtype,), tuple(self.tensors["k"].shape))
        self._take({"seqused_q": seqused_q, "seqused_k": seqused_k, **optional})
        self.given = given_by(score, mask, score_inputs, self._form_of)
        self.rng_state = seed_and_offset(dropout_p, rng_state)
        self.problem = _native.Problem(
            self.dtype,
            self.q.shape,
            self.tensors["k"].shape,
            softmax_scale=softmax_scale,
            left=left,
            right=0 if causal else right,
            score=None if score is None else score._native,
            mask=None if mask is None else mask._native,
            inputs=list(self.inputs),
            dropout_p=dropout_p,
            precision="tensor" if precision is None else precision,
        )

    def _begin(self, q: Any, softmax_scale: float | None) -> tuple[int, int]:
        """Sets the call's device and its queries, with their batch and head_dim."""
        if not isinstance(softmax_scale, (Real, NoneType)):
            raise TypeError(f"softmax_scale is {softmax_scale!r}; allowed: a number, or None")
        self.device = _device("q", q)
        self.ordinal = self.device[1] if self.device[0] == _CUDA else None
        self.stream = None if self.ordinal is None else _native.Stream(self.ordinal)
        self.q = self._tensor("q", q, _FLOATS, (None, None, None, None))
        self.dtype = self.q.dtype
        batch, seqlen_q, heads_q, head_dim = self.q.shape
        self.lse_shape = (batch, heads_q, seqlen_q)
        # q, k and v, and optional inputs, by name.
        self.tensors = {"q": self.q}
        self.inputs: dict[str, _native.Import] = {}
        self.given: Given | None = None
        # What expressions read, by name.
        self.read: dict[str, _native.Import] = {}
        self.rng_state: tuple[int, int] | None = None
        return batch, head_dim

    def _take(self, inputs: Mapping[str, Any]) -> None:
        """Keeps the given optional inputs alive, checked by the table."""
        sizes = sizes_of(self.q.shape[0], self.q.shape[2])
        for name, given in inputs.items():
            if given is not None:
                self.inputs[name] = self._contiguous(name, given, TABLE[name].dtypes[0], TABLE[name].shape_of(sizes))

    def forward(self, head_dim_v: int | None = None) -> tuple[Array, Array]:
        """o, with this many columns, or as many as q, and lse."""
        forward = _native.Call(self.problem, "forward", self.ordinal, self._strides(), list(self.inputs))
        *rows, head_dim = self.q.shape
        o = self._new(self.dtype, [*rows, head_dim if head_dim_v is None else head_dim_v])
        lse = self._new("float32", self.lse_shape)
        self._run(forward, self.tensors | {"o": o, "lse": lse})
        return o, lse

    def backward(
        self, d_o: Any, o: Any, lse: Any, d_lse: Any, wanted: Sequence[str], d_score_inputs: Sequence[str]
    ) -> tuple[list[Array], dict[str, Array]]:
        """Gradients of q, k and v, then of these optional inputs; and those of tensors that the score reads."""
        shape = tuple(self.q.shape)
        d_o = self._tensor("d_o", d_o, (self.dtype,), shape)
        o = self._contiguous("o", o, self.dtype, shape)
        lse = self._contiguous("lse", lse, "float32", self.lse_shape)
        if d_lse is not None:
            d_lse = self._contiguous("d_lse", d_lse, "float32", self.lse_shape)
        for name in wanted:
            if name not in self.inputs:
                raise ValueError(f"d_{name} was given; allowed with {name}")
        of_read = self._gradients_of_read(d_score_inputs)
        giving = [f"d_score_tensors[{at}]" for at, name in enumerate(self.read) if name in of_read]
        strides = self._strides() | {"d_o": strides_of(d_o)}
        without = unwanted(list(self.inputs), wanted)
        backward = _native.Call(self.problem, "backward", self.ordinal, strides, [*self.inputs, *giving], without)
        differentiated = self.tensors | {name: self.inputs[name] for name in wanted}
        written = {f"d_{name}": self._new(like.dtype, like.shape) for name, like in differentiated.items()}
        given = self.tensors | {"o": o, "lse": lse, "d_o": d_o, "d_lse": d_lse}
        self._run(backward, given | written, [of_read.get(name) for name in self.read])
        return list(written.values()), of_read

    def _gradients_of_read(self, names: Sequence[str]) -> dict[str, Array]:
        """Memory for the gradients of these tensors."""
        if isinstance(names, str):
            raise TypeError(f"d_score_inputs is {names!r}; allowed: a sequence of names")
        for name in names:
            if name not in self.read:
                allowed = ", ".join(self.read) or "none"
                raise ValueError(f"d_score_inputs: {name} was given; allowed: tensors that the score names, {allowed}")
        return {name: self._new(self.read[name].dtype, self.problem.score_gradient_shape(name)) for name in names}

    def _import(self, argument: str, array: Any) -> _native.Import:
        """The array's memory, kept alive; readable in the order of the call's stream."""
        device = _device(argument, array)
        if device != self.device:
            raise TypeError(f"{argument} lies on {_name(device)}; needed: {_name(self.device)}, as q")
        try:
            given = _native.Import(array, None if self.stream is None else self.stream.handle)
        except Exception as error:
            # Libraries have exceptions of their own for what they do not export: read-only arrays, types, tracers.
            raise TypeError(f"{argument} cannot be exported by {type(array).__name__}.__dlpack__: {error}") from error
        if _place(argument, given.device) != device:
            kind, ordinal = given.device
            raise TypeError(f"{argument} lies on {_name(device)} by its __dlpack_device__, on ({kind}, {ordinal}) by its __dlpack__")
        return given

    def _tensor(
        self, argument: str, array: Any, dtypes: tuple[str, ...], shape: tuple[int | None, ...], names: Any = None
    ) -> _native.Import:
        """Checks an array: one of these types and this shape, with dimensions of these names and contiguous rows."""
        given = self._import(argument, array)
        if given.dtype not in dtypes:
            needed = f"needed: {dtypes[0]}, as q" if len(dtypes) == 1 else f"allowed: {', '.join(dtypes)}"
            raise TypeError(f"{argument} is {given.dtype}; {needed}")
        if len(given.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, given.shape)):
            names = names or ("batch", f"seqlen_{argument[-1]}", f"heads_{argument[-1]}", "head_dim")
            needed = ", ".join(name if n is None else str(n) for n, name in zip(shape, names))
            raise ValueError(f"{argument} has the shape {given.shape}; needed: [{needed}]")
        backwards = any(n > 1 and stride < 0 for n, stride in zip(given.shape, given.strides))
        if 0 not in given.shape and (backwards or (given.shape[-1] > 1 and given.strides[-1] != 1)):
            raise ValueError(
                f"{argument} has the strides {given.strides}; allowed: 1 in the last dimension, 0 or more in the others. Pass a "
                "contiguous copy"
            )
        return _aligned(argument, given)

    def _contiguous(self, argument: str, array: Any, dtype: str, shape: tuple[int, ...]) -> _native.Import:
        """Checks an array: this type and this shape, contiguous."""
        given = self._import(argument, array)
        if given.dtype != dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {dtype}")
        if tuple(given.shape) != tuple(shape):
            raise ValueError(f"{argument} has the shape {given.shape}; needed: {list(shape)}")
        inner = 1
        for n, stride in zip(reversed(given.shape), reversed(given.strides)):
            if n > 1 and stride != inner and 0 not in shape:
                raise ValueError(f"{argument} has the strides {given.strides}; needed: those of a contiguous array")
            inner *= n
        return _aligned(argument, given)

    def _form_of(self, name: str, array: Any) -> tuple[str, int]:
        """The type and the number of dimensions of a tensor that an expression reads; it is kept alive."""
        held = self._import(f"score_inputs: {name}", array)
        self.read[name] = held
        return held.dtype, len(held.shape)

    def _strides(self) -> dict[str, list[int]]:
        return {name: strides_of(x) for name, x in self.tensors.items()}

    def _new(self, dtype: str, shape: tuple[int, ...] | list[int]) -> Array:
        return Array(dtype, list(shape), self.ordinal)

    def _run(
        self,
        call: _native.Call,
        arrays: Mapping[str, _native.Import | Array | None],
        d_read: Sequence[Array | None] = (),
    ) -> None:
        """Returns when the results are ready. `d_read`: gradients of tensors that the score reads."""
        at = {name: array.address for name, array in (arrays | self.inputs).items() if array is not None}
        read = [(x.address, x.shape, x.strides) for x in self.read.values()]
        params = () if self.given is None else self.given.params
        arguments = at, params, read, [0 if x is None else x.address for x in d_read], self.rng_state
        if self.stream is None:
            call.run(0, (0, 0), *arguments)
            return
        n_bytes = call.workspace_bytes
        workspace = self._new("uint8", [n_bytes])
        try:
            call.run(self.stream.handle, (workspace.address, n_bytes), *arguments)
        finally:
            # What the device may still read or write is held until here.
            self.stream.synchronize()


def _device(argument: str, array: Any) -> tuple[int, int]:
    """The device of an array."""
    # Tracers of JAX raise from the attribute itself.
    try:
        method = array.__dlpack_device__
    except Exception as error:
        raise TypeError(f"{argument} is {type(array).__name__}; allowed: an array with __dlpack__") from error
    kind, ordinal = method()
    return _place(argument, (int(kind), int(ordinal)))


def _place(argument: str, device: tuple[int, int]) -> tuple[int, int]:
    """A device in DLPack's numbers. All memory of the host is one place."""
    if device[0] in (_CPU, _CUDA_HOST):
        return (_CPU, 0)
    if device[0] != _CUDA:
        raise TypeError(f"{argument} lies on a device of DLPack's kind {device[0]}; allowed: the host (1, 3), CUDA (2)")
    return device


def _name(device: tuple[int, int]) -> str:
    return "the host" if device[0] == _CPU else f"cuda:{device[1]}"


def seed_and_offset(dropout_p: float, rng_state: tuple[int, int] | None) -> tuple[int, int] | None:
    """Two 64-bit integers, needed with dropout."""
    if not isinstance(dropout_p, Real):
        raise TypeError(f"dropout_p is {dropout_p!r}; allowed: a number")
    if dropout_p == 0:
        return None
    if rng_state is None:
        raise ValueError("rng_state is missing; needed: (seed, offset), where dropout_p is greater than 0")
    try:
        seed, offset = (operator.index(x) for x in rng_state)
    except (TypeError, ValueError):
        raise TypeError(f"rng_state is {rng_state!r}; allowed: two whole numbers (seed, offset)") from None
    if not (0 <= seed < 2**64 and 0 <= offset < 2**64):
        raise ValueError(f"rng_state is {(seed, offset)}; allowed: whole numbers from 0 to 2**64 - 1")
    return seed, offset


def _sides(window: Window) -> Window:
    """The two sides of a window, checked."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}; allowed: a pair of int or None")
    sides: list[int | None] = []
    for index, given in enumerate(window):
        if given is None:
            sides.append(None)
            continue
        try:
            n_keys = operator.index(given)
        except TypeError:
            raise TypeError(f"window[{index}] is {given!r}; allowed: an int, or None") from None
        if n_keys < 0:
            raise ValueError(f"window[{index}] is {n_keys}; allowed: 0 or more, or None")
        # No sequence is longer.
        sides.append(min(n_keys, sys.maxsize))
    return sides[0], sides[1]


def strides_of(array: _native.Import) -> list[int]:
    """The strides without the last one. The stride of a dimension with fewer than two entries is ignored, and may be negative."""
    if 0 in array.shape:
        return [0, 0, 0]
    return [stride if n > 1 else 0 for n, stride in zip(array.shape[:-1], array.strides)]


def _aligned(argument: str, array: _native.Import) -> _native.Import:
    n_bytes = _ITEM_BYTES[array.dtype]
    if array.address % n_bytes != 0:
        raise ValueError(f"{argument} lies at {array.address:#x}; needed: a multiple of {n_bytes} bytes")
    return array


def like(array: Any, result: Array) -> Any:
    """The result as an array of the library of another array."""
    if isinstance(array, Array):
        return result
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        # Its from_dlpack makes read-only arrays before version 2.1.
        return numpy.asarray(result)
    if hasattr(array, "__array_namespace__"):
        library = array.__array_namespace__()
    else:
        library = sys.modules.get(type(array).__module__.partition(".")[0])
    take = getattr(library, "from_dlpack", None)
    return result if take is None else take(result)
