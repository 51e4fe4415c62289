"""The operators of plain calls, `ferroflash::plain` and its passes: in compiled graphs, by native kernels and by Python's, and what goes from the ones to the others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch_cases import DEVICES, assert_lse_near, assert_near, gradients, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import _torch, flash_attn_func  # noqa: E402
from ferroflash._torch import attention  # noqa: E402

plain, plain_forward, plain_backward = (
    getattr(torch.ops.ferroflash, name).default for name in ("plain", "plain_forward", "plain_backward")
)

native = pytest.mark.skipif("CPU" not in _torch.NATIVE, reason="[not run] this PyTorch takes no native kernels")

# A type that native kernels serve on the device.
TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


class Served:
    """How many forward and backward passes native kernels have served since it was made."""

    def __init__(self):
        self.before = _torch.DOOR.n_served

    def __call__(self):
        return self.of_all()[:2]

    def by_nodes(self):
        """The passes of native nodes of autograd's graph."""
        return self.of_all()[4:]

    def of_all(self):
        return [after - before for after, before in zip(_torch.DOOR.n_served, self.before)]


@pytest.fixture
def served():
    return Served()


def inputs(device="cpu", seqlen=9, seqlen_k=13, head_dim=16, heads_k=2, grad=True, dtype=None):
    shapes = (2, seqlen, 4, head_dim), (2, seqlen_k, heads_k, head_dim), (2, seqlen_k, heads_k, head_dim)
    dtype = TYPES[device] if dtype is None else dtype
    return [random(*shape, device=device, dtype=dtype, seed=at, grad=grad) for at, shape in enumerate(shapes)]


def equal(ours, expected):
    return all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


# Each test that counts has a scale of its own: no other test has planned such a call.
def numbers(scale, left=None, right=None, num_splits=0):
    return scale, left, right, num_splits


# ---- in graphs ----


def compiled_with_graphs(call):
    """A compiled function, and the operators of the graphs that it is compiled to."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def note(graph, _inputs):
        seen.append([str(node.target) for node in graph.graph.nodes if "ferroflash" in str(node.target)])
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    return torch.compile(call, fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note)), seen


OPTIONS = [{}, {"causal": True}, {"window": (5, 2)}, {"softmax_scale": 0.3, "causal": True}, {"num_splits": 2}, {"window": (None, 3)}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_compiled_call_has_the_operators(device, dtype, options):
    """Graphs name them, and results and gradients are those of float64, at the first call and at those that native kernels serve."""
    if (device, dtype) == ("cuda", torch.float32) and "num_splits" in options:
        pytest.skip("no kernel of a GPU divides the keys of float32")
    q, k, v = inputs(device, dtype=dtype)
    call, seen = compiled_with_graphs(lambda q, k, v: _torch.attention(q, k, v, **options))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = reference(*wide, **{name: given for name, given in options.items() if name != "num_splits"})
    d_o, d_lse = random(*exact[0].shape, device=device, dtype=dtype, seed=7), random(*exact[1].shape, device=device, seed=8)
    expected = gradients(exact, (d_o.detach(), d_lse.detach()), wide)
    for _ in range(3):
        o, lse = call(q, k, v)
        assert o.dtype == dtype and o.is_contiguous()
        assert_near(o, exact[0])
        assert_lse_near(lse, exact[1])
        # A tf32 product in place of one of float32 is what a GPU computes; that is `test_torch`'s to bound.
        if (device, dtype) != ("cuda", torch.float32):
            for name, ours, wanted in zip("qkv", torch.autograd.grad((o, lse), (q, k, v), (d_o, d_lse)), expected, strict=True):
                assert_near(ours, wanted, what=f"d_{name}")
    if (device, dtype) != ("cuda", torch.float32):
        assert seen == [["ferroflash.plain_forward.default"], ["ferroflash.plain_backward.default"]]


@pytest.mark.parametrize("device", DEVICES)
def test_inductor(device):
    q, k, v = inputs(device)

    def call(q, k, v):
        return flash_attn_func(q * 2, k, v, causal=True).float().sin()

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True)
    for _ in range(3):
        ours, eager = compiled(q, k, v), call(q, k, v)
        torch.testing.assert_close(ours, eager)
        for a, b in zip(torch.autograd.grad(ours.sum(), (q, k, v)), torch.autograd.grad(eager.sum(), (q, k, v)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v), eager)
        with torch.inference_mode():
            torch.testing.assert_close(compiled(q, k, v), eager)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_stay_with_the_other_operator(device):
    q, k, v = inputs(device, grad=False)
    call, seen = compiled_with_graphs(lambda *tensors: _torch.attention(*tensors, max_seqlen_q=9)[0])
    assert torch.equal(call(q, k, v), attention(q, k, v)[0])
    assert seen == [["ferroflash.forward.default"]]


def test_the_gradients_of_a_plain_call_are_of_the_same_operators():
    """Where a mode sees the backward pass of a call that went past operators."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    tensors = inputs()
    expected = torch.autograd.grad(attention(*tensors)[0].sum(), tensors)
    for given, name in (({}, "ferroflash.plain_backward.default"), ({"max_seqlen_k": 13}, "ferroflash.backward.default")):
        seen, o = [], attention(*tensors, **given)[0].sum()
        with Seeing():
            assert equal(torch.autograd.grad(o, tensors), expected)
        assert name in seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "of", [lambda o, lse: o.sin().sum(), lambda o, lse: lse.sin().sum(), lambda o, lse: (o * o).sum() + lse.sin().sum()]
)
def test_gradients_of_o_and_of_lse(device, of):
    q, k, v = inputs(device)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(of(*reference(*wide, softmax_scale=0.21)), wide, materialize_grads=True)
    torch.compiler.reset()
    compiled = torch.compile(lambda q, k, v: of(*_torch.attention(q, k, v, softmax_scale=0.21)), fullgraph=True, backend="aot_eager")
    for call in (lambda *x: of(*plain(*x, *numbers(0.21))), compiled):
        for _ in range(3):
            for name, ours, wanted in zip("qkv", torch.autograd.grad(call(q, k, v), (q, k, v)), expected, strict=True):
                # The gradient of o is rounded to its type, too.
                assert_near(ours, wanted, what=f"d_{name}", sums=2**-18 if device == "cpu" else 2**-6)


