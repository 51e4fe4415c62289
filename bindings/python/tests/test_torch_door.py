"""The door of eager calls: which calls it takes, that it takes no other, and that what it gives is what Python's way gives, bit for bit."""

from __future__ import annotations

import random as numbers

import pytest
from torch_cases import DEVICES, integers, options, random

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import _door, _torch, fa3, fa4, flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func  # noqa: E402
from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

# As PyTorch 2.14 and newer has it, 2.10, and those before.
WAYS = {"library": {}, "table": {"library": False}, "capsules": {"library": False, "table": False}}


class Counting:
    """A door that counts the calls that it takes."""

    def __init__(self, door):
        self.door, self.taken, self.refused, self.behind = door, 0, 0, 0

    def flash(self, *arguments):
        return self._counted(self.door.flash(*arguments))

    def attention(self, *arguments):
        return self._counted(self.door.attention(*arguments))

    def behind_operator(self, *arguments):
        return self._behind(self.door.behind_operator(*arguments))

    def behind_operator_backward(self, *arguments):
        return self._behind(self.door.behind_operator_backward(*arguments))

    def _behind(self, result):
        self.behind += result is not None
        return result

    def _counted(self, result):
        self.taken, self.refused = self.taken + (result is not None), self.refused + (result is None)
        return result


@pytest.fixture(params=WAYS)
def door(request, monkeypatch):
    counting = Counting(_door.opened(_torch._Plain, **WAYS[request.param]))
    monkeypatch.setattr(_torch, "DOOR", counting)
    return counting


def closed(call):
    """What Python's way gives."""
    before, _torch.DOOR = _torch.DOOR, _door._Closed()
    try:
        return call()
    finally:
        _torch.DOOR = before


def inputs(device="cpu", dtype=torch.float32, seqlen=9, seqlen_k=9, heads_k=2, head_dim=16, grad=True):
    shapes = [(2, seqlen, 4, head_dim), (2, seqlen_k, heads_k, head_dim), (2, seqlen_k, heads_k, head_dim)]
    return [random(*shape, device=device, dtype=dtype, seed=at, grad=grad) for at, shape in enumerate(shapes)]


def both_passes(call, tensors):
    o = call(*tensors)
    return o.detach(), *torch.autograd.grad(o.float().square().sum(), tensors)


def equal(ours, expected):
    return all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def dtype_of(device):
    return torch.float32 if device == "cpu" else torch.bfloat16


SPELLINGS = {
    "fa2": lambda q, k, v: flash_attn_func(q, k, v, causal=True),
    "fa3": lambda q, k, v: fa3.flash_attn_func(q, k, v, causal=True),
    "fa4": lambda q, k, v: fa4.flash_attn_func(q, k, v, causal=True)[0],
    "attention": lambda q, k, v: _torch.attention(q, k, v, causal=True)[0],
    "packed": lambda q, k, v: flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True),
}


# ---- what is plain ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_plain_calls_are_taken(door, device, spelling):
    tensors = inputs(device, dtype_of(device), heads_k=4)
    call = SPELLINGS[spelling]
    expected = closed(lambda: both_passes(call, tensors))
    for _ in range(2):
        assert equal(both_passes(call, tensors), expected)
        with torch.no_grad():
            assert torch.equal(call(*tensors), expected[0])
        with torch.inference_mode():
            assert torch.equal(call(*tensors), expected[0])
    assert (door.taken, door.refused) == (6, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads_first", [False, True])
def test_operators_of_a_compiled_graph_are_served(door, device, heads_first):
    """Those whose kernels are functions of Python: `forward`, which is told how long sequences are."""
    tensors = inputs(device, dtype_of(device))
    if heads_first:
        tensors = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors]

    def call(q, k, v):
        return _torch.attention(q, k, v, causal=True, max_seqlen_k=9)[0]

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    expected = closed(lambda: both_passes(call, tensors))
    assert equal(both_passes(compiled, tensors), expected) and (door.behind, door.taken) == (2, 0)
    assert compiled(*tensors).is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
