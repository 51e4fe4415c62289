"""The functions of FlashAttention-3 and -4: each is `attention` with its own spelling, and refuses what there is no kernel for."""

from __future__ import annotations

import sys

import pytest
from torch_cases import DEVICES, assert_lse_near, assert_near, dense, integers, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import fa3, fa4  # noqa: E402

DTYPE = torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"window_size": (9, 4)}, {"window": (9, 4)}),
        ({"window_size": (9, 4), "causal": True}, {"window": (9, 0)}),
        ({"window_size": torch.tensor([9, 4])}, {"window": (9, 4)}),
        ({"window_size": None}, {}),
        ({"softcap": 2.0, "causal": True}, {"softcap": 2.0, "causal": True}),
        ({"softmax_scale": 0.4, "num_splits": 3, "pack_gqa": True, "deterministic": True}, {"softmax_scale": 0.4}),
    ],
    ids=str,
)
def test_dense(device, given, meant):
    q, k, v = dense(device)
    wide = reference(q, k, v, **meant)
    o, lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True, **given)
    assert_near(o, wide[0])
    assert_lse_near(lse, wide[1])
    assert torch.equal(fa3.flash_attn_func(q, k, v, **given), o)
    assert all(map(torch.equal, fa4.flash_attn_func(q, k, v, return_lse=True, **given), (o, lse)))


@pytest.mark.parametrize(
    ("window_size", "three", "four"),
    [
        ((-1, 2), (None, 2), NotImplementedError),
        ((-5, 9), (None, 9), NotImplementedError),
        ((None, -3), (None, None), NotImplementedError),
        ((-1, -1), (None, None), (None, None)),
        ((5, -9), (5, None), (None, None)),
        ((None, 3), (None, 3), (None, 3)),
    ],
)
def test_negative_windows_mean_what_each_version_says(window_size, three, four):
    q, k, v = dense("cpu")
    assert_near(fa3.flash_attn_func(q, k, v, window_size=window_size), reference(q, k, v, window=three)[0])
    if four is NotImplementedError:
        with pytest.raises(NotImplementedError, match="window_size"):
            fa4.flash_attn_func(q, k, v, window_size=window_size)
    else:
        assert_near(fa4.flash_attn_func(q, k, v, window_size=window_size)[0], reference(q, k, v, window=four)[0])


@pytest.mark.parametrize("window_size", [3, (1,), (1, 2, 3), (0.5, 1)])
def test_windows_are_two_integers(window_size):
    for module in (fa3, fa4):
        with pytest.raises(ValueError, match="window_size"):
            module.flash_attn_func(*dense("cpu"), window_size=window_size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("known", [True, False])
def test_varlen(device, known):
    q, k, v = (random(70, heads, 64, device=device, dtype=DTYPE, seed=heads) for heads in (4, 2, 2))
    cu_seqlens = integers(device, 0, 30, 30, 70)
    longest = (40, 40) if known else (None, None)
    used = integers(device, 30, 0, 33)
    o, lse = fa3.flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, *longest, seqused_k=used, causal=True, return_attn_probs=True)
    four = fa4.flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
        seqused_k=used,
        causal=True,
    )
    assert all(map(torch.equal, four, (o, lse)))
    for begin, end, rows in ((0, 30, 30), (30, 70, 33)):
        wide = reference(*(x[None, begin:last] for x, last in ((q, end), (k, begin + rows), (v, begin + rows))), causal=True)
        assert_near(o[begin:end], wide[0][0])
        assert_lse_near(lse[:, begin:end], wide[1][0])


@pytest.mark.parametrize("device", DEVICES)
def test_packed_queries_on_padded_keys(device):
    """The longest key sequence is then the shape's, whatever is said."""
    q = random(40, 4, 64, device=device, dtype=DTYPE)
    k, v = (random(2, 56, 2, 64, device=device, dtype=DTYPE, seed=seed) for seed in (2, 3))
    cu_seqlens_q, used = integers(device, 0, 25, 40), integers(device, 56, 20)
    o, _ = fa4.flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=25, max_seqlen_k=99, seqused_k=used, causal=True)
    for sequence, (begin, end, rows) in enumerate(((0, 25, 56), (25, 40, 20))):
        keys = (x[sequence : sequence + 1, :rows] for x in (k, v))
        assert_near(o[begin:end], reference(q[None, begin:end], *keys, causal=True)[0][0])


