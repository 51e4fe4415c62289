"""Attention in float64 on the CPU by PyTorch's own operations, with all scores in memory: so that `torch.autograd.gradcheck` can check
what is built on attention. The library's kernels support at most float32. PyTorch's transformations work here as on its other operations,
forward mode included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._call import Beside, Numbers
from ._checks import Form, batch_of, check_inputs, check_window, default_scale
from ._refuse import refuse, refuse_given

# The optional inputs that it knows.
_SERVED = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "sinks")


def attention(q: Tensor, k: Tensor, v: Tensor, numbers: Numbers, beside: Beside) -> tuple[Tensor, Tensor]:
    """`_torch.attention` of q, k and v in float64: o and lse, both in float64."""
    if beside.dropout_p != 0:
        refuse("dropout_p", beside.dropout_p, "0 with q of torch.float64")
    given = beside.named()
    refuse_given(score=beside.score, mask=beside.mask, **{name: x for name, x in given.items() if name not in _SERVED})
    max_seqlen_q, max_seqlen_k, scale, left, right, _num_splits = numbers
    of_q, of_k = Form.of(q), Form.of(k)
    _check(q, k, v)
    check_window(left, right)
    forms = {name: Form.of(x) for name, x in given.items()}
    sinks = given.get("sinks")
    if sinks is not None:
        # Whatever its type and strides are, it is read by PyTorch.
        forms["sinks"] = Form.of(sinks.detach().float().contiguous())
    batch = batch_of(of_q, of_k, forms, max_seqlen_q, max_seqlen_k)
    check_inputs(forms, batch, of_q)
    seqused_q, seqused_k, leftpad_k = (given.get(name) for name in ("seqused_q", "seqused_k", "leftpad_k"))
    # [rows of all sequences, heads, head_dim]: those of another sequence are hidden.
    rows_q, rows_k, rows_v = (x if x.dim() == 3 else x.flatten(0, 1) for x in (q, k, v))
    first_q, end_q, sequence_q = _sequences(q, given.get("cu_seqlens_q"), seqused_q, batch)
    first_k, end_k, sequence_k = _sequences(k, given.get("cu_seqlens_k"), seqused_k, batch)
    first_k = first_k if leftpad_k is None else first_k + leftpad_k
    index_q, index_k = (torch.arange(len(rows), device=q.device) for rows in (rows_q, rows_k))
    place = (index_q + (end_k - end_q)[sequence_q])[:, None]
    used_q = (index_q >= first_q[sequence_q]) & (index_q < end_q[sequence_q])
    used_k = (index_k >= first_k[sequence_k]) & (index_k < end_k[sequence_k])
    seen = used_q[:, None] & used_k & (sequence_q[:, None] == sequence_k)
    if left is not None:
        seen = seen & (index_k >= place - left)
    if right is not None:
        seen = seen & (index_k <= place + right)
    # What is not in use may be NaN, and 0 · NaN is NaN.
    group = q.shape[-2] // max(k.shape[-2], 1)
    rows_q = rows_q.masked_fill(~used_q[:, None, None], 0.0)
    rows_k, rows_v = (x.masked_fill(~used_k[:, None, None], 0.0).repeat_interleave(group, 1) for x in (rows_k, rows_v))
    scores = torch.einsum("qhd,khd->hqk", rows_q, rows_k) * (default_scale(q.shape) if scale is None else scale)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.to(q.dtype)[:, None, None].expand(-1, len(rows_q), 1)
        scores = torch.cat((scores, column.masked_fill(~used_q[:, None], -torch.inf)), 2)
    # Of a row that sees nothing: weights of 0, and no gradient.
    alone = torch.isneginf(scores).all(2, keepdim=True)
    weights = torch.softmax(scores.masked_fill(alone, 0.0), 2).masked_fill(alone, 0.0)
    lse = torch.logsumexp(scores.masked_fill(alone, 0.0), 2).masked_fill(alone[..., 0], -torch.inf)
    o = torch.einsum("hqk,khd->qhd", weights[..., : len(rows_k)], rows_v).reshape(q.shape)
    return o, lse if q.dim() == 3 else lse.unflatten(1, q.shape[:2]).transpose(0, 1)


def _sequences(x: Tensor, cu_seqlens: Tensor | None, seqused: Tensor | None, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each sequence the first used row and the end; for each row its sequence, or that of a neighbour if it has none."""
    rows = torch.arange(x.shape[0] if x.dim() == 3 else x.shape[0] * x.shape[1], device=x.device)
    if cu_seqlens is None:
        bounds = torch.arange(batch + 1, device=x.device) * x.shape[1]
    else:
        bounds = cu_seqlens.long()
    sequence = torch.searchsorted(bounds[1:].contiguous(), rows, right=True).clamp(max=max(batch - 1, 0))
    first = bounds[:-1]
    return first, bounds[1:] if seqused is None else first + seqused, sequence


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for argument, given in (("k", k), ("v", v)):
        if given.dtype != q.dtype:
            raise TypeError(f"{argument} is {given.dtype}; needed: {q.dtype}, as q")
        if given.device != q.device:
            raise TypeError(f"{argument} lies on {given.device}; needed: {q.device}, as q")
    for argument, given in (("q", q), ("k", k)):
        if given.dim() not in (3, 4):
            raise ValueError(f"{argument} has the shape {list(given.shape)}; allowed: [batch, seqlen, heads, head_dim], or packed")
    if v.shape != k.shape:
        raise ValueError(f"v has the shape {list(v.shape)}; needed: {list(k.shape)}, as k")
    if k.shape[-1] != q.shape[-1] or q.shape[-2] % max(k.shape[-2], 1) != 0:
        raise ValueError(f"k has the shape {list(k.shape)}; needed: head_dim {q.shape[-1]}, and heads of which q's are a multiple")
