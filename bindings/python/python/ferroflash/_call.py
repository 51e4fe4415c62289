"""Calls of attention on PyTorch's tensors: what is planned once for a shape, what is allocated, which addresses are handed over.

A `Plan` is made when a combination of shapes, strides and types is first seen, and kept. A call is then a look-up, two outputs, a workspace
and the launches. Every attribute of a tensor that is read, and every function in between, is time that a small call is made of; hence each is
read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _checks, _native
from ._checks import DTYPES, FP8, N_LENGTHS, Form, default_scale
from .expression import Given, Mask, Score, tensors_of

# cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k and page_table, or None where none of them is given.
Lengths = tuple[Tensor | None, ...] | None

# max_seqlen_q, max_seqlen_k, softmax_scale (None for its default), the keys to the left and to the right, and num_splits.
Numbers = tuple[int | None, int | None, float | None, int | None, int | None, int]

# How many combinations of shapes are kept.
_N_PLANS = 4096

# GPU kernels read 16 bytes at a time.
_ALIGNMENT_BYTES = 16
_ALIGNMENT_ELEMS = {torch.float32: 4, torch.float16: 8, torch.bfloat16: 8, FP8: 8}

# Row statistics are float32.
_ALIGNMENT_OF_STATISTICS = 4 - 1

_NO_LENGTHS = (0,) * N_LENGTHS


class Beside(NamedTuple):
    """What a call is given beside q, k, v and lengths."""

    given: Given | None = None
    """Expressions, and what they take."""
    sinks: Tensor | None = None
    """float32 `[heads_q]`."""
    dropout_p: float = 0.0
    """The probability that a weight is dropped."""
    rng_state: Tensor | None = None
    """Seed and offset of dropout, int64 or uint64 `[2]`."""

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Sinks, seed and offset, and what expressions read: all that a backward pass wants again."""
        return self.sinks, self.rng_state, *(() if self.given is None else self.given.tensors)

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Beside:
        """The same with these, in the order of `tensors`; with those of expressions left out."""
        sinks, rng_state, *read = tensors
        given = None if self.given is None else self.given._replace(tensors=tuple(read))
        return Beside(given, sinks, self.dropout_p, rng_state)

    def addresses(self) -> dict[str, Any]:
        """As the native module has it."""
        beside: dict[str, Any] = {}
        if self.given is not None:
            beside["values"] = (self.given.params, [(x.data_ptr(), x.shape, x.stride()) for x in self.given.tensors])
        if self.sinks is not None:
            beside["sinks"] = self.sinks.data_ptr()
        if self.rng_state is not None:
            beside["dropout"] = self.rng_state.data_ptr()
        return beside


class Wanted(NamedTuple):
    """Which gradients a backward pass gives beside those of q, k and v."""

    sinks: bool = False
    tensors: tuple[bool, ...] = ()
    """Of tensors that expressions read, in their order; none where it is empty."""


NOTHING = Wanted()


class Asked(NamedTuple):
    """What a plan is made for beside the forms of tensors and lengths."""

    score: Score | None = None
    mask: Mask | None = None
    sinks: Form | None = None
    dropout_p: float = 0.0
    rng_state: Form | None = None

    @staticmethod
    def by(beside: Beside | None) -> Asked:
        """What a call asks for."""
        if beside is None:
            return _PLAINLY
        given, sinks, dropout_p, rng_state = beside
        expressions = (None, None) if given is None else given[:2]
        return Asked(*expressions, None if sinks is None else Form.of(sinks), dropout_p, None if rng_state is None else Form.of(rng_state))


_PLAINLY = Asked()


class Special(NamedTuple):
    """What is asked of a forward pass that has no backward pass."""

    values_in_keys: int | None = None
    """How many columns of a key, from the first on, are its value, too: then k stands for v in the call."""
    fp8_kv: str | None = None
    """That k and v are e4m3, and what their scales are of: "per_sequence" or "per_page"."""


_USUAL = Special()


