"""Attention of new queries on a cache of keys and values, to which new rows may be appended first: `flash_attn_with_kvcache`."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from . import _call
from ._append import Append, Rotary, append, rotate
from ._call import Beside
from ._checks import DTYPES, FP8, Form, check, check_integers, check_rows, number, refuse_tangents, whole
from ._forward_only import descales, forward_fp8, in_8_bits
from ._lengths import longest
from ._refuse import refuse
from ._torch import _are_plain, attention, expressions_of

Window = tuple[int | None, int | None]


class Cached(NamedTuple):
    """What both interfaces of `flash_attn_with_kvcache` are given, as these spell it."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    k: Tensor | None
    v: Tensor | None
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    rotary_interleaved: bool
    cache_seqlens: Tensor | int | None
    cache_batch_idx: Tensor | None
    cache_leftpad: Tensor | None
    table: tuple[str, Tensor | None]
    """The table of pages, with the name that the interface has for it."""
    softmax_scale: float | None
    num_splits: int
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k_new: Tensor | None = None
    max_seqlen_q: int | None = None
    rotary_seqlens: Tensor | None = None
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None
    edit: dict[str, Any] = {}
    """What is done to the scores, as options of attention."""


# Those of `Cached` that are looked at before anything else is.
_TENSORS = (
    "v_cache",
    "k",
    "v",
    "rotary_cos",
    "rotary_sin",
    "cache_batch_idx",
    "cache_leftpad",
    "cu_seqlens_q",
    "cu_seqlens_k_new",
    "rotary_seqlens",
    "k_descale",
    "v_descale",
)


def seqlen_of(q: Tensor, k_cache: Tensor, table: tuple[str, Tensor | None]) -> int:
    """The most rows of a sequence, of tensors that have the dimensions that they must have."""
    name, entries = table
    if len(_shape("q", q)) not in (3, 4):
        raise ValueError(f"q has the shape {list(q.shape)}; allowed: [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]")
    if len(_shape("k_cache", k_cache)) != 4:
        allowed = "[batch, seqlen, heads, head_dim], or pages, [n_pages, page_size, heads, head_dim]"
        raise ValueError(f"k_cache has the shape {list(k_cache.shape)}; allowed: {allowed}")
    if entries is None:
        return k_cache.shape[1]
    if len(_shape(name, entries)) != 2:
        raise ValueError(f"{name} has the shape {list(entries.shape)}; needed: [batch, columns]")
    return entries.shape[1] * k_cache.shape[1]


def _shape(argument: str, given: object) -> torch.Size:
    if not isinstance(given, Tensor):
        raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
    return given.shape


def with_kvcache(given: Cached, window: Window) -> tuple[Tensor, Tensor]:
    """o and lse. Where there are new rows, they are appended; then nothing has gradients. Without a window, which a causal mask is, too, every
    query is rotated as at the position of the first new row."""
    for argument in _TENSORS:
        tensor = getattr(given, argument)
        if tensor is not None:
            _shape(argument, tensor)
    given = given._replace(
        softmax_scale=number("softmax_scale", given.softmax_scale),
        num_splits=whole("num_splits", given.num_splits),
        max_seqlen_q=whole("max_seqlen_q", given.max_seqlen_q),
    )
    batch = given.q.shape[0] if given.cu_seqlens_q is None else given.cu_seqlens_q.numel() - 1
    seqused, table = given.cache_seqlens, _table(given, batch)
    if isinstance(seqused, int):
        seqused = torch.full((batch,), seqused, dtype=torch.int32, device=given.k_cache.device)
    elif seqused is not None:
        _shape("cache_seqlens", seqused)
    try:
        return _attend(given, seqused, table, window)
    except (TypeError, ValueError) as error:
        _spelled(given, seqused, table, error)


def _spelled(given: Cached, seqused: Tensor | None, table: Tensor | None, error: Exception) -> NoReturn:
    """Raises an error of attention again, with the names that these interfaces have for its arguments."""
    forms = (Form.of(x) for x in (given.q, given.k_cache, given.v_cache))
    fp8 = given.k_cache.dtype == FP8
    check(*forms, ("k_cache", "v_cache"), in_pages=table is not None, in_8_bits=fp8)
    for argument in ("k_cache", "v_cache") if fp8 else ():
        check_rows(argument, Form.of(getattr(given, argument)))
    text = str(error).replace("seqused_k", "cache_seqlens").replace("leftpad_k", "cache_leftpad")
    raise type(error)(text.replace("page_table", given.table[0])) from error


