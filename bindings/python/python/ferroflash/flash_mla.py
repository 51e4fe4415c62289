"""FlashMLA's function, of `flash_mla/flash_mla_interface.py`: decode of multi-head latent attention, over a cache of latent rows.

`sys.modules["flash_mla"] = ferroflash.flash_mla` gives a program that was written for FlashMLA this function.

* A row of the cache is key and value: the value is its first `head_dim_v` columns. DeepSeek's models have rows of 576 columns,
  512 of which are the value, and one KV head.
* It has no gradients. Sparse attention (`indices`) and caches in 8 bits (`is_fp8_kvcache`) are not supported.
"""

from __future__ import annotations

import operator
from typing import Any

from .array import _is_torch

__all__ = ["flash_mla_with_kvcache", "get_mla_metadata"]


def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Any, Any]:
    """softmax(q · kᵀ · softmax_scale, masked) · v, where v is the first columns of k: (o, lse).

    Takes PyTorch tensors, or arrays of any other library with `__dlpack__`, on one device. A call on tensors is enqueued without waiting;
    one on arrays returns when its results are ready.

    * `q`: `[batch, seqlen_q, heads_q, head_dim]`; bfloat16, float16, on the CPU also float32.
    * `k_cache`: `[n_pages, page_size, heads_k, head_dim]`, pages of any size, of q's type; heads_q is a multiple of heads_k. With
      `block_table` None `[batch, seqlen_cache, heads_k, head_dim]`. It is read in place: its last stride is 1, and on a GPU its
      address and its other strides are multiples of 16 bytes.
    * `block_table`: int32 `[batch, columns]`: row r of sequence b is row r % page_size of page `block_table[b, r // page_size]`.
    * `cache_seqlens`: int32 `[batch]`, how many rows each sequence has. Rows beyond them are not read.
    * `head_dim_v`: columns of a value, 1 to head_dim.
    * `tile_scheduler_metadata`, `num_splits`: accepted and not needed. The call plans for itself, on the device.
    * `softmax_scale`: factor of the scores; None is 1/√head_dim.
    * `causal`: a query sees the keys up to its own position; the last query is at the position of the last key.
    * o: `[batch, seqlen_q, heads_q, head_dim_v]`, like q. lse: float32 `[batch, heads_q, seqlen_q]`, log Σ exp of a row's scores. A row
      that sees no key has o = 0 and lse = −inf (in FlashMLA +inf).

    TypeError: a wrong type or device. ValueError: a wrong shape or size or, on the CPU, a wrong length or page. NotImplementedError: no
    kernel supports the call. GPUs of compute capability 9.0 have one, for head_dim and head_dim_v that are multiples of 8 up to 576 and
    512.
    """
    try:
        # Not all through operator.index: torch.compile traces symbolic integers as they are.
        columns = head_dim_v if isinstance(head_dim_v, int) else operator.index(head_dim_v)
    except TypeError:
        raise TypeError(f"head_dim_v is {head_dim_v!r}; allowed: an int") from None
    if columns < 1:
        raise ValueError(f"head_dim_v is {columns}; allowed: 1 to head_dim")
    if _is_torch(q):
        from ._mla import of_tensors as of
    else:
        from ._mla_array import of_arrays as of
    return of(q, k_cache, block_table, cache_seqlens, columns, softmax_scale, causal)


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[None, None]:
    """Values for `tile_scheduler_metadata` and `num_splits`: None and None for any arguments, since every call plans for itself, on the
    device."""
    return None, None
