"""Attention in 8 bits with gradients: q, k and v of 16 bits are rounded to e4m3 on the way, each sequence and head of keys with a scale
of its own.

    from ferroflash import fp8
    out = fp8.flash_attn_func(q, k, v, causal=True)

On a GPU both products of the forward pass are multiplied in 8 bits. What is saved of q, k and v for the backward pass are the rounded
tensors: half the memory. That pass takes them out of 8 bits and multiplies in bfloat16; its gradients are those of what the rounded
tensors stand for, and go to q, k and v as they are (a straight-through estimator, as in TransformerEngine).

Scales are amax / 448 of the tensors at hand ("current scaling"), rounded up to a power of 2, so that only e4m3 rounds. With `hadamard` the columns of q and k are first multiplied by one
orthogonal matrix, which changes no score and spreads outliers over all columns: the incoherent processing of FlashAttention-3, section 3.3.

Compilation, checkpoints, autocast and CUDA graphs work as for `ferroflash.flash_attn_func`. Second derivatives and the transformations of
`torch.func` are refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from . import _quantize
from ._call import Beside, Numbers
from ._checks import DTYPES, Form, check, check_input, check_integers, default_scale, number, whole
from ._refuse import window
from ._torch import _are_plain, _cast, _keep, attend, gradients

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "quantize"]

# All bits of a word.
_WORD = 2**64 - 1

_PADDED = "[batch, seqlen, heads, head_dim]"

# What is rounded.
_TYPES = (torch.bfloat16, torch.float16)

_SUMS = ("two_levels", "one_level")


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    *,
    hadamard: bool = False,
    sums: str = "two_levels",
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention in 8 bits: o, like q; with `return_attn_probs` (o, lse). Gradients flow to q, k and v through both.

    Under autocast float32 tensors are converted to its type.

    Args:
        q: `[batch, seqlen_q, heads_q, head_dim]`; bfloat16 or float16. On a GPU head_dim is a multiple of 16 up to 256.
        k, v: `[batch, seqlen_k, heads_k, head_dim]`; heads_q is a multiple of heads_k.
        softmax_scale: factor of the scores; None is 1/√head_dim.
        causal: aligned to the bottom right.
        window_size: (left, right): how many keys a query sees before and after its position; −1 is no limit.
        hadamard: whether the columns of q and k are rotated first, in blocks as wide as the greatest power of 2 that divides head_dim.
        sums: "two_levels", or "one_level" for speed above head_dim 128 and under masks: o is then too small where the values of a column have a mean, the more the longer the sequence,
            by 2 % at 2048 keys and 18 % at 16384 where mean and deviation are alike.

    Returns:
        o, like q; lse, float32 `[batch, heads_q, seqlen_q]`.

    Raises:
        TypeError: q, k or v is no tensor, or of a type that is not allowed.
        ValueError: a shape or a size is not allowed.
        NotImplementedError: no kernel supports the call; the text lists every candidate with its reason.
    """
    q, k, v = _cast(q, k, v)
    _check(q, k, v)
    options = hadamard, _one_of("sums", sums, _SUMS)
    result = _attention((q, k, v), (None, None), softmax_scale, window(window_size, causal), options, (None, None))
    return result if return_attn_probs else result[0]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    *,
    hadamard: bool = False,
    sums: str = "two_levels",
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `flash_attn_func`, on packed sequences, each with scales of its own: q `[total_q, heads_q, head_dim]`, k and v `[total_k, heads_k, head_dim]`.

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 `[batch + 1]`: the first row of each sequence, and the end of the last. On a GPU they are not checked.
        max_seqlen_q, max_seqlen_k: the most rows that a sequence has.

    Returns:
        o, like q; lse, float32 `[heads_q, total_q]`.
    """
    q, k, v = _cast(q, k, v)
    _check(q, k, v, "[total, heads, head_dim]")
    options = hadamard, _one_of("sums", sums, _SUMS)
    longest = whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k)
    for argument, given in (("max_seqlen_q", longest[0]), ("max_seqlen_k", longest[1])):
        if given is None:
            raise TypeError(f"{argument} is None; allowed: an int, or a tensor of one")
    for argument, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
        check_integers(argument, Form.of(given), ("batch + 1",), q.device)
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.shape[0] < 1:
        raise ValueError(
            f"cu_seqlens_k has {cu_seqlens_k.shape[0]} elements; needed: as many as cu_seqlens_q, {cu_seqlens_q.shape[0]}, at least 1"
        )
    ends = cu_seqlens_q, cu_seqlens_k
    result = _attention((q, k, v), longest, softmax_scale, window(window_size, causal), options, ends)
    return result if return_attn_probs else result[0]


def _attention(
    tensors: tuple[Tensor, ...],
    longest: tuple[int | None, int | None],
    softmax_scale: float | None,
    sides: tuple[int | None, int | None],
    options: tuple[bool, str],
    ends: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor]:
    """o and lse of q, k and v that have been checked; of packed ones with their `cu_seqlens`, as `ends`, and their longest sequences. `options` are `hadamard` and
    `sums`."""
    scale = default_scale(tensors[0].shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    return _Attention.apply(*tensors, (*longest, scale, *sides, 0), *options, *ends)


@overload
def quantize(
    x: Tensor, heads_k: int | None = None, *, descale: Tensor | None = None, amax: Literal[False] = False
) -> tuple[Tensor, Tensor]: ...


@overload
def quantize(
    x: Tensor, heads_k: int | None = None, *, descale: Tensor | None = None, amax: Literal[True]
) -> tuple[Tensor, Tensor, Tensor]: ...


def quantize(
    x: Tensor, heads_k: int | None = None, *, descale: Tensor | None = None, amax: bool = False
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """A tensor in e4m3, and its scales: an element stands for the number times its scale. Without gradients.

    Args:
        x: `[batch, seqlen, heads, head_dim]`; bfloat16, float16 or float32. On a GPU head_dim is a multiple of 16 up to 256. What shares a scale that is found with a number that is not finite is NaN.
        heads_k: heads of keys, whose number divides that of the heads: heads that share one share its scale. None: each head has its own.
        descale: the scales, such as those of earlier steps ("delayed scaling"): float32 `[batch, heads_k]`, contiguous, on x's device, greater than 0 and finite. On a GPU their values are not checked. What is beyond
            ±448 times its scale becomes that. None: the scales are found.
        amax: whether the greatest magnitudes are wanted, too: those of x, before anything is cut. With `descale` a GPU reads x once all the same.

    Returns:
        `[batch, seqlen, heads, head_dim]` of `torch.float8_e4m3fn`, contiguous; float32 `[batch, heads_k]`: `descale`, or the least power of 2 from
        amax / 448 and from 2^-60 on, or 1 where all numbers are 0 or one is not finite. With `amax` a third tensor, float32 `[batch, heads_k]`.

    Raises:
        TypeError: x or `descale` is no tensor, or of a type or on a device that is not allowed.
        ValueError: x has not four dimensions, heads_k does not divide its heads, or `descale` has another shape or a scale that is none.
        NotImplementedError: no kernel supports the call.
    """
    _check_form("x", x, tuple(DTYPES))
    heads = x.shape[2]
    heads_k = heads if heads_k is None else heads_k
    if heads_k < 1 or heads % heads_k != 0:
        raise ValueError(f"x has {heads} heads; needed: a multiple of heads_k, {heads_k}")
    if descale is not None:
        if not isinstance(descale, Tensor):
            raise TypeError(f"descale is {type(descale).__name__}; allowed: torch.Tensor, or None")
        check_input("descale", Form.of(descale), ("float32",), (x.shape[0], heads_k), x.device, "x")
        descale = descale.detach()
    quantized = _quantize.quantize(x.detach(), heads_k, False, descale=descale, amax=amax)
    return tuple(quantized) if amax else tuple(quantized[:2])


def _check(q: Tensor, k: Tensor, v: Tensor, shape: str = _PADDED) -> None:
    """Checks what the checks of the call with rounded tensors do not see, or see too late."""
    for argument, given in (("q", q), ("k", k), ("v", v)):
        _check_form(argument, given, _TYPES, shape)
    check(Form.of(q), Form.of(k), Form.of(v))
    heads_q, heads_k = q.shape[-2], k.shape[-2]
    if heads_k < 1 or heads_q % heads_k != 0:
        raise ValueError(f"q has {heads_q} heads; needed: a multiple of those of k, {heads_k}")


def _check_form(argument: str, given: object, types: Sequence[torch.dtype], shape: str = _PADDED) -> None:
    """Checks that an argument is a tensor of one of these types, with as many dimensions as this shape."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
    if given.dtype not in types:
        raise TypeError(f"{argument} is {given.dtype}; allowed: {', '.join(map(str, types))}")
    if given.dim() != shape.count(",") + 1:
        raise ValueError(f"{argument} has the shape {list(given.shape)}; allowed: {shape}")