def _attend(given: Cached, seqused: Tensor | None, table: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
    longest_q = longest(given.q, given.cu_seqlens_q, given.max_seqlen_q)
    fp8 = in_8_bits("k_cache", given.k_cache, k_descale=given.k_descale, v_descale=given.v_descale)
    for argument, asked in given.edit.get("score_inputs", {}).items() if fp8 else ():
        refuse(argument, asked, f"none with k_cache of {FP8}, as ferroflash has no kernel for both")
    if given.k is not None or given.v is not None:
        return _with_new_rows(given, seqused, table, window, longest_q)
    for argument, tensor in (("rotary_cos", given.rotary_cos), ("rotary_sin", given.rotary_sin)):
        if tensor is not None:
            raise ValueError(f"{argument} was given; allowed with k and v, the new rows to be rotated")
    if given.cu_seqlens_k_new is not None:
        raise ValueError("cu_seqlens_k_new was given; allowed with k and v, the new rows that it divides")
    options = {
        "softmax_scale": given.softmax_scale,
        "window": window,
        "cu_seqlens_q": given.cu_seqlens_q,
        "seqused_k": seqused,
        "leftpad_k": given.cache_leftpad,
        "max_seqlen_q": longest_q,
        "page_table": table,
        "num_splits": given.num_splits,
    }
    if fp8:
        return forward_fp8(given.q, given.k_cache, given.v_cache, given.k_descale, given.v_descale, **options)
    return attention(given.q, given.k_cache, given.v_cache, **options, **given.edit)


def _table(given: Cached, batch: int) -> Tensor | None:
    """The table of pages. A cache that is indexed by batch is a pool with a page for each entry; a table that is, is read by its rows."""
    (argument, table), index = given.table, given.cache_batch_idx
    if index is not None:
        index = index.contiguous()
        check_integers("cache_batch_idx", Form.of(index), (batch,), given.k_cache.device)
        table = index.unsqueeze(1) if table is None else table.index_select(0, index)
    if table is not None:
        table = table.contiguous()
        named = "cache_batch_idx" if given.table[1] is None else argument
        check_integers(named, Form.of(table), (batch, "columns"), given.k_cache.device)
    return table


def _with_new_rows(
    given: Cached, seqused: Tensor | None, table: Tensor | None, window: Window, longest_q: int | None
) -> tuple[Tensor, Tensor]:
    if given.k is None or given.v is None or seqused is None:
        missing = "k" if given.k is None else "v" if given.v is None else "cache_seqlens"
        raise ValueError(f"{missing} is missing; needed: k, v and cache_seqlens, where one of k and v is given")
    refuse_tangents(given.q, given.k, given.v, given.k_cache, given.v_cache)
    rotary = _rotary(given, given.k_cache.shape[1] * (1 if table is None else table.shape[1]))
    q, k, v, k_cache, v_cache = (x.detach() for x in (given.q, given.k, given.v, given.k_cache, given.v_cache))
    numbers = (longest_q, None, given.softmax_scale, *window, given.num_splits)
    lengths = {"cu_seqlens_q": given.cu_seqlens_q, "seqused_k": seqused, "leftpad_k": given.cache_leftpad, "page_table": table}
    scales = (None, None)
    if k_cache.dtype == FP8:
        scales = descales((q, k_cache, v_cache), given.k_descale, given.v_descale, given.cu_seqlens_q)
        lengths |= {"k_descale": scales[0], "v_descale": scales[1]}
    plain = _are_plain(q, k, v, k_cache, v_cache, seqused)
    expressions = expressions_of(q, **given.edit)
    planned, beside = None, Beside.of(lengths, expressions)
    if plain:
        # What attention refuses is refused before the cache is written.
        planned = _call.plan(q, k_cache, v_cache, numbers, beside)
        if planned.reads:
            planned.forward()
        if not k_cache.is_cuda:
            _check_on_host(k, k_cache, (seqused, given.cache_leftpad, table), given.cu_seqlens_k_new)
    rotated, queries = q, None
    if rotary is not None:
        own = given.rotary_seqlens is not None and given.rotary_seqlens is not seqused
        positions = given.rotary_seqlens if own else seqused
        at_first = window == (None, None)
        if own or not _same_rows(given):
            rotated = _turn_queries(q, rotary, positions, given.cu_seqlens_q, at_first)
        else:
            queries = q
        if own:
            k, rotary = rotate(k, rotary, positions, given.cu_seqlens_k_new), None
    else:
        at_first = False
    rows = Append(
        k, v, k_cache, v_cache, seqused, queries, rotary, at_first and queries is not None, given.cu_seqlens_k_new, table, *scales
    )
    after, appended = append(rows)
    rotated = rotated if appended is None else appended
    lengths["seqused_k"] = after
    if plain:
        beside = Beside.of(lengths, expressions)
        if rotated.stride() != q.stride():
            planned = _call.plan(rotated, k_cache, v_cache, numbers, beside)
        return _call.forward(planned, rotated, k_cache, v_cache, beside)
    options = {"softmax_scale": given.softmax_scale, "window": window, "max_seqlen_q": longest_q, "num_splits": given.num_splits}
    if k_cache.dtype == FP8:
        return forward_fp8(rotated, k_cache, v_cache, **options, **lengths)
    return attention(rotated, k_cache, v_cache, **options, **lengths, **given.edit)


def _rotary(given: Cached, seqlen_cache: int) -> Rotary | None:
    """The tables in float32, which they are computed with, checked."""
    cos, sin = given.rotary_cos, given.rotary_sin
    if cos is None and sin is None:
        return None
    if cos is None or sin is None:
        raise ValueError(f"{'rotary_cos' if cos is None else 'rotary_sin'} is missing; needed: both rotary_cos and rotary_sin, or neither")
    for argument, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        if table.dtype not in DTYPES:
            raise TypeError(f"{argument} is {table.dtype}; allowed: {', '.join(map(str, DTYPES))}")
        if table.device != given.q.device:
            raise TypeError(f"{argument} lies on {table.device}; needed: {given.q.device}, as q")
        if table.dim() != 2 or table.shape != cos.shape:
            raise ValueError(f"{argument} has the shape {list(table.shape)}; needed: [seqlen_ro, rotary_dim / 2], of both alike")
    if cos.shape[0] < seqlen_cache:
        raise ValueError(f"rotary_cos has {cos.shape[0]} positions; needed: {seqlen_cache} or more, the rows of a sequence of the cache")
    return Rotary(cos.float().contiguous(), sin.float().contiguous(), bool(given.rotary_interleaved))


def _same_rows(given: Cached) -> bool:
    """Whether queries lie as new rows do, so that an append turns them, too."""
    q, k = given.q, given.k
    if given.cu_seqlens_q is None:
        return given.cu_seqlens_k_new is None and q.shape[:2] == k.shape[:2]
    return given.cu_seqlens_q is given.cu_seqlens_k_new and q.shape[0] == k.shape[0]


def _turn_queries(q: Tensor, rotary: Rotary, positions: Tensor, cu_seqlens_q: Tensor | None, at_first: bool) -> Tensor:
    """Queries rotated: row i of sequence b by position `positions[b] + i`, or with `at_first` by `positions[b]`."""
    if not at_first:
        return rotate(q, rotary, positions, cu_seqlens_q)
    if cu_seqlens_q is None:
        # As one row of many heads.
        batch, seqlen, heads, head_dim = q.shape
        return rotate(q.reshape(batch, 1, seqlen * heads, head_dim), rotary, positions).view(q.shape)
    # As sequences of one row. Rows of no sequence are rotated somehow: nobody reads them.
    rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:], rows, right=True, out_int32=True).clamp_(max=positions.shape[0] - 1)
    return rotate(q.unsqueeze(1), rotary, positions.index_select(0, sequence)).squeeze(1)


def _check_on_host(k: Tensor, k_cache: Tensor, lengths: tuple[Tensor, Tensor | None, Tensor | None], cu_seqlens_new: Tensor | None) -> None:
    """What attention will ask of its lengths once the new rows are there. On a GPU nobody looks at them."""
    seqused, leftpad, table = lengths
    new = k.shape[1] if cu_seqlens_new is None else cu_seqlens_new.diff()
    used = seqused + new
    if leftpad is not None and leftpad.shape == used.shape and ((leftpad < 0) | (leftpad > used)).any():
        raise ValueError(f"cache_leftpad: {leftpad.tolist()} was given; allowed: 0 to the rows in use, {used.tolist()}")
    if table is None:
        return
    page_size = k_cache.shape[1]
    begin = torch.arange(table.shape[1]) * page_size
    first = torch.zeros_like(used) if leftpad is None else torch.where(leftpad < used, leftpad, table.shape[1] * page_size)
    wrong = ((table < 0) | (table >= k_cache.shape[0])) & (begin < used[:, None]) & (first[:, None] < begin + page_size)
    if wrong.any():
        raise ValueError(f"page_table says page {table[wrong][0].item()}; the pool has {k_cache.shape[0]}")
