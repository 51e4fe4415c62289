"""Attention on PyTorch's tensors: its operators, and `attention`, which calls them.

The operators take q, k and v `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]`. They are registered with their fake
kernels and gradients, so `torch.compile`, `torch.export` and modes know them; plain calls bypass them, since PyTorch's dispatch takes
longer than a call: through the door of `_door`, or, with optional inputs, expressions and dropout, through `_call`. Work is enqueued on
the current stream, in memory of PyTorch's allocator, without waiting.

| operator | use | its kernel |
|---|---|---|
| `plain` | a call of only q, k, v and numbers, with its gradients: for `attention` and for exported programs | native |
| `plain_forward`, `plain_backward` | its passes, without gradients: for modes and compiled graphs | native |
| `forward`, `backward` | any call, with optional inputs, expressions or dropout | Python |
| `plain_by_python`, `plain_backward_by_python` | calls that native kernels pass on | Python |
| `graph_by_python`, `graph_backward_by_python` | calls that native nodes of autograd's graph pass on | Python |

The kernels of `plain_forward` and `plain_backward` for autograd are PyTorch's own: a Python kernel takes longer than a pass, at every call
of a compiled graph. Native kernels exist from torch 2.10 on; before that, Python functions replace them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _call, _door, _float64, _native, _transforms
from ._call import NOTHING, Beside, Numbers, Plan, lse_shape, split_kv
from ._checks import DTYPES, Form, check, check_window, default_scale, in_forward_mode, number, refuse_tangents, whole
from ._inputs import LENGTHS, TABLE, Inputs, given_of, takes_inputs
from ._spelling import OPTIONS, read, spelled
from .expression import Given, Mask, Score, check_gradient, given_by, tensors_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The types of tensors that expressions read, and what they are called.
_ELEMENTS = {**DTYPES, torch.int32: "int32"}

# Tensors that are nothing more.
_PLAIN = (Tensor, torch.nn.Parameter)


class _Library(torch.library.Library):
    """Operators whose kernels for autograd refuse forward mode: those that PyTorch makes from a backward pass would drop tangents."""

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key != "Autograd":
            return super().impl(op_name, fn, dispatch_key, **options)

        def kernel(keyset, *arguments, **others):
            refuse_tangents(*arguments)
            return fn(keyset, *arguments, **others)

        return super().impl(op_name, kernel, dispatch_key, **options)


_LIBRARY = _Library("ferroflash", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_LIBRARY.define(f"forward(Tensor q, Tensor k, Tensor v, {OPTIONS}) -> (Tensor, Tensor)", tags=_TAGS)
# Of q, k and v; then those of inputs that are wanted: none where `wanted` is empty.
_LIBRARY.define(
    f"backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {OPTIONS}, bool[] wanted) -> Tensor[]",
    tags=_TAGS,
)
_PLAINLY = "float softmax_scale, SymInt? left, SymInt? right, int num_splits"
_PASS = f"(Tensor q, Tensor k, Tensor v, {_PLAINLY}) -> (Tensor, Tensor)"
_PASS_BACK = f"(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_PLAINLY}) -> (Tensor, Tensor, Tensor)"
_LIBRARY.define(f"plain{_PASS}", tags=_TAGS)
_LIBRARY.define(f"plain_forward{_PASS}", tags=_TAGS)
_LIBRARY.define(f"plain_backward{_PASS_BACK}", tags=_TAGS)

# Seeds and offsets that are drawn are below this.
_END_OF_SEEDS = 2**63 - 1


@takes_inputs
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Tensor | None = None,
    num_splits: int = 0,
    score: Score | None = None,
    mask: Mask | None = None,
    score_inputs: Mapping[str, Any] | None = None,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
    **inputs: Unpack[Inputs],
) -> tuple[Tensor, Tensor]:
    """softmax(q · kᵀ · softmax_scale, masked) · v, and the logarithm of each row's sum of exponentials. Gradients flow through both.

    Args:
        q: `[batch, seqlen_q, heads_q, head_dim]`, or packed, `[total_q, heads_q, head_dim]`; bfloat16, float16 or float32. For float32 a
            GPU multiplies in tf32, with a relative error of 2**-11 of each element, or with three products of tf32 in place of one, which
            is as exact as float32: the latter if `torch.get_float32_matmul_precision()` is "highest".
        k, v: `[batch, seqlen_k, heads_k, head_dim]`, or packed; heads_q is a multiple of heads_k. Any strides.
        softmax_scale: factor of the scores, greater than 0; 1/√head_dim by default.
        causal: a query sees the keys up to its own position. Masks are aligned to the bottom right: query i has the position i + seqlen_k
            − seqlen_q.
        window: how many keys a query sees before and after its position; None is no limit.
        cu_seqlens_q, cu_seqlens_k: int32 `[batch + 1]`: the first row of each packed sequence, and the end of the last.
        seqused_q, seqused_k: int32 `[batch]`: how many rows of each sequence are in use.
        leftpad_k: int32 `[batch]`: the first row of k and v in use; seqused_k counts from row 0 on.
        max_seqlen_q, max_seqlen_k: the longest sequence; needed with packed tensors.
        page_table: int32 `[batch, columns]`, contiguous: k and v are pages, `[n_pages, page_size, heads_k, head_dim]`, and row r of sequence b
            is row r % page_size of page `page_table[b, r // page_size]`. With seqused_k: rows beyond it are not read. No gradients.
        num_splits: the number of parts of the keys that a GPU works on in parallel. 0 is the library's choice, 1 is no division; with more
            each part has ceil(seqlen_k / num_splits) keys, rounded up to whole blocks, where seqlen_k is the greatest length that a
            sequence may have.
        score, mask: expressions of `ferroflash.expression`: a replacement for every score, and a further condition on which keys a query sees.
        score_inputs: their inputs by name: numbers for parameters; and tensors on q's device, of any strides. Gradients flow to those that
            have one, such as a bias: see `ferroflash.expression`.
        {inputs}
        dropout_p: the probability that a weight is dropped, at least 0 and less than 1; the others are divided by the probability of being
            kept. Both are rounded to multiples of 1/256. lse is that of all weights.
        rng_state: int64 or uint64 `[2]`, on q's device: seed and offset of dropout. Equal ones drop the same weights, as given by
            `ferroflash.dropout_mask`. Without it two numbers are drawn, by `torch.randint` on q's device: `torch.manual_seed` repeats
            them, drawing does not wait, a captured graph draws new ones at each replay, and `torch.compile` and checkpoints support it.

    Returns:
        o, like q; lse, float32 `[batch, heads_q, seqlen_q]`, or `[heads_q, total_q]` for packed queries. A row that sees no key has o = 0 and
        lse = −inf, or the sink.

    Raises:
        TypeError: an argument is not a tensor, or has a wrong type or device.
        ValueError: a shape, a size or a length is not allowed.
        NotImplementedError: no kernel supports the call, and the text lists every candidate with its reason; or a tensor in score_inputs
            requires a gradient but has none, and the text says why.
        RuntimeError: an error of the driver.
    """
    left, right = window
    if causal:
        right = 0
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table)
    numbers = _numbers(max_seqlen_q, max_seqlen_k, softmax_scale, left, right, num_splits)
    dropout_p = number("dropout_p", dropout_p)
    given = given_of(inputs) if inputs else {}
    is_bare = score is None and mask is None and not score_inputs and not given and dropout_p == 0
    if is_bare and not torch.compiler.is_compiling():
        result = DOOR.attention(q, k, v, _any_of(lengths), numbers)
        if result is not None:
            return result
    q, k, v = _cast(q, k, v)
    expressions = None if is_bare else expressions_of(q, score, mask, score_inputs)
    named = {name: x for name, x in zip(LENGTHS, lengths) if x is not None} | given
    if dropout_p != 0:
        named["rng_state"] = _state(q, rng_state)
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; allowed: torch.Tensor, or None")
    beside = Beside.of(named, expressions, dropout_p)
    if q.dtype is torch.float64 and q.is_cpu:
        return _float64.attention(q, k, v, numbers, beside)
    return attend(q, k, v, numbers, beside)


def attend(q: Tensor, k: Tensor, v: Tensor, numbers: Numbers, beside: Beside) -> tuple[Tensor, Tensor]:
    """o and lse of a call that the door does not support; gradients flow through both."""
    if not _are_plain(q, k, v, *beside.tensors):
        longest_q, longest_k, scale, left, right, num_splits = numbers
        numbers = longest_q, longest_k, default_scale(q.shape) if scale is None else scale, left, right, num_splits
        if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
            # In forward mode, the operator whose kernel for autograd asks each tensor for its direction at every call of a graph.
            if _is_plain(numbers, beside) and not in_forward_mode():
                check_window(left, right)
                split_kv(num_splits, 1)
                return _called(torch.ops.ferroflash.plain.default, q, k, v, *numbers[2:])
            return torch.ops.ferroflash.forward.default(q, k, v, *spelled(numbers, beside))
        _wanted(beside)
        return _transforms.attention(q, k, v, numbers, beside)
    planned = _call.plan(q, k, v, numbers, beside)
    if not torch.is_grad_enabled():
        return _call.forward(planned, q, k, v, beside)
    wanted = _wanted(beside)
    if q.requires_grad or k.requires_grad or v.requires_grad or any(wanted):
        return _Attention.apply(q, k, v, planned, beside.with_tensors(()), wanted, *beside.tensors)
    return _call.forward(planned, q, k, v, beside)


def _numbers(max_seqlen_q, max_seqlen_k, softmax_scale, left, right, num_splits) -> Numbers:
    """The numbers in a plan's key."""
    longest = whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k)
    sides = whole("window", left), whole("window", right)
    return *longest, number("softmax_scale", softmax_scale), *sides, whole("num_splits", num_splits)


