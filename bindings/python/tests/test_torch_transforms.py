"""Transformations of `torch.func`, forward mode, gradcheck in float64, and programs that trace: what they see of a call, or why they refuse it."""

from __future__ import annotations

import io
import warnings

import pytest
from torch_cases import random

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import flash_attn_func, flash_attn_with_kvcache  # noqa: E402
from ferroflash._torch import attention  # noqa: E402
from torch import func  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

SHAPES = [(2, 9, heads, 16) for heads in (4, 2, 2)]


def inputs(*before, dtype=torch.float32, shapes=SHAPES):
    return [random(*before, *shape, seed=at, dtype=dtype, grad=False) for at, shape in enumerate(shapes)]


def causal(q, k, v):
    return flash_attn_func(q, k, v, causal=True)


def loss(q, k, v):
    return causal(q, k, v).sin().sum()


def by_backward(*tensors, of=loss):
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(of(*leaves), leaves)


def equal(ours, expected):
    return all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def stacked(calls):
    return [torch.stack(results) for results in zip(*calls, strict=True)]


def test_grad_and_vjp():
    tensors = inputs()
    expected = by_backward(*tensors)
    assert equal(func.grad(loss, argnums=(0, 1, 2))(*tensors), expected)
    o, pull = func.vjp(causal, *tensors)
    assert torch.equal(o, causal(*tensors)) and equal(pull(o.cos()), expected)
    rows = func.jacrev(lambda q: causal(q, *tensors[1:])[0, 0, 0])(tensors[0])
    first = by_backward(*tensors, of=lambda *x: causal(*x)[0, 0, 0, 0])[0]
    assert torch.equal(rows[0], first)


def test_vmap_before_the_batch():
    many, one = inputs(3), inputs()
    calls = [causal(*x) for x in zip(*many, strict=True)]
    assert torch.equal(func.vmap(causal)(*many), torch.stack(calls))
    q, _, v = many
    only_q = func.vmap(causal, in_dims=(1, None, None))(q.movedim(0, 1), *one[1:])
    assert torch.equal(only_q, torch.stack([causal(x, *one[1:]) for x in q]))
    only_v = func.vmap(causal, in_dims=(None, None, 4), out_dims=2)(*one[:2], v.movedim(0, 4))
    assert torch.equal(only_v.movedim(2, 0), torch.stack([causal(*one[:2], x) for x in v]))


def test_vmap_and_grad():
    many, one = inputs(3), inputs()
    of_each = func.grad(loss, argnums=(0, 1, 2))
    assert equal(func.vmap(of_each)(*many), stacked(by_backward(*x) for x in zip(*many, strict=True)))
    q = many[0]
    shared = func.vmap(of_each, in_dims=(0, None, None))(q, *one[1:])
    assert equal(shared, stacked(by_backward(x, *one[1:]) for x in q))
    outside = func.grad(lambda *x: func.vmap(causal)(*x).sin().sum(), argnums=(0, 1, 2))(*many)
    assert equal(outside, stacked(by_backward(*x) for x in zip(*many, strict=True)))


def test_vmap_of_what_depends_on_the_batch():
    (_, k, v), qs = inputs(), inputs(3)[0]
    used = torch.tensor([3, 9], dtype=torch.int32)
    cu_seqlens = torch.tensor([0, 4, 14], dtype=torch.int32)  # the last four rows are of no sequence
    packed = dict(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=10, max_seqlen_k=10)
    flat = [x.flatten(0, 1) for x in (k, v)]
    sinks = random(4, seed=9, grad=False)
    for call, given in (
        (lambda q: attention(q, k, v, seqused_k=used)[0], qs),
        (lambda q: attention(q, k, v, sinks=sinks)[0], qs),
        (lambda q: flash_attn_func(q, k, v, softcap=2.0), qs),
        (lambda q: attention(q, *flat, **packed)[0], qs.flatten(1, 2)),
    ):
        assert torch.equal(func.vmap(call)(given), torch.stack([call(q) for q in given]))
    state = torch.tensor([5, 6])
    dropped = func.vmap(lambda q: attention(q, k, v, dropout_p=0.4, rng_state=state)[0])(qs)
    assert torch.equal(dropped, torch.stack([attention(q, k, v, dropout_p=0.4, rng_state=state)[0] for q in qs]))
    with pytest.raises(RuntimeError, match="random"):
        func.vmap(lambda q: flash_attn_func(q, k, v, dropout_p=0.4))(qs)


def test_gradients_of_sinks_for_each_of_vmap():
    (q, k, v), sinks = inputs(), random(3, 4, seed=9, grad=False)

    def of_sinks(sinks):
        return attention(q, k, v, sinks=sinks)[0].sin().sum()

    assert torch.equal(func.vmap(func.grad(of_sinks))(sinks), torch.stack([by_backward(x, of=of_sinks)[0] for x in sinks]))


def dual(call):
    with forward_ad.dual_level():
        return call(*(forward_ad.make_dual(x, torch.ones_like(x)) for x in inputs()))