def test_inputs_without_gradients():
    q, k, v = inputs()
    full = torch.autograd.grad(plain(q, k, v, *numbers(0.22))[0].sum(), (q, k, v))
    o = plain(q, k.detach(), v, *numbers(0.22))[0]
    assert equal(torch.autograd.grad(o.sum(), (q, v)), (full[0], full[2]))
    assert not plain(*(x.detach() for x in (q, k, v)), *numbers(0.22))[0].requires_grad
    with torch.no_grad():
        assert not plain(q, k, v, *numbers(0.22))[0].requires_grad


# ---- what the operators say of themselves ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [16, 12])
def test_the_operators_are_what_they_say(device, head_dim):
    q, k, v = inputs(device, head_dim=head_dim)
    torch.library.opcheck(plain, (q, k, v, *numbers(0.23, 4, 0)))
    q, k, v = (x.detach() for x in (q, k, v))
    o, lse = plain_forward(q, k, v, *numbers(0.23))
    checks = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    torch.library.opcheck(plain_forward, (q, k, v, *numbers(0.23)), test_utils=checks)
    for d_lse in (None, torch.ones_like(lse)):
        torch.library.opcheck(plain_backward, (torch.ones_like(o), d_lse, q, k, v, o, lse, *numbers(0.23)), test_utils=checks)


def test_forward_mode_is_refused():
    tensors = inputs(grad=False)
    torch.compiler.reset()
    compiled = torch.compile(lambda q, k, v: flash_attn_func(q * 2, k, v), backend="aot_eager")
    compiled(*tensors)
    with torch.autograd.forward_ad.dual_level():
        directed = torch.autograd.forward_ad.make_dual(tensors[0], tensors[0])
        for call in (compiled, lambda *tensors: plain(*tensors, *numbers(0.25))):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call(directed, *tensors[1:])