def test_operators_with_lengths_are_served(door, device):
    q, k, v = inputs(device, dtype_of(device), grad=False)
    used = integers(device, 5, 9)
    arguments = q, k, v, *options({"seqused_k": used}, scale=0.3, right=0)
    expected = closed(lambda: torch.ops.ferroflash.forward.default(*arguments))
    assert equal(torch.ops.ferroflash.forward.default(*arguments), expected) and door.behind == 1
    d_o = random(*q.shape, device=device, dtype=q.dtype, seed=7)
    saved = q, k, v, *expected
    of_operator = lambda: torch.ops.ferroflash.backward.default(d_o, expected[1], *saved, *arguments[3:], [])  # noqa: E731
    assert equal(of_operator(), closed(of_operator)) and door.behind == 2


@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences_are_taken(door, device):
    q, k, v = (x.detach()[0].requires_grad_() for x in inputs(device, dtype_of(device)))
    at = integers(device, 0, 4, 9)

    def call(q, k, v, at=at, longest=5):
        return flash_attn_varlen_func(q, k, v, at, at, longest, longest, causal=True)

    expected = closed(lambda: both_passes(call, (q, k, v)))
    assert equal(both_passes(call, (q, k, v)), expected) and door.taken == 1
    whole = integers(device, 0, 9)
    assert torch.equal(call(q, k, v, whole, 9), closed(lambda: call(q, k, v, whole, 9)))
    for wrong in (at.long(), at.tolist()):
        with pytest.raises(TypeError, match="cu_seqlens_q is"):
            call(q, k, v, wrong)


def test_results_are_what_they_are_without_the_door(door):
    """Whatever the shapes, strides and numbers: each plan is that of its own call alone."""
    draw = numbers.Random(5)
    for _ in range(60):
        seqlen, seqlen_k, heads_k, head_dim = draw.choice((1, 9, 12)), draw.choice((9, 12)), draw.choice((1, 2, 4)), draw.choice((8, 16))
        tensors = inputs("cpu", draw.choice((torch.float32, torch.bfloat16)), seqlen, seqlen_k, heads_k, head_dim, grad=False)
        placed = draw.choice(
            (lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), lambda x: x.repeat(1, 2, 1, 1)[:, ::2])
        )
        tensors = [placed(x).detach().requires_grad_() for x in tensors]
        given = {
            "causal": draw.random() < 0.5,
            "softmax_scale": draw.choice((None, 0.5, 1)),
            "window_size": draw.choice(((-1, -1), (3, 2), (-1, 4), (0, 0))),
        }

        def call(q, k, v, given=given):
            return flash_attn_func(q, k, v, **given)

        assert equal(both_passes(call, tensors), closed(lambda tensors=tensors, call=call: both_passes(call, tensors))), given
    assert (door.taken, door.refused) == (60, 0)


def test_lse_is_given_where_it_is_asked_for(door):
    tensors = inputs()
    (o, lse, nothing), alone = flash_attn_func(*tensors, return_attn_probs=1), flash_attn_func(*tensors)
    assert nothing is None and torch.equal(o, alone) and lse.requires_grad
    expected = closed(lambda: flash_attn_func(*tensors, return_attn_probs=True))
    assert torch.equal(lse, expected[1])
    for of in (lambda o, lse: o.sum(), lambda o, lse: lse.sum(), lambda o, lse: (o * o).sum() + lse.sin().sum()):
        assert equal(
            torch.autograd.grad(of(o, lse), tensors, retain_graph=True), torch.autograd.grad(of(*expected[:2]), tensors, retain_graph=True)
        )
    _, lse = fa4.flash_attn_func(*tensors)
    assert not lse.requires_grad and torch.equal(lse, expected[1])
    assert fa4.flash_attn_func(*tensors, return_lse=True)[1].requires_grad


@pytest.mark.parametrize(
    "gradient",
    [
        lambda o: torch.ones(1).expand(o.shape),
        lambda o: random(*o.shape[:1], *o.shape[2:], o.shape[1], grad=False).movedim(-1, 1),
        lambda o: random(o.numel() + 1, grad=False)[1:].view(o.shape),
        lambda o: torch.frombuffer(bytearray(4 * o.numel() + 1), dtype=o.dtype, offset=1).view(o.shape).copy_(o.detach()),
    ],
)
def test_gradients_of_o_of_any_strides(door, gradient):
    tensors = inputs()
    d_o = gradient(flash_attn_func(*tensors))

    def run():
        return [torch.autograd.grad(flash_attn_func(*tensors), tensors, d_o) for _ in range(2)]

    for ours, expected in zip(run(), closed(run), strict=True):
        assert equal(ours, expected)


