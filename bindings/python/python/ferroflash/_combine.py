"""Merging of partial results: softmax over parts of the keys is associative (FlashAttention-2, section 3.1).

With lse_s and o_s of the parts s: lse = log Σ exp(lse_s), o = Σ exp(lse_s − lse) · o_s. A row without keys in any part has o = 0 and lse =
−∞. Computed in f32 by PyTorch's operations; ferroflash's own kernels merge the parts of their keys themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor | None, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Merges along the first dimension.

    * `out_partial`: `[num_splits, ..., heads, head_dim]`.
    * `lse_partial`: `[num_splits, ..., heads]`, f32.
    * `out`: where to write o; None allocates it, in `out_dtype`, or in that of `out_partial`.

    Returns o `[..., heads, head_dim]` and lse `[..., heads]`, f32.
    """
    _check(out_partial, lse_partial, out, out_dtype)
    lse_partial = lse_partial.float()
    lse = torch.logsumexp(lse_partial, dim=0)
    # −∞ − −∞ has no value: such a part has no keys, and adds nothing.
    weights = torch.nan_to_num(torch.exp(lse_partial - lse), nan=0.0)
    merged = (weights.unsqueeze(-1) * out_partial.float()).sum(dim=0)
    if out is not None:
        return out.copy_(merged), lse
    return merged.to(out_partial.dtype if out_dtype is None else out_dtype), lse


def _check(out_partial: Tensor, lse_partial: Tensor, out: Tensor | None, out_dtype: torch.dtype | None) -> None:
    if out_partial.dim() not in (4, 5):
        raise ValueError(
            f"out_partial: a tensor {list(out_partial.shape)} was given; "
            "allowed: [num_splits, batch, seqlen, heads, head_dim] or [num_splits, total_q, heads, head_dim]"
        )
    if lse_partial.shape != out_partial.shape[:-1]:
        raise ValueError(
            f"lse_partial: a tensor {list(lse_partial.shape)} was given; "
            f"allowed: {list(out_partial.shape[:-1])}, the shape of out_partial without head_dim"
        )
    if out is not None and out.shape != out_partial.shape[1:]:
        raise ValueError(f"out: a tensor {list(out.shape)} was given; allowed: {list(out_partial.shape[1:])}")
    if out is not None and out_dtype not in (None, out.dtype):
        raise ValueError(f"out_dtype: {out_dtype} was given; allowed: {out.dtype}, that of out")