def test_second_derivatives_are_refused_by_name():
    tensors = inputs()
    (d_q,) = torch.autograd.grad(plain(*tensors, *numbers(0.25))[0].sum(), tensors[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(d_q.sum(), tensors[0])


def test_vmap_has_a_rule():
    q, k, v = inputs(grad=False)
    many = torch.stack([q, 2 * q, -q], 1)
    o, lse = torch.func.vmap(lambda q, k, v: plain(q, k, v, *numbers(0.3)), in_dims=(1, None, None))(many, k, v)
    for at in range(3):
        assert equal((o[at], lse[at]), plain(many[:, at], k, v, *numbers(0.3)))


# ---- by native kernels ----


@native
@pytest.mark.parametrize("device", DEVICES)
def test_native_kernels_serve_all_but_the_first_call(device, served):
    """Also where a combination of shapes is first seen in a compiled graph."""
    tensors = inputs(device, seqlen=11)
    torch.compiler.reset()
    compiled = torch.compile(lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=0.2401), fullgraph=True, backend="aot_eager")
    seen = []
    for _ in range(3):
        o = compiled(*tensors)
        seen.append((o.detach(), *torch.autograd.grad(o.float().square().sum(), tensors)))
    assert served() == [2, 2]
    assert equal(seen[1], seen[0]) and equal(seen[2], seen[0])


@native
@pytest.mark.parametrize("device", DEVICES)
def test_native_kernels_tell_calls_apart(device, served):
    """By shapes, types, scale, sides of the window and splits: each gives what Python's way gives."""
    calls = [
        (inputs(device, grad=False, **given), numbers(scale, *others))
        for given in ({}, {"seqlen": 5}, {"heads_k": 4}, {"dtype": torch.float16})
        for scale in (0.2402, 0.31)
        for others in ((), (3,), (None, 3), (3, 0), (0, 3), (None, 0, 2))
    ]
    expected = [torch.ops.ferroflash.plain_by_python.default(*tensors, *said) for tensors, said in calls]
    assert served() == [0, 0]
    for (tensors, said), wanted in zip(calls, expected, strict=True):
        assert equal(plain_forward(*tensors, *said), wanted), said
    assert served() == [len(calls), 0]


def rotated(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def with_gaps(x):
    return torch.cat([x, x], 1)[:, ::2].copy_(x)


def shifted(x):
    """In memory that begins between two elements."""
    size = x.element_size()
    return torch.frombuffer(bytearray(size * x.numel() + 1), dtype=x.dtype, offset=1).view(x.shape).copy_(x)


def every_other(x):
    """With a stride in the last dimension."""
    return torch.stack([x, x], -1)[..., 0]


@native
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("place", "is_read"), [(rotated, True), (with_gaps, True), (shifted, False), (every_other, False)])
def test_strided_tensors(device, place, is_read, served):
    if device == "cuda" and place is shifted:
        pytest.skip("[not run] memory of a GPU begins at elements")
    tensors = inputs(device, grad=False)
    o, lse = plain_forward(*tensors, *numbers(0.2403))
    d_o = random(*o.shape, device=device, dtype=o.dtype, seed=7, grad=False)
    expected = plain_backward(d_o, lse, *tensors, o, lse, *numbers(0.2403))
    placed = [place(x) for x in tensors]
    before = served()

    def check(ours, wanted):
        """Bit for bit on the CPU; on a GPU another kernel may read other strides."""
        assert all(x.is_contiguous() for x in ours)
        assert device != "cpu" or equal(ours, wanted)
        for a, b in zip(ours, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)

    for _ in range(2):
        check(plain_forward(*placed, *numbers(0.2403)), (o, lse))
        for given in (place(d_o), d_o):
            check(plain_backward(given, lse, *placed, o, lse, *numbers(0.2403)), expected)
    assert (served() != before) == is_read


@native
@pytest.mark.parametrize("device", DEVICES)
def test_what_native_kernels_do_not_read_is_served(device, served):
    """Gradients that are one number everywhere, what was saved with other strides, empty tensors, tensors that mean the negative of their memory."""
    q, k, v = inputs(device, grad=False)
    said = numbers(0.2404)
    o, lse = plain_forward(q, k, v, *said)
    ones = torch.ones_like(o)
    expected = plain_backward(ones, None, q, k, v, o, lse, *said)
    assert equal(plain_backward(ones[:1, :1, :1, :1].expand(o.shape), None, q, k, v, o, lse, *said), expected)
    assert equal(plain_backward(ones, None, q, k, v, rotated(o), rotated(lse[..., None])[..., 0], *said), expected)
    assert equal(plain_backward((-ones)._neg_view(), None, q, k, v, o, lse, *said), expected)
    assert equal(plain_forward((-q)._neg_view(), k, v, *said), (o, lse))
    empty = plain_forward(q[:, :0], k, v, *said)
    assert empty[0].shape == (2, 0, 4, 16) and empty[1].shape == (2, 4, 0)
    o, lse = plain_forward(q, k[:, :0], v[:, :0], *said)
    assert (o == 0).all() and (lse == float("-inf")).all()


@native
@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_a_call_is_kept(device):
    """Served, handed on, or refused: each tensor belongs to as many afterwards as before."""
    tensors = [*inputs(device, grad=False)]
    o, lse = plain_forward(*tensors, *numbers(0.2405))
    d_o = torch.ones_like(o)
    held = [*tensors, o, lse, d_o]
    before = [x._use_count() for x in held]
    for _ in range(3):
        results = [plain_forward(*tensors, *numbers(0.2405, 3, 0)), plain_backward(d_o, lse, *tensors, o, lse, *numbers(0.2405, 3, 0))]
        with pytest.raises(RuntimeError):
            plain_forward(tensors[0][..., :8], *tensors[1:], *numbers(0.2405, 3, 0))
        with pytest.raises(RuntimeError):
            plain_backward(d_o, lse[:1], *tensors, o, lse, *numbers(0.2405, 3, 0))
    assert [x._use_count() for x in held] == before
    assert [x._use_count() for result in results for x in result] == [1] * 5


@native
@pytest.mark.parametrize("device", DEVICES)
def test_threads(device, served):
    q, k, v = inputs(device, seqlen=64, seqlen_k=64, grad=False)
    expected = {n: plain_forward(q[:, :n], k, v, *numbers(0.2406)) for n in range(32, 64)}

    def run(n):
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            if stream is not None:
                stream.wait_stream(torch.cuda.default_stream())
            # The second number of keys is planned by whichever thread is first.
            results = plain_forward(q[:, :n], k, v, *numbers(0.2406)), plain_forward(q[:, :n], k[:, :n], v[:, :n], *numbers(0.2406))
            if stream is not None:
                stream.synchronize()
        return n, *results

    if device == "cuda":
        torch.cuda.synchronize()
    others = {}
    with ThreadPoolExecutor(8) as threads:
        for n, ours, other in threads.map(run, [*expected] * 4):
            assert equal(ours, expected[n])
            assert equal(other, others.setdefault(n, other))
    # Threads that plan the same call at once are rare.
    assert served()[0] >= 6 * len(expected)


@native
@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_work_is_enqueued_on_the_current_stream(served):
    tensors = inputs("cuda", seqlen=64, seqlen_k=64, grad=False)
    expected = [plain_forward(*tensors, *numbers(0.2407)) for _ in range(2)][1]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        ours = plain_forward(*tensors, *numbers(0.2407))
        assert not side.query()
    side.synchronize()
    assert equal(ours, expected) and served() == [2, 0]


@native
@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_too_little_memory_has_pytorchs_text():
    q = torch.zeros(1, 1 << 17, 16, 128, device="cuda", dtype=torch.bfloat16)
    # Planned, and served by native kernels.
    small = [plain_forward(*[q[:, :64]] * 3, *numbers(0.2408)) for _ in range(2)][1]
    whole = torch.cuda.get_device_properties(0).total_memory
    plain_forward(*[q] * 3, *numbers(0.2408))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / whole)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            plain_forward(*[q] * 3, *numbers(0.2408))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert equal(plain_forward(*[q[:, :64]] * 3, *numbers(0.2408)), small)


