"""Tensors rounded to e4m3 with their scales: the operator `ferroflash::quantize`.

Plans are kept and calls are made as in `_call`; plain calls bypass the operator, as in `_torch`. It has no derivative.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from . import _native
from ._append import _ordinal, _run
from ._call import _N_PLANS, _reads, misaligned
from ._checks import DTYPES, FP8, Form
from ._torch import _LIBRARY, _are_plain

_LIBRARY.define(
    "quantize(Tensor x, SymInt heads_k, bool hadamard, Tensor? cu_seqlens, SymInt? max_seqlen) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def quantize(
    x: Tensor, heads_k: int, hadamard: bool, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None
) -> tuple[Tensor, Tensor]:
    """`[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`, in e4m3, contiguous, and its scales, float32 `[batch, heads_k]`."""
    if _are_plain(x):
        return _quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen)
    return torch.ops.ferroflash.quantize.default(x, heads_k, hadamard, cu_seqlens, max_seqlen)


class _Plan:
    """A rounding of a tensor of this form, planned."""

    def __init__(self, x: Form, heads_k: int, hadamard: bool, packed: tuple[int, int] | None) -> None:
        ordinal = _ordinal(x)
        self.device, self.ordinal = x.device, ordinal
        self.shapes = x.shape, (x.shape[0] if packed is None else packed[0], heads_k)
        self.misaligned = misaligned(x, ordinal)
        self.native, self.n_bytes = None, 0
        # What kernels cannot read is copied; of a copy that they cannot read either the library says why.
        if _reads(x, ordinal is not None) or x.is_contiguous():
            strides = {"x": x.strides[:-1]}
            options = {"heads_k": heads_k, "hadamard": hadamard, "packed": packed}
            self.native = _native.Call.quantize(DTYPES[x.dtype], x.shape, ordinal, strides, **options)
            self.n_bytes = self.native.workspace_bytes


_plan = lru_cache(maxsize=_N_PLANS)(_Plan)


def _quantize(x: Tensor, heads_k: int, hadamard: bool, cu_seqlens: Tensor | None, max_seqlen: int | None) -> tuple[Tensor, Tensor]:
    packed = None if cu_seqlens is None else (cu_seqlens.shape[0] - 1, max_seqlen)
    planned = _plan(Form.of(x), heads_k, hadamard, packed)
    if planned.native is None or x.data_ptr() & planned.misaligned:
        x = x.clone(memory_format=torch.contiguous_format)
        planned = _plan(Form.of(x), heads_k, hadamard, packed)
    of_x, of_scales = planned.shapes
    # Packed rows may belong to no sequence: such are 0.
    new = torch.empty if packed is None else torch.zeros
    rounded = new(of_x, dtype=FP8, device=planned.device)
    descale = torch.empty(of_scales, dtype=torch.float32, device=planned.device)
    workspace = torch.empty(planned.n_bytes, dtype=torch.uint8, device=planned.device) if planned.n_bytes > 0 else None
    _run(planned, {"x": x, "rounded": rounded, "descale_out": descale, "cu_seqlens": cu_seqlens}, workspace)
    return rounded, descale


@torch.library.impl(_LIBRARY, "quantize", "CPU")
@torch.library.impl(_LIBRARY, "quantize", "CUDA")
def _quantize_operator(x, heads_k, hadamard, cu_seqlens, max_seqlen):
    return _quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen)


@torch.library.register_fake("ferroflash::quantize", lib=_LIBRARY)
def _fake_quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen):
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return x.new_empty(x.shape, dtype=FP8), x.new_empty(batch, heads_k, dtype=torch.float32)