# ---- what is not ----


def others(door, call):
    """What a call gives that is not the door's."""
    taken = door.taken
    result = call()
    assert door.taken == taken, "the door has taken it"
    return result


@pytest.mark.parametrize("spelling", ["fa2", "fa3", "fa4", "attention"])
def test_compiled_calls_are_operators(door, spelling):
    torch.compiler.reset()
    tensors = inputs()
    call = SPELLINGS[spelling]
    compiled = torch.compile(lambda q, k, v: call(q * 2, k, v), fullgraph=True, backend="aot_eager")
    ours = others(door, lambda: both_passes(compiled, tensors))
    for a, b in zip(ours, both_passes(lambda q, k, v: call(q * 2, k, v), tensors), strict=True):
        torch.testing.assert_close(a, b)


def test_a_backward_pass_may_be_compiled(door):
    tensors = inputs()
    expected = both_passes(flash_attn_func, tensors)
    torch.compiler.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        ours = both_passes(flash_attn_func, tensors)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_both_passes(door):
    tensors = inputs()
    with Seen() as forward:
        o = others(door, lambda: flash_attn_func(*tensors))
    assert "ferroflash.plain_forward.default" in forward.names
    o = flash_attn_func(*tensors)
    with Seen() as backward:
        torch.autograd.grad(o.sum(), tensors)
    assert "ferroflash.plain_backward.default" in backward.names


