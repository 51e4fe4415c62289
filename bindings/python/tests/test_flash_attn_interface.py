"""The functions of flash-attn 2.8: each is `attention` with its own spelling, and refuses what there is no kernel for."""

from __future__ import annotations

import inspect
import sys

import pytest
from torch_cases import DEVICES, assert_lse_near, assert_near, dense, gradients, integers, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
from ferroflash import flash_attn_interface as interface  # noqa: E402

DTYPE = torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"window_size": (9, 4)}, {"window": (9, 4)}),
        ({"window_size": (9, 4), "causal": True}, {"window": (9, 0)}),
        ({"window_size": (-1, 2)}, {"window": (None, 2)}),
        ({"softmax_scale": 0.4, "deterministic": True}, {"softmax_scale": 0.4}),
        ({"softcap": 2.0}, {"softcap": 2.0}),
        ({"softcap": -1.0}, {}),
    ],
    ids=str,
)
def test_dense(device, given, meant):
    q, k, v = dense(device)
    o, lse, pattern = interface.flash_attn_func(q, k, v, return_attn_probs=True, **given)
    wide = reference(q, k, v, **meant)
    assert_near(o, wide[0])
    assert_lse_near(lse, wide[1])
    assert pattern is None
    assert torch.equal(interface.flash_attn_func(q, k, v, **given), o)
    kv = torch.stack([k, v], dim=2)
    assert torch.equal(interface.flash_attn_kvpacked_func(q, kv, **given), o)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_tensors_have_gradients_in_one(device):
    qkv = random(2, 40, 3, 4, 64, device=device, dtype=DTYPE)
    o = interface.flash_attn_qkvpacked_func(qkv, causal=True)
    (gradient,) = torch.autograd.grad(o.sum(), qkv)
    q, k, v = (x.detach().requires_grad_() for x in qkv.unbind(2))
    alone = interface.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(o, alone)
    assert torch.equal(gradient, torch.stack(torch.autograd.grad(alone.sum(), (q, k, v)), 2))


@pytest.mark.parametrize("device", DEVICES)
def test_varlen(device):
    qkv = random(70, 3, 4, 64, device=device, dtype=DTYPE)
    cu_seqlens = integers(device, 0, 30, 30, 70)
    o, lse, _ = interface.flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, 40, causal=True, return_attn_probs=True)
    q, k, v = qkv.unbind(1)
    both = (cu_seqlens, cu_seqlens, 40, 40)
    assert torch.equal(o, interface.flash_attn_varlen_func(q, k, v, *both, causal=True))
    kv = torch.stack([k, v], 1)
    assert torch.equal(o, interface.flash_attn_varlen_kvpacked_func(q, kv, *both, causal=True))
    for begin, end in ((0, 30), (30, 70)):
        wide = reference(*(x[None, begin:end] for x in (q, k, v)), causal=True)
        assert_near(o[begin:end], wide[0][0])
        assert_lse_near(lse[:, begin:end], wide[1][0])


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache(device):
    q, k, v = (x.detach() for x in dense(device))
    used = integers(device, 56, 21)
    o, lse = interface.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True, return_softmax_lse=True)
    wide = reference(q, k, v, seqused_k=used, causal=True)
    assert_near(o, wide[0])
    assert_lse_near(lse, wide[1])
    same = interface.flash_attn_with_kvcache(q, k, v, cache_seqlens=21)
    assert torch.equal(same, interface.flash_attn_func(q, k[:, :21], v[:, :21]))


SLOPES = {"heads": torch.tensor([0.5, 0.25, 0.1, 0.02]), "batch": torch.tensor([[0.5, 0.25, 0.1, 0.02], [0.0, 0.3, 0.7, 0.01]])}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("slopes", SLOPES)
@pytest.mark.parametrize("window", [{}, {"causal": True}, {"window_size": (20, 7)}, {"window_size": (20, 0)}], ids=str)
@pytest.mark.parametrize("rotated", [False, True])
def test_alibi_and_a_soft_cap(device, softcap, slopes, window, rotated):
    """Both passes, with more keys than queries, and more queries than keys."""
    q, k, v = dense(device)
    if rotated:
        q, (k, v) = random(2, 56, 4, 64, device=device, dtype=DTYPE, seed=1), (x.detach()[:, :40].requires_grad_() for x in (k, v))
    slopes = SLOPES[slopes].to(device)
    o, lse, _ = interface.flash_attn_func(q, k, v, softcap=softcap, alibi_slopes=slopes, return_attn_probs=True, **window)
    meant = {"causal": "causal" in window, "window": window.get("window_size", (None, None))}
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = reference(*wide, softcap=softcap, alibi_slopes=slopes, **meant)
    assert_near(o, exact[0])
    assert_lse_near(lse, exact[1])
    d_o = random(*o.shape, device=device, dtype=DTYPE, seed=9, grad=False)
    for a, b in zip(gradients([o], [d_o], (q, k, v)), gradients(exact[:1], [d_o], wide), strict=True):
        assert_near(a, b)
    kv = torch.stack([k, v], dim=2)
    assert torch.equal(interface.flash_attn_kvpacked_func(q, kv, softcap=softcap, alibi_slopes=slopes, **window), o)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slopes", SLOPES)