def _state(q: Tensor, rng_state: Any) -> Any:
    """Seed and offset of a call's dropout."""
    return torch.randint(_END_OF_SEEDS, (2,), dtype=torch.int64, device=q.device) if rng_state is None else rng_state


def _wanted(beside: Beside) -> tuple[bool, ...]:
    """The tensors whose gradients are required; an error says why, if a tensor that expressions read has none."""
    read = tuple(x.requires_grad for x in beside.read())
    for name, asked in zip(tensors_of(beside.score, beside.mask), read) if any(read) else ():
        if asked:
            check_gradient(beside.score, beside.mask, name)
    return *(TABLE[name].differentiable and x.requires_grad for name, x in zip(beside.names, beside.tensors)), *read


def expressions_of(
    q: Tensor, score: Score | None = None, mask: Mask | None = None, score_inputs: Mapping[str, Any] | None = None
) -> Given | None:
    """The expressions of a call and their inputs, checked."""

    def form_of(name: str, x: Any) -> tuple[str, int]:
        if not isinstance(x, Tensor):
            raise TypeError(f"score_inputs: {name} is {type(x).__name__}; needed: torch.Tensor")
        if x.device != q.device:
            raise TypeError(f"score_inputs: {name} lies on {x.device}; needed: {q.device}, as q")
        return _ELEMENTS.get(x.dtype, str(x.dtype)), x.dim()

    return given_by(score, mask, score_inputs, form_of)


