"""Rows written to a cache, and rows rotated by their positions (RoPE): the operators `ferroflash::append` and `ferroflash::rotate`.

Plans are kept and calls are made as in `_call`; plain calls bypass the operators, as in `_torch`. Neither operator has a derivative.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from . import _native
from ._call import _N_PLANS, _narrowed, _readable, _reads, misaligned
from ._checks import DTYPES, FP8, Form, check_integers, scales_of
from ._torch import _LIBRARY, _are_plain

_LIBRARY.define(
    "append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor cache_seqlens, Tensor? q, Tensor? cos, Tensor? sin, "
    "bool interleaved, bool queries_at_first, Tensor? cu_seqlens_new, Tensor? page_table, Tensor? k_descale=None, Tensor? v_descale=None) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_LIBRARY.define(
    "rotate(Tensor x, Tensor cos, Tensor sin, bool interleaved, Tensor positions, Tensor? cu_seqlens) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


class Rotary(NamedTuple):
    """How rows are rotated."""

    cos: Tensor
    """By position: `[n_positions, rotary_dim / 2]`, float32, contiguous."""
    sin: Tensor
    interleaved: bool
    """Whether elements 2i and 2i + 1 form a pair, or i and i + rotary_dim / 2."""


class Append(NamedTuple):
    """Row i of sequence b of k and v becomes row `cache_seqlens[b] + i` of its cache, rotated, if it is, by that position."""

    k: Tensor
    """`[batch, seqlen_new, heads_k, head_dim]`, or packed with cu_seqlens_new."""
    v: Tensor
    k_cache: Tensor
    """`[batch, seqlen_cache, heads_k, head_dim]`; with page_table `[n_pages, page_size, heads_k, head_dim]`. Written."""
    v_cache: Tensor
    cache_seqlens: Tensor
    q: Tensor | None = None
    """Queries, as many as new rows, that are rotated, too: with rotary."""
    rotary: Rotary | None = None
    queries_at_first: bool = False
    """Whether every query stands at `cache_seqlens[b]`."""
    cu_seqlens_new: Tensor | None = None
    page_table: Tensor | None = None
    k_descale: Tensor | None = None
    """With a cache of e4m3: the scales that new rows are divided by, `[batch, heads_k]` or, with page_table, `[n_pages, heads_k]`."""
    v_descale: Tensor | None = None


def append(given: Append) -> tuple[Tensor, Tensor | None]:
    """Appends, and returns the new number of rows of each sequence, int32 `[batch]`, and the rotated queries."""
    if _are_plain(*(x for x in given if isinstance(x, Tensor))):
        seqused, q = _append(given)
    else:
        cos, sin, interleaved = given.rotary or (None, None, False)
        seqused, q = torch.ops.ferroflash.append.default(*given[:6], cos, sin, interleaved, *given[7:])
    return seqused, None if given.q is None else q


def rotate(x: Tensor, rotary: Rotary, positions: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """Rotates rows: row i of sequence b by position `positions[b] + i`. x is `[batch, seqlen, heads, head_dim]`, or packed; so is the
    result."""
    if _are_plain(x, positions):
        return _rotate(x, rotary, positions, cu_seqlens)
    return torch.ops.ferroflash.rotate.default(x, *rotary, positions, cu_seqlens)


class _AppendPlan:
    """An append of tensors of these forms, checked and planned."""

    def __init__(self, forms: tuple[Form | None, ...], interleaved: bool, queries_at_first: bool) -> None:
        k, v, k_cache, v_cache, cache_seqlens, q, cos, cu_seqlens_new, page_table, k_descale, v_descale = forms
        batch = cache_seqlens.shape[0] if len(cache_seqlens.shape) == 1 else 0
        _check_caches(k_cache, v_cache, batch, page_table)
        beside = {"page_table": page_table, "k_descale": k_descale, "v_descale": v_descale}
        scales = scales_of(k_cache, {name: form for name, form in beside.items() if form is not None}, batch)
        _check_new(k, v, k_cache, batch, cu_seqlens_new)
        check_integers("cache_seqlens", cache_seqlens, (batch,), k_cache.device)
        if page_table is not None:
            check_integers("page_table", page_table, (batch, "columns"), k_cache.device)
        heads_q = 0
        if q is not None:
            heads_q = q.shape[-2] if len(q.shape) > 2 else "heads_q"
            _check_like("q", q, k, (*k.shape[:-2], heads_q, k.shape[-1]), "k")
        self.ordinal = _ordinal(k_cache)
        self.pads = self.ordinal is not None
        self.misaligned = misaligned(k_cache, self.ordinal)
        self.tensors = [form for form in (k, v, k_cache, v_cache, q) if form is not None]
        self.reads = [_reads(form, self.ordinal is not None) for form in self.tensors]
        self.native = None
        if all(self.reads):
            names = ("k_new", "v_new", "k_cache", "v_cache", "q")
            self.native = _native.Call.append(
                DTYPES[k.dtype],
                k.shape,
                k_cache.shape,
                self.ordinal,
                {name: form.strides[:-1] for name, form in zip(names, (k, v, k_cache, v_cache, q)) if form is not None},
                ["seqused_out"],
                batch=batch,
                heads_q=heads_q,
                columns=None if page_table is None else page_table.shape[1],
                rotary=_turned(cos, interleaved),
                queries_at_first=queries_at_first,
                fp8_kv=scales,
            )


class _RotatePlan:
    """A rotation of rows of this form, planned."""

    def __init__(self, x: Form, cos: Form, interleaved: bool, positions: Form, cu_seqlens: Form | None) -> None:
        batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        check_integers("rotary_seqlens", positions, (batch,), x.device)
        self.ordinal = _ordinal(x)
        self.pads = self.ordinal is not None
        self.misaligned = misaligned(x, self.ordinal)
        self.native = None
        if _reads(x, self.ordinal is not None):
            rotary = _turned(cos, interleaved)
            strides, giving = {"x": x.strides[:-1]}, ["seqlen_offsets"]
            self.native = _native.Call.rotate(DTYPES[x.dtype], x.shape, self.ordinal, strides, giving, batch=batch, rotary=rotary)


_append_plan = lru_cache(maxsize=_N_PLANS)(_AppendPlan)
_rotate_plan = lru_cache(maxsize=_N_PLANS)(_RotatePlan)


def _append(given: Append) -> tuple[Tensor, Tensor]:
    k, v, k_cache, v_cache, cache_seqlens, q, rotary, queries_at_first, cu_seqlens_new, page_table, k_descale, v_descale = given
    cos, sin, interleaved = rotary or (None, None, False)
    forms = (k, v, k_cache, v_cache, cache_seqlens, q, cos, cu_seqlens_new, page_table, k_descale, v_descale)
    planned = _append_plan(tuple(None if x is None else Form.of(x) for x in forms), interleaved, queries_at_first)
    tensors = [x for x in (k, v, k_cache, v_cache, q) if x is not None]
    readable = [reads and not x.data_ptr() & planned.misaligned for x, reads in zip(tensors, planned.reads, strict=True)]
    if planned.ordinal is None and all(readable):
        readable = _apart(tensors)
    if not all(readable):
        copies = [x if reads else _readable(x, planned) for x, reads in zip(tensors, readable, strict=True)]
        k, v, *caches = copies[:4]
        copied = given._replace(k=k, v=v, k_cache=caches[0], v_cache=caches[1], q=None if q is None else copies[4])
        seqused, q_out = _append(copied)
        head_dim = k_cache.shape[-1]
        for cache, copy in zip((k_cache, v_cache), caches, strict=True):
            if copy is not cache:
                cache.copy_(copy[..., :head_dim])
        return seqused, _narrowed(q_out, head_dim) if q is not None else q_out
    seqused = torch.empty_like(cache_seqlens, memory_format=torch.contiguous_format)
    q_out = k.new_empty(0) if q is None else _turned_rows(q, cu_seqlens_new)
    given = {"k_new": k, "v_new": v, "k_cache": k_cache, "v_cache": v_cache, "seqused_k": cache_seqlens, "seqused_out": seqused}
    given |= {"q": q, "q_out": None if q is None else q_out}
    given |= {"cu_seqlens_new": cu_seqlens_new, "page_table": page_table, "cos": cos, "sin": sin}
    given |= {"k_descale": k_descale, "v_descale": v_descale}
    _run(planned, given)
    for cache in (k_cache, v_cache):
        # So that PyTorch knows of the write, where a gradient wants the cache as it was.
        if not cache.is_inference():
            torch.autograd.graph.increment_version(cache)
    return seqused, q_out


def _apart(tensors: list[Tensor]) -> list[bool]:
    """Which of k, v, k_cache, v_cache and q do not overlap the caches that are written: the others have to be copied, as host memory is
    borrowed. Caches that interleave in one buffer, and new rows that are rows of a cache, share their memory."""
    spans = [_span(x) for x in tensors]
    k_cache, v_cache = spans[2:4]
    apart = [not (_meet(span, k_cache) or _meet(span, v_cache)) for span in spans]
    # What meets a cache is copied, so one of the two stays where it is.
    apart[2], apart[3] = True, not _meet(k_cache, v_cache)
    return apart


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _span(x: Tensor) -> tuple[int, int]:
    """The addresses from the first element of a tensor to the end of its last."""
    if x.numel() == 0:
        return (0, 0)
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _rotate(x: Tensor, rotary: Rotary, positions: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    cos, sin, interleaved = rotary
    of_lengths = None if cu_seqlens is None else Form.of(cu_seqlens)
    planned = _rotate_plan(Form.of(x), Form.of(cos), interleaved, Form.of(positions), of_lengths)
    if planned.native is None or x.data_ptr() & planned.misaligned:
        return _narrowed(_rotate(_readable(x, planned), rotary, positions, cu_seqlens), x.shape[-1])
    y = _turned_rows(x, cu_seqlens)
    _run(planned, {"x": x, "y": y, "seqlen_offsets": positions, "cu_seqlens": cu_seqlens, "cos": cos, "sin": sin})
    return y


def _turned_rows(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Memory for rotated rows of x. Not all are written: packed rows may belong to no sequence, and a GPU skips rows beyond the tables."""
    everywhere = cu_seqlens is None and not x.is_cuda
    return (torch.empty_like if everywhere else torch.zeros_like)(x, memory_format=torch.contiguous_format)


