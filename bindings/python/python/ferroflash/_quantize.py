"""Tensors rounded to e4m3 with their scales: the operator `ferroflash::quantize`.

Plans are kept and calls are made as in `_call`; plain calls bypass the operator, as in `_torch`. It has no derivative.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from . import _native
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
        ordinal = x.device.index if x.device.type == "cuda" else None
        self.device, self.ordinal = x.device, ordinal
        self.shapes = x.shape, (x.shape[0] if packed is None else packed[0], heads_k)
        self.misaligned = misaligned(x, ordinal)
        self.native, self.n_bytes = None, 0
        if _reads(x, ordinal is not None):
            strides = {"x": x.strides[:-1]}
            options = {"heads_k": heads_k, "hadamard": hadamard, "packed": packed}
            self.native = _native.Call.quantize(DTYPES[x.dtype], x.shape, ordinal, strides, **options)
            self.n_bytes = self.native.workspace_bytes


_plan = lru_cache(maxsize=_N_PLANS)(_Plan)


def _quantize(x: Tensor, heads_k: int, hadamard: bool, cu_seqlens: Tensor | None, max_seqlen: int | None) -> tuple[Tensor, Tensor]:
    packed = None if cu_seqlens is None else (cu_seqlens.shape[0] - 1, max_seqlen)
    planned = _plan(Form.of(x), heads_k, hadamard, packed)
    native = planned.native
    if native is None or x.data_ptr() & planned.misaligned:
        copy = x.clone(memory_format=torch.contiguous_format)
        planned = _plan(Form.of(copy), heads_k, hadamard, packed)
        x, native = copy, planned.native
    of_x, of_scales = planned.shapes
    # Packed rows may belong to no sequence: such are 0.
    new = torch.empty if packed is None else torch.zeros
    rounded = new(of_x, dtype=FP8, device=planned.device)
    descale = torch.empty(of_scales, dtype=torch.float32, device=planned.device)
    at = {"x": x.data_ptr(), "rounded": rounded.data_ptr(), "descale_out": descale.data_ptr()}
    if cu_seqlens is not None:
        at["cu_seqlens"] = cu_seqlens.data_ptr()
    if planned.ordinal is None:
        native.run(0, (0, 0), at)
    else:
        workspace = torch.empty(planned.n_bytes, dtype=torch.uint8, device=planned.device)
        stream = torch._C._cuda_getCurrentRawStream(planned.ordinal)
        native.run(stream, (workspace.data_ptr(), planned.n_bytes), at)
    return rounded, descale


@torch.library.impl(_LIBRARY, "quantize", "CPU")
@torch.library.impl(_LIBRARY, "quantize", "CUDA")
def _quantize_operator(x, heads_k, hadamard, cu_seqlens, max_seqlen):
    return _quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen)


@torch.library.register_fake("ferroflash::quantize", lib=_LIBRARY)
def _fake_quantize(x, heads_k, hadamard, cu_seqlens, max_seqlen):
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return x.new_empty(x.shape, dtype=FP8), x.new_empty(batch, heads_k, dtype=torch.float32)