def _cast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """q, k and v cast as by autocast."""
    for argument, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
    device = "cuda" if q.is_cuda else "cpu" if q.is_cpu else None
    if device is None or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    # As PyTorch's own operators, which leave float64 as it is.
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype is not torch.float64 else x for x in (q, k, v))


def _is_plain(numbers: Numbers, beside: Beside) -> bool:
    """Whether a call has only q, k, v and the numbers that the operator `plain` takes."""
    return numbers[0] is None and numbers[1] is None and beside.is_nothing()


class _Refusals(threading.local):
    """For each thread, whether Python has called an operator, and with which exception a Python kernel has refused the call that a native
    one passed on to it."""

    asked = False
    error: Exception | None = None


_REFUSALS = _Refusals()


def _called(operator: Callable, *arguments: Any) -> Any:
    """The result of an operator. For an error of a native kernel it raises the exception with which Python has refused the call, not the
    RuntimeError that PyTorch makes from its text."""
    if torch.compiler.is_compiling():
        return operator(*arguments)
    asked, _REFUSALS.asked = _REFUSALS.asked, True
    try:
        return operator(*arguments)
    except RuntimeError:
        refusal = _REFUSALS.error
        if refusal is None:
            raise
    finally:
        _REFUSALS.asked, _REFUSALS.error = asked, None
    raise refusal


