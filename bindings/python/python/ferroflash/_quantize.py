"""Tensors rounded to e4m3, with scales of their own or given ones: the operator `ferroflash::quantize`.

Plans are kept and calls are made as in `_call`; plain calls bypass the operator, as in `_torch`. It has no derivative.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import _native
from ._append import _ordinal, _run
from ._call import _N_PLANS, _reads, misaligned
from ._checks import DTYPES, FP8, Form
from ._torch import _LIBRARY, _are_plain

_LIBRARY.define(
    "quantize(Tensor x, SymInt heads_k, bool hadamard, Tensor? cu_seqlens, SymInt? max_seqlen, Tensor? descale, bool amax) "
    "-> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


class Quantized(NamedTuple):
    """A tensor in 8 bits."""

    rounded: Tensor
    """`[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`, in e4m3, contiguous."""
    descale: Tensor
    """The scales, float32 `[batch, heads_k]`; the given ones, if they are given."""
    amax: Tensor | None
    """The greatest magnitudes, float32 `[batch, heads_k]`; None if they are not wanted."""


def quantize(
    x: Tensor,
    heads_k: int,
    hadamard: bool,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    *,
    descale: Tensor | None = None,
    amax: bool = False,
) -> Quantized:
    """Rounds `[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`, with scales of its own, or with `descale`."""
    if _are_plain(x) if descale is None else _are_plain(x, descale):
        return _quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen, descale, amax)
    rounded, found, most = torch.ops.ferroflash.quantize.default(x, heads_k, hadamard, cu_seqlens, max_seqlen, descale, amax)
    return Quantized(rounded, found if descale is None else descale, most if amax else None)


class _Plan:
    """A rounding of a tensor of this form, planned. `given`: with given scales; `amax`: whether the greatest magnitudes are wanted."""

    def __init__(self, x: Form, heads_k: int, hadamard: bool, packed: tuple[int, int] | None, given: bool, amax: bool) -> None:
        ordinal = _ordinal(x)
        self.device, self.ordinal = x.device, ordinal
        self.shapes = x.shape, (x.shape[0] if packed is None else packed[0], heads_k)
        self.misaligned = misaligned(x, ordinal)
        self.native, self.n_bytes = None, 0
        # What kernels cannot read is copied; of a copy that they cannot read either the library says why.
        if _reads(x, ordinal is not None) or x.is_contiguous():
            strides, giving = {"x": x.strides[:-1]}, ["amax"] if amax else []
            options = {"heads_k": heads_k, "hadamard": hadamard, "giving_descale": given, "packed": packed}
            self.native = _native.Call.quantize(DTYPES[x.dtype], x.shape, ordinal, strides, giving, **options)
            self.n_bytes = self.native.workspace_bytes


_plan = lru_cache(maxsize=_N_PLANS)(_Plan)


def _quantize(
    x: Tensor,
    heads_k: int,
    hadamard: bool,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    descale: Tensor | None,
    amax: bool,
) -> Quantized:
    packed = None if cu_seqlens is None else (cu_seqlens.shape[0] - 1, max_seqlen)
    options = heads_k, hadamard, packed, descale is not None, amax
    planned = _plan(Form.of(x), *options)
    if planned.native is None or x.data_ptr() & planned.misaligned:
        x = x.clone(memory_format=torch.contiguous_format)
        planned = _plan(Form.of(x), *options)
    of_x, of_scales = planned.shapes
    # Packed rows may belong to no sequence: such are 0.
    new = torch.empty if packed is None else torch.zeros
    rounded = new(of_x, dtype=FP8, device=planned.device)
    most = torch.empty(of_scales, dtype=torch.float32, device=planned.device) if amax else None
    given = {"x": x, "rounded": rounded, "amax": most, "cu_seqlens": cu_seqlens}
    if descale is None:
        descale = given["descale_out"] = torch.empty(of_scales, dtype=torch.float32, device=planned.device)
    else:
        given["descale"] = descale
    workspace = torch.empty(planned.n_bytes, dtype=torch.uint8, device=planned.device) if planned.n_bytes > 0 else None
    _run(planned, given, workspace)
    return Quantized(rounded, descale, most)


@torch.library.impl(_LIBRARY, "quantize", "CPU")
@torch.library.impl(_LIBRARY, "quantize", "CUDA")
def _quantize_operator(x, heads_k, hadamard, cu_seqlens, max_seqlen, descale, amax):
    rounded, found, most = _quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen, descale, amax)
    # An operator does not return what it is given.
    nothing = x.new_empty(0, dtype=torch.float32)
    return rounded, found if descale is None else nothing, most if amax else nothing.clone()


@torch.library.register_fake("ferroflash::quantize", lib=_LIBRARY)
def _fake_quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen, descale, amax):
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    of_scales = [(batch, heads_k) if wanted else (0,) for wanted in (descale is None, amax)]
    return x.new_empty(x.shape, dtype=FP8), *(x.new_empty(shape, dtype=torch.float32) for shape in of_scales)
