"""The rules of a call on PyTorch's tensors: types, devices, shapes. The library checks sizes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._inputs import TABLE, sizes_of
from ._refuse import refuse

# The types of q, k and v, and what the library calls them.
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}

# The type of keys and values in 8 bits.
FP8 = torch.float8_e4m3fn

_SCALES = ("q_descale", "k_descale", "v_descale")

# The types of the table's rows, by the names that these have.
_TYPES = {row.dtypes: [getattr(torch, name) for name in row.dtypes] for row in TABLE.values()}

_SHAPES = "[batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]"


class Form(NamedTuple):
    """A tensor without its memory."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> Form:
        """The form of a tensor."""
        return Form(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def is_contiguous(self) -> bool:
        """Whether the tensor is contiguous."""
        inner = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides)):
            if n > 1 and stride != inner:
                return False
            inner *= n
        return True


def default_scale(shape_q: Sequence[int]) -> float:
    """1/√head_dim; 1 for a head_dim that is refused later."""
    return max(shape_q[-1], 1) ** -0.5 if len(shape_q) > 0 else 1.0


# What a number may be as it is: the others are read anew at every call, since plans are kept by their numbers. Those of a compiler are symbols.
_WHOLE = (int, torch.SymInt)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def whole(argument: str, given: object) -> int | None:
    """An integer, or None. A tensor of one element is read, which waits for it."""
    if given is None or isinstance(given, _WHOLE):
        return given
    try:
        return operator.index(given)
    except (TypeError, RuntimeError):
        raise TypeError(f"{argument} is {_shown(given)}; allowed: an int, or a tensor of one") from None


def number(argument: str, given: object) -> float | None:
    """A number, or None. A tensor of one element is read, which waits for it; it has no gradient."""
    if given is None or isinstance(given, _NUMBERS):
        return given
    if isinstance(given, Tensor) and given.requires_grad and torch.is_grad_enabled():
        refuse(argument, given, "a number, or a tensor that asks for no gradient, as ferroflash has none of it")
    if hasattr(type(given), "__float__"):
        refuse_tangents(given)
        try:
            return float(given)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise TypeError(f"{argument} is {_shown(given)}; allowed: a number, or a tensor of one")


def _shown(given: object) -> str:
    return f"a tensor {list(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else repr(given)


def refuse_tangents(*given: object) -> None:
    """Refuses tensors with a forward-mode tangent: the results would silently have none."""
    if not in_forward_mode():
        return
    for tensor in given:
        if isinstance(tensor, (list, tuple)):
            refuse_tangents(*tensor)
        elif isinstance(tensor, Tensor) and tensor.is_floating_point() and forward_ad.unpack_dual(tensor).tangent is not None:
            refuse_forward_mode()


def refuse_forward_mode() -> NoReturn:
    """Names the alternative."""
    raise NotImplementedError(
        "forward-mode differentiation was asked for (torch.func.jvp, jacfwd, torch.autograd.forward_ad); ferroflash has gradients by "
        "reverse mode alone: torch.func.grad, vjp, jacrev, Tensor.backward"
    )


def in_forward_mode() -> bool:
    """Whether tensors may have a tangent."""
    return forward_ad._current_level >= 0


