"""Lengths of sequences as FlashAttention's interfaces spell them, as `_torch.attention` takes them."""

from __future__ import annotations

from torch import Tensor


def longest(rows: Tensor, cu_seqlens: Tensor | None, max_seqlen: int | None) -> int | None:
    """The most rows of a sequence: None of padded tensors, whose shape says it, and all rows where nobody says it."""
    if cu_seqlens is None:
        return None
    return rows.shape[0] if max_seqlen is None else max_seqlen