@pytest.mark.parametrize("device", DEVICES)
def test_heads_of_one_tensor(device):
    q, k, v = (random(2, 40, heads, 64, device=device, dtype=DTYPE, seed=heads) for heads in (4, 2, 2))
    apart = fa3.flash_attn_func(q, k, v, causal=True)
    together = torch.cat([q, k, v], dim=2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(together, causal=True, num_heads_q=4), apart)
    three = torch.stack([q, q, q], dim=2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(three), fa3.flash_attn_func(q, q, q))
    for qkv, num_heads_q in ((together, None), (together, 3), (three[:, :, :2], None)):
        with pytest.raises(ValueError, match="qkv"):
            fa3.flash_attn_qkvpacked_func(qkv, num_heads_q=num_heads_q)


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache(device):
    q, k, v = (x.detach() for x in dense(device))
    used, leftpad = integers(device, 56, 21), integers(device, 0, 7)
    metadata = fa3.get_scheduler_metadata(2, 40, 56, 4, 2, 64, used)
    o, lse, *splits = fa3.flash_attn_with_kvcache(
        q,
        k,
        v,
        cache_seqlens=used,
        cache_leftpad=leftpad,
        causal=True,
        rotary_seqlens=used,
        scheduler_metadata=metadata,
        return_softmax_lse=True,
    )
    wide = reference(q, k, v, seqused_k=used, leftpad_k=leftpad, causal=True)
    assert_near(o, wide[0])
    assert_lse_near(lse, wide[1])
    assert [split.numel() for split in splits] == [0, 0]
    same = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=21)
    assert torch.equal(same, fa3.flash_attn_func(q, k[:, :21], v[:, :21]))


def test_lse_carries_gradients_where_it_is_asked_for():
    q, k, v = dense("cpu")
    _, read = fa4.flash_attn_func(q, k, v)
    _, returned = fa4.flash_attn_func(q, k, v, return_lse=True)
    assert torch.equal(read, returned)
    assert not read.requires_grad and returned.requires_grad


@pytest.mark.parametrize("module", [fa3, fa4])
@pytest.mark.parametrize("given", [False, True])
def test_partial_results_merge(module, given):
    """Keys in three parts, one of which some rows see nothing of."""
    q, k, v = (x.detach().float() for x in dense("cpu"))
    whole = reference(q, k, v)
    parts = [fa3.flash_attn_func(q, *(x[:, at] for x in (k, v)), return_attn_probs=True) for at in (slice(20), slice(20, 56))]
    nothing = (torch.zeros_like(q), torch.full((2, 4, 40), float("-inf")))
    o_parts, lse_parts = (torch.stack(part) for part in zip(*parts, nothing, strict=True))
    out = torch.empty_like(q) if given else None
    o, lse = module.flash_attn_combine(o_parts, lse_parts.transpose(2, 3), out)
    assert_near(o, whole[0])
    assert_lse_near(lse.transpose(1, 2), whole[1])
    assert not given or o is out
    assert module.flash_attn_combine(o_parts, lse_parts.transpose(2, 3), out_dtype=DTYPE)[0].dtype == DTYPE


@pytest.mark.parametrize("argument", ["out_partial", "lse_partial", "out", "out_dtype"])
def test_merging_names_what_does_not_fit(argument):
    fitting = {
        "out_partial": torch.zeros(3, 2, 5, 4, 8),
        "lse_partial": torch.zeros(3, 2, 5, 4),
        "out": torch.zeros(2, 5, 4, 8),
    }
    other = {"out_dtype": DTYPE}.get(argument, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=f"^{argument}:"):
        fa3.flash_attn_combine(**fitting | {argument: other})


