"""Forward passes without a backward pass, on PyTorch's tensors: values in the keys, and keys and values in 8 bits.

They are the operators `ferroflash::latent` and `ferroflash::forward_fp8`. Plans are kept and calls made as in `_call`; plain calls go past the
operators, as in `_torch`. Keys and values are read where they lie, or not at all: a copy of a cache could be as large as the memory.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ._call import _N_PLANS, Lengths, Plan, Special, _reads, lse_shape, misaligned
from ._checks import FP8, N_LENGTHS, Form, batch_of, check, check_rows, default_scale, number, whole
from ._refuse import refuse
from ._torch import _LIBRARY, _OPTIONS, _TAGS, _are_plain, _given

_LIBRARY.define(
    "latent(Tensor q, Tensor k, SymInt head_dim_v, Tensor? seqused_k, Tensor? page_table, float softmax_scale, bool causal) "
    "-> (Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    f"forward_fp8(Tensor q, Tensor k, Tensor v, Tensor k_descale, Tensor v_descale, {_OPTIONS}) -> (Tensor, Tensor)",
    tags=_TAGS,
)

_OPERATORS = ("latent", "forward_fp8")


def latent(
    q: Tensor,
    k: Tensor,
    head_dim_v: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`_torch.attention` with the first `head_dim_v` columns of k for v: o, `[batch, seqlen_q, heads_q, head_dim_v]`, and lse."""
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    options = (head_dim_v, seqused_k, page_table, scale, causal)
    if _goes_past(q, k):
        return _latent(q, k, *options)
    return torch.ops.ferroflash.latent.default(q, k, *options)


def forward_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    *,
    softmax_scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
    cu_seqlens_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    page_table: Tensor | None = None,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor]:
    """`_torch.attention` with k and v of e4m3, multiplied by their scales, `[batch, heads_k]` or, in pages, `[n_pages, heads_k]`; None is 1."""
    k_descale, v_descale = _descales((q, k, v), k_descale, v_descale, cu_seqlens_q)
    lengths = (cu_seqlens_q, None, None, seqused_k, leftpad_k, page_table)
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    left, right = (whole("window", side) for side in window)
    options = (*lengths, whole("max_seqlen_q", max_seqlen_q), None, scale, left, right, whole("num_splits", num_splits))
    if _goes_past(q, k, v, k_descale, v_descale):
        return _forward_fp8(q, k, v, k_descale, v_descale, *options)
    return torch.ops.ferroflash.forward_fp8.default(q, k, v, k_descale, v_descale, *options)


def in_8_bits(argument: str, k: Tensor, **descales: Tensor | None) -> bool:
    """Whether keys, of this name, are e4m3. Those that are not have no scales."""
    if getattr(k, "dtype", None) == FP8:
        return True
    for name, given in descales.items():
        if given is not None:
            refuse(name, given, f"None but with {argument} of {FP8}")
    return False


