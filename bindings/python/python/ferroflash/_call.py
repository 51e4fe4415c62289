"""Calls of attention on PyTorch's tensors: what is planned once for a shape, what is allocated, which addresses are handed over.

A `Plan` is made when a combination of shapes, strides and types is first seen, and kept. A call is then a look-up, two outputs, a workspace
and the launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import _native
from ._checks import DTYPES, Form, batch_of, check, check_lengths, check_window

# How many combinations of shapes are kept.
_N_PLANS = 4096

# GPU kernels read 16 bytes at a time.
_ALIGNMENT_BYTES = 16
_ALIGNMENT_ELEMS = 8


class Options(NamedTuple):
    """What a call is given beside q, k and v: the operators' arguments, in their order."""

    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_q: Tensor | None = None
    seqused_k: Tensor | None = None
    leftpad_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    softmax_scale: float = 1.0
    left: int | None = None
    right: int | None = None


def lse_shape(shape_q: tuple[int, ...]) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q]."""
    if len(shape_q) == 4:
        batch, seqlen, heads, _ = shape_q
        return batch, heads, seqlen
    total, heads, _ = shape_q
    return heads, total


class Plan:
    """A call on tensors of these forms, checked; its passes are planned by the library when they are first wanted."""

    def __init__(self, forms: tuple[Form, Form, Form], lengths: tuple[Form | None, ...] | None, numbers: tuple) -> None:
        q, k, v = forms
        max_seqlen_q, max_seqlen_k, softmax_scale, left, right = numbers
        check(q, k, v)
        check_window(left, right)
        lengths = (None,) * 5 if lengths is None else lengths
        batch = batch_of(q, k, lengths, max_seqlen_q, max_seqlen_k)
        check_lengths(lengths, batch, q)
        self.shape_lse = lse_shape(q.shape)
        self.device = q.device
        self.ordinal = q.device.index if q.device.type == "cuda" else None
        self.problem = _native.Problem(
            DTYPES[q.dtype],
            q.shape,
            k.shape,
            batch=batch,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            softmax_scale=softmax_scale,
            left=left,
            right=right,
        )
        # Whether kernels read tensors of these strides, if they begin at a multiple of 16 bytes.
        self._reads = all(_reads(form, self.ordinal is not None) for form in forms)
        self._strides = tuple(form.strides[:-1] for form in forms)
        self._given = [given is not None for given in lengths]
        self._forward: tuple[_native.Forward, int] | None = None
        self._backward: dict[tuple[int, ...], tuple[_native.Backward, int]] = {}

    def forward(self) -> tuple[_native.Forward, int]:
        """The forward pass, and the bytes of its workspace."""
        if self._forward is None:
            forward = _native.Forward(self.problem, self.ordinal, self._strides, self._given)
            self._forward = forward, forward.workspace_bytes
        return self._forward

    def backward(self, strides: tuple[int, ...]) -> tuple[_native.Backward, int]:
        """The backward pass of a gradient of o with these strides, and the bytes of its workspace."""
        planned = self._backward.get(strides)
        if planned is None:
            of_all = (*self._strides, strides[:-1])
            backward = _native.Backward(self.problem, self.ordinal, of_all, self._given)
            planned = backward, backward.workspace_bytes
            self._backward[strides] = planned
        return planned

    def reads_all_of(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether kernels read the tensors where they lie."""
        if self.ordinal is None:
            return self._reads
        return self._reads and (q.data_ptr() | k.data_ptr() | v.data_ptr()) % _ALIGNMENT_BYTES == 0

    def reads_gradient(self, d_o: Tensor) -> bool:
        """Whether kernels read a gradient of o where it lies."""
        on_gpu = self.ordinal is not None
        if d_o.stride() not in self._backward and not _reads(Form.of(d_o), on_gpu):
            return False
        return not on_gpu or d_o.data_ptr() % _ALIGNMENT_BYTES == 0

    def run(self, planned: tuple, addresses: list[int], options: Options) -> None:
        """Enqueues a pass on the current stream; on the CPU, computes it."""
        native, n_bytes = planned
        lengths = [0 if given is None else given.data_ptr() for given in options[:5]]
        if self.ordinal is None:
            native.run(0, (0, 0), addresses, lengths)
            return
        # Freed when this returns, and used again by PyTorch behind this call, in the order of the stream.
        workspace = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
        stream = torch._C._cuda_getCurrentRawStream(self.ordinal)
        native.run(stream, (workspace.data_ptr(), n_bytes), addresses, lengths)