def _any_of(lengths: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
    """None if all are None."""
    for given in lengths:
        if given is not None:
            return lengths
    return None


@takes_inputs
def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    score: Score | None = None,
    mask: Mask | None = None,
    dropout_p: float = 0.0,
    backward: bool = False,
    **inputs: Unpack[Inputs],
) -> str:
    """A text: which kernels run `attention` on tensors of these shapes, or its gradients, and why the others do not."""
    left, right = window
    beside = Beside.of(given_of(inputs), Given(score, mask, (), ()), dropout_p)
    plan = _call.plan(q, k, v, _numbers(None, None, softmax_scale, left, 0 if causal else right, 0), beside)
    return plan.problem.explain(plan.ordinal, backward=backward)


def _are_plain(*tensors: Tensor) -> bool:
    """Whether nothing has to see the call as an operator: no compiler, tracer, transformation or mode, no subclass of tensors, no other device.

    PyTorch's dispatch of an operator written in Python takes longer than a call.
    """
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return False
    if (
        torch.compiler.is_compiling()
        or not (tensors[0].is_cuda or tensors[0].is_cpu)
        or torch._C._len_torch_dispatch_stack() != 0
        or torch._C._are_functorch_transforms_active()
        or in_forward_mode()
        or torch._C._is_tracing()
    ):
        return False
    for tensor in tensors:
        # Its elements are the negatives of what lies in memory.
        if tensor.is_neg():
            return False
    return True