def check(
    q: Form,
    k: Form,
    v: Form,
    names: tuple[str, str] = ("k", "v"),
    *,
    in_pages: bool = False,
    in_8_bits: bool = False,
    q_in_8_bits: bool = False,
) -> None:
    """Checks that q, k and v, with these names in errors, fit each other. `in_pages`: k and v are a pool, `[n_pages, page_size, heads,
    head_dim]`. With `in_8_bits` k and v are e4m3, with `q_in_8_bits` q is."""
    name_k, name_v = names
    if q_in_8_bits and q.dtype != FP8:
        raise TypeError(f"q is {q.dtype}; needed: {FP8}, as it has a scale")
    if not q_in_8_bits and q.dtype not in DTYPES:
        raise TypeError(f"q is {q.dtype}; allowed: torch.bfloat16, torch.float16, torch.float32")
    for argument, given in ((name_k, k), (name_v, v)):
        if in_8_bits and given.dtype != FP8:
            raise TypeError(f"{argument} is {given.dtype}; needed: {FP8}, as the other of {name_k} and {name_v}")
        if not in_8_bits and given.dtype != q.dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {q.dtype}, as q")
        if given.device != q.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {q.device}, as q")
    for argument, given in (("q", q), (name_k, k)):
        if len(given.shape) not in (3, 4):
            raise ValueError(f"{argument} has the shape {list(given.shape)}; allowed: {_SHAPES}")
    if v.shape != k.shape:
        raise ValueError(f"{name_v} has the shape {list(v.shape)}; needed: {list(k.shape)}, as {name_k}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"{name_k} has head_dim {k.shape[-1]}; needed: {q.shape[-1]}, as q")
    if in_pages:
        if len(k.shape) != 4:
            raise ValueError(f"{name_k} has the shape {list(k.shape)}; allowed with page_table: [n_pages, page_size, heads, head_dim]")
    elif len(q.shape) == len(k.shape) == 4 and k.shape[0] != q.shape[0]:
        raise ValueError(f"{name_k} has batch {k.shape[0]}; needed: {q.shape[0]}, as q")


def check_rows(argument: str, given: Form) -> None:
    """Checks that the rows of a cache are contiguous."""
    if given.strides[-1] != 1 and given.shape[-1] > 1 and 0 not in given.shape:
        raise ValueError(f"{argument} has the strides {list(given.strides)}; needed: 1 in the last dimension, as it is never copied")


def check_window(left: int | None, right: int | None) -> None:
    """Checks that the sides of a window are distances."""
    for side, given in (("left", left), ("right", right)):
        if given is not None and given < 0:
            raise ValueError(f"window has {given} keys to the {side}; allowed: 0 or more, or None")


def batch_of(q: Form, k: Form, inputs: Mapping[str, Form], max_seqlen_q: int | None, max_seqlen_k: int | None) -> int:
    """The number of sequences: the first dimension of a tensor that is not packed."""
    batch = None
    for side, given, longest in (("q", q, max_seqlen_q), ("k", k, max_seqlen_k)):
        packed = len(given.shape) == 3
        if packed != (f"cu_seqlens_{side}" in inputs):
            allowed = "with packed tensors, [total, heads, head_dim], and needed with them"
            raise ValueError(f"{side} has the shape {list(given.shape)}; cu_seqlens_{side} is allowed {allowed}")
        if packed and longest is None:
            raise ValueError(f"max_seqlen_{side} is missing; it is needed where {side} is packed")
        if not packed and not (side == "k" and "page_table" in inputs):
            batch = given.shape[0]
    if batch is None:
        ends = inputs["cu_seqlens_q"].shape
        batch = max(ends[0] - 1, 0) if len(ends) == 1 else 0
    return batch


def check_inputs(inputs: Mapping[str, Form], batch: int, q: Form) -> None:
    """Checks the optional inputs against the table. Scales have more than one shape: `scales_of`."""
    sizes = sizes_of(batch, q.shape[-2])
    for argument, given in inputs.items():
        row = TABLE[argument]
        if argument not in _SCALES:
            check_input(argument, given, row.dtypes, row.shape_of(sizes), q.device)


def check_input(
    argument: str, given: Form, dtypes: tuple[str, ...], shape: tuple[int | str, ...], device: torch.device, other: str = "q"
) -> None:
    """Checks that a tensor has one of these types, this device, that of `other`, and this shape, and is contiguous; a word in the shape is any size of 1 or
    more."""
    if given.dtype not in (allowed := _TYPES[dtypes]):
        raise TypeError(f"{argument} is {given.dtype}; {'allowed' if len(allowed) > 1 else 'needed'}: {', '.join(map(str, allowed))}")
    if given.device != device:
        raise TypeError(f"{argument} lies on {given.device}; needed: {device}, as {other}")
    fits = len(given.shape) == len(shape)
    for n, m in zip(given.shape, shape):
        fits = fits and (n > 0 if isinstance(m, str) else n == m)
    if not fits:
        words = "".join(f", 1 {word.removesuffix('s')} or more" for word in shape if isinstance(word, str))
        raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: [{', '.join(map(str, shape))}]{words}")
    if not given.is_contiguous():
        if len(shape) == 1:
            raise ValueError(f"{argument} has the stride {given.strides[0]}; needed: 1")
        raise ValueError(f"{argument} has the strides {list(given.strides)}; needed: those of a contiguous tensor")


def check_integers(argument: str, given: Form, shape: tuple[int | str, ...], device: torch.device) -> None:
    """As `check_input`, for lengths."""
    check_input(argument, given, ("int32",), shape, device)


def scales_of(k: Form, inputs: Mapping[str, Form], batch: int) -> str | None:
    """The kind of scales of keys and values in 8 bits: "per_sequence" or "per_page"; with those of queries "per_head"; None without scales."""
    heads_k = k.shape[-2]
    in_8_bits = "q_descale" in inputs
    shapes = {"per_head" if in_8_bits else "per_sequence": (batch, heads_k)}
    if "page_table" in inputs and not in_8_bits:
        shapes["per_page"] = (k.shape[0], heads_k)
    found = None
    for argument in (name for name in _SCALES if name in inputs):
        given = inputs[argument]
        fitting = [name for name, shape in shapes.items() if tuple(given.shape) == shape]
        fitted = shapes[fitting[0]] if fitting else tuple(given.shape)
        check_input(argument, given, TABLE[argument].dtypes, fitted, k.device)
        if not fitting or found not in (None, fitting[0]):
            needed = " or ".join(str(list(shape)) for name, shape in shapes.items() if found in (None, name))
            raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: {needed}")
        found = fitting[0]
    return found


def check_saved(q: Form, o: Form, d_o: Form, lse: Form, d_lse: Form | None, shape_lse: tuple[int, ...], dtype_o: torch.dtype) -> None:
    """Checks that the other inputs of a backward pass fit q, k and v. Saved tensors may come back changed."""
    for argument, given, shape, dtype in (
        ("o", o, q.shape, dtype_o),
        ("d_o", d_o, q.shape, dtype_o),
        ("lse", lse, shape_lse, torch.float32),
        ("d_lse", d_lse, shape_lse, torch.float32),
    ):
        if given is None:
            continue
        if given.dtype != dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {dtype}")
        if given.device != q.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {q.device}, as q")
        if tuple(given.shape) != tuple(shape):
            raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: {list(shape)}")
