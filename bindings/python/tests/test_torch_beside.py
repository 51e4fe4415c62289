"""Sinks, dropout, and gradients of tensors that a score reads, on PyTorch's tensors, against plain operations in float64."""

from __future__ import annotations

import pytest
from torch_cases import DEVICES, FLOAT32_ON_GPU, PLACES, assert_lse_near, assert_near, integers, options, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
from ferroflash import Score, fa4, flash_attn_interface  # noqa: E402
from ferroflash._torch import attention  # noqa: E402

BATCH, SEQLEN_Q, SEQLEN_K, HEADS = 2, 70, 90, 4

# 44 of 256 weights are dropped.
DROPOUT_P, KEEP = 0.17, 212 / 256


def tensors(device, dtype, heads_k=2, head_dim=32):
    q = random(BATCH, SEQLEN_Q, HEADS, head_dim, device=device, dtype=dtype, seed=1)
    return q, *(random(BATCH, SEQLEN_K, heads_k, head_dim, device=device, dtype=dtype, seed=seed) for seed in (2, 3))


def seed_and_offset(device, seed=7, offset=2**63 + 11):
    return torch.tensor([seed, offset], dtype=torch.uint64, device=device)


def kept(rng_state, p=DROPOUT_P, shape=(BATCH, HEADS, SEQLEN_Q, SEQLEN_K)):
    return torch.from_dlpack(ferroflash.dropout_mask(shape, p, *(x % 2**64 for x in rng_state.tolist())))


def assert_both_passes_near(ours, exact, of_ours, of_exact, names):
    """o, lse and gradients of a loss that depends on both."""
    assert_near(ours[0], exact[0])
    assert_lse_near(ours[1], exact[1])
    d_o = random(*ours[0].shape, device=ours[0].device, dtype=ours[0].dtype, seed=9, grad=False)
    d_lse = random(*ours[1].shape, device=ours[0].device, seed=8, grad=False)
    gradients = (
        torch.autograd.grad((o.double() * d_o.double()).sum() + (lse.double() * d_lse).sum(), of)
        for (o, lse), of in ((ours, of_ours), (exact, of_exact))
    )
    for name, x, a, b in zip(names, of_ours, *gradients, strict=True):
        assert a.dtype == x.dtype and a.shape == x.shape
        # Of whatever type a gradient is, it is made of o and its gradient.
        assert_near(a, b, what=name, dtype=ours[0].dtype)


def wide(*given):
    return [x.detach().double().requires_grad_() for x in given]


# ---- sinks ----


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 5)}], ids=str)
def test_sinks(options, device, dtype):
    q, k, v = tensors(device, dtype)
    sinks = torch.tensor([0.5, -3.0, 4.0, 1.0], device=device, requires_grad=True)
    exact = wide(q, k, v, sinks)
    ours = attention(q, k, v, sinks=sinks, **options)
    plain = reference(*exact[:3], sinks=exact[3], **options)
    assert_both_passes_near(ours, plain, (q, k, v, sinks), exact, ("d_q", "d_k", "d_v", "d_sinks"))


@pytest.mark.parametrize("device", DEVICES)
def test_sinks_alone_have_a_gradient(device):
    q, k, v = (x.detach() for x in tensors(device, torch.bfloat16))
    sinks = torch.zeros(HEADS, device=device, requires_grad=True)
    o, _ = attention(q, k, v, sinks=sinks)
    (alone,) = torch.autograd.grad(o.float().square().sum(), sinks)
    exact = wide(sinks)
    (needed,) = torch.autograd.grad(reference(q, k, v, sinks=exact[0])[0].square().sum(), exact)
    assert_near(alone, needed, dtype=o.dtype)
    frozen, _ = attention(q, k, v, sinks=sinks.detach())
    assert torch.equal(o, frozen) and not frozen.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_keys_have_the_sink(device):
    q, k, v = (x.detach() for x in tensors(device, torch.bfloat16))
    sinks = torch.tensor([0.5, -3.0, 4.0, 1.0], device=device)
    o, lse = attention(q, k, v, sinks=sinks, seqused_k=integers(device, 0, 5))
    assert (o[0] == 0).all() and torch.equal(lse[0], sinks[:, None].expand(-1, SEQLEN_Q))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_learnable_sinks_of_flash_attention_4(device, dtype):
    q, k, v = tensors(device, torch.bfloat16)
    sink = torch.tensor([0.5, -3.0, 4.0, 1.0], device=device, dtype=dtype, requires_grad=True)
    exact = wide(q, k, v, sink)
    ours = fa4.flash_attn_func(q, k, v, causal=True, learnable_sink=sink, return_lse=True)
    plain = reference(*exact[:3], causal=True, sinks=exact[3])
    assert_both_passes_near(ours, plain, (q, k, v, sink), exact, ("d_q", "d_k", "d_v", "d_sink"))
    ends_q, ends_k = integers(device, 0, SEQLEN_Q, 2 * SEQLEN_Q), integers(device, 0, SEQLEN_K, 2 * SEQLEN_K)
    packed, _ = fa4.flash_attn_varlen_func(
        *(x.flatten(0, 1) for x in (q, k, v)), cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, max_seqlen_q=SEQLEN_Q, max_seqlen_k=SEQLEN_K,
        causal=True, learnable_sink=sink,
    )  # fmt: skip
    assert_near(packed.view(q.shape), plain[0])