class _Attention(torch.autograd.Function):
    """Both passes, outside of PyTorch's dispatch. `tensors` are those of `beside`, passed separately so that autograd sees them."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, planned: Plan, beside: Beside, wanted: tuple[bool, ...], *tensors: Tensor):
        o, lse = _call.forward(planned, q, k, v, beside.with_tensors(tensors))
        ctx.planned, ctx.beside, ctx.wanted = planned, beside, wanted
        _keep(ctx, q, k, v, o, lse, *tensors)
        return o, lse

    @staticmethod
    def backward(ctx, d_o: Tensor | None, d_lse: Tensor | None):
        saved, wanted = ctx.saved_tensors, ctx.wanted
        beside = ctx.beside.with_tensors(saved[5:])
        d_q, d_k, d_v, *others = _backward_of(ctx.planned, d_o, d_lse, saved[:5], beside, wanted)
        return d_q, d_k, d_v, None, None, None, *_transforms.spread(others, wanted)


class _Plain(torch.autograd.Function):
    """Both passes of a call through the door: native code if they are plain."""

    forward = staticmethod(_native.forward_of_graph)

    @staticmethod
    def backward(ctx, d_o: Tensor | None, d_lse: Tensor | None = None):
        # Read once: a checkpoint computes them for it.
        saved, planned = ctx.saved_tensors, ctx.planned
        if not torch.compiler.is_compiling():
            gradients = planned.backward(saved, d_o, d_lse)
            if gradients is not None:
                return gradients
        lengths = saved[5:]
        gradients = _backward_of(planned.plan, d_o, d_lse, saved[:5], Beside.of_lengths(lengths))
        return *gradients, *(None,) * (2 + len(lengths))


DOOR = _door.opened(_Plain)


def _backward_of(
    planned: Plan,
    d_o: Tensor | None,
    d_lse: Tensor | None,
    saved: tuple[Tensor, ...],
    beside: Beside,
    wanted: tuple[bool, ...] = (),
) -> Sequence[Tensor | None]:
    """The gradients of q, k and v, with q, k, v, o and lse saved; then the other wanted ones."""
    if not _is_at_once(d_o, d_lse, saved):
        if _is_plain(planned.numbers, beside):
            return _plain_gradients(d_o, d_lse, saved, planned.numbers[2:])
        return _gradients(d_o, d_lse, saved, spelled(planned.numbers, beside), wanted)
    return _call.backward(planned, d_o, d_lse, saved, beside, wanted)


def _is_at_once(d_o: Tensor | None, d_lse: Tensor | None, saved: tuple[Tensor, ...]) -> bool:
    """Whether a backward pass need not be an operator. Where a graph of it is wanted, the operator says that it has no derivative."""
    return d_o is not None and not torch.is_grad_enabled() and _are_plain(d_o, d_o if d_lse is None else d_lse, *saved)


def gradients(
    numbers: Numbers, d_o: Tensor | None, d_lse: Tensor | None, saved: tuple[Tensor, ...], beside: Beside
) -> Sequence[Tensor | None]:
    """The gradients of q, k and v of a call, with q, k, v, o and lse saved."""
    if _is_at_once(d_o, d_lse, saved):
        return _call.backward(_call.plan(*saved[:3], numbers, beside), d_o, d_lse, saved, beside, ())
    return _gradients(d_o, d_lse, saved, spelled(numbers, beside), ())


def _keep(ctx, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    # A loss that does not depend on lse gives None for its gradient.
    ctx.set_materialize_grads(False)


def _gradients(
    d_o: Tensor | None, d_lse: Tensor | None, saved: tuple[Tensor, ...], options: tuple, wanted: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """The gradients of q, k and v by the operator, from q, k, v, o and lse; then the other wanted ones."""
    if d_o is None and d_lse is None:
        return None, None, None
    if d_o is None:
        d_o = torch.zeros_like(saved[3])
    return torch.ops.ferroflash.backward.default(d_o, d_lse, *saved, *options, list(wanted))


def _plain_gradients(d_o: Tensor | None, d_lse: Tensor | None, saved: tuple[Tensor, ...], numbers: tuple) -> Sequence[Tensor | None]:
    """The gradients of q, k and v by an operator, from q, k, v, o and lse, for a call of only q, k, v and numbers."""
    if torch.is_grad_enabled():
        # The operator that says that it has no derivative.
        return _gradients(d_o, d_lse, saved, spelled((None, None, *numbers), NOTHING), ())
    if d_o is None and d_lse is None:
        return None, None, None
    if d_o is None:
        d_o = torch.zeros_like(saved[3])
    return _called(torch.ops.ferroflash.plain_backward.default, d_o, d_lse, *saved, *numbers)


@torch.library.impl(_LIBRARY, "forward", "CPU")
@torch.library.impl(_LIBRARY, "forward", "CUDA")
def _forward(q, k, v, *options):
    numbers, beside = read(options)
    if beside.is_of_lengths():
        result = DOOR.behind_operator(q, k, v, beside.lengths(), numbers)
        if result is not None:
            return result
    return _call.forward(_call.plan(q, k, v, numbers, beside), q, k, v, beside)


@torch.library.impl(_LIBRARY, "backward", "CPU")
@torch.library.impl(_LIBRARY, "backward", "CUDA")
def _backward(d_o, d_lse, q, k, v, o, lse, *options):
    *options, wanted = options
    numbers, beside = read(options)
    if beside.is_of_lengths():
        gradients = DOOR.behind_operator_backward((q, k, v, o, lse), d_o, d_lse, beside.lengths(), numbers)
        if gradients is not None:
            return gradients
    planned = _call.plan(q, k, v, numbers, beside)
    return _call.backward(planned, d_o, d_lse, (q, k, v, o, lse), beside, tuple(wanted))


@torch.library.register_fake("ferroflash::forward", lib=_LIBRARY)
def _fake_forward(q, k, v, *options):
    _tensors, names, *_ = options
    in_8_bits = "q_descale" in names
    check(Form.of(q), Form.of(k), Form.of(v), in_pages="page_table" in names, in_8_bits="k_descale" in names, q_in_8_bits=in_8_bits)
    return q.new_empty(q.shape, dtype=torch.bfloat16 if in_8_bits else q.dtype), q.new_empty(lse_shape(q.shape), dtype=torch.float32)


@torch.library.register_fake("ferroflash::backward", lib=_LIBRARY)
def _fake_backward(d_o, d_lse, q, k, v, o, lse, *options):
    inputs, wanted = options[0], options[-1]
    others = [x.new_empty(x.shape) for x, asked in zip(inputs, wanted) if asked]
    return [*(x.new_empty(x.shape, dtype=o.dtype) for x in (q, k, v)), *others]


def _save(ctx, inputs, output):
    q, k, v, *options = inputs
    ctx.numbers, beside = read(options)
    ctx.beside, ctx.wanted = beside.with_tensors(()), _wanted(beside)
    _keep(ctx, q, k, v, *output, *beside.tensors)


def _differentiate(ctx, d_o, d_lse):
    saved, beside, wanted = ctx.saved_tensors, ctx.beside, ctx.wanted
    options = spelled(ctx.numbers, beside.with_tensors(saved[5:]))
    d_q, d_k, d_v, *others = _gradients(d_o, d_lse, saved[:5], options, wanted)
    # Of lists, lists: so PyTorch takes an empty one.
    of_names, of_params = (None if given else [] for given in (beside.names, beside.params))
    return d_q, d_k, d_v, _transforms.spread(others, wanted), of_names, *(None,) * (len(options) - 4), of_params, None


def _refuse_vmap(info, in_dims, *args):
    raise NotImplementedError("ferroflash has no rule for torch.func.vmap of a backward pass that was called by itself")


torch.library.register_autograd("ferroflash::forward", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("ferroflash::backward", _transforms.refuse_second_derivative, lib=_LIBRARY)
torch.library.register_vmap("ferroflash::forward", _transforms.vmap, lib=_LIBRARY)
torch.library.register_vmap("ferroflash::backward", _refuse_vmap, lib=_LIBRARY)


def _plain(q, k, v, *numbers):
    numbers = None, None, *numbers
    result = DOOR.behind_operator(q, k, v, None, numbers)
    if result is not None:
        return result
    return _call.forward(_call.plan(q, k, v, numbers), q, k, v)


def _plain_backward(d_o, d_lse, q, k, v, o, lse, *numbers):
    saved, numbers = (q, k, v, o, lse), (None, None, *numbers)
    gradients = DOOR.behind_operator_backward(saved, d_o, d_lse, None, numbers)
    if gradients is not None:
        return tuple(gradients)
    return tuple(_call.backward(_call.plan(q, k, v, numbers), d_o, d_lse, saved))


def define_for_native(schema: str, kernel: Callable[..., tuple[Tensor, ...]]) -> None:
    """Defines an operator for calls that native kernels pass on: they see an exception of its Python kernel as text."""
    _LIBRARY.define(schema)
    name, n_results = schema.partition("(")[0], schema.rpartition("->")[2].count("Tensor")

    @functools.wraps(kernel)
    def call(first: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        try:
            return kernel(first, *arguments)
        except Exception as error:
            # What a graph calls asks for no exception, which would keep the call's tensors.
            _REFUSALS.error = error if _REFUSALS.asked else None
            _native.refuse(str(error) or type(error).__name__)
            return tuple(first.new_empty(0) for _ in range(n_results))

    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, call, key)


def _implement(key: str) -> _native.Kernels | None:
    """Registers kernels of the operators for a dispatch key: native ones, if PyTorch supports them."""
    kernels = DOOR.put_kernels("ferroflash", key, [("plain", "forward"), ("plain_forward", "forward"), ("plain_backward", "backward")])
    if kernels is None:
        _LIBRARY.impl("plain", _plain, key)
        _LIBRARY.impl("plain_forward", _plain, key)
        _LIBRARY.impl("plain_backward", _plain_backward, key)
    return kernels


define_for_native(f"plain_by_python{_PASS}", _plain)
define_for_native(f"plain_backward_by_python{_PASS_BACK}", _plain_backward)


# PyTorch's operator for attention from outside: it has a native node of autograd's graph, and no kernel on these devices.
_NODE = "_scaled_dot_product_fused_attention_overrideable"
_NODE_KERNELS = [(_NODE, "graph_forward"), (f"{_NODE}_backward", "graph_backward")]


def _graph_by_python(q, k, v, code):
    return _plain(q, k, v, *DOOR.numbers_of_code(code))


def _graph_backward_by_python(d_o, q, k, v, o, lse, code):
    return _plain_backward(d_o, None, q, k, v, o, lse, *DOOR.numbers_of_code(code))


define_for_native("graph_by_python(Tensor q, Tensor k, Tensor v, float code) -> (Tensor, Tensor)", _graph_by_python)
define_for_native(
    "graph_backward_by_python(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, float code) -> (Tensor, Tensor, Tensor)",
    _graph_backward_by_python,
)


def _put_node() -> None:
    """Makes the door's nodes of autograd's graph native, if PyTorch supports native kernels."""
    operator = getattr(torch.ops.aten, _NODE, None)
    if operator is None or not NATIVE:
        return
    if all([DOOR.put_kernels("aten", key, _NODE_KERNELS) is not None for key in NATIVE]):
        DOOR.put_node(operator.default)


# The dispatch keys whose kernels are native.
NATIVE = {key: kernels for key in ("CPU", "CUDA") if (kernels := _implement(key)) is not None}
_put_node()


class _PlainOperator(torch.autograd.Function):
    """The operator `ferroflash::plain` as a node of autograd's graph: its passes are operators without gradients."""

    @staticmethod
    def forward(ctx, q, k, v, *numbers):
        o, lse = torch.ops.ferroflash.plain_forward.default(q, k, v, *numbers)
        ctx.numbers = numbers
        _keep(ctx, q, k, v, o, lse)
        return o, lse

    @staticmethod
    def backward(ctx, d_o, d_lse):
        return *_plain_gradients(d_o, d_lse, ctx.saved_tensors, ctx.numbers), *(None,) * len(ctx.numbers)