# ---- errors ----

WRONG = {
    "k has head_dim 8; needed: 16, as q": lambda q, k, v: (q, k[..., :8], v[..., :8], *numbers(0.25)),
    "k has batch 1; needed: 2, as q": lambda q, k, v: (q, k[:1], v[:1], *numbers(0.25)),
    "window has -3 keys to the left": lambda q, k, v: (q, k, v, *numbers(0.25, -3)),
    "num_splits is -1": lambda q, k, v: (q, k, v, *numbers(0.25, num_splits=-1)),
    "softmax_scale is -1": lambda q, k, v: (q, k, v, *numbers(-1.0)),
    "q is torch.float64": lambda q, k, v: (q.double(), k.double(), v.double(), *numbers(0.25)),
    "k is torch.float64": lambda q, k, v: (q, k.double(), v, *numbers(0.25)),
    "cu_seqlens_q is allowed": lambda q, k, v: (q[0], k[0], v[0], *numbers(0.25)),
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("operator", [plain, plain_forward])
def test_errors_have_their_texts(operator, text):
    """Twice: what is refused is not kept."""
    tensors = inputs(grad=False)
    for _ in range(2):
        with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
            operator(*WRONG[text](*tensors))
    plain_forward(*tensors, *numbers(0.25))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("d_o has the shape", lambda o, lse: (o[:1], None, o, lse)),
        ("o has the shape", lambda o, lse: (o, None, o[:, :3], lse)),
        ("lse has the shape", lambda o, lse: (o, None, o, lse[..., :3])),
        ("d_lse has the shape", lambda o, lse: (o, lse[:1], o, lse)),
        ("lse is torch.float64", lambda o, lse: (o, None, o, lse.double())),
        ("d_o is torch.float16", lambda o, lse: (o.half(), None, o, lse)),
    ],
)
def test_a_backward_pass_looks_at_all_that_it_is_given(text, given):
    tensors = inputs(grad=False)
    o, lse = plain_forward(*tensors, *numbers(0.25))
    plain_backward(o, None, *tensors, o, lse, *numbers(0.25))
    d_o, d_lse, o, lse = given(o, lse)
    with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
        plain_backward(d_o, d_lse, *tensors, o, lse, *numbers(0.25))


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("other", ["meta", *(["cuda"] if "cuda" in DEVICES else [])])
def test_tensors_of_two_devices_are_refused(at, other):
    tensors = inputs(grad=False)
    plain_forward(*tensors, *numbers(0.25))
    tensors[at] = tensors[at].to(other)
    with pytest.raises((TypeError, RuntimeError), match="lies on"):
        plain_forward(*tensors, *numbers(0.25))


