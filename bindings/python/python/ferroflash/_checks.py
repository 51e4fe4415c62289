"""What a call on PyTorch's tensors must keep to: types, devices, shapes. Sizes are the library's to check."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._refuse import refuse

# The types of q, k and v, and what the library calls them.
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}

# The type of keys and values in 8 bits.
FP8 = torch.float8_e4m3fn

# What says where sequences lie. The last is a table of pages.
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "page_table")

N_LENGTHS = len(_LENGTHS)

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


def default_scale(shape_q: Sequence[int]) -> float:
    """1/√head_dim; of a head_dim that is refused later, 1."""
    return max(shape_q[-1], 1) ** -0.5 if len(shape_q) > 0 else 1.0


# What a number may be as it is: the others are read anew at every call, since plans are kept by their numbers. Those of a compiler are symbols.
_WHOLE = (int, torch.SymInt)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def whole(argument: str, given: object) -> int | None:
    """A whole number, or None. A tensor of one element is read, and waited for."""
    if given is None or isinstance(given, _WHOLE):
        return given
    try:
        return operator.index(given)
    except (TypeError, RuntimeError):
        raise TypeError(f"{argument} is {_shown(given)}; allowed: an int, or a tensor of one") from None


def number(argument: str, given: object) -> float | None:
    """A number, or None. A tensor of one element is read, and waited for; it has no gradient."""
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
    """Refuses tensors that forward-mode differentiation has given a direction: without a word the results would have none."""
    if not in_forward_mode():
        return
    for tensor in given:
        if isinstance(tensor, (list, tuple)):
            refuse_tangents(*tensor)
        elif isinstance(tensor, Tensor) and tensor.is_floating_point() and forward_ad.unpack_dual(tensor).tangent is not None:
            refuse_forward_mode()


def refuse_forward_mode() -> NoReturn:
    """Says what there is in its place."""
    raise NotImplementedError(
        "forward-mode differentiation was asked for (torch.func.jvp, jacfwd, torch.autograd.forward_ad); ferroflash has gradients by "
        "reverse mode alone: torch.func.grad, vjp, jacrev, Tensor.backward"
    )


def in_forward_mode() -> bool:
    """Whether tensors may have a direction."""
    return forward_ad._current_level >= 0


def check(q: Form, k: Form, v: Form, page_table: object = None, names: tuple[str, str] = ("k", "v"), in_8_bits: bool = False) -> None:
    """Whether q, k and v, called by these names, fit each other. With a table of pages k and v are a pool, `[n_pages, page_size, heads,
    head_dim]`. With `in_8_bits` k and v are e4m3."""
    name_k, name_v = names
    if q.dtype not in DTYPES:
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
    if page_table is not None:
        if len(k.shape) != 4:
            raise ValueError(f"{name_k} has the shape {list(k.shape)}; allowed with page_table: [n_pages, page_size, heads, head_dim]")
    elif len(q.shape) == len(k.shape) == 4 and k.shape[0] != q.shape[0]:
        raise ValueError(f"{name_k} has batch {k.shape[0]}; needed: {q.shape[0]}, as q")


def check_rows(argument: str, given: Form) -> None:
    """Whether the rows of a cache are contiguous."""
    if given.strides[-1] != 1 and given.shape[-1] > 1 and 0 not in given.shape:
        raise ValueError(f"{argument} has the strides {list(given.strides)}; needed: 1 in the last dimension, as it is never copied")


def check_window(left: int | None, right: int | None) -> None:
    """Whether the sides of a window are distances."""
    for side, given in (("left", left), ("right", right)):
        if given is not None and given < 0:
            raise ValueError(f"window has {given} keys to the {side}; allowed: 0 or more, or None")


def batch_of(q: Form, k: Form, lengths: tuple[Form | None, ...], max_seqlen_q: int | None, max_seqlen_k: int | None) -> int:
    """How many sequences there are: of a tensor that is not packed its first dimension."""
    batch, page_table = None, lengths[5]
    sides = (("q", q, lengths[0], max_seqlen_q), ("k", k, lengths[1], max_seqlen_k))
    for side, given, cu_seqlens, longest in sides:
        packed = len(given.shape) == 3
        if packed != (cu_seqlens is not None):
            allowed = "with packed tensors, [total, heads, head_dim], and needed with them"
            raise ValueError(f"{side} has the shape {list(given.shape)}; cu_seqlens_{side} is allowed {allowed}")
        if packed and longest is None:
            raise ValueError(f"max_seqlen_{side} is missing; it is needed where {side} is packed")
        if not packed and not (side == "k" and page_table is not None):
            batch = given.shape[0]
    if batch is None:
        (n_elems,) = lengths[0].shape if len(lengths[0].shape) == 1 else (0,)
        batch = max(n_elems - 1, 0)
    return batch


def check_lengths(lengths: tuple[Form | None, ...], batch: int, q: Form) -> None:
    """Whether the vectors of lengths are int32, contiguous, beside q, and as many as there are sequences; and the table of pages."""
    for argument, given in zip(_LENGTHS, lengths, strict=True):
        if given is None:
            continue
        if argument == "page_table":
            check_table(argument, given, batch, q.device)
        else:
            check_integers(argument, given, batch + 1 if argument.startswith("cu_") else batch, q.device)


def check_integers(argument: str, given: Form, needed: int, device: torch.device) -> None:
    """Whether a vector is int32, contiguous, on this device, and of so many numbers."""
    if given.dtype != torch.int32:
        raise TypeError(f"{argument} is {given.dtype}; needed: torch.int32")
    _check_vector(argument, given, needed, device)


def check_table(argument: str, given: Form, batch: int, device: torch.device) -> None:
    """Whether a table of pages is int32, contiguous, on this device, and has a row for each sequence."""
    if given.dtype != torch.int32:
        raise TypeError(f"{argument} is {given.dtype}; needed: torch.int32")
    if given.device != device:
        raise TypeError(f"{argument} lies on {given.device}; needed: {device}, as q")
    if len(given.shape) != 2 or given.shape[0] != batch or given.shape[1] == 0:
        raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: [{batch}, columns], 1 column or more")
    columns = given.shape[1]
    if given.strides != (columns, 1) and not (batch == 1 and given.strides[1] == 1) and not (columns == 1 and given.strides[0] == 1):
        raise ValueError(f"{argument} has the strides {list(given.strides)}; needed: those of a contiguous tensor")


def check_saved(q: Form, o: Form, d_o: Form, lse: Form, d_lse: Form | None, shape_lse: tuple[int, ...]) -> None:
    """Whether what a backward pass is given beside q, k and v fits these. Tensors that were saved may come back otherwise than they were."""
    for argument, given, shape, dtype in (
        ("o", o, q.shape, q.dtype),
        ("d_o", d_o, q.shape, q.dtype),
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


def check_sinks(given: Form, q: Form) -> None:
    """Whether sinks are float32, contiguous, beside q, and as many as it has heads."""
    if given.dtype != torch.float32:
        raise TypeError(f"sinks is {given.dtype}; needed: torch.float32")
    _check_vector("sinks", given, q.shape[-2], q.device)


def check_state(given: Form, q: Form) -> None:
    """Whether seed and offset of dropout are two whole numbers of 64 bits, contiguous, beside q."""
    if given.dtype not in (torch.int64, torch.uint64):
        raise TypeError(f"rng_state is {given.dtype}; allowed: torch.int64, torch.uint64")
    _check_vector("rng_state", given, 2, q.device)


def _check_vector(argument: str, given: Form, needed: int, device: torch.device) -> None:
    if given.device != device:
        raise TypeError(f"{argument} lies on {given.device}; needed: {device}, as q")
    if tuple(given.shape) != (needed,):
        raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: [{needed}]")
    if given.strides != (1,) and needed > 1:
        raise ValueError(f"{argument} has the stride {given.strides[0]}; needed: 1")
