"""Attention in 8 bits with gradients: q, k and v of 16 bits are rounded to e4m3 on the way, each sequence and head of keys with a scale of its own.

    from ferroflash import fp8
    out = fp8.flash_attn_func(q, k, v, causal=True)

Both products of the forward pass are multiplied in 8 bits. What is saved for the backward pass are the rounded tensors: half the memory. That pass takes them
out of 8 bits and multiplies in bfloat16; its gradients are those of what the rounded tensors stand for, and go to q, k and v as they are (a straight-through
estimator, as in TransformerEngine).

Scales are amax / 448 of the tensors at hand ("current scaling"). With `hadamard` the columns of q and k are first multiplied by one orthogonal matrix, which
changes no score and spreads outliers over all columns: the incoherent processing of FlashAttention-3, section 3.3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _call
from ._call import Beside, Numbers
from ._checks import FP8, default_scale, number
from ._refuse import window

__all__ = ["flash_attn_func", "quantize"]

# The greatest number of e4m3.
_GREATEST = 448.0

# What is rounded.
_TYPES = (torch.bfloat16, torch.float16)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    *,
    hadamard: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention in 8 bits: o, like q; with `return_attn_probs` (o, lse). Gradients flow to q, k and v through both.

    Args:
        q: `[batch, seqlen_q, heads_q, head_dim]`; bfloat16 or float16. On a GPU head_dim is a multiple of 16 up to 256.
        k, v: `[batch, seqlen_k, heads_k, head_dim]`; heads_q is a multiple of heads_k.
        softmax_scale: factor of the scores; None is 1/√head_dim.
        causal: aligned to the bottom right.
        window_size: (left, right): how many keys a query sees before and after its position; −1 is no limit.
        hadamard: whether the columns of q and k are rotated first; head_dim is a power of 2 then.

    Returns:
        o, like q; lse, float32 `[batch, heads_q, seqlen_q]`.

    Raises:
        TypeError: q, k or v is no tensor, or of a type that is not allowed.
        ValueError: a shape or a size is not allowed.
        NotImplementedError: no kernel supports the call; the text lists every candidate with its reason.
    """
    _check(q, k, v)
    head_dim = q.shape[-1]
    if hadamard and head_dim.bit_count() != 1:
        raise ValueError(f"q has head_dim {head_dim}; needed with hadamard: a power of 2")
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    numbers = (None, None, scale, *window(window_size, causal), 0)
    o, lse = _Attention.apply(q, k, v, numbers, hadamard)
    return (o, lse) if return_attn_probs else o


def quantize(x: Tensor, heads_k: int | None = None) -> tuple[Tensor, Tensor]:
    """A tensor in e4m3, and its scales: an element stands for the number times its scale.

    Args:
        x: `[batch, seqlen, heads, head_dim]`, finite.
        heads_k: heads of keys, whose number divides that of the heads: heads that share one share its scale. None: each head has its own.

    Returns:
        `[batch, seqlen, heads, head_dim]` of `torch.float8_e4m3fn`; float32 `[batch, heads_k]`, amax / 448, or 1 where all numbers are 0.
    """
    batch, _, heads, _ = x.shape
    heads_k = heads if heads_k is None else heads_k
    if heads_k < 1 or heads % heads_k != 0:
        raise ValueError(f"x has {heads} heads; needed: a multiple of heads_k, {heads_k}")
    amax = x.abs().amax((1, 3)).float() if x.shape[1] > 0 else x.new_zeros(batch, heads, dtype=torch.float32)
    amax = amax.view(batch, heads_k, -1).amax(2)
    descale = torch.where(amax > 0, amax / _GREATEST, 1.0)
    factors = descale.reciprocal().repeat_interleave(heads // heads_k, 1)[:, None, :, None]
    return (x * factors).clamp(-_GREATEST, _GREATEST).to(FP8, memory_format=torch.contiguous_format), descale


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Checks what the checks of a call do not see, which is given rounded tensors."""
    for argument, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
        if given.dtype not in _TYPES:
            raise TypeError(f"{argument} is {given.dtype}; allowed: {', '.join(map(str, _TYPES))}")
        if given.dtype != q.dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {q.dtype}, as q")
        if given.dim() != 4:
            raise ValueError(f"{argument} has the shape {list(given.shape)}; allowed: [batch, seqlen, heads, head_dim]")
    heads_q, heads_k = q.shape[2], k.shape[2]
    if heads_k < 1 or heads_q % heads_k != 0:
        raise ValueError(f"q has {heads_q} heads; needed: a multiple of those of k, {heads_k}")
    if v.shape != k.shape:
        raise ValueError(f"v has the shape {list(v.shape)}; needed: {list(k.shape)}, as k")


@functools.cache
def _rotation(head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """An orthogonal matrix: signs, then a Hadamard transform."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < head_dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(2, (head_dim, 1), generator=torch.Generator().manual_seed(1)) * 2 - 1
    return (signs * matrix / math.sqrt(head_dim)).to(device, dtype)


class _Attention(torch.autograd.Function):
    """Rounds, attends, and keeps what it has rounded."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, numbers: Numbers, hadamard: bool) -> tuple[Tensor, Tensor]:
        ctx.dtype, ctx.numbers = q.dtype, numbers
        ctx.rotation = _rotation(q.shape[-1], q.device, q.dtype) if hadamard else None
        if ctx.rotation is not None:
            q, k = q @ ctx.rotation, k @ ctx.rotation
        heads_k = k.shape[2]
        rounded, descales = zip(*(quantize(x, heads_k) for x in (q, k, v)), strict=True)
        beside = _beside(descales)
        o, lse = _call.forward(_call.plan(*rounded, numbers, beside), *rounded, beside)
        ctx.save_for_backward(*rounded, o, lse, *descales)
        return o.to(ctx.dtype), lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o: Tensor, d_lse: Tensor | None):
        *saved, q_descale, k_descale, v_descale = ctx.saved_tensors
        beside = _beside((q_descale, k_descale, v_descale))
        planned = _call.plan(*saved[:3], ctx.numbers, beside)
        d_q, d_k, d_v = (x.to(ctx.dtype) for x in _call.backward(planned, d_o.to(planned.dtype_o), d_lse, saved, beside))
        if ctx.rotation is not None:
            d_q, d_k = d_q @ ctx.rotation.T, d_k @ ctx.rotation.T
        return d_q, d_k, d_v, None, None


def _beside(descales: Sequence[Tensor]) -> Beside:
    return Beside.of(dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True)))