def _ordinal(form: Form) -> int | None:
    return form.device.index if form.device.type == "cuda" else None


class _Planned(Protocol):
    """The part of a plan that a run needs."""

    ordinal: int | None
    native: _native.Call | None


def _run(planned: _Planned, given: Mapping[str, Tensor | None], workspace: Tensor | None = None) -> None:
    """Enqueues an operation on the current stream; on the CPU, does it."""
    stream = 0 if planned.ordinal is None else torch._C._cuda_getCurrentRawStream(planned.ordinal)
    lent = (0, 0) if workspace is None else (workspace.data_ptr(), workspace.numel())
    planned.native.run(stream, lent, {name: x.data_ptr() for name, x in given.items() if x is not None})


def _turned(cos: Form | None, interleaved: bool) -> tuple[bool, int, int] | None:
    if cos is None:
        return None
    n_positions, n_pairs = cos.shape
    return interleaved, 2 * n_pairs, n_positions


def _check_caches(k_cache: Form, v_cache: Form, batch: int, page_table: Form | None) -> None:
    if k_cache.dtype not in (*DTYPES, FP8):
        raise TypeError(f"k_cache is {k_cache.dtype}; allowed: {', '.join(map(str, (*DTYPES, FP8)))}")
    if len(k_cache.shape) != 4:
        raise ValueError(f"k_cache has the shape {list(k_cache.shape)}; allowed: [batch, seqlen, heads, head_dim], or pages of that kind")
    if page_table is None and k_cache.shape[0] != batch:
        raise ValueError(f"k_cache has batch {k_cache.shape[0]}; needed: {batch}, as cache_seqlens")
    _check_like("v_cache", v_cache, k_cache, tuple(k_cache.shape), "k_cache")


