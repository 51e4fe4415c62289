"""FlashAttention-4's functions, of `flash_attn/cute/interface.py`: the same names, order of arguments, defaults and results.

`sys.modules["flash_attn.cute"] = ferroflash.fa4` gives a program that was written for FlashAttention-4 these functions.

* Tensors are `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]` with `cu_seqlens`. `heads_q` is a
  multiple of `heads_k`.
* `causal` is aligned to the bottom right. `window_size` is (left, right): how many keys a query sees before and after its position; None
  is no limit, and neither are two numbers whose sum is negative, as (−1, −1).
* `num_splits` is the number of parts into which a GPU divides the keys: 0 leaves it to the library, 1 is no division; with more each
  part has ceil(seqlen / num_splits) keys, where seqlen is the most rows that a sequence may have, rounded up to whole
  blocks of the kernel.
* `pack_gqa`, `seqlen_k_per_split`, `min_seqlen_k`, `scheduler_metadata`, `disable_scheduler_metadata` and `deterministic`
  affect only speed in FlashAttention-4. Here no result depends on them, and every result is deterministic, so they are accepted and have
  no effect.
* `learnable_sink`, `[heads_q]`, adds a term, exp(sink), to the sum of exponentials of each row of a head. It is converted to f32;
  gradients flow to it.
* `qv`, `gather_kv_indices` and block sparsity have no kernel: NotImplementedError names the argument. So do
  `score_mod`, `mask_mod` and their tensors, which are functions of CuTe: `ferroflash.attention` takes custom scores and masks.
* `softcap` greater than 0 replaces every score s by softcap · tanh(s / softcap).
* Functions return (o, lse). lse carries gradients with `return_lse`; without, it is detached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _torch
from ._combine import combine
from ._lengths import longest
from ._refuse import pair, refuse, refuse_given
from ._scores import edit, in_f32
from ._torch import attention

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_varlen_func", "get_scheduler_metadata"]

Window = Sequence[int | None]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable | None = None,
    score_mod_bwd: Callable | None = None,
    mask_mod: Callable | None = None,
    aux_tensors: list | None = None,
    aux_scalars: tuple | None = None,
    block_sparse_tensors: object | None = None,
    block_sparse_tensors_bwd: object | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention: (o, lse).

    * `q`: `[batch, seqlen_q, heads_q, head_dim]`.
    * `k`, `v`: `[batch, seqlen_k, heads_k, head_dim]`.
    * `softmax_scale`: factor of the scores; None is 1/√head_dim.
    * `learnable_sink`: `[heads_q]`, of bfloat16, float16 or float32.
    * o: like q; lse: `[batch, heads_q, seqlen_q]`, f32, log Σ exp of a row's scores.
    """
    nothing = qv is gather_kv_indices is learnable_sink is score_mod is score_mod_bwd is mask_mod is None
    nothing = nothing and block_sparse_tensors is block_sparse_tensors_bwd is None and not aux_tensors and not aux_scalars
    # Other windows mean more here than natively.
    if not is_compiling() and nothing and (window_size is None or window_size == (None, None)):
        result = _torch.DOOR.flash(q, k, v, softmax_scale, causal, window_size, num_splits, bool(return_lse), None, softcap)
        if result is not None:
            out, lse = result
            return result if return_lse or lse.grad_fn is None else (out, lse.detach())
    refuse_given(qv=qv, gather_kv_indices=gather_kv_indices)
    refuse_given(score_mod=score_mod, score_mod_bwd=score_mod_bwd, mask_mod=mask_mod)
    refuse_given(aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None)
    refuse_given(block_sparse_tensors=block_sparse_tensors, block_sparse_tensors_bwd=block_sparse_tensors_bwd)
    sides = _window(window_size, causal)
    options = {"softmax_scale": softmax_scale, "causal": causal, "window": sides, "num_splits": num_splits}
    out, lse = attention(q, k, v, sinks=in_f32("learnable_sink", learnable_sink), **options, **edit(q, sides, softcap or 0.0))
    return out, lse if return_lse else lse.detach()


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable | None = None,
    score_mod_bwd: Callable | None = None,
    mask_mod: Callable | None = None,
    block_sparse_tensors: object | None = None,
    aux_tensors: list | None = None,
    aux_scalars: tuple | None = None,
    return_lse: bool = False,
    scheduler_metadata: object | None = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention on sequences of different lengths: (o, lse).

    * `q`: `[total_q, heads_q, head_dim]` with `cu_seqlens_q`, otherwise `[batch, seqlen_q, heads_q, head_dim]`.
    * `k`, `v`: `[total_k, heads_k, head_dim]` with `cu_seqlens_k`, otherwise `[batch, seqlen_k, heads_k, head_dim]`.
    * `cu_seqlens_q`, `cu_seqlens_k`: i32 `[batch + 1]`, the first row of each sequence, and the end of the last.
    * `max_seqlen_q`, `max_seqlen_k`: the most rows of a sequence; None stands for all rows of the tensor.
    * `seqused_q`, `seqused_k`: i32 `[batch]`, how many of its rows a sequence uses. The others have o = 0 and lse = −∞.
    * `page_table`: i32 `[batch, columns]`. k and v are then pages, `[n_pages, page_size, heads_k, head_dim]`, where row r of
      sequence b is row r % page_size of page `page_table[b, r // page_size]`; with `seqused_k`, and no gradients.
    * o: like q; lse: `[heads_q, total_q]`, or `[batch, heads_q, seqlen_q]`; f32.
    * The others: as for `flash_attn_func`.
    """
    refuse_given(qv=qv, gather_kv_indices=gather_kv_indices)
    refuse_given(score_mod=score_mod, score_mod_bwd=score_mod_bwd, mask_mod=mask_mod)
    refuse_given(aux_tensors=aux_tensors or None, aux_scalars=aux_scalars or None)
    refuse_given(block_sparse_tensors=block_sparse_tensors)
    sides = _window(window_size, causal)
    out, lse = attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window=sides,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=longest(q, cu_seqlens_q, max_seqlen_q),
        max_seqlen_k=max_seqlen_k if page_table is not None else longest(k, cu_seqlens_k, max_seqlen_k),
        page_table=None if page_table is None else page_table.contiguous(),
        num_splits=num_splits,
        sinks=in_f32("learnable_sink", learnable_sink),
        **edit(q, sides, softcap or 0.0),
    )
    return out, lse if return_lse else lse.detach()


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    cu_seqlens: Tensor | None = None,
    seqused: Tensor | None = None,
    virtual_batch_idx: Tensor | None = None,
    return_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Merges attention on parts of the keys: (o, lse), or (o, None) without `return_lse`. Computed by PyTorch's operations.

    * `out_partial`: `[num_splits, batch, seqlen, heads, head_dim]` or `[num_splits, total_q, heads, head_dim]`.
    * `lse_partial`: the same without head_dim, f32.
    * `out`: the output for o; None allocates it.
    * `out_dtype`: the type of o; None is that of `out_partial`.
    * `cu_seqlens`, `seqused`, `virtual_batch_idx`: which rows FlashAttention-4 visits, and in which order. Here all rows are merged, each
      by itself, so these have no effect.
    * o: `out_partial` without `num_splits`; lse: `lse_partial` without it, f32.
    """
    out, lse = combine(out_partial, lse_partial, out, out_dtype)
    return out, lse if return_lse else None


def get_scheduler_metadata(
    max_seqlen_q: int,
    max_seqlen_k: int,
    nheads: int,
    nheads_kv: int,
    headdim: int,
    num_splits: int,
    headdim_v: int | None = None,
    pack_gqa: int | None = None,
    causal: bool = False,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqlen_k_new: int = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqlen_k_per_split: int | None = None,
    _arch: int | None = None,
) -> None:
    """A value for `scheduler_metadata`: None, since every call plans for itself, on the device.

    The arguments describe the later call, which refuses what has no kernel.
    """


def _window(window_size: Window | None, causal: bool) -> tuple[int | None, int | None]:
    """A window of FlashAttention-4, in which a negative number moves the limit past the query's position."""
    left, right = (None, None) if window_size is None else pair(window_size)
    if causal:
        right = 0
    if left is not None and right is not None and left + right < 0:
        return None, 0 if causal else None
    if min(left or 0, right or 0) < 0:
        refuse("window_size", window_size, "None for no limit, or numbers that are not negative")
    return left, right