@pytest.mark.parametrize(
    "run",
    [
        lambda: func.jvp(causal, tuple(inputs()), tuple(inputs())),
        lambda: func.jacfwd(causal)(*inputs()),
        lambda: func.jvp(func.vmap(causal), tuple(inputs(3)), tuple(inputs(3))),
        lambda: func.vmap(lambda *x: func.jvp(causal, x, x))(*inputs(3)),
        lambda: dual(causal),
        lambda: dual(lambda q, k, v: causal(q.requires_grad_(), k, v)),
        lambda: dual(lambda q, k, v: torch.no_grad()(causal)(q, k, v)),
        lambda: dual(lambda q, k, v: flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :1], cache_seqlens=3)),
    ],
)
def test_forward_mode_is_refused_by_name(run):
    with pytest.raises(NotImplementedError, match="forward-mode differentiation"):
        run()


def test_what_has_no_direction_may_be_called_in_forward_mode():
    q, k, v = inputs()
    o, direction = func.jvp(lambda x: causal(q, k, v) + x, (q,), (q,))
    assert torch.equal(o, causal(q, k, v) + q) and torch.equal(direction, q)


def test_second_derivatives_are_refused_by_name():
    _, k, v = inputs()

    def of_q(q):
        return func.grad(lambda q: causal(q, k, v).sum())(q).sum()

    with pytest.raises(NotImplementedError, match="second derivatives"):
        func.grad(of_q)(inputs()[0])


def wide(**options):
    return lambda q, k, v: attention(q, k, v, **options)


INT = dict(dtype=torch.int32)
CU = dict(cu_seqlens_q=torch.tensor([0, 4, 9], **INT), cu_seqlens_k=torch.tensor([0, 3, 8], **INT), max_seqlen_q=5, max_seqlen_k=5)
USED = dict(seqused_q=torch.tensor([2, 5], **INT), seqused_k=torch.tensor([5, 3], **INT), leftpad_k=torch.tensor([1, 0], **INT))


@pytest.mark.parametrize(
    ("options", "packed"),
    [
        ({"causal": True}, False),
        ({"window": (2, 1), "softmax_scale": 0.7}, False),
        ({"causal": True} | USED, False),
        ({"sinks": torch.tensor([0.5, -1.0, 0.0, 2.0])}, False),
        ({"causal": True} | CU, True),
        ({"seqused_k": torch.tensor([2, 5], **INT)} | CU, True),
    ],
)
def test_float64_on_the_cpu_is_what_float32_is(options, packed):
    shapes = [(10, heads, 8) for heads in (4, 2, 2)] if packed else [(2, 5, heads, 8) for heads in (4, 2, 2)]
    tensors = inputs(shapes=shapes)
    narrow, exact = wide(**options)(*tensors), wide(**options)(*(x.double() for x in tensors))
    for a, b in zip(narrow, exact, strict=True):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_gradcheck():
    tensors = [x.double().requires_grad_() for x in inputs(shapes=[(1, 4, heads, 4) for heads in (2, 1, 1)])]
    assert torch.autograd.gradcheck(causal, tensors, check_forward_ad=True)
    unused = dict(seqused_q=torch.tensor([3], **INT), seqused_k=torch.tensor([2], **INT))
    assert torch.autograd.gradcheck(lambda *x: attention(*x, causal=True, **unused)[0], tensors)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dropout_p": 0.5}, "dropout_p"),
        ({"page_table": torch.zeros(2, 1, **INT), "seqused_k": torch.tensor([1, 1], **INT)}, "page_table"),
    ],
)
def test_what_float64_lacks_is_refused_by_name(options, word):
    with pytest.raises(NotImplementedError, match=word):
        attention(*inputs(dtype=torch.float64), **options)
    with pytest.raises(NotImplementedError, match="score"):
        flash_attn_func(*inputs(dtype=torch.float64), softcap=3.0)


class Block(torch.nn.Module):
    def forward(self, q, k, v):
        return flash_attn_func(q * 2, k, v, causal=True)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that tracing is deprecated
        yield


def others():
    return [x * 3 for x in inputs()]


def test_a_traced_program_calls_attention(no_warnings):
    traced = torch.jit.trace(Block(), tuple(inputs()))
    assert torch.equal(traced(*others()), Block()(*others()))
    assert "ferroflash::plain" in str(traced.graph)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_calls_attention(strict):
    program = torch.export.export(Block(), tuple(inputs()), strict=strict)
    assert torch.equal(program.module()(*others()), Block()(*others()))
    assert [node.target for node in program.graph.nodes if "ferroflash" in str(node.target)] == [torch.ops.ferroflash.plain.default]


def test_onnx_says_which_operator_it_lacks(no_warnings, capfd):
    with pytest.raises(Exception, match="ferroflash::plain"):
        torch.onnx.export(Block(), tuple(inputs()), io.BytesIO(), dynamo=False)
