"""FlashAttention-3's functions, of `hopper/flash_attn_interface.py`: the same names, order of arguments, defaults and results.

`sys.modules["flash_attn_interface"] = ferroflash.fa3` gives a program that was written for FlashAttention-3 these functions.

* Tensors are `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]` with `cu_seqlens`. `heads_q` is a
  multiple of `heads_k`.
* `causal` is aligned to the bottom right. `window_size` is (left, right): how many keys a query sees before and after its position; −1, or
  None, is no limit.
* `num_splits` is the number of parts into which a GPU divides the keys: 0 leaves it to the library, 1 is no division; with more each
  part has ceil(seqlen / num_splits) keys, where seqlen is the most rows that a sequence may have, rounded up to whole
  blocks of the kernel.
* `pack_gqa`, `sm_margin`, `scheduler_metadata` and `deterministic` affect only speed in FlashAttention-3. Here no result depends on them,
  and every result is deterministic, so they are accepted and have no effect.
* `qv` and `attention_chunk` have no kernel: NotImplementedError names the argument. `q_descale`, `k_descale` and `v_descale` go with tensors of
  `torch.float8_e4m3fn`, without gradients and without `softcap`: q, k and v of `flash_attn_func` and `flash_attn_varlen_func`, whose o is then
  bfloat16; or k and v alone, with q of 16 bits, of `flash_attn_func` and `flash_attn_with_kvcache`.
* `softcap` greater than 0 replaces every score s by softcap · tanh(s / softcap).
* Gradients flow to q, k and v through o, and through lse if it is returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _torch
from ._checks import FP8
from ._combine import combine
from ._forward_only import forward_e4m3, forward_fp8, in_8_bits
from ._kvcache import Cached, seqlen_of, with_kvcache
from ._lengths import longest
from ._refuse import refuse, refuse_given, refuse_unless_zero, window
from ._scores import edit
from ._torch import attention

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

Window = Sequence[int]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention: o, like q; with `return_attn_probs` (o, lse).

    * `q`: `[batch, seqlen_q, heads_q, head_dim]`.
    * `k`, `v`: `[batch, seqlen_k, heads_k, head_dim]`.
    * `q_descale`, `k_descale`, `v_descale`: f32 `[batch, heads_k]`, with tensors of `torch.float8_e4m3fn`: the scales of their elements; None
      is 1. There are no gradients then.
    * `softmax_scale`: factor of the scores; None is 1/√head_dim.
    * lse: `[batch, heads_q, seqlen_q]`, f32, log Σ exp of a row's scores.
    """
    if not is_compiling() and qv is q_descale is k_descale is v_descale is None and attention_chunk == 0:
        both = bool(return_attn_probs)
        result = _torch.DOOR.flash(q, k, v, softmax_scale, causal, window_size, num_splits, both or None, None, softcap)
        if result is not None:
            return result
    refuse_given(qv=qv)
    refuse_unless_zero(attention_chunk=attention_chunk)
    sides = window(window_size, causal)
    if getattr(q, "dtype", None) == FP8:
        descales = (q_descale, k_descale, v_descale)
        out, lse = _e4m3(q, k, v, descales, softcap, softmax_scale=softmax_scale, window=sides, num_splits=num_splits)
        return (out, lse) if return_attn_probs else out
    refuse_given(q_descale=q_descale)
    edited = edit(q, sides, softcap)
    if in_8_bits("k", k, k_descale=k_descale, v_descale=v_descale):
        if edited:
            refuse("softcap", softcap, f"0 with k of {k.dtype}, as ferroflash has no kernel for both")
        out, lse = forward_fp8(q, k, v, k_descale, v_descale, softmax_scale=softmax_scale, window=sides, num_splits=num_splits)
        return (out, lse) if return_attn_probs else out
    out, lse = attention(q, k, v, softmax_scale=softmax_scale, causal=causal, window=sides, num_splits=num_splits, **edited)
    return (out, lse) if return_attn_probs else out