class Logged(torch.Tensor):
    """A subclass whose operators are functions of Python."""

    seen: list[str] = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        args = torch.utils._pytree.tree_map_only(cls, lambda x: x.inner, args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at", range(3))
def test_subclasses_see_the_operator(door, at):
    tensors = inputs(grad=False)
    expected = flash_attn_func(*tensors)
    Logged.seen.clear()
    tensors[at] = Logged(tensors[at])
    assert torch.equal(others(door, lambda: flash_attn_func(*tensors)), expected)
    assert "ferroflash.plain_forward.default" in Logged.seen


def test_a_gradient_of_a_subclass(door):
    tensors = inputs()
    o = flash_attn_func(*tensors)
    Logged.seen.clear()
    expected = torch.autograd.grad(o, tensors, torch.ones_like(o), retain_graph=True)
    ours = torch.autograd.grad(o, tensors, Logged(torch.ones_like(o)))
    assert equal(ours, expected) and "ferroflash.plain_backward.default" in Logged.seen


def test_transformations_see_the_call(door):
    tensors = inputs(grad=False)

    def loss(q, k, v):
        return flash_attn_func(q, k, v).sin().sum()

    leaves = [x.detach().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    assert equal(others(door, lambda: torch.func.grad(loss, argnums=(0, 1, 2))(*tensors)), expected)
    one = [x[None] for x in tensors]
    assert torch.equal(others(door, lambda: torch.func.vmap(flash_attn_func)(*one))[0], flash_attn_func(*tensors))
    # Tensors of no transformation, within one.
    inside = torch.func.grad(lambda x: x.sum() + others(door, lambda: flash_attn_func(*tensors)).sum())(torch.ones(3))
    assert torch.equal(inside, torch.ones(3))


def test_forward_mode_is_refused(door):
    tensors = inputs(grad=False)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(flash_attn_func, tuple(tensors), tuple(tensors))
    with torch.autograd.forward_ad.dual_level():
        directed = torch.autograd.forward_ad.make_dual(tensors[0], tensors[0])
        with pytest.raises(NotImplementedError, match="forward-mode"):
            flash_attn_func(directed, *tensors[1:])


def test_traced_programs_record_the_call(door, recwarn):
    tensors = inputs(grad=False)
    traced = others(door, lambda: torch.jit.trace(lambda q, k, v: flash_attn_func(q, k, v), tuple(tensors), check_trace=False))
    assert "ferroflash::plain" in str(traced.graph)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(door, device):
    narrow = inputs(device, torch.bfloat16)
    wide = [x.detach().float().requires_grad_() for x in narrow]
    expected = both_passes(flash_attn_func, narrow)
    with torch.autocast(device, torch.bfloat16):
        o, *gradients = others(door, lambda: both_passes(flash_attn_func, wide))
        assert torch.equal(o, expected[0]) and gradients[0].dtype == torch.float32
        mixed = others(door, lambda: flash_attn_func(narrow[0], *wide[1:]))
        assert torch.equal(mixed, expected[0])
        taken = door.taken
        assert torch.equal(flash_attn_func(*narrow), expected[0]) and door.taken == taken + 1
    with torch.autocast("cuda" if device == "cpu" else "cpu", torch.bfloat16):
        assert flash_attn_func(*wide).dtype == torch.float32


@pytest.mark.parametrize("at", range(3))
def test_the_negative_bit_is_read(door, at):
    tensors = inputs(grad=False)
    expected = flash_attn_func(*(-x if index == at else x for index, x in enumerate(tensors)))
    tensors[at] = tensors[at]._neg_view()
    assert torch.equal(others(door, lambda: flash_attn_func(*tensors)), expected)


def test_gradients_with_the_negative_bit(door):
    tensors = inputs()
    both = flash_attn_func(*tensors, return_attn_probs=True)[:2]
    d_o, d_lse = (random(*x.shape, grad=False) for x in both)
    expected = torch.autograd.grad(both, tensors, (-d_o, -d_lse), retain_graph=True)
    for given in ((d_o._neg_view(), -d_lse), (-d_o, d_lse._neg_view())):
        assert equal(torch.autograd.grad(both, tensors, given, retain_graph=True), expected)
    o = closed(lambda: _torch.attention(*tensors, sinks=torch.zeros(4)))
    expected = torch.autograd.grad(o, tensors, (d_o, -d_lse), retain_graph=True)
    assert equal(torch.autograd.grad(o, tensors, (d_o, d_lse._neg_view())), expected)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (TypeError, lambda q, k, v: flash_attn_func(q.tolist(), k, v)),
        (TypeError, lambda q, k, v: flash_attn_func(q, None, v)),
        (TypeError, lambda q, k, v: flash_attn_func(q.int(), k, v)),
        (TypeError, lambda q, k, v: flash_attn_func(q, k.half(), v)),
        (TypeError, lambda q, k, v: flash_attn_func(q, k, v, softmax_scale="1")),
        (ValueError, lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=-1.0)),
        (ValueError, lambda q, k, v: flash_attn_func(q, k, v, window_size=(1,))),
        (ValueError, lambda q, k, v: flash_attn_func(q[0], k, v)),
        (ValueError, lambda q, k, v: flash_attn_func(q[0, 0, 0, 0], k, v)),
        (ValueError, lambda q, k, v: flash_attn_func(q[None], k, v)),
        (ValueError, lambda q, k, v: flash_attn_func(q, k[..., :8], v[..., :8])),
        (ValueError, lambda q, k, v: flash_attn_func(q[:, :, :3], k, v)),
        (ValueError, lambda q, k, v: fa3.flash_attn_func(q, k, v, num_splits=-1)),
        (NotImplementedError, lambda q, k, v: flash_attn_func(q, k, v, softcap=float("inf"))),
        (NotImplementedError, lambda q, k, v: fa3.flash_attn_func(q, k, v, qv=q)),
        (NotImplementedError, lambda q, k, v: fa3.flash_attn_func(q, k, v, attention_chunk=3)),
        (NotImplementedError, lambda q, k, v: fa4.flash_attn_func(q, k, v, score_mod=max)),
        (NotImplementedError, lambda q, k, v: fa4.flash_attn_func(q, k, v, window_size=(-3, 4))),
    ],
)
def test_errors_are_those_without_the_door(door, error, wrong):
    tensors = inputs(grad=False)
    with pytest.raises(error) as ours:
        wrong(*tensors)
    with pytest.raises(error) as expected:
        closed(lambda: wrong(*tensors))
    assert str(ours.value) == str(expected.value)


