"""What PyTorch does with operators: checks of its own, compilation, checkpoints, autocast, streams, graphs, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch_cases import DEVICES, options, random

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash._torch import attention  # noqa: E402

HAS_CUDA = "cuda" in DEVICES

needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="[not run] no CUDA device")


def tensors(device, dtype=torch.bfloat16, seqlen=64, head_dim=64):
    return [random(2, seqlen, heads, head_dim, device=device, dtype=dtype, seed=at) for at, heads in enumerate((4, 2, 2))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [64, 44])
def test_the_operators_are_what_they_say(device, head_dim):
    q, k, v = tensors(device, head_dim=head_dim)
    operators = torch.ops.ferroflash
    torch.library.opcheck(operators.forward.default, (q, k, v, *options(right=0)))
    packed = [x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v)]
    cu_seqlens = torch.tensor([0, 50, 128], dtype=torch.int32, device=device)
    given = options({"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}, longest=(78, 78))
    torch.library.opcheck(operators.forward.default, (*packed, *given))
    with torch.no_grad():
        o, lse = attention(q, k, v)
    arguments = (torch.ones_like(o), None, q.detach(), k.detach(), v.detach(), o, lse, *options(), [])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operators.backward.default, arguments, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_as_one_graph(device, dynamic):
    def block(q, k, v):
        o, lse = attention(q * 2, k, v, causal=True, window=(30, None))
        return (o.float() ** 2).sum() + lse.exp().sum()

    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=backend)
    for seqlen in (64, 96):
        q, k, v = tensors(device, torch.float16, seqlen)
        ours = torch.autograd.grad(compiled(q, k, v), (q, k, v))
        eager = torch.autograd.grad(block(q, k, v), (q, k, v))
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(device, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    q, k, v = tensors(device)

    def block(q, k, v):
        return attention(q, k, v, causal=True)[0]

    plain = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    for x in (q, k, v):
        x.grad = None
    checkpoint(block, q, k, v, use_reentrant=use_reentrant).sum().backward()
    assert all(torch.equal(x.grad, b) for x, b in zip((q, k, v), plain, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device):
    q, k, v = tensors(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        o, lse = attention(q, k, v)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    plain, _ = attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert torch.equal(o, plain)
    gradient = torch.autograd.grad(o.sum(), q)[0]
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_inference_mode_and_frozen_inputs(device):
    q, k, v = tensors(device)
    with torch.inference_mode():
        frozen, _ = attention(q, k, v)
    o, _ = attention(q, k.detach(), v)
    assert torch.equal(o, frozen)
    d_q, d_v = torch.autograd.grad(o.sum(), (q, v))
    full = torch.autograd.grad(attention(q, k, v)[0].sum(), (q, k, v))
    assert torch.equal(d_q, full[0]) and torch.equal(d_v, full[2])


@pytest.mark.parametrize("device", DEVICES)
def test_fake_tensors_have_the_shapes_of_real_ones(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 30, 4, 64, device=device, dtype=torch.float16)
        k = torch.empty(2, 50, 2, 64, device=device, dtype=torch.float16)
        o, lse = attention(q, k, k)
    assert o.shape == (2, 30, 4, 64) and o.dtype == torch.float16 and lse.shape == (2, 4, 30)


@pytest.mark.parametrize("device", DEVICES)
def test_threads(device):
    q, k, v = (x.detach() for x in tensors(device, seqlen=100))
    expected = {n: attention(q[:, :n], k, v)[0] for n in range(60, 100)}

    def run(n):
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            if stream is not None:
                stream.wait_stream(torch.cuda.default_stream())
            o, _ = attention(q[:, :n], k, v)
            if stream is not None:
                stream.synchronize()
        return n, o

    if device == "cuda":
        torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as threads:
        for n, o in threads.map(run, [*expected] * 4):
            assert torch.equal(o, expected[n])


@needs_cuda
def test_a_graph_of_both_passes():
    q, k, v = tensors("cuda", seqlen=300)
    d_o = torch.ones_like(q)

    def step():
        o, lse = attention(q, k, v, causal=True)
        return [x.detach() for x in (o, lse, *torch.autograd.grad(o, (q, k, v), d_o))]

    # PyTorch wants what is captured to have run on another stream before.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = [x.clone() for x in step()]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(100):
        for x in captured:
            x.zero_()
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, eager, strict=True))


@needs_cuda
def test_nobody_waits():
    q, k, v = tensors("cuda", seqlen=300)
    attention(q, k, v)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        o, _ = attention(q, k, v)
        o.backward(o.detach())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The stream is held up: whoever waited for it would not return before it is let go.
    start, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    torch.cuda._sleep(200_000_000)
    start.record()
    attention(q, k, v)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@needs_cuda
def test_memory_of_a_side_stream():
    side = torch.cuda.Stream()
    expected = None
    for _ in range(20):
        with torch.cuda.stream(side):
            q, k, v = (x.detach() for x in tensors("cuda", seqlen=500))
        torch.cuda.current_stream().wait_stream(side)
        o, _ = attention(q, k, v, causal=True)
        for x in (q, k, v):
            x.record_stream(torch.cuda.current_stream())
        del q, k, v
        expected = o if expected is None else expected
        assert torch.equal(o, expected)


@needs_cuda
def test_the_profiler_shows_the_kernels():
    from torch.profiler import ProfilerActivity, profile

    q, k, v = tensors("cuda", seqlen=256)
    attention(q, k, v)[0].sum().backward()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        attention(q, k, v)[0].sum().backward()
        torch.cuda.synchronize()
    names = [event.key for event in seen.key_averages()]
    assert any(name.startswith("forward_sm") for name in names), names
    assert any(name.startswith("backward_sm") for name in names), names


@pytest.mark.skipif(not HAS_CUDA or torch.cuda.device_count() < 2, reason="[not run] fewer than two CUDA devices")
def test_several_devices():
    results = []
    for at in range(torch.cuda.device_count()):
        q, k, v = tensors(f"cuda:{at}")
        o, _ = attention(q, k, v)
        results.append((o.cpu(), *(x.cpu() for x in torch.autograd.grad(o.sum(), (q, k, v)))))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))