def _descales(
    tensors: tuple[Tensor, Tensor, Tensor], k_descale: Tensor | None, v_descale: Tensor | None, cu_seqlens_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Both scales, contiguous."""
    q, k, _ = tensors
    scales = [(name, given) for name, given in (("k_descale", k_descale), ("v_descale", v_descale)) if given is not None]
    for argument, given in (*zip(("q", "k", "v"), tensors, strict=True), *scales):
        if not isinstance(given, Tensor):
            raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
    if k_descale is None and v_descale is None:
        # Of tensors that are refused later, what they have.
        batch = q.shape[:1] if cu_seqlens_q is None else (cu_seqlens_q.numel() - 1,)
        k_descale = torch.ones(*batch, *k.shape[-2:-1], dtype=torch.float32, device=k.device)
        return k_descale, k_descale
    if k_descale is None or v_descale is None:
        ones = torch.ones_like(v_descale if k_descale is None else k_descale)
        k_descale, v_descale = (ones if given is None else given for given in (k_descale, v_descale))
    return k_descale.contiguous(), v_descale.contiguous()


def _goes_past(*tensors: Tensor) -> bool:
    """Whether a call goes past the operator: nobody has to see it, and nobody may want a gradient, which the operator refuses."""
    return _are_plain(*tensors) and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


@lru_cache(maxsize=_N_PLANS)
def _latent_plan(q: Form, k: Form, lengths: tuple[Form | None, ...], head_dim_v: int, scale: float, causal: bool) -> Plan:
    numbers = (None, None, scale, None, 0 if causal else None, 0)
    planned = Plan((q, k, k), lengths, numbers, Special(values_in_keys=head_dim_v))
    check_rows("k", k)
    return planned


@lru_cache(maxsize=_N_PLANS)
def _fp8_plan(forms: tuple[Form, ...], lengths: tuple[Form | None, ...], numbers: tuple) -> Plan:
    q, k, v, *scales = forms
    page_table = lengths[5]
    check(q, k, v, page_table, in_8_bits=True)
    batch = batch_of(q, k, lengths, *numbers[:2])
    planned = Plan((q, k, v), lengths, numbers, Special(fp8_kv=_scales_of(k, scales, batch, page_table is not None)))
    for argument, given in (("k", k), ("v", v)):
        check_rows(argument, given)
    return planned


def _scales_of(k: Form, scales: list[Form], batch: int, in_pages: bool) -> str:
    """What scales of this shape are of."""
    heads_k = k.shape[-2]
    shapes = {"per_sequence": (batch, heads_k)}
    if in_pages:
        shapes["per_page"] = (k.shape[0], heads_k)
    found = None
    for argument, given in zip(("k_descale", "v_descale"), scales, strict=True):
        if given.dtype != torch.float32:
            raise TypeError(f"{argument} is {given.dtype}; needed: torch.float32")
        if given.device != k.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {k.device}, as q")
        fitting = [name for name, shape in shapes.items() if tuple(given.shape) == shape]
        if not fitting or found not in (None, fitting[0]):
            needed = " or ".join(str(list(shape)) for name, shape in shapes.items() if found in (None, name))
            raise ValueError(f"{argument} has the shape {list(given.shape)}; needed: {needed}")
        found = fitting[0]
    return found


def _queries(q: Tensor) -> Tensor:
    """q as kernels read it."""
    form = Form.of(q)
    reads = _reads(form, q.is_cuda) and not q.data_ptr() & misaligned(form, q.device.index if q.is_cuda else None)
    return q if reads else q.clone(memory_format=torch.contiguous_format)


def _forms(lengths: tuple[Tensor | None, ...]) -> tuple[Form | None, ...]:
    return tuple(None if given is None else Form.of(given) for given in lengths)


def _run(planned: Plan, tensors: tuple[Tensor | None, ...], head_dim_v: int, lengths: Lengths, **scales: tuple[int, int]):
    q, *_ = tensors
    o = q.new_empty((*q.shape[:-1], head_dim_v))
    lse = q.new_empty(planned.shape_lse, dtype=torch.float32)
    addresses = tuple(0 if given is None else given.data_ptr() for given in (*tensors, o, lse))
    planned.run(planned.forward(), addresses, lengths, scales or None)
    return o, lse


@torch.library.impl(_LIBRARY, "latent", "CPU")
@torch.library.impl(_LIBRARY, "latent", "CUDA")
def _latent(q, k, head_dim_v, seqused_k, page_table, softmax_scale, causal):
    q = _queries(q)
    lengths = (None, None, None, seqused_k, None, page_table)
    planned = _latent_plan(Form.of(q), Form.of(k), _forms(lengths), head_dim_v, softmax_scale, causal)
    return _run(planned, (q, k, None), head_dim_v, _given(lengths))


@torch.library.impl(_LIBRARY, "forward_fp8", "CPU")
@torch.library.impl(_LIBRARY, "forward_fp8", "CUDA")
def _forward_fp8(q, k, v, k_descale, v_descale, *options):
    q, lengths = _queries(q), options[:N_LENGTHS]
    forms = tuple(Form.of(x) for x in (q, k, v, k_descale, v_descale))
    planned = _fp8_plan(forms, _forms(lengths), options[N_LENGTHS:])
    return _run(planned, (q, k, v), q.shape[-1], _given(lengths), scales=(k_descale.data_ptr(), v_descale.data_ptr()))


@torch.library.register_fake("ferroflash::latent", lib=_LIBRARY)
def _fake_latent(q, k, head_dim_v, seqused_k, page_table, *options):
    check(Form.of(q), Form.of(k), Form.of(k), page_table)
    return q.new_empty((*q.shape[:-1], head_dim_v)), q.new_empty(lse_shape(q.shape), dtype=torch.float32)


@torch.library.register_fake("ferroflash::forward_fp8", lib=_LIBRARY)
def _fake_forward_fp8(q, k, v, k_descale, v_descale, *options):
    check(Form.of(q), Form.of(k), Form.of(v), options[N_LENGTHS - 1], in_8_bits=True)
    return q.new_empty(q.shape), q.new_empty(lse_shape(q.shape), dtype=torch.float32)


def _refuse_gradients(ctx, *gradients):
    raise NotImplementedError(
        "gradients were asked for; ferroflash has no backward pass where values are in the keys, or keys and values are in 8 bits"
    )


def _refuse_vmap(info, in_dims, *args):
    raise NotImplementedError("ferroflash has no rule for torch.func.vmap: batch is a dimension of q and k")


for _name in _OPERATORS:
    torch.library.register_autograd(f"ferroflash::{_name}", _refuse_gradients, lib=_LIBRARY)
    torch.library.register_vmap(f"ferroflash::{_name}", _refuse_vmap, lib=_LIBRARY)