@pytest.mark.parametrize(
    "other",
    [
        lambda q, k, v: flash_attn_func(q.double(), k.double(), v.double()),
        lambda q, k, v: flash_attn_func(q[:, :0], k, v),
        lambda q, k, v: flash_attn_func(q, k, v, softcap=2.0),
        lambda q, k, v: flash_attn_func(q, k, v, alibi_slopes=torch.ones(4)),
        lambda q, k, v: flash_attn_func(q[..., ::2], k[..., ::2], v[..., ::2]),
        lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=torch.tensor(0.5)),
        lambda q, k, v: fa4.flash_attn_func(q, k, v, window_size=(-1, -1))[0],
        lambda q, k, v: fa4.flash_attn_func(q, k, v, learnable_sink=torch.ones(4))[0],
    ],
)
def test_other_calls_go_python_s_way(door, other):
    tensors = inputs(grad=False)
    assert torch.equal(other(*tensors), closed(lambda: other(*tensors)))


# ---- autograd ----


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(door, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    tensors = inputs()
    expected = both_passes(flash_attn_func, tensors)
    o = checkpoint(flash_attn_func, *tensors, use_reentrant=use_reentrant)
    o.float().square().sum().backward()
    assert equal((o, *(x.grad for x in tensors)), expected)
    assert door.refused == 0


def test_second_derivatives_are_refused_by_name(door):
    tensors = inputs()
    (d_q,) = torch.autograd.grad(flash_attn_func(*tensors).sum(), tensors[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(d_q.sum(), tensors[0])


def rotated(x):
    """With other strides."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def shifted(x):
    """In memory that begins between two elements."""
    memory = torch.frombuffer(bytearray(4 * x.numel() + 1), dtype=x.dtype, offset=1)
    return memory.view(x.shape).copy_(x.detach())


def negated(x):
    """With the negative bit."""
    return (-x.detach())._neg_view()


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("other", [rotated, shifted, negated])
def test_each_saved_tensor_may_come_back_otherwise(door, other, at):
    """q, k, v, o or lse."""
    tensors = inputs()
    _, *expected = both_passes(flash_attn_func, tensors)
    places = iter(range(6))
    with saved_tensors_hooks(torch.clone, lambda x: other(x) if next(places) == at else x):
        o = flash_attn_func(*tensors)
    ours = torch.autograd.grad(o, tensors, 2 * o.detach())
    assert next(places) == 5
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_saved_tensors_that_were_written_are_an_error(door):
    tensors = inputs()
    o = flash_attn_func(*tensors)
    with torch.no_grad():
        tensors[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_inputs_without_gradients(door):
    q, k, v = inputs()
    full = both_passes(flash_attn_func, (q, k, v))
    o = flash_attn_func(q, k.detach(), v)
    assert equal(torch.autograd.grad(o.float().square().sum(), (q, v)), (full[1], full[3]))
    assert not flash_attn_func(*(x.detach() for x in (q, k, v))).requires_grad
    parameters = [torch.nn.Parameter(x.detach()) for x in (q, k, v)]
    assert equal(both_passes(flash_attn_func, parameters), full)


def test_graphs_are_freed(door):
    import gc
    import weakref

    tensors = inputs()
    o = flash_attn_func(*tensors)
    alive = [weakref.ref(x) for x in (*tensors, o)]
    del tensors, o
    gc.collect()
    assert [x() for x in alive] == [None] * 4


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_work_is_enqueued_on_the_current_stream(door):
    tensors = inputs("cuda", torch.bfloat16, seqlen=64, seqlen_k=64)
    expected = both_passes(flash_attn_func, tensors)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        ours = both_passes(flash_attn_func, tensors)
        assert not side.query()
    side.synchronize()
    assert equal(ours, expected)


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_too_little_memory_is_pytorchs_error(door):
    q = torch.zeros(1, 1 << 17, 16, 128, device="cuda", dtype=torch.bfloat16)
    flash_attn_func(q[:, :64], q[:, :64], q[:, :64])
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / whole)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            flash_attn_func(q, q, q)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
