"""Calls of attention on PyTorch's tensors: plans, made once for a shape, allocations, and the addresses of a run.

A `Plan` is made when a combination of shapes, strides and types is first seen, and kept. A call is then a look-up, two outputs, a workspace
and the launches. Every attribute of a tensor that is read, and every function in between, adds to the time of a small call; hence each is
read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import _checks, _native
from ._checks import DTYPES, FP8, Form, default_scale
from ._inputs import LENGTHS, unwanted
from .expression import Given, Mask, Score, tensors_of

# max_seqlen_q, max_seqlen_k, softmax_scale (None for its default), the keys to the left and to the right, and num_splits.
Numbers = tuple[int | None, int | None, float | None, int | None, int | None, int]

# How many combinations of shapes are kept.
_N_PLANS = 4096

# GPU kernels read 16 bytes at a time.
_ALIGNMENT_BYTES = 16
_ALIGNMENT_ELEMS = {torch.float32: 4, torch.float16: 8, torch.bfloat16: 8, FP8: 8}

NO_BACKWARD = "ferroflash has no backward pass where values are in the keys, or keys and values are in 8 bits and q is not"

# Row statistics are float32.
_ALIGNMENT_OF_STATISTICS = 4 - 1


class Beside(NamedTuple):
    """A call's arguments other than q, k, v and numbers. Its tensors are one flat list, which operators, autograd and transformations can
    take."""

    names: tuple[str, ...] = ()
    """Of the optional inputs."""
    tensors: tuple[Tensor, ...] = ()
    """These; then those that expressions read."""
    score: Score | None = None
    mask: Mask | None = None
    params: tuple[float, ...] = ()
    """The numbers that expressions take."""
    dropout_p: float = 0.0
    """The probability that a weight is dropped."""
    fp8_sums: str = "two_levels"
    """How products of q, k and v in 8 bits are added."""

    @staticmethod
    def of(inputs: Mapping[str, Tensor | None], given: Given | None = None, dropout_p: float = 0.0) -> Beside:
        """From optional inputs by name, some of them None, and expressions with their inputs."""
        named = {name: x for name, x in inputs.items() if x is not None}
        score, mask, params, read = (None, None, (), ()) if given is None else given
        return Beside(tuple(named), (*named.values(), *read), score, mask, params, dropout_p)

    @staticmethod
    def of_lengths(lengths: Sequence[Tensor | None] | None) -> Beside:
        """From the result of `lengths`."""
        return Beside.of(dict(zip(LENGTHS, lengths or ())))

    def named(self) -> dict[str, Tensor]:
        """The optional inputs."""
        return dict(zip(self.names, self.tensors))

    def read(self) -> tuple[Tensor, ...]:
        """The tensors that expressions read."""
        return self.tensors[len(self.names) :]

    def lengths(self) -> tuple[Tensor | None, ...] | None:
        """In the order of the native door; None if none is given."""
        named = self.named()
        return tuple(map(named.get, LENGTHS)) if named else None

    def is_of_lengths(self) -> bool:
        """Whether only lengths are given."""
        return self.score is None and self.mask is None and self.dropout_p == 0 and all(name in LENGTHS for name in self.names)

    def is_nothing(self) -> bool:
        """Whether nothing is given."""
        return not self.names and self.is_of_lengths()

    def with_tensors(self, tensors: Sequence[Tensor]) -> Beside:
        """The same with these."""
        return self._replace(tensors=tuple(tensors))


NOTHING = Beside()


def lse_shape(shape_q: tuple[int, ...]) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], or [heads_q, total_q]."""
    if len(shape_q) == 4:
        batch, seqlen, heads, _ = shape_q
        return batch, heads, seqlen
    total, heads, _ = shape_q
    return heads, total