def test_alibi_and_a_soft_cap_of_packed_sequences(device, slopes):
    q = random(70, 4, 64, device=device, dtype=DTYPE, seed=1)
    k, v = (random(90, 2, 64, device=device, dtype=DTYPE, seed=seed) for seed in (2, 3))
    given = {"softcap": 2.0, "alibi_slopes": SLOPES[slopes].to(device)}
    lengths = (integers(device, 0, 30, 70), integers(device, 0, 12, 90), 40, 78)
    o, lse, _ = interface.flash_attn_varlen_func(q, k, v, *lengths, return_attn_probs=True, **given)
    d_o = random(*o.shape, device=device, dtype=DTYPE, seed=9, grad=False)
    ours = torch.autograd.grad(o, (q, k, v), d_o)
    for b, (begin, end, begin_k, end_k) in enumerate(((0, 30, 0, 12), (30, 70, 12, 90))):
        rows = (slice(begin, end), slice(begin_k, end_k), slice(begin_k, end_k))
        one = [x.detach()[None, of].double().requires_grad_() for x, of in zip((q, k, v), rows)]
        of_sequence = given["alibi_slopes"] if slopes == "heads" else given["alibi_slopes"][b : b + 1]
        wide = reference(*one, softcap=2.0, alibi_slopes=of_sequence)
        assert_near(o[begin:end], wide[0][0])
        assert_lse_near(lse[:, begin:end], wide[1][0])
        for a, exact, of in zip(ours, torch.autograd.grad(wide[0], one, d_o[None, begin:end].double()), rows, strict=True):
            assert_near(a[of], exact[0])


@pytest.mark.parametrize("device", DEVICES)
def test_alibi_compiled_as_one_graph(device):
    slopes = SLOPES["heads"].to(device)

    def block(q, k, v):
        return interface.flash_attn_func(q, k, v, causal=True, softcap=2.0, alibi_slopes=slopes)

    compiled = torch.compile(block, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    q, k, v = dense(device)
    o = compiled(q, k, v)
    assert torch.equal(o, block(q, k, v))
    ours, eager = (torch.autograd.grad(x.float().sum(), (q, k, v)) for x in (o, block(q, k, v)))
    assert all(map(torch.equal, ours, eager))


@pytest.mark.parametrize(
    ("error", "word", "argument", "given"),
    [
        (ValueError, "dropout is 1; it must be at least 0 and less than 1", "dropout_p", 1.0),
        (NotImplementedError, "softcap: inf was given", "softcap", float("inf")),
        (TypeError, "alibi_slopes is list", "alibi_slopes", [1.0] * 4),
        (TypeError, "alibi_slopes is torch.bfloat16", "alibi_slopes", torch.ones(4, dtype=torch.bfloat16)),
        (ValueError, r"alibi_slopes has the shape \[3\]; needed: \[4\], or \[\d, 4\]", "alibi_slopes", torch.ones(3)),
        (ValueError, r"alibi_slopes has the shape \[3, 4\]", "alibi_slopes", torch.ones(3, 4)),
        (NotImplementedError, "alibi_slopes: .* no gradient", "alibi_slopes", torch.ones(4, requires_grad=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused_is_named(error, word, argument, given):
    q, k, v = dense("cpu")
    calls = {
        "dense": lambda **extra: interface.flash_attn_func(q, k, v, **extra),
        "kvpacked": lambda **extra: interface.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **extra),
        "varlen": lambda **extra: interface.flash_attn_varlen_func(
            q[0], k[0], v[0], integers("cpu", 0, 40), integers("cpu", 0, 56), 40, 56, **extra
        ),
    }
    for call in calls.values():
        with pytest.raises(error, match=word):
            call(**{argument: given})


def test_shapes_of_packed_tensors():
    with pytest.raises(ValueError, match="qkv has the shape"):
        interface.flash_attn_qkvpacked_func(torch.zeros(2, 40, 4, 64))
    with pytest.raises(ValueError, match="kv has the shape"):
        interface.flash_attn_kvpacked_func(dense("cpu")[0], torch.zeros(2, 40, 3, 4, 64))
    with pytest.raises(TypeError, match="qkv is int"):
        interface.flash_attn_qkvpacked_func(3)


def test_the_module_stands_in_for_flash_attn(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", interface)
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    assert flash_attn_func is ferroflash.flash_attn_func
    assert [*inspect.signature(flash_attn_varlen_func).parameters][-1] == "block_table"