def _check_new(k: Form, v: Form, k_cache: Form, batch: int, cu_seqlens_new: Form | None) -> None:
    heads, head_dim = k_cache.shape[2:]
    if cu_seqlens_new is None:
        seqlen = k.shape[1] if len(k.shape) == 4 else "seqlen"
        needed = (batch, seqlen, heads, head_dim)
    else:
        needed = (k.shape[0] if len(k.shape) == 3 else "total", heads, head_dim)
        check_integers("cu_seqlens_k_new", cu_seqlens_new, (batch + 1,), k_cache.device)
    if k_cache.dtype == FP8:
        if k.dtype not in DTYPES:
            raise TypeError(f"k is {k.dtype}; allowed: {', '.join(map(str, DTYPES))}")
        k_cache = k_cache._replace(dtype=k.dtype)
    _check_like("k", k, k_cache, needed, "k_cache")
    _check_like("v", v, k, needed, "k")


def _check_like(argument: str, given: Form, like: Form, needed: tuple[int | str, ...], other: str) -> None:
    if given.dtype != like.dtype:
        raise TypeError(f"{argument} is {given.dtype}; needed: {like.dtype}, as {other}")
    if given.device != like.device:
        raise TypeError(f"{argument} lies on {given.device}; needed: {like.device}, as {other}")
    if tuple(given.shape) != needed:
        shape = ", ".join(map(str, needed))
        raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: [{shape}]")


@torch.library.impl(_LIBRARY, "append", "CPU")
@torch.library.impl(_LIBRARY, "append", "CUDA")
def _append_operator(k, v, k_cache, v_cache, cache_seqlens, q, cos, sin, interleaved, *others):
    rotary = None if cos is None else Rotary(cos, sin, interleaved)
    return _append(Append(k, v, k_cache, v_cache, cache_seqlens, q, rotary, *others))


@torch.library.impl(_LIBRARY, "rotate", "CPU")
@torch.library.impl(_LIBRARY, "rotate", "CUDA")
def _rotate_operator(x, cos, sin, interleaved, positions, cu_seqlens):
    return _rotate(x, Rotary(cos, sin, interleaved), positions, cu_seqlens)


@torch.library.register_fake("ferroflash::append", lib=_LIBRARY)
def _fake_append(k, v, k_cache, v_cache, cache_seqlens, q, *options):
    return cache_seqlens.new_empty(cache_seqlens.shape), k.new_empty(0) if q is None else q.new_empty(q.shape)


@torch.library.register_fake("ferroflash::rotate", lib=_LIBRARY)
def _fake_rotate(x, *options):
    return x.new_empty(x.shape)