def _plain_of_autograd(_keyset, q, k, v, *numbers):
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _PlainOperator.apply(q, k, v, *numbers)
    return torch.ops.ferroflash.plain_forward.default(q, k, v, *numbers)


@torch.library.register_fake("ferroflash::plain", lib=_LIBRARY)
@torch.library.register_fake("ferroflash::plain_forward", lib=_LIBRARY)
def _fake_plain(q, k, v, *numbers):
    check(Form.of(q), Form.of(k), Form.of(v))
    return q.new_empty(q.shape), q.new_empty(lse_shape(q.shape), dtype=torch.float32)


@torch.library.register_fake("ferroflash::plain_backward", lib=_LIBRARY)
def _fake_plain_backward(d_o, d_lse, q, k, v, o, lse, *numbers):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _vmap_plain(info, in_dims, q, k, v, *numbers):
    """One call, of n times the batch."""
    n, folded = info.batch_size, []
    for x, dim in zip((q, k, v), in_dims):
        x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        folded.append(x.flatten(0, 1))
    o, lse = torch.ops.ferroflash.plain.default(*folded, *numbers)
    return (o.unflatten(0, (n, -1)), lse.unflatten(0, (n, -1))), (0, 0)


_LIBRARY.impl("plain", _plain_of_autograd, "Autograd", with_keyset=True)
for _name in ("plain", "plain_forward"):
    torch.library.register_vmap(f"ferroflash::{_name}", _vmap_plain, lib=_LIBRARY)
torch.library.register_vmap("ferroflash::plain_backward", _refuse_vmap, lib=_LIBRARY)
