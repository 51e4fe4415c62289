"""What a call on PyTorch's tensors must keep to: types, devices, shapes. Sizes are the library's to check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# The types of q, k and v, and what the library calls them.
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")

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


def check(q: Form, k: Form, v: Form) -> None:
    """Whether q, k and v fit each other."""
    if q.dtype not in DTYPES:
        raise TypeError(f"q is {q.dtype}; allowed: torch.bfloat16, torch.float16, torch.float32")
    for argument, given in (("k", k), ("v", v)):
        if given.dtype != q.dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {q.dtype}, as q")
        if given.device != q.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {q.device}, as q")
    for argument, given in (("q", q), ("k", k)):
        if len(given.shape) not in (3, 4):
            raise ValueError(f"{argument} has the shape {list(given.shape)}; allowed: {_SHAPES}")
    if v.shape != k.shape:
        raise ValueError(f"v has the shape {list(v.shape)}; needed: {list(k.shape)}, as k")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k has head_dim {k.shape[-1]}; needed: {q.shape[-1]}, as q")
    if len(q.shape) == len(k.shape) == 4 and k.shape[0] != q.shape[0]:
        raise ValueError(f"k has batch {k.shape[0]}; needed: {q.shape[0]}, as q")


def check_window(left: int | None, right: int | None) -> None:
    """Whether the sides of a window are distances."""
    for side, given in (("left", left), ("right", right)):
        if given is not None and given < 0:
            raise ValueError(f"window has {given} keys to the {side}; allowed: 0 or more, or None")


def batch_of(q: Form, k: Form, lengths: tuple[Form | None, ...], max_seqlen_q: int | None, max_seqlen_k: int | None) -> int:
    """How many sequences there are: of a tensor that is not packed its first dimension."""
    batch = None
    sides = (("q", q, lengths[0], max_seqlen_q), ("k", k, lengths[1], max_seqlen_k))
    for side, given, cu_seqlens, longest in sides:
        packed = len(given.shape) == 3
        if packed != (cu_seqlens is not None):
            allowed = "with packed tensors, [total, heads, head_dim], and needed with them"
            raise ValueError(f"{side} has the shape {list(given.shape)}; cu_seqlens_{side} is allowed {allowed}")
        if packed and longest is None:
            raise ValueError(f"max_seqlen_{side} is missing; it is needed where {side} is packed")
        if not packed:
            batch = given.shape[0]
    if batch is None:
        (n_elems,) = lengths[0].shape if len(lengths[0].shape) == 1 else (0,)
        batch = max(n_elems - 1, 0)
    return batch


def check_lengths(lengths: tuple[Form | None, ...], batch: int, q: Form) -> None:
    """Whether the vectors of lengths are int32, contiguous, beside q, and as many as there are sequences."""
    for argument, given in zip(_LENGTHS, lengths, strict=True):
        if given is None:
            continue
        if given.dtype != torch.int32:
            raise TypeError(f"{argument} is {given.dtype}; needed: torch.int32")
        if given.device != q.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {q.device}, as q")
        needed = batch + 1 if argument.startswith("cu_") else batch
        if tuple(given.shape) != (needed,):
            raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: [{needed}]")
        if given.strides != (1,) and needed > 1:
            raise ValueError(f"{argument} has the stride {given.strides[0]}; needed: 1")
