"""Lengths of sequences as FlashAttention's interfaces spell them, as `_torch.attention` takes them."""

from __future__ import annotations

import torch
from torch import Tensor


def longest(rows: Tensor, cu_seqlens: Tensor | None, max_seqlen: int | None) -> int | None:
    """The most rows of a sequence: None of padded tensors, whose shape says it, and all rows where nobody says it."""
    if cu_seqlens is None:
        return None
    return rows.shape[0] if max_seqlen is None else max_seqlen


def rows_in_use(cache_seqlens: Tensor | int | None, k_cache: Tensor) -> Tensor | None:
    """How many rows of each entry of a cache are in use; one number is that of all."""
    if not isinstance(cache_seqlens, int):
        return cache_seqlens
    return torch.full((k_cache.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device)