# ---- dropout ----


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("heads_k", [4, 1])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"sinks": True}], ids=str)
def test_dropout(options, heads_k, device, dtype):
    q, k, v = tensors(device, dtype, heads_k)
    beside = {"sinks": torch.ones(HEADS, device=device)} if "sinks" in options else options
    state = seed_and_offset(device)
    exact = wide(q, k, v)
    ours = attention(q, k, v, dropout_p=DROPOUT_P, rng_state=state, **beside)
    plain = reference(*exact, kept=kept(state), keep=KEEP, **beside)
    assert_both_passes_near(ours, plain, (q, k, v), exact, ("d_q", "d_k", "d_v"))


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_of_packed_sequences(device):
    q, k, v = (random(70, heads, 64, device=device, dtype=torch.bfloat16, seed=at) for at, heads in enumerate((4, 2, 2)))
    ends, state = integers(device, 0, 30, 30, 70), seed_and_offset(device)
    packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 40, "max_seqlen_k": 40}
    o, _ = attention(q, k, v, dropout_p=DROPOUT_P, rng_state=state, **packed)
    mask = kept(state, shape=(3, 4, 40, 40))
    for batch, begin, end in ((0, 0, 30), (2, 30, 70)):
        n = end - begin
        one = reference(*(x[None, begin:end] for x in (q, k, v)), kept=mask[batch : batch + 1, :, :n, :n], keep=KEEP)
        assert_near(o[begin:end], one[0][0])


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_come_from_the_generator_of_the_device(device):
    q, k, v = tensors(device, torch.bfloat16)

    def both_passes():
        o, _ = attention(q, k, v, dropout_p=0.5)
        return o.detach(), *torch.autograd.grad(o.sum(), (q, k, v))

    torch.manual_seed(3)
    first, second = both_passes(), both_passes()
    torch.manual_seed(3)
    again = both_passes()
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.manual_seed(3)
    state = torch.randint(2**63 - 1, (2,), device=device)
    assert torch.equal(attention(q, k, v, dropout_p=0.5, rng_state=state)[0], first[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_drop_the_same_weights(device, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    q, k, v = tensors(device, torch.bfloat16)

    def block(q, k, v):
        return attention(q, k, v, dropout_p=0.5)[0]

    torch.manual_seed(5)
    plain = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    torch.manual_seed(5)
    checkpoint(block, q, k, v, use_reentrant=use_reentrant).sum().backward()
    assert all(torch.equal(x.grad, b) for x, b in zip((q, k, v), plain, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_flash_attn_with_dropout(device):
    q, k, v = tensors(device, torch.bfloat16)
    torch.manual_seed(3)
    o, lse, pattern = flash_attn_interface.flash_attn_func(q, k, v, DROPOUT_P, causal=True, return_attn_probs=True)
    torch.manual_seed(3)
    state = torch.randint(2**63 - 1, (2,), device=device)
    assert pattern is None
    exact = wide(q, k, v)
    plain = reference(*exact, causal=True, kept=kept(state), keep=KEEP)
    assert_both_passes_near((o, lse), plain, (q, k, v), exact, ("d_q", "d_k", "d_v"))


@pytest.mark.parametrize("device", DEVICES)
def test_a_head_dim_that_is_padded(device):
    q, k, v = tensors(device, torch.bfloat16, head_dim=44)
    sinks, state = torch.ones(HEADS, device=device, requires_grad=True), seed_and_offset(device)
    exact = wide(q, k, v, sinks)
    ours = attention(q, k, v, dropout_p=DROPOUT_P, rng_state=state, sinks=sinks)
    plain = reference(*exact[:3], sinks=exact[3], kept=kept(state), keep=KEEP)
    assert_both_passes_near(ours, plain, (q, k, v, sinks), exact, ("d_q", "d_k", "d_v", "d_sinks"))


# ---- gradients of tensors that a score reads ----

BIASES = {
    "its own for each batch entry and head": ((BATCH, HEADS, SEQLEN_Q, SEQLEN_K), lambda b, at: b[at.batch, at.head, at.q, at.k], None),
    "of heads": ((HEADS, SEQLEN_Q, SEQLEN_K), lambda b, at: b[at.head, at.q, at.k], lambda b: b[None]),
    "of heads of keys": ((2, SEQLEN_Q, SEQLEN_K), lambda b, at: b[at.kv_head, at.q, at.k], lambda b: b.repeat_interleave(2, 0)[None]),
    "shared": ((1, 1, SEQLEN_Q, SEQLEN_K), lambda b, at: b[0, 0, at.q, at.k], None),
    "transposed": ((SEQLEN_K, SEQLEN_Q), lambda b, at: b[at.k, at.q], lambda b: b.T[None, None]),
    "with room": ((1, SEQLEN_Q + 3, SEQLEN_K + 5), lambda b, at: b[0, at.q, at.k], lambda b: b[None, :, :SEQLEN_Q, :SEQLEN_K]),
}


@pytest.mark.parametrize(("device", "dtype"), PLACES + FLOAT32_ON_GPU)
@pytest.mark.parametrize("name", BIASES)
def test_biases_have_gradients(name, device, dtype):
    shape, read, as_matrix = BIASES[name]
    kind = {torch.float32: "tensor_f32", torch.bfloat16: "tensor_bf16", torch.float16: "tensor_f16"}[dtype]
    score = Score(lambda s, at: s + read(getattr(at, kind)("bias"), at))
    q, k, v = tensors(device, dtype)
    bias = random(*shape, device=device, dtype=dtype, seed=4)
    exact = wide(q, k, v, bias)
    added = exact[3] if as_matrix is None else as_matrix(exact[3])
    ours = attention(q, k, v, score=score, score_inputs={"bias": bias}, causal=True)
    plain = reference(*exact[:3], causal=True, edit=lambda s: s + added)
    assert_both_passes_near(ours, plain, (q, k, v, bias), exact, ("d_q", "d_k", "d_v", "d_bias"))


@pytest.mark.parametrize("device", DEVICES)
def test_two_tensors_sinks_and_dropout_together(device):
    q, k, v = tensors(device, torch.bfloat16)
    score = Score(
        lambda s, at: s * at.tensor_f32("gate")[at.q, at.k] + at.tensor_bf16("bias")[at.head, at.q, at.k] - at.tensor_f32("slope")[at.head]
    )
    gate, bias = (
        random(SEQLEN_Q, SEQLEN_K, device=device, seed=4),
        random(HEADS, SEQLEN_Q, SEQLEN_K, device=device, dtype=torch.bfloat16, seed=5),
    )
    sinks, slope = torch.ones(HEADS, device=device, requires_grad=True), torch.ones(HEADS, device=device)
    state, inputs = seed_and_offset(device), {"gate": gate, "bias": bias, "slope": slope}
    exact = wide(q, k, v, sinks, gate, bias)
    ours = attention(q, k, v, score=score, score_inputs=inputs, sinks=sinks, dropout_p=DROPOUT_P, rng_state=state)
    plain = reference(*exact[:3], sinks=exact[3], kept=kept(state), keep=KEEP, edit=lambda s: s * exact[4] + exact[5] - 1)
    names = ("d_q", "d_k", "d_v", "d_sinks", "d_gate", "d_bias")
    assert_both_passes_near(ours, plain, (q, k, v, sinks, gate, bias), exact, names)
    # Some of them alone.
    o, _ = attention(*(x.detach() for x in (q, k, v)), score=score, score_inputs=inputs | {"gate": gate.detach()}, sinks=sinks.detach())
    assert_near(torch.autograd.grad(o.sum(), bias)[0], torch.zeros_like(bias, dtype=torch.float64) + torch.autograd.grad(
        reference(q, k, v, sinks=sinks, edit=lambda s: s * gate.double() + exact[5] - 1)[0].sum(), exact[5])[0])  # fmt: skip


# ---- PyTorch's machinery ----


def block_of_all(device):
    score = Score(lambda s, at: s + at.tensor_f32("bias")[at.head, at.q, at.k])
    q, k, v = tensors(device, torch.float16)
    sinks, bias = torch.ones(HEADS, device=device, requires_grad=True), random(HEADS, SEQLEN_Q, SEQLEN_K, device=device, seed=4)

    def block(q, k, v, sinks, bias, state):
        options = {"score": score, "score_inputs": {"bias": bias * 2}, "sinks": sinks + 1, "dropout_p": DROPOUT_P, "rng_state": state}
        o, lse = attention(q * 2, k, v, causal=True, **options)
        return (o.float() ** 2).sum() + lse.exp().sum()

    return block, (q, k, v, sinks, bias)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_as_one_graph(device):
    block, given = block_of_all(device)
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    state = seed_and_offset(device)
    ours = torch.autograd.grad(compiled(*given, state), given)
    eager = torch.autograd.grad(block(*given, state), given)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    # Without a state a seed is drawn.
    assert len({compiled(*given, None).item() for _ in range(3)}) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_the_operators_are_what_they_say(device):
    q, k, v = tensors(device, torch.bfloat16)
    score = Score(lambda s, at: s * at.f32("scale") + at.tensor_f32("bias")[at.head, at.q, at.k] - at.tensor_f32("slope")[at.head])
    bias = random(HEADS, SEQLEN_Q, SEQLEN_K, device=device, seed=4)
    slope, sinks = torch.ones(HEADS, device=device), torch.ones(HEADS, device=device, requires_grad=True)
    # The order in which the text has them.
    given = [{"bias": bias, "slope": slope}[name] for name in score.tensors]
    inputs = {"sinks": sinks, "rng_state": seed_and_offset(device)}
    said = options(inputs, score=score, read=given, params=[1.5], dropout_p=DROPOUT_P, right=0)
    operators = torch.ops.ferroflash
    torch.library.opcheck(operators.forward.default, (q, k, v, *said))
    with torch.no_grad():
        o, lse = operators.forward.default(q, k, v, *said)
    wanted = [True, False, *(x is bias for x in given)]
    arguments = (torch.ones_like(o), None, *(x.detach() for x in (q, k, v)), o, lse, *said, wanted)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operators.backward.default, arguments, test_utils=checks)


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_a_captured_graph_draws_other_seeds():
    q, k, v = (x.detach() for x in tensors("cuda", torch.bfloat16))
    attention(q, k, v, dropout_p=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = attention(q, k, v, dropout_p=0.5)
    results = []
    for _ in range(3):
        graph.replay()
        results.append(o.clone())
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


# ---- what is refused ----


@pytest.mark.parametrize(
    ("error", "word", "options"),
    [
        (TypeError, "sinks is list; allowed: torch.Tensor", {"sinks": [1.0] * HEADS}),
        (TypeError, "sinks is torch.bfloat16; needed: torch.float32", {"sinks": torch.ones(HEADS, dtype=torch.bfloat16)}),
        (ValueError, r"sinks has the shape \[3\]; needed: \[4\]", {"sinks": torch.ones(3)}),
        (ValueError, "sinks has the stride 2", {"sinks": torch.ones(8)[::2]}),
        (ValueError, "dropout is 1; it must be at least 0 and less than 1", {"dropout_p": 1.0}),
        (ValueError, "dropout is -0.1", {"dropout_p": -0.1}),
        (ValueError, "dropout is NaN", {"dropout_p": float("nan")}),
        (TypeError, "rng_state is tuple", {"dropout_p": 0.5, "rng_state": (1, 2)}),
        (TypeError, "rng_state is torch.int32", {"dropout_p": 0.5, "rng_state": torch.zeros(2, dtype=torch.int32)}),
        (ValueError, r"rng_state has the shape \[1\]; needed: \[2\]", {"dropout_p": 0.5, "rng_state": torch.zeros(1, dtype=torch.int64)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(error, word, options):
    with pytest.raises(error, match=word):
        attention(*tensors("cpu", torch.bfloat16), **options)


def of(name, *indices):
    return Score(lambda s, at: s + at.tensor_f32(name)[tuple(index(at) if callable(index) else index for index in indices)])


@pytest.mark.parametrize(
    ("word", "score", "shape"),
    [
        ("tensor slopes has no gradient: a dimension must be indexed by q", of("slopes", lambda at: at.head), (HEADS,)),
        ("tensor table has no gradient: dimension 0 must be indexed by", of("table", lambda at: at.q - at.k + 90), (200,)),
        ("tensor bias has no gradient: dimension 0 must", of("bias", 1, lambda at: at.q, lambda at: at.k), (2, 70, 90)),
    ],
)
def test_tensors_without_a_gradient(word, score, shape):
    given = torch.ones(shape, requires_grad=True)
    (name,) = score.tensors
    with pytest.raises(NotImplementedError, match=word):
        attention(*tensors("cpu", torch.bfloat16), score=score, score_inputs={name: given})
    with torch.no_grad():
        attention(*tensors("cpu", torch.bfloat16), score=score, score_inputs={name: given})


def test_tensors_with_a_gradient_have_an_element_for_each_pair():
    q, k, v = tensors("cpu", torch.bfloat16)
    bias = torch.ones(SEQLEN_Q, SEQLEN_K - 9, requires_grad=True)
    score = Score(lambda s, at: s + at.tensor_f32("bias")[at.q, at.k])
    o, _ = attention(q, k, v, score=score, score_inputs={"bias": bias})
    with pytest.raises(ValueError, match="dimension 1 of tensor bias has 81 elements; allowed: 90 to"):
        o.sum().backward()


def test_explained():
    q, k, v = tensors("cpu", torch.bfloat16)
    text = ferroflash.explain(q, k, v, sinks=torch.ones(HEADS), dropout_p=DROPOUT_P, backward=True)
    assert "sinks" in text and "dropout 0.171875" in text
