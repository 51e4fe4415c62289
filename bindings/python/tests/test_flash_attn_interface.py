"""The functions of flash-attn 2.8: each is `attention` with its own spelling, and refuses what there is no kernel for."""

from __future__ import annotations

import inspect
import sys

import pytest
from torch_cases import DEVICES, assert_lse_near, assert_near, dense, integers, random, reference

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


@pytest.mark.parametrize(
    ("argument", "given"),
    [("dropout_p", 0.1), ("softcap", 30.0), ("alibi_slopes", torch.ones(4))],
    ids=str,
)
def test_what_is_not_offered_is_named(argument, given):
    q, k, v = dense("cpu")
    calls = {
        "dense": lambda **extra: interface.flash_attn_func(q, k, v, **extra),
        "kvpacked": lambda **extra: interface.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **extra),
        "varlen": lambda **extra: interface.flash_attn_varlen_func(
            q[0], k[0], v[0], integers("cpu", 0, 40), integers("cpu", 0, 56), 40, 56, **extra
        ),
    }
    for call in calls.values():
        with pytest.raises(NotImplementedError, match=argument):
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