def lse_shape(shape_q: tuple[int, ...]) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q]."""
    if len(shape_q) == 4:
        batch, seqlen, heads, _ = shape_q
        return batch, heads, seqlen
    total, heads, _ = shape_q
    return heads, total


def split_kv(num_splits: int, seqlen_k: int) -> str:
    """FlashAttention's number of splits as the library has it: 0 is its own choice, 1 none, more so many keys each."""
    if num_splits < 0:
        raise ValueError(f"num_splits is {num_splits}; allowed: 0 for the library's choice, 1 for keys that are not divided, or more")
    if num_splits <= 1:
        return "never" if num_splits else "auto"
    return str(max(-(-seqlen_k // num_splits), 1))


class Plan:
    """A call on tensors of these forms, checked; its passes are planned by the library when they are first wanted."""

    def __init__(
        self,
        forms: tuple[Form, Form, Form],
        lengths: tuple[Form | None, ...],
        numbers: Numbers,
        special: Special = _USUAL,
        asked: Asked = _PLAINLY,
        precision: str = "tensor",
    ) -> None:
        q, k, v = forms
        max_seqlen_q, max_seqlen_k, softmax_scale, left, right, num_splits = numbers
        page_table = lengths[5]
        _checks.check(q, k, v, page_table, in_8_bits=special.fp8_kv is not None)
        _checks.check_window(left, right)
        batch = _checks.batch_of(q, k, lengths, max_seqlen_q, max_seqlen_k)
        _checks.check_lengths(lengths, batch, q)
        if asked.sinks is not None:
            _checks.check_sinks(asked.sinks, q)
        if asked.rng_state is not None:
            _checks.check_state(asked.rng_state, q)
        columns, seqlen_k = None, max_seqlen_k if len(k.shape) == 3 else k.shape[1]
        if page_table is not None:
            columns = page_table.shape[1]
            seqlen_k = columns * k.shape[1]
            # No sequence is longer than its row of the table.
            seqlen_k = seqlen_k if max_seqlen_k is None else min(max_seqlen_k, seqlen_k)
            max_seqlen_k = seqlen_k
        if softmax_scale is None:
            softmax_scale = default_scale(q.shape)
        self.numbers = max_seqlen_q, max_seqlen_k, softmax_scale, left, right, num_splits
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
            columns=columns,
            split_kv=split_kv(num_splits, seqlen_k),
            **special._asdict(),
            score=None if asked.score is None else asked.score._native,
            mask=None if asked.mask is None else asked.mask._native,
            sinks=asked.sinks is not None,
            dropout_p=asked.dropout_p,
            precision=precision,
        )
        # Whether kernels read tensors of these strides, if no bit of `misaligned` is set in their addresses.
        self.reads = all(_reads(form, self.ordinal is not None) for form in forms)
        self.misaligned = misaligned(q, self.ordinal)
        self._forms = forms
        self._strides = tuple(form.strides[:-1] for form in forms)
        self._in_pages = page_table is not None
        self._given = [given is not None for given in lengths]
        self._asked = asked
        self._forward: tuple[_native.Forward, int] | None = None
        self._backward: dict[tuple[tuple[int, ...], Wanted], tuple[_native.Backward, int] | None] = {}

    def is_of(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether these tensors have the forms that the plan was made for."""
        forms = self._forms
        return Form.of(q) == forms[0] and Form.of(k) == forms[1] and Form.of(v) == forms[2]

    def forward(self) -> tuple[_native.Forward, int]:
        """The forward pass, and the bytes of its workspace."""
        if self._forward is None:
            forward = self._planned(_native.Forward, self._strides)
            self._forward = forward, forward.workspace_bytes
        return self._forward

    def backward(self, d_o: Tensor, wanted: Wanted = NOTHING) -> tuple[_native.Backward, int] | None:
        """The backward pass of a gradient of o with the strides of this one, and the bytes of its workspace; None if no kernel reads them."""
        if self._in_pages:
            raise NotImplementedError("page_table: gradients were asked for; ferroflash has no kernel for those of keys in pages")
        strides = d_o.stride()
        key = strides, wanted
        if key not in self._backward:
            planned = None
            if _reads(Form.of(d_o), self.ordinal is not None):
                gradients = {"d_sinks": wanted.sinks, "d_tensors": wanted.tensors}
                backward = self._planned(_native.Backward, (*self._strides, strides[:-1]), **gradients)
                planned = backward, backward.workspace_bytes
            self._backward[key] = planned
        return self._backward[key]

    def shapes_of_gradients(self, wanted: Wanted) -> list[list[int] | None]:
        """Of the gradients of tensors that expressions read, as the library writes them; None of those that nobody wants."""
        names = tensors_of(self._asked.score, self._asked.mask)
        return [self.problem.score_gradient_shape(name) if asked else None for name, asked in zip(names, wanted.tensors)]

    def _planned(self, of: type, strides: tuple[tuple[int, ...], ...], **gradients: Any) -> Any:
        try:
            return of(self.problem, self.ordinal, strides, self._given, **gradients)
        except NotImplementedError as error:
            asked = "".join(f"\n  {name}: {x}" for name, x in zip(("score", "mask"), self._asked) if x is not None)
            raise NotImplementedError(f"{error}{asked}") from None

    def run(self, planned: tuple, addresses: tuple[int, ...], lengths: Lengths, beside: dict[str, Any] | None = None) -> None:
        """Enqueues a pass on the current stream; on the CPU, computes it. `beside`: what the native module takes beside tensors and lengths."""
        native, n_bytes = planned
        lengths_at = _NO_LENGTHS if lengths is None else tuple(0 if given is None else given.data_ptr() for given in lengths)
        if self.ordinal is None:
            native.run(0, (0, 0), addresses, lengths_at, beside)
            return
        # Freed when this returns, and used again by PyTorch behind this call, in the order of the stream.
        workspace = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
        stream = torch._C._cuda_getCurrentRawStream(self.ordinal)
        native.run(stream, (workspace.data_ptr(), n_bytes), addresses, lengths_at, beside)


def plan(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, numbers: Numbers, beside: Beside | None = None) -> Plan:
    """The plan of a call. Raises TypeError or ValueError that names the argument."""
    return _kept(
        *(q.shape, q.stride(), q.dtype, q.device),
        *(k.shape, k.stride(), k.dtype, k.device),
        *(v.shape, v.stride(), v.dtype, v.device),
        None if lengths is None else tuple(None if x is None else Form.of(x) for x in lengths),
        Asked.by(beside),
        _precision(q),
        *numbers,
    )


@lru_cache(maxsize=_N_PLANS)
def _kept(*key: object) -> Plan:
    lengths, asked, precision, *numbers = key[12:]
    forms = Form(*key[:4]), Form(*key[4:8]), Form(*key[8:12])
    return Plan(forms, (None,) * N_LENGTHS if lengths is None else lengths, tuple(numbers), asked=asked, precision=precision)


def _precision(q: Tensor) -> str:
    """How exact products of float32 are on a GPU: as those of PyTorch's own."""
    exact = q.dtype is torch.float32 and q.is_cuda and torch.get_float32_matmul_precision() == "highest"
    return "full" if exact else "tensor"


def forward(planned: Plan, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, beside: Beside | None = None) -> tuple[Tensor, Tensor]:
    """o and lse."""
    q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if not planned.reads or (q_at | k_at | v_at) & planned.misaligned:
        copies = [_readable(x, planned) for x in (q, k, v)]
        o, lse = forward(plan(*copies, lengths, planned.numbers, beside), *copies, lengths, beside)
        return _narrowed(o, q.shape[-1]), lse
    o, lse = _new(q), q.new_empty(planned.shape_lse, dtype=torch.float32)
    addresses = q_at, k_at, v_at, o.data_ptr(), lse.data_ptr()
    planned.run(planned.forward(), addresses, lengths, None if beside is None else beside.addresses())
    return o, lse


def backward(
    planned: Plan,
    d_o: Tensor,
    d_lse: Tensor | None,
    saved: Sequence[Tensor],
    lengths: Lengths,
    beside: Beside | None = None,
    wanted: Wanted = NOTHING,
) -> list[Tensor]:
    """Gradients of q, k and v, with q, k, v, o and lse saved; then those that are wanted of sinks and of tensors that expressions read."""
    q, k, v, o, lse = saved
    # What was saved may come back with other strides, or from another place: from the host's memory, or out of a hook.
    if lengths is not None or beside is not None or not planned.is_of(q, k, v):
        planned = plan(q, k, v, lengths, planned.numbers, beside)
    of_lse = None if d_lse is None else Form.of(d_lse)
    _checks.check_saved(Form.of(q), Form.of(o), Form.of(d_o), Form.of(lse), of_lse, planned.shape_lse)
    q_at, k_at, v_at, d_o_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), d_o.data_ptr()
    if not planned.reads or (q_at | k_at | v_at) & planned.misaligned:
        d_o, *copies = (_readable(x, planned) for x in (d_o, q, k, v, o))
        again = plan(*copies[:3], lengths, planned.numbers, beside)
        gradients = backward(again, d_o, d_lse, (*copies, lse), lengths, beside, wanted)
        return [*(_narrowed(gradient, q.shape[-1]) for gradient in gradients[:3]), *gradients[3:]]
    ready = planned.backward(d_o, wanted)
    if ready is None or d_o_at & planned.misaligned:
        return backward(planned, d_o.clone(memory_format=torch.contiguous_format), d_lse, saved, lengths, beside, wanted)
    o, lse = _contiguous(o, planned.misaligned), _contiguous(lse, _ALIGNMENT_OF_STATISTICS)
    d_lse_at = 0
    if d_lse is not None:
        d_lse = _contiguous(d_lse, _ALIGNMENT_OF_STATISTICS)
        d_lse_at = d_lse.data_ptr()
    d_q, d_k, d_v = _new(q), _new(k), _new(v)
    of_gradients = d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr()
    addresses = q_at, k_at, v_at, o.data_ptr(), lse.data_ptr(), d_o_at, d_lse_at, *of_gradients
    if beside is None:
        planned.run(ready, addresses, lengths)
        return [d_q, d_k, d_v]
    asked, others = beside.addresses(), []
    if wanted.sinks:
        others.append(_new(beside.sinks))
        asked["d_sinks"] = others[0].data_ptr()
    written: list[Tensor | None] = []
    if any(wanted.tensors):
        shapes = planned.shapes_of_gradients(wanted)
        written = [None if shape is None else x.new_empty(shape) for x, shape in zip(beside.given.tensors, shapes)]
        asked["d_tensors"] = [0 if gradient is None else gradient.data_ptr() for gradient in written]
    planned.run(ready, addresses, lengths, asked)
    read = () if beside.given is None else beside.given.tensors
    others.extend(_shaped(gradient, x.shape) for gradient, x in zip(written, read) if gradient is not None)
    return [d_q, d_k, d_v, *others]


def _shaped(gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a tensor of this shape, from that of what its indices say: elements beyond them have none."""
    if gradient.shape == shape:
        return gradient
    whole = gradient.new_zeros(shape)
    whole[tuple(slice(n) for n in gradient.shape)] = gradient
    return whole


def _new(given: Tensor) -> Tensor:
    """Contiguous memory of a tensor's shape. `torch.empty` takes three times as long: it reads a shape, a type and a device."""
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def misaligned(form: Form, ordinal: int | None) -> int:
    """The bits of which none may be set in the address of a tensor that is read or written where it lies."""
    return (_ALIGNMENT_BYTES if ordinal is not None else form.dtype.itemsize) - 1


def _contiguous(given: Tensor, misaligned: int) -> Tensor:
    """The tensor, or a contiguous copy where it has gaps or begins between two elements."""
    if given.is_contiguous() and not given.data_ptr() & misaligned:
        return given
    return given.clone(memory_format=torch.contiguous_format)


def _reads(form: Form, on_gpu: bool) -> bool:
    """Whether kernels read a tensor of these strides: contiguous rows, on a GPU of whole pieces of 16 bytes."""
    *strides, last = form.strides
    *rows, head_dim = form.shape
    if last != 1 and head_dim != 1:
        return False
    if not on_gpu:
        return True
    multiple = _ALIGNMENT_ELEMS[form.dtype]
    return head_dim % multiple == 0 and all(stride % multiple == 0 for n, stride in zip(rows, strides, strict=True) if n > 1)


def _readable(given: Tensor, planned: Plan) -> Tensor:
    """A copy that kernels read. On a GPU columns of zeros fill head_dim up: they change no score, and their part of o is 0."""
    excess = -given.shape[-1] % _ALIGNMENT_ELEMS[given.dtype]
    if planned.ordinal is not None and excess > 0:
        return torch.nn.functional.pad(given, (0, excess)).contiguous()
    return given.clone(memory_format=torch.contiguous_format)


def _narrowed(padded: Tensor, head_dim: int) -> Tensor:
    return padded if padded.shape[-1] == head_dim else padded[..., :head_dim].contiguous()