def _e4m3(q, k, v, descales, softcap, **options) -> tuple[Tensor, Tensor]:
    """o and lse of q, k and v of e4m3."""
    if softcap != 0.0:
        refuse("softcap", softcap, f"0 with q of {q.dtype}")
    return forward_e4m3(q, k, v, descales, **options)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention on q, k and v in one tensor: o, `[batch, seqlen, heads_q, head_dim]`; with `return_attn_probs` (o, lse).

    * `qkv`: `[batch, seqlen, 3, heads, head_dim]`, or `[batch, seqlen, heads_q + 2 · heads_k, head_dim]` with
      `num_heads_q`.
    * The others: as for `flash_attn_func`.
    """
    q, k, v = _split_heads(qkv, num_heads_q)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention on sequences of different lengths: o, like q; with `return_attn_probs` (o, lse).

    * `q`: `[total_q, heads_q, head_dim]`, one sequence after the other; with `cu_seqlens_q` None
      `[batch, seqlen_q, heads_q, head_dim]`.
    * `k`, `v`: `[total_k, heads_k, head_dim]`, or with `cu_seqlens_k` None `[batch, seqlen_k, heads_k, head_dim]`.
    * `cu_seqlens_q`, `cu_seqlens_k`: i32 `[batch + 1]`, the first row of each sequence, and the end of the last.
    * `max_seqlen_q`, `max_seqlen_k`: the most rows of a sequence; None stands for all rows of the tensor.
    * `seqused_q`, `seqused_k`: i32 `[batch]`, how many of its rows a sequence uses. The others have o = 0 and lse = −∞.
    * lse: `[heads_q, total_q]`, or `[batch, heads_q, seqlen_q]`; f32.
    * The others: as for `flash_attn_func`.
    """
    refuse_given(qv=qv)
    refuse_unless_zero(attention_chunk=attention_chunk)
    sides = window(window_size, causal)
    options = {
        "softmax_scale": softmax_scale,
        "window": sides,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "max_seqlen_q": longest(q, cu_seqlens_q, max_seqlen_q),
        "max_seqlen_k": longest(k, cu_seqlens_k, max_seqlen_k),
        "num_splits": num_splits,
    }
    if getattr(q, "dtype", None) == FP8:
        out, lse = _e4m3(q, k, v, (q_descale, k_descale, v_descale), softcap, **options)
        return (out, lse) if return_attn_probs else out
    refuse_given(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    out, lse = attention(q, k, v, causal=causal, **options, **edit(q, sides, softcap))
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of new queries on a cache of keys and values, to which new rows may be appended first: o, like q.

    * `q`: `[batch, seqlen_q, heads_q, head_dim]`, or packed `[total_q, heads_q, head_dim]` with `cu_seqlens_q` and
      `max_seqlen_q`.
    * `k_cache`, `v_cache`: `[batch, seqlen_cache, heads_k, head_dim]`; with `page_table`, i32 `[batch, columns]`, pages
      `[n_pages, page_size, heads_k, head_dim]`, where row r of sequence b is row r % page_size of page
      `page_table[b, r // page_size]`.
    * `cache_batch_idx`: i32 `[batch]`, the entry of the cache, or the row of `page_table`, of each sequence. No cache is copied.
    * `cache_seqlens`: i32 `[batch]`, or one number for all: how many rows of the cache are in use; None is all.
    * `cache_leftpad`: i32 `[batch]`, the first row in use. `cache_seqlens` counts from row 0 on. Also in pages: used row r is row
      `cache_leftpad[b] + r` of the sequence's pages.
    * `k`, `v`: `[batch, seqlen_new, heads_k, head_dim]`, or packed with `cu_seqlens_k_new`, i32 `[batch + 1]`: written into the
      caches at rows `cache_seqlens[b] + i`, in place, and seen by attention. It needs `cache_seqlens`, which is not changed.
      Rows that do not fit, or have no page, are an error on the CPU, and not written on a GPU. There are no gradients then, as in
      FlashAttention-3.
    * `rotary_cos`, `rotary_sin`: `[seqlen_ro, rotary_dim / 2]`, with `k` and `v`; f32, or a 16-bit type that is widened at every
      call. The first rotary_dim elements of k are rotated by position `rotary_seqlens[b] + i`, those of q by that position under
      a causal mask or a window, by `rotary_seqlens[b]` without; q itself is not changed. `rotary_interleaved` pairs elements
      2i and 2i + 1, otherwise i and i + rotary_dim / 2. seqlen_ro is at least the rows of a sequence of the cache.
    * `rotary_seqlens`: i32 `[batch]`; None is `cache_seqlens`. Positions of their own rotate k in its type, before it is rounded to 8 bits.
    * `k_descale`, `v_descale`: f32, with caches of `torch.float8_e4m3fn`: the scales of their elements, by which new rows, of q's type, are divided
      before they are rounded; None is 1. Either both `[batch, heads_k]`, or, with `page_table`, both `[n_pages, heads_k]`, for each page of the pool. If there are
      as many pages as sequences, they are per sequence. o has q's type, and no gradients.
    * The others: as for `flash_attn_func`.

    With a head_dim that is not a multiple of 8, a GPU copies both caches, and copies them back if rows are appended.

    With `return_softmax_lse` (o, lse, o of the splits, lse of the splits): lse as for `flash_attn_varlen_func`; the last two are empty, as
    splits are merged within the call.
    """
    refuse_given(qv=qv, q_descale=q_descale)
    refuse_unless_zero(attention_chunk=attention_chunk)
    left, right = window(window_size)
    table = ("page_table", page_table)
    seqlen = seqlen_of(q, k_cache, table)
    seqlen_q = longest(q, cu_seqlens_q, max_seqlen_q) if cu_seqlens_q is not None else q.shape[1]
    # As FlashAttention-3 has it: what hides nothing is no window, and turns no query by a place of its own.
    left = None if left is not None and left >= seqlen - 1 else left
    right = None if right is not None and right >= seqlen_q - 1 else right
    sides = (left, 0 if causal else right)
    given = Cached(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, cache_seqlens, cache_batch_idx, cache_leftpad,
        table, softmax_scale, num_splits, cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, rotary_seqlens, k_descale, v_descale,
        edit(q, sides, softcap),
    )  # fmt: skip
    out, lse = with_kvcache(given, sides)
    return (out, lse, lse.new_empty(0), lse.new_empty(0)) if return_softmax_lse else out


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merges attention on parts of the keys: (o, lse). Computed by PyTorch's operations.

    * `out_partial`: `[num_splits, batch, seqlen, heads, head_dim]`.
    * `lse_partial`: `[num_splits, batch, seqlen, heads]`, f32.
    * `out`: the output for o; None allocates it.
    * `out_dtype`: the type of o; None is that of `out_partial`.
    * o: `[batch, seqlen, heads, head_dim]`; lse: `[batch, seqlen, heads]`, f32.
    """
    return combine(out_partial, lse_partial, out, out_dtype)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """A value for `scheduler_metadata`: an empty i32 tensor, since every call plans for itself, on the device.

    The arguments describe the later call, which refuses what has no kernel.
    """
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def _split_heads(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, Tensor, Tensor]:
    shape = list(qkv.shape)
    if qkv.dim() == 5 and shape[2] == 3:
        return qkv.unbind(dim=2)
    if qkv.dim() == 4 and num_heads_q is not None:
        num_heads_k, odd = divmod(shape[2] - num_heads_q, 2)
        if num_heads_k > 0 and odd == 0:
            return qkv.split([num_heads_q, num_heads_k, num_heads_k], dim=2)
    raise ValueError(
        f"qkv: a tensor {shape} was given, num_heads_q {num_heads_q}; allowed: [batch, seqlen, 3, heads, head_dim], or "
        "[batch, seqlen, heads_q + 2 * heads_k, head_dim] with num_heads_q"
    )