def plan(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Plan:
    """The plan of a call. Raises TypeError or ValueError that names the argument."""
    lengths = None
    for given in options[:5]:
        if given is not None:
            lengths = tuple(None if given is None else Form.of(given) for given in options[:5])
            break
    # Not of `Form`, which takes as long to make as all else here.
    forms = tuple([(x.shape, x.stride(), x.dtype, x.device) for x in (q, k, v)])
    return _kept(forms, lengths, options[5:])


@lru_cache(maxsize=_N_PLANS)
def _kept(forms: tuple[tuple, ...], lengths: tuple[Form | None, ...] | None, numbers: tuple) -> Plan:
    q, k, v = (Form(*form) for form in forms)
    return Plan((q, k, v), lengths, numbers)


def forward(planned: Plan, q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """o and lse."""
    addresses = [q.data_ptr(), k.data_ptr(), v.data_ptr()]
    if not planned.reads_all_of(q, k, v):
        copies = [_readable(given, planned) for given in (q, k, v)]
        o, lse = forward(plan(*copies, options), *copies, options)
        return _narrowed(o, q.shape[-1]), lse
    o, lse = _new(q), q.new_empty(planned.shape_lse, dtype=torch.float32)
    addresses += (o.data_ptr(), lse.data_ptr())
    planned.run(planned.forward(), addresses, options)
    return o, lse


def backward(planned: Plan, d_o: Tensor, d_lse: Tensor | None, saved: Sequence[Tensor], options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, with q, k, v, o and lse saved."""
    q, k, v, o, lse = saved
    if not planned.reads_all_of(q, k, v):
        d_o, *copies = (_readable(given, planned) for given in (d_o, q, k, v, o))
        gradients = backward(plan(*copies[:3], options), d_o, d_lse, (*copies, lse), options)
        d_q, d_k, d_v = (_narrowed(gradient, q.shape[-1]) for gradient in gradients)
        return d_q, d_k, d_v
    if not planned.reads_gradient(d_o):
        d_o = d_o.clone(memory_format=torch.contiguous_format)
    o, lse = o.contiguous(), lse.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    d_q, d_k, d_v = _new(q), _new(k), _new(v)
    tensors = (q, k, v, o, lse, d_o, d_lse, d_q, d_k, d_v)
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    planned.run(planned.backward(d_o.stride()), addresses, options)
    return d_q, d_k, d_v


def _new(given: Tensor) -> Tensor:
    """Contiguous memory of a tensor's shape. `torch.empty` takes three times as long: it reads a shape, a type and a device."""
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def _reads(form: Form, on_gpu: bool) -> bool:
    """Whether kernels read a tensor of these strides: contiguous rows, on a GPU of whole pieces of 16 bytes."""
    *strides, last = form.strides
    *rows, head_dim = form.shape
    if last != 1 and head_dim != 1:
        return False
    if not on_gpu:
        return True
    return head_dim % _ALIGNMENT_ELEMS == 0 and all(
        stride % _ALIGNMENT_ELEMS == 0 for n, stride in zip(rows, strides, strict=True) if n > 1
    )


def _readable(given: Tensor, planned: Plan) -> Tensor:
    """A copy that kernels read. On a GPU columns of zeros fill head_dim up: they change no score, and their part of o is 0."""
    excess = -given.shape[-1] % _ALIGNMENT_ELEMS
    if planned.ordinal is not None and excess > 0:
        return torch.nn.functional.pad(given, (0, excess)).contiguous()
    return given.clone(memory_format=torch.contiguous_format)


def _narrowed(padded: Tensor, head_dim: int) -> Tensor:
    return padded if padded.shape[-1] == head_dim else padded[..., :head_dim].contiguous()