def split_kv(num_splits: int, seqlen_k: int) -> str:
    """FlashAttention's number of splits in the library's terms: 0 is the library's choice, 1 none; more gives the keys of a split."""
    if num_splits < 0:
        raise ValueError(f"num_splits is {num_splits}; allowed: 0 for the library's choice, 1 for keys that are not divided, or more")
    if num_splits <= 1:
        return "never" if num_splits else "auto"
    return str(max(-(-seqlen_k // num_splits), 1))


class Plan:
    """A call on tensors of these forms, checked; its passes are planned by the library when they are first wanted. `beside` has forms in
    place of the optional inputs' tensors. With `head_dim_v` this many first columns of a key are its value, and v is k."""

    def __init__(self, forms: tuple[Form, Form, Form], beside: Beside, numbers: Numbers, head_dim_v: int | None, precision: str) -> None:
        q, k, v = forms
        max_seqlen_q, max_seqlen_k, softmax_scale, left, right, num_splits = numbers
        inputs = beside.named()
        page_table = inputs.get("page_table")
        in_8_bits, q_in_8_bits = "k_descale" in inputs, "q_descale" in inputs
        _checks.check(q, k, v, in_pages=page_table is not None, in_8_bits=in_8_bits, q_in_8_bits=q_in_8_bits)
        _checks.check_window(left, right)
        batch = _checks.batch_of(q, k, inputs, max_seqlen_q, max_seqlen_k)
        _checks.check_inputs(inputs, batch, q)
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
        self.head_dim_v = head_dim_v
        self.device = q.device
        self.ordinal = q.device.index if q.device.type == "cuda" else None
        self.dtype_o = torch.bfloat16 if q_in_8_bits else q.dtype
        self.differentiable = q_in_8_bits or not (in_8_bits or head_dim_v is not None)
        scales = _checks.scales_of(k, inputs, batch)
        self.problem = _native.Problem(
            DTYPES[self.dtype_o],
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
            values_in_keys=head_dim_v,
            fp8_kv=None if q_in_8_bits else scales,
            fp8=scales if q_in_8_bits else None,
            score=None if beside.score is None else beside.score._native,
            mask=None if beside.mask is None else beside.mask._native,
            inputs=beside.names,
            fp8_sums=beside.fp8_sums,
            dropout_p=beside.dropout_p,
            precision=precision,
        )
        # Caches are read where they lie, or not at all: a copy could be as large as the memory.
        self.in_place = in_8_bits or head_dim_v is not None
        self.pads = self.ordinal is not None and not self.in_place
        for argument, given in (("k", k), ("v", v)) if self.in_place else ():
            _checks.check_rows(argument, given)
        # Whether kernels read tensors of these strides, if no bit of `misaligned` is set in their addresses. A q that no copy would help is the
        # library's to refuse.
        on_gpu = self.ordinal is not None
        self.reads = q.is_contiguous() or _reads(q, on_gpu) if self.in_place else all(_reads(form, on_gpu) for form in forms)
        self.misaligned = misaligned(q, self.ordinal)
        self._forms = forms
        self._strides = {name: form.strides[:-1] for name, form in zip("qk" if head_dim_v is not None else "qkv", forms)}
        self._names = beside.names
        self._score, self._mask = beside.score, beside.mask
        self._forward: tuple[_native.Call, int] | None = None
        self._backward: dict[tuple[tuple[int, ...], tuple[bool, ...]], tuple[_native.Call, int] | None] = {}

    def is_of(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether these tensors have the plan's forms."""
        forms = self._forms
        return Form.of(q) == forms[0] and Form.of(k) == forms[1] and Form.of(v) == forms[2]

    def takes(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether kernels can read these tensors, or tensors that may be copied."""
        bits = q.data_ptr() if self.in_place else q.data_ptr() | k.data_ptr() | v.data_ptr()
        return self.reads and not bits & self.misaligned

    def new_output(self, like: Tensor) -> Tensor:
        """Memory for o, or for the gradient of a tensor: of its shape, in the type of o."""
        return _new(like) if self.dtype_o is like.dtype else torch.empty(like.shape, dtype=self.dtype_o, device=like.device)

    def readable(self, q: Tensor, *others: Tensor) -> list[Tensor]:
        """Copies that kernels can read; only of q if k and v are read in place."""
        return [_readable(q, self), *(x if self.in_place else _readable(x, self) for x in others)]

    def forward(self) -> tuple[_native.Call, int]:
        """The forward pass, and the bytes of its workspace."""
        if self._forward is None:
            forward = self._planned("forward", self._strides, self._names)
            self._forward = forward, forward.workspace_bytes
        return self._forward

    def backward(self, d_o: Tensor, wanted: tuple[bool, ...] = ()) -> tuple[_native.Call, int] | None:
        """The backward pass for a gradient of o with the strides of this one, and the bytes of its workspace; None if no kernel can read
        them. `wanted`: the tensors of `Beside` whose gradients it computes in addition to those of q, k and v; none if it is empty."""
        if not self.differentiable:
            raise NotImplementedError(f"gradients were asked for; {NO_BACKWARD}")
        if "page_table" in self._names:
            raise NotImplementedError("page_table: gradients were asked for; ferroflash has no kernel for those of keys in pages")
        strides = d_o.stride()
        key = strides, wanted
        if key not in self._backward:
            planned = None
            if _reads(Form.of(d_o), self.ordinal is not None):
                named, read = wanted[: len(self._names)], wanted[len(self._names) :]
                giving = [f"d_score_tensors[{at}]" for at, asked in enumerate(read) if asked]
                without = unwanted(self._names, [name for name, asked in zip(self._names, named) if asked])
                strides_of = self._strides | {"d_o": strides[:-1]}
                backward = self._planned("backward", strides_of, [*self._names, *giving], without)
                planned = backward, backward.workspace_bytes
            self._backward[key] = planned
        return self._backward[key]

    def shapes_of_gradients(self, wanted: tuple[bool, ...]) -> list[list[int] | None]:
        """The shapes of the gradients of tensors that expressions read, as the library writes them; None for those that are not wanted."""
        names = tensors_of(self._score, self._mask)
        return [self.problem.score_gradient_shape(name) if asked else None for name, asked in zip(names, wanted[len(self._names) :])]

    def _planned(self, kind: str, strides: dict[str, tuple[int, ...]], giving: Sequence[str], without: Sequence[str] = ()) -> _native.Call:
        try:
            return _native.Call(self.problem, kind, self.ordinal, strides, giving, without)
        except NotImplementedError as error:
            asked = "".join(f"\n  {name}: {x}" for name, x in (("score", self._score), ("mask", self._mask)) if x is not None)
            raise NotImplementedError(f"{error}{asked}") from None

    def run(self, planned: tuple, at: dict[str, int], beside: Beside, d_read: Sequence[Tensor | None] = ()) -> None:
        """Enqueues a pass on the current stream; on the CPU, computes it. `at`: addresses by name, in addition to those of `beside`;
        `d_read`: outputs for the gradients of tensors that expressions read."""
        native, n_bytes = planned
        at |= {name: x.data_ptr() for name, x in zip(beside.names, beside.tensors)}
        read = [(x.data_ptr(), x.shape, x.stride()) for x in beside.read()]
        taken = beside.params, read, [0 if x is None else x.data_ptr() for x in d_read]
        if self.ordinal is None:
            native.run(0, (0, 0), at, *taken)
            return
        # Freed when this returns, and used again by PyTorch behind this call, in the order of the stream.
        workspace = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
        stream = torch._C._cuda_getCurrentRawStream(self.ordinal)
        native.run(stream, (workspace.data_ptr(), n_bytes), at, *taken)


def plan(q: Tensor, k: Tensor, v: Tensor, numbers: Numbers, beside: Beside = NOTHING, head_dim_v: int | None = None) -> Plan:
    """The plan of a call. Raises TypeError or ValueError that names the argument."""
    return _kept(
        *(q.shape, q.stride(), q.dtype, q.device),
        *(k.shape, k.stride(), k.dtype, k.device),
        *(v.shape, v.stride(), v.dtype, v.device),
        beside.names,
        tuple([(x.shape, x.stride(), x.dtype, x.device) for x in beside.tensors[: len(beside.names)]]),
        *(beside.score, beside.mask, beside.dropout_p, beside.fp8_sums),
        *(head_dim_v, _precision(q)),
        *numbers,
    )


@lru_cache(maxsize=_N_PLANS)
def _kept(*key: Any) -> Plan:
    names, inputs, score, mask, dropout_p, fp8_sums, head_dim_v, precision, *numbers = key[12:]
    forms = Form(*key[:4]), Form(*key[4:8]), Form(*key[8:12])
    inputs = tuple(Form(*form) for form in inputs)
    return Plan(forms, Beside(names, inputs, score, mask, (), dropout_p, fp8_sums), tuple(numbers), head_dim_v, precision)


def _precision(q: Tensor) -> str:
    """How exact products of float32 are on a GPU: as PyTorch's setting."""
    exact = q.dtype is torch.float32 and q.is_cuda and torch.get_float32_matmul_precision() == "highest"
    return "full" if exact else "tensor"


def forward(planned: Plan, q: Tensor, k: Tensor, v: Tensor, beside: Beside = NOTHING) -> tuple[Tensor, Tensor]:
    """o and lse."""
    if not planned.takes(q, k, v):
        copies = planned.readable(q, k, v)
        o, lse = forward(plan(*copies, planned.numbers, beside, planned.head_dim_v), *copies, beside)
        return (o, lse) if planned.in_place else (_narrowed(o, q.shape[-1]), lse)
    if planned.head_dim_v is not None:
        o = q.new_empty((*q.shape[:-1], planned.head_dim_v))
    else:
        o = planned.new_output(q)
    lse = q.new_empty(planned.shape_lse, dtype=torch.float32)
    at = {"q": q.data_ptr(), "k": k.data_ptr(), "o": o.data_ptr(), "lse": lse.data_ptr()}
    if planned.head_dim_v is None:
        at["v"] = v.data_ptr()
    planned.run(planned.forward(), at, beside)
    return o, lse


def backward(
    planned: Plan,
    d_o: Tensor,
    d_lse: Tensor | None,
    saved: Sequence[Tensor],
    beside: Beside = NOTHING,
    wanted: tuple[bool, ...] = (),
) -> list[Tensor]:
    """Gradients of q, k and v, with q, k, v, o and lse saved; then those that are wanted of the tensors of `beside`."""
    q, k, v, o, lse = saved
    # What was saved may come back with other strides, or from another place: from the host's memory, or out of a hook.
    if not beside.is_nothing() or not planned.is_of(q, k, v):
        planned = plan(q, k, v, planned.numbers, beside)
    of_lse = None if d_lse is None else Form.of(d_lse)
    _checks.check_saved(Form.of(q), Form.of(o), Form.of(d_o), Form.of(lse), of_lse, planned.shape_lse, planned.dtype_o)
    if not planned.takes(q, k, v):
        d_o, *copies = (_readable(x, planned) for x in (d_o, q, k, v, o))
        again = plan(*copies[:3], planned.numbers, beside)
        gradients = backward(again, d_o, d_lse, (*copies, lse), beside, wanted)
        return [*(_narrowed(gradient, q.shape[-1]) for gradient in gradients[:3]), *gradients[3:]]
    ready = planned.backward(d_o, wanted)
    if ready is None or d_o.data_ptr() & planned.misaligned:
        return backward(planned, d_o.clone(memory_format=torch.contiguous_format), d_lse, saved, beside, wanted)
    o, lse = _contiguous(o, planned.misaligned), _contiguous(lse, _ALIGNMENT_OF_STATISTICS)
    read = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o}
    if d_lse is not None:
        read["d_lse"] = _contiguous(d_lse, _ALIGNMENT_OF_STATISTICS)
    written = {f"d_{name}": planned.new_output(x) for name, x in (("q", q), ("k", k), ("v", v))}
    written |= {f"d_{name}": _new(x) for name, x, asked in zip(beside.names, beside.tensors, wanted) if asked}
    d_read: list[Tensor | None] = []
    if any(wanted[len(beside.names) :]):
        shapes = planned.shapes_of_gradients(wanted)
        d_read = [None if shape is None else x.new_empty(shape) for x, shape in zip(beside.read(), shapes)]
    planned.run(ready, {name: x.data_ptr() for name, x in (read | written).items()}, beside, d_read)
    of_read = (_shaped(gradient, x.shape) for gradient, x in zip(d_read, beside.read()) if gradient is not None)
    return [*written.values(), *of_read]


def _shaped(gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a tensor of this shape, from that of the elements that its indices reach: the others are 0."""
    if gradient.shape == shape:
        return gradient
    whole = gradient.new_zeros(shape)
    whole[tuple(slice(n) for n in gradient.shape)] = gradient
    return whole


def _new(given: Tensor) -> Tensor:
    """Contiguous memory of a tensor's shape. `torch.empty` takes three times as long: it reads a shape, a type and a device."""
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def misaligned(form: Form, ordinal: int | None) -> int:
    """A mask of bits that must be 0 in the address of a tensor that is read or written in place."""
    return (_ALIGNMENT_BYTES if ordinal is not None else form.dtype.itemsize) - 1


def _contiguous(given: Tensor, misaligned: int) -> Tensor:
    """The tensor, or a contiguous copy if it has gaps or begins between two elements."""
    if given.is_contiguous() and not given.data_ptr() & misaligned:
        return given
    return given.clone(memory_format=torch.contiguous_format)


def _reads(form: Form, on_gpu: bool) -> bool:
    """Whether kernels can read a tensor with these strides: contiguous rows, on a GPU multiples of 16 bytes."""
    *strides, last = form.strides
    *rows, head_dim = form.shape
    if last != 1 and head_dim != 1:
        return False
    if not on_gpu:
        return True
    multiple = _ALIGNMENT_ELEMS[form.dtype]
    return head_dim % multiple == 0 and all(stride % multiple == 0 for n, stride in zip(rows, strides, strict=True) if n > 1)


class _Pads(Protocol):
    """The part of a plan that says whether copies are padded with columns of zeros, as kernels need."""

    pads: bool


def _readable(given: Tensor, planned: _Pads) -> Tensor:
    """A copy that kernels can read. If they need multiples of 16 bytes, columns of zeros pad head_dim: they change no score, and their
    part of o is 0."""
    excess = -given.shape[-1] % _ALIGNMENT_ELEMS[given.dtype]
    if planned.pads and excess > 0:
        return torch.nn.functional.pad(given, (0, excess)).contiguous()
    return given.clone(memory_format=torch.contiguous_format)


def _narrowed(padded: Tensor, head_dim: int) -> Tensor:
    return padded if padded.shape[-1] == head_dim else padded[..., :head_dim].contiguous()