def test_rows_without_keys_merge_to_nothing():
    o, lse = fa4.flash_attn_combine(torch.ones(2, 3, 1, 8), torch.full((2, 3, 1), float("-inf")))
    assert torch.equal(o, torch.zeros(3, 1, 8))
    assert torch.equal(lse, torch.full((3, 1), float("-inf")))


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("function", "argument", "given"),
    [
        *((fa3.flash_attn_func, name, ONE) for name in ("qv", "q_descale", "k_descale", "v_descale")),
        (fa3.flash_attn_func, "softcap", -30.0),
        (fa3.flash_attn_func, "attention_chunk", 64),
        *((fa3.flash_attn_with_kvcache, name, ONE) for name in ("qv", "q_descale")),
        (fa3.flash_attn_with_kvcache, "softcap", -30.0),
        *((fa4.flash_attn_func, name, ONE) for name in ("qv", "gather_kv_indices", "block_sparse_tensors")),
        *((fa4.flash_attn_func, name, max) for name in ("score_mod", "score_mod_bwd", "mask_mod")),
        (fa4.flash_attn_func, "block_sparse_tensors_bwd", ONE),
        (fa4.flash_attn_func, "aux_tensors", [ONE]),
        (fa4.flash_attn_func, "softcap", -30.0),
        *((fa4.flash_attn_varlen_func, name, ONE) for name in ("qv", "block_sparse_tensors")),
        *((fa4.flash_attn_varlen_func, name, max) for name in ("score_mod", "score_mod_bwd", "mask_mod")),
        (fa4.flash_attn_varlen_func, "aux_scalars", (1,)),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_what_is_not_offered_is_named(function, argument, given):
    with pytest.raises(NotImplementedError, match=f"^{argument}: .* was given; allowed: "):
        function(*dense("cpu"), **{argument: given})


@pytest.mark.parametrize("device", DEVICES)
def test_soft_caps_of_packed_sequences_have_gradients(device):
    q, k, v = dense(device)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    d_o = random(*q.shape, device=device, dtype=DTYPE, seed=9, grad=False)
    exact = torch.autograd.grad(reference(*wide, softcap=1.5)[0], wide, d_o.double())
    ends = (integers(device, 0, 40, 80), integers(device, 0, 56, 112))
    packed = [x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v)]
    for function in (
        fa3.flash_attn_varlen_func,
        lambda q, k, v, *lengths, **rest: fa4.flash_attn_varlen_func(q, k, v, None, *lengths, **rest)[0],
    ):
        o = function(*packed, *ends, 40, 56, softcap=1.5)
        for a, b in zip(torch.autograd.grad(o, packed, d_o.flatten(0, 1)), exact, strict=True):
            assert_near(a, b.flatten(0, 1))


def test_fa3_varlen_names_what_is_not_offered():
    q, k, v = (x[0] for x in dense("cpu"))
    lengths = (integers("cpu", 0, 40), integers("cpu", 0, 56), 40, 56)
    for argument, given in (("qv", ONE), ("k_descale", ONE), ("softcap", -1.0), ("attention_chunk", 1)):
        with pytest.raises(NotImplementedError, match=f"^{argument}:"):
            fa3.flash_attn_varlen_func(q, k, v, *lengths, **{argument: given})


def test_nothing_is_planned_beforehand():
    assert fa4.get_scheduler_metadata(40, 56, 4, 2, 64, 1, seqused_k=integers("cpu", 1)) is None
    assert fa3.get_scheduler_metadata(2, 40, 56, 4, 2, 64, integers("cpu", 1)).numel() == 0


def test_the_modules_stand_in_for_those_of_flash_attention(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn_interface", fa3)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", fa4)
    from flash_attn.cute import flash_attn_varlen_func
    from flash_attn_interface import flash_attn_func

    assert flash_attn_func is fa3.flash_attn_func
    assert flash_attn_varlen_func is fa4.flash_attn_varlen_func