def _one_of(argument: str, given: object, allowed: Sequence[str]) -> str:
    for word in allowed:
        if given == word:
            return word
    raise ValueError(f"{argument} is {given!r}; allowed: {', '.join(map(repr, allowed))}")


def _rotation(like: Tensor) -> Tensor:
    """The orthogonal matrix by which columns are rotated: signs, then a Hadamard transform of blocks as wide as a power of 2 that divides head_dim."""
    size, device, dtype = like.shape[-1], like.device, like.dtype
    # What a compiler or a mode makes is not kept: it need not be a tensor with numbers.
    return _kept_rotation(size, device, dtype) if _are_plain(like) else _new_rotation(size, device).to(dtype)


@functools.cache
def _kept_rotation(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    # Copied from the host, which waits for the copy: any stream may read it, and none is made while a graph is captured.
    return _new_rotation(size, torch.device("cpu")).to(device, dtype)


def _new_rotation(size: int, device: torch.device) -> Tensor:
    width = size & -size
    matrix = torch.ones(1, 1, dtype=torch.float32, device=device)
    while matrix.shape[0] < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    blocks = torch.block_diag(*[matrix] * (size // width))
    signs = torch.tensor(_signs(size), dtype=torch.float32, device=device)
    return signs[:, None] * blocks / math.sqrt(width)


def _signs(size: int) -> list[int]:
    """The signs that the library's seed 0 gives: bits of SplitMix64 (Steele, Lea and Flood 2014)."""
    signs, state = [], 0
    while len(signs) < size:
        state = state + 0x9E3779B97F4A7C15 & _WORD
        word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        word ^= word >> 31
        signs += [1 - 2 * (word >> bit & 1) for bit in range(64)]
    return signs[:size]


class _Attention(torch.autograd.Function):
    """Rounds, attends, and keeps what it has rounded."""

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        numbers: Numbers,
        hadamard: bool,
        sums: str,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype, ctx.numbers, ctx.sums = q.dtype, numbers, sums
        heads_k, of_q, of_k = k.shape[-2], (cu_seqlens_q, numbers[0]), (cu_seqlens_k, numbers[1])
        operands = (q, hadamard, of_q), (k, hadamard, of_k), (v, False, of_k)
        quantized = [_quantize.quantize(x, heads_k, rotates, *lengths) for x, rotates, lengths in operands]
        rounded, descales, _ = zip(*quantized)
        ctx.rotation = _rotation(q) if hadamard else None
        beside = (*descales, cu_seqlens_q, cu_seqlens_k)
        o, lse = attend(*rounded, numbers, _beside(beside, sums))
        _keep(ctx, *rounded, o, lse, *beside)
        # A view of its own: PyTorch 2.11 compiles o itself, an operator's result, to an output without a gradient.
        return o.to(ctx.dtype).view_as(o), lse

    @staticmethod
    def backward(ctx, d_o: Tensor | None, d_lse: Tensor | None):
        # Read once: a checkpoint computes them for it.
        *saved, q_descale, k_descale, v_descale, cu_seqlens_q, cu_seqlens_k = ctx.saved_tensors
        o = saved[3]
        d_o = torch.zeros_like(o) if d_o is None else d_o.to(o.dtype)
        beside = _beside((q_descale, k_descale, v_descale, cu_seqlens_q, cu_seqlens_k), ctx.sums)
        d_q, d_k, d_v = (x.to(ctx.dtype) for x in gradients(ctx.numbers, d_o, d_lse, tuple(saved), beside))
        if ctx.rotation is not None:
            d_q, d_k = d_q @ ctx.rotation.T, d_k @ ctx.rotation.T
        return d_q, d_k, d_v, None, None, None, None, None


def _beside(given: Sequence[Tensor | None], sums: str) -> Beside:
    named = dict(zip(("q_descale", "k_descale", "v_descale", "cu_seqlens_q", "cu_seqlens_k"), given, strict=True))
    return Beside.of(named)._replace(fp8_sums=sums)