def test_errors_of_calls_that_are_no_graph_have_their_types():
    """The operators of a mode's calls are called by Python, which knows what it has refused."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    q, k, v = inputs()
    with Seeing():
        attention(q, k, v)
        for error, call in (
            (ValueError, lambda: attention(q, k[..., :8], v[..., :8])),
            (ValueError, lambda: attention(q, k, v, softmax_scale=-1.0)),
            (ValueError, lambda: attention(q, k, v, window=(-1, None))),
            (TypeError, lambda: attention(q, k.half(), v)),
        ):
            with pytest.raises(error):
                call()


def test_a_compiled_call_is_refused_with_the_text():
    q, k, v = inputs(grad=False)
    torch.compiler.reset()
    with pytest.raises(ValueError, match="window has -3 keys"):
        torch.compile(lambda q: _torch.attention(q, k, v, window=(-3, None))[0], backend="aot_eager")(q)
    with pytest.raises((RuntimeError, ValueError), match="softmax_scale is -1"):
        torch.compile(lambda q: flash_attn_func(q, k, v, softmax_scale=-1.0), backend="aot_eager", fullgraph=True)(q)


# ---- without native kernels ----


def test_functions_of_python_serve_where_there_are_no_native_kernels():
    """As in a PyTorch before 2.10: a door without a library."""
    script = """
        import sys
        sys.path.insert(0, sys.argv.pop(1))
        import pytest
        from ferroflash import _door, _native

        door = _native.Door
        _native.Door = lambda *arguments, library, **others: door(*arguments, **others)
        from ferroflash import _torch

        assert _torch.NATIVE == {}
        sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
        """
    tests, package = Path(__file__), Path(_torch.__file__).parents[1]
    chosen = ["-k", "compiled_call or gradients_of or what_they_say or errors or two_devices or looks_at_all or refused or inputs_without"]
    command = [sys.executable, "-c", textwrap.dedent(script), str(package), str(tests), *chosen]
    ran = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


# ---- native nodes of autograd's graph ----


def node_of(o):
    return type(o.grad_fn).__name__


@native
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window_size": (5, 2)}, {"softmax_scale": 0.3, "window_size": (-1, 3)}], ids=str
)
def test_o_alone_has_a_native_node(device, options, served):
    """Both its passes are native from the second backward pass on, and what they give is what a node of Python gives."""
    tensors = inputs(device, seqlen=15)
    with_lse = flash_attn_func(*tensors, **options, return_attn_probs=True)[0]
    d_o = random(*with_lse.shape, device=device, dtype=with_lse.dtype, seed=7, grad=False)
    expected = torch.autograd.grad(with_lse, tensors, d_o)
    for _ in range(3):
        o = flash_attn_func(*tensors, **options)
        assert "Overrideable" in node_of(o) and "Plain" in node_of(with_lse)
        assert equal([o], [with_lse]) and equal(torch.autograd.grad(o, tensors, d_o), expected)
    # The backward pass was planned for the other node.
    assert served.by_nodes() == [3, 3]
    with torch.no_grad():
        assert equal([flash_attn_func(*tensors, **options)], [with_lse])
    assert served.by_nodes() == [3, 3]


@native
@pytest.mark.parametrize("device", DEVICES)
def test_a_native_node_hands_on_what_it_does_not_read(device, served):
    """A gradient of o that was not seen before, and one that is the same number everywhere; a gradient of which nothing is wanted."""
    q, k, v = inputs(device, seqlen=15)
    full = torch.autograd.grad(flash_attn_func(q, k, v, softmax_scale=0.2411).sum(), (q, k, v))
    assert served.by_nodes() == [1, 0]
    o = flash_attn_func(q, k.detach(), v, softmax_scale=0.2411)
    assert equal(torch.autograd.grad(o, (q, v), torch.ones_like(o)), (full[0], full[2]))
    code = o.grad_fn._saved_dropout_p
    assert equal(torch.ops.ferroflash.graph_by_python.default(q.detach(), k.detach(), v.detach(), code)[:1], [o])


@native
def test_a_native_node_of_fa4_has_lse_without_a_gradient(served):
    from ferroflash import fa4

    tensors = inputs()
    for n in (1, 2):
        o, lse = fa4.flash_attn_func(*tensors, softmax_scale=0.2412)
        assert served.by_nodes() == [n, 0] and not lse.requires_grad
        assert fa4.flash_attn_func(*tensors, softmax_scale=0.2412, return_lse=True)[1].requires_grad
    assert_lse_near(lse, reference(*(x.double() for x in tensors), softmax_scale=0.2412)[1])


@native
def test_a_native_node_is_a_node_like_others():
    """Hooks of saved tensors see it, what is written into a saved tensor is noticed, and its second derivatives are refused by name."""
    tensors = inputs()
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.shape) or x, lambda x: x):
        flash_attn_func(*tensors)
    assert len(seen) == 5
    q, k, v = (2 * x for x in tensors)
    o = flash_attn_func(q, k, v)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    (d_q,) = torch.autograd.grad(flash_attn_func(*tensors).sum(), tensors[0], create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="second derivatives|not implemented"):
        torch.autograd.grad(d_q.sum(), tensors[0])


@native
def test_the_operator_of_nodes_serves_nobody_else():
    q, k, v = inputs(grad=False)
    node = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    for p in (0.0, 0.5, 2.5, 1e9, float("nan")):
        with pytest.raises(RuntimeError, match="not implemented for these tensors"):
            node(q, k, v, torch.ones(9, 13), p, scale=0.5)


@native
def test_where_no_code_is_left_nodes_are_pythons():
    script = """
        import torch
        from ferroflash import flash_attn_func

        q, k, v = (torch.ones(1, 1, 1, 8, requires_grad=True) for _ in range(3))
        seen = ["Overrideable" in type(flash_attn_func(q, k, v, softmax_scale=1 + at).grad_fn).__name__ for at in range(4097)]
        assert seen == [True] * 4096 + [False]
        assert "Overrideable" in type(flash_attn_func(q, k, v, softmax_scale=7.0).grad_fn).__name__
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
