"""The functions of flash-attn 2.8, with its names, defaults and results.

`sys.modules["flash_attn"] = ferroflash.flash_attn_interface` replaces flash-attn by this module. `deterministic` is accepted and has no effect:
results and gradients are always bit-equal for equal inputs, at no cost.

`dropout_p`, at least 0 and less than 1, is the probability that a weight is dropped, rounded to a multiple of 1/256; the others are
divided by the probability of being kept. Each call draws seed and offset from PyTorch's generator of q's device, so `torch.manual_seed`
repeats it. The dropped weights differ from flash-attn's. lse is that of all weights.

`softcap` greater than 0 replaces every score s by softcap · tanh(s / softcap). `alibi_slopes`, float32 `[heads_q]` or `[batch, heads_q]`,
then adds
−slope · |k − (q + seqlen_k − seqlen_q)|; slopes have no gradient. lse is that of these scores.

Tensors are bfloat16, float16 or float32. head_dim is at most 256. A causal mask and windows are aligned to the bottom
right: query i has the position i + seqlen_k − seqlen_q among the keys. Errors are those of `ferroflash._torch.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from . import __version__, _torch
from ._kvcache import Cached, seqlen_of, with_kvcache
from ._refuse import window
from ._scores import edit
from ._torch import attention

__all__ = [
    "__version__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

# (o, lse, None) where return_attn_probs is set: the third is flash-attn's matrix of weights with signs, which is there for its tests.
_Result = Tensor | tuple[Tensor, Tensor, None]

_Window = Sequence[int]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention. q `[batch, seqlen_q, heads_q, head_dim]`, k and v `[batch, seqlen_k, heads_k, head_dim]`; o like q.

    heads_q is a multiple of heads_k. `softmax_scale` is 1/√head_dim by default. A query sees the keys from `window_size[0]` before its
    position to `window_size[1]` after it; −1 is no limit; `causal` sets the second to 0. With `return_attn_probs` the result is
    `(o, lse, None)`, lse float32 `[batch, heads_q, seqlen_q]`.
    """
    if not is_compiling() and alibi_slopes is None:
        both = bool(return_attn_probs)
        result = _torch.DOOR.flash(q, k, v, softmax_scale, causal, window_size, 0, both or None, dropout_p, softcap)
        if result is not None:
            return (*result, None) if both else result
    sides = window(window_size, causal)
    edited = _edit(q, sides, softcap, alibi_slopes)
    o, lse = attention(q, k, v, softmax_scale=softmax_scale, window=sides, dropout_p=dropout_p, **edited)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_func` on keys and values in one tensor, kv `[batch, seqlen_k, 2, heads_k, head_dim]`, which is not copied."""
    k, v = _parts("kv", kv, ("batch", "seqlen_k", 2, "heads_k", "head_dim"))
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_func` on one tensor, qkv `[batch, seqlen, 3, heads, head_dim]`, which is not copied."""
    q, k, v = _parts("qkv", qkv, ("batch", "seqlen", 3, "heads", "head_dim"))
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> _Result:
    """Attention on packed sequences. q `[total_q, heads_q, head_dim]`, k and v `[total_k, heads_k, head_dim]`; o like q.

    cu_seqlens_q and cu_seqlens_k, int32 `[batch + 1]`, have the first row of each sequence, and the end of the last; max_seqlen_q and
    max_seqlen_k bound the longest. On a GPU the lengths are not checked: if they contradict the shapes, the results are undefined. With
    `return_attn_probs` the result is `(o, lse, None)`, lse float32 `[heads_q, total_q]`.

    With block_table, int32 `[batch, columns]`, k and v are pages, `[n_pages, page_size, heads_k, head_dim]`, of any size: row r of sequence b
    is row r % page_size of page `block_table[b, r // page_size]`, and cu_seqlens_k says how many rows each sequence has. Then there are no
    gradients: requiring them raises a NotImplementedError.
    """
    sides = window(window_size, causal)
    edited = _edit(q, sides, softcap, alibi_slopes, cu_seqlens_q)
    in_pages = {}
    if block_table is not None:
        in_pages = {"page_table": block_table.contiguous(), "seqused_k": cu_seqlens_k.diff()}
        cu_seqlens_k = None
    o, lse = attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        window=sides,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        dropout_p=dropout_p,
        **in_pages,
        **edited,
    )
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_varlen_func` on keys and values in one tensor, kv `[total_k, 2, heads_k, head_dim]`, which is not copied."""
    k, v = _parts("kv", kv, ("total_k", 2, "heads_k", "head_dim"))
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_varlen_func` on one tensor, qkv `[total, 3, heads, head_dim]`, which is not copied."""
    q, k, v = _parts("qkv", qkv, ("total", 3, "heads", "head_dim"))
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q `[batch, seqlen_q, heads_q, head_dim]` on the used part of a cache, to which new rows may be appended first.

    - k_cache, v_cache: `[batch, seqlen_cache, heads_k, head_dim]`; with block_table, int32 `[batch, columns]`, pages
      `[n_pages, page_size, heads_k, head_dim]` of any size, where row r of sequence b is row r % page_size of page
      `block_table[b, r // page_size]`. cache_batch_idx, int32 `[batch]`, is the entry of the cache, or the row of block_table, of each
      sequence; no cache is copied.
    - cache_seqlens: int32 `[batch]` or one number: how many rows of each sequence are in use, counted from row 0; None is all.
      cache_leftpad, int32 `[batch]`: the first row in use, also in pages.
    - k, v: `[batch, seqlen_new, heads_k, head_dim]`: written into the caches at rows `cache_seqlens[b] + i`, in place; attention sees
      `cache_seqlens + seqlen_new` rows. It needs cache_seqlens, which is not changed. Rows that do not fit, or have no page, are an error
      on the CPU, and not written on a GPU. There are no gradients then, as in flash-attn.
    - rotary_cos, rotary_sin: `[seqlen_ro, rotary_dim / 2]`, with k and v; float32, or a 16-bit type that is widened at every call. The first
      rotary_dim elements of k are rotated by the row's position, those of q by `cache_seqlens[b] + i` under a causal mask or a window, by
      `cache_seqlens[b]` without; q itself is not changed. `rotary_interleaved` pairs elements 2i and 2i + 1, otherwise i and
      i + rotary_dim / 2. seqlen_ro is at least the rows of a sequence of the cache.
    - num_splits: the number of parts into which a GPU divides the keys. 0 leaves it to the library, 1 is no division; with more each part has
      ceil(seqlen / num_splits) keys, where seqlen is the most rows of a sequence of the cache, rounded up to whole blocks of the kernel.
    - softcap, alibi_slopes: as for all functions here; seqlen_k is the number of rows that attention sees. Not with caches of 8 bits.

    Caches of torch.float8_e4m3fn have scales of 1; `fa3.flash_attn_with_kvcache` takes scales. They have no gradients.

    With a head_dim that is not a multiple of 8, a GPU copies both caches, and copies them back if rows are appended.
    """
    left, right = window(window_size)
    table = ("block_table", block_table)
    seqlen = seqlen_of(q, k_cache, table)
    # As flash-attn has it: what reaches over the whole cache is no window, and turns no query by a place of its own.
    left, right = (None if side is not None and side >= seqlen else side for side in (left, right))
    sides = (left, 0 if causal else right)
    given = Cached(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, cache_seqlens, cache_batch_idx, cache_leftpad,
        table, softmax_scale, num_splits, edit=_edit(q, sides, softcap, alibi_slopes),
    )  # fmt: skip
    o, lse = with_kvcache(given, sides)
    return (o, lse) if return_softmax_lse else o


def _edit(
    q: Tensor, sides: tuple[int | None, int | None], softcap: float, alibi_slopes: Tensor | None, cu_seqlens_q: Tensor | None = None
) -> dict[str, Any]:
    # flash-attn takes a soft cap below 0 for none.
    return edit(q, sides, max(softcap, 0.0), alibi_slopes, cu_seqlens_q)


def _parts(argument: str, packed: Tensor, shape: tuple[str | int, ...]) -> tuple[Tensor, ...]:
    """The tensors within one, along the dimension that counts them; their gradients are combined in one copy."""
    if not isinstance(packed, Tensor):
        raise TypeError(f"{argument} is {type(packed).__name__}; allowed: torch.Tensor")
    at = next(at for at, size in enumerate(shape) if isinstance(size, int))
    if packed.dim() != len(shape) or packed.shape[at] != shape[at]:
        allowed = ", ".join(str(size) for size in shape)
        raise ValueError(f"{argument} has the shape {list(packed.shape)}; allowed: [{allowed}]")
    return packed.unbind(at)
