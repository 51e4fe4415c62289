"""Scores and masks of the caller's own on PyTorch's tensors, both passes, against the same functions in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch_cases import DEVICES, PLACES, assert_lse_near, assert_near, gradients, integers, options, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
from expression_cases import edited  # noqa: E402
from ferroflash import Mask, Score  # noqa: E402
from ferroflash._torch import attention  # noqa: E402

BATCH, SEQLEN_Q, SEQLEN_K, HEADS = 2, 70, 90, 4


def place(at):
    return at.q + at.seqlen_k - at.seqlen_q


def alibi(s, at):
    return s - at.tensor_f32("slopes")[at.head] * abs(place(at) - at.k)


def capped(s, at):
    return at.f32("cap") * (s / at.f32("cap")).tanh_full()


def same_document(at):
    document = at.tensor_i32("document")
    return document[at.batch, at.q] == document[at.batch, at.k]


def composite(s, at):
    """Some of everything."""
    far = abs(place(at) - at.k)
    weight = 1 - 2 ** (-0.1 * far) * at.tensor_f16("gates")[at.kv_head, at.k].sigmoid_full()
    bent = (s < 0).select(s * 0.5, (s**3 / 8 + s).min(4.0))
    even = (at.k // 3 % 2 == 0) ^ (at.batch == 1)
    return even.select(bent * weight, bent - (1 + far).to_f32().ln_full()) + (s * s + 1).sqrt_full() - 3 / (2 + s.exp_full())


def blocks(at):
    """Blocks of some keys, and a window."""
    size = at.i32("size")
    return (at.q // size == at.k // size) | (abs(place(at) - at.k) < 5) & ~(at.k % 7 == 3)


def tensors(device):
    generator = torch.Generator().manual_seed(5)
    return {
        "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device),
        "document": (torch.arange(100) // 23)[None, :].repeat(2, 1).add(torch.tensor([[0], [1]])).int().to(device),
        "bias": torch.randn(HEADS, SEQLEN_Q, SEQLEN_K, generator=generator).to(device),
        "gates": torch.randn(HEADS, SEQLEN_K, generator=generator).half().to(device),
    }


CASES = {
    "alibi": (alibi, None, ["slopes"], {}),
    "soft cap": (capped, None, [], {"cap": 3.0}),
    "document": (None, same_document, ["document"], {}),
    "bias": (lambda s, at: s + at.tensor_f32("bias")[at.head, at.q, at.k], None, ["bias"], {}),
    "transposed bias": (lambda s, at: s + at.tensor_f32("bias")[at.k, at.q, at.head], None, ["bias"], {}),
    "alibi in documents": (alibi, same_document, ["slopes", "document"], {}),
    "composite": (composite, blocks, ["gates"], {"size": 16}),
    "a whole number": (lambda s, at: -abs(at.q - at.k), None, [], {}),
}


def case(name, device):
    score, mask, names, given = CASES[name]
    given = given | {n: x for n, x in tensors(device).items() if n in names}
    if name == "transposed bias":
        given["bias"] = given["bias"].permute(2, 1, 0)
    return score, mask, given


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_both_passes(name, causal, heads_k, device, dtype):
    score, mask, given = case(name, device)
    q = random(BATCH, SEQLEN_Q, HEADS, 32, device=device, dtype=dtype, seed=1)
    k, v = (random(BATCH, SEQLEN_K, heads_k, 32, device=device, dtype=dtype, seed=seed) for seed in (2, 3))
    options = {
        "score": None if score is None else Score(score),
        "mask": None if mask is None else Mask(mask),
        "score_inputs": given,
        "causal": causal,
    }
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    ours = attention(q, k, v, **options)
    exact = reference(*wide, causal=causal, edit=edited(score, mask, given, heads_k))
    assert_near(ours[0], exact[0])
    assert_lse_near(ours[1], exact[1])
    d_o = random(*q.shape, device=device, dtype=dtype, seed=9, grad=False)
    d_lse = random(*ours[1].shape, device=device, seed=8, grad=False)
    # A row that sees no key has a constant lse.
    d_lse = d_lse.masked_fill(exact[1].isinf(), 0.0)
    exact = exact[0], exact[1].masked_fill(exact[1].isinf(), 0.0)
    ours = ours[0], ours[1].masked_fill(ours[1].isinf(), 0.0)
    of_ours, of_exact = (
        torch.autograd.grad(
            sum((x.double() * d.double()).sum() for x, d in zip(results, (d_o, d_lse))),
            of,
            allow_unused=True,
        )
        for results, of in ((ours, (q, k, v)), (exact, wide))
    )
    for what, a, b in zip(("d_q", "d_k", "d_v"), of_ours, of_exact, strict=True):
        # A score that no q · k is in has no gradient.
        assert_near(a, torch.zeros_like(a, dtype=torch.float64) if b is None else b, what=what)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences_count_for_themselves(device):
    q, k, v = (random(70, heads, 64, device=device, dtype=torch.bfloat16, seed=at) for at, heads in enumerate((4, 2, 2)))
    ends = integers(device, 0, 30, 30, 70)
    score, mask = Score(composite), Mask(blocks)
    given = {"size": 16, "gates": tensors(device)["gates"]}
    packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 40, "max_seqlen_k": 40}
    o, _ = attention(q, k, v, score=score, mask=mask, score_inputs=given, causal=True, **packed)
    d_o = random(*o.shape, device=device, dtype=o.dtype, seed=9, grad=False)
    ours = torch.autograd.grad(o, (q, k, v), d_o)
    for batch, begin, end in ((0, 0, 30), (2, 30, 70)):
        one = [x.detach()[None, begin:end].double().requires_grad_() for x in (q, k, v)]
        edit = edited(lambda s, at, b=batch: composite(s, Shifted(at, b)), blocks, given, 2)
        wide, _ = reference(*one, causal=True, edit=edit)
        assert_near(o[begin:end], wide[0])
        for a, b in zip(ours, torch.autograd.grad(wide, one, d_o[None, begin:end].double()), strict=True):
            assert_near(a[begin:end], b[0])


class Shifted:
    """The only sequence of a tensor, as one of others."""

    def __init__(self, at, batch):
        self.__dict__.update(at.__dict__)
        self.batch = at.batch + batch
        self.tensor_f16 = at.tensor_f16


@pytest.mark.parametrize("device", DEVICES)
def test_values_of_a_call_make_no_other_plan(device):
    from ferroflash import _call

    q, k, v = (random(2, 16, 2, 64, device=device, dtype=torch.bfloat16, seed=seed, grad=False) for seed in (1, 2, 3))
    score, results = Score(capped), []
    attention(q, k, v, score=score, score_inputs={"cap": 1.0})
    misses = _call._kept.cache_info().misses
    for cap in (2.0, 30.0):
        results.append(attention(q, k, v, score=Score(capped), score_inputs={"cap": cap})[0])
        assert_near(results[-1], reference(q, k, v, edit=edited(capped, None, {"cap": cap}, 2))[0])
    assert _call._kept.cache_info().misses == misses
    assert not torch.equal(*results)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_keys_are_zero(device):
    q, k, v = (random(1, 8, 2, 32, device=device, dtype=torch.bfloat16, seed=seed) for seed in (1, 2, 3))
    o, lse = attention(q, k, v, mask=Mask(lambda at: at.q > 3))
    assert (o[:, :4] == 0).all() and lse[..., :4].isinf().all() and lse[..., 4:].isfinite().all()
    assert all((d[:, :4] == 0).all() for d in torch.autograd.grad(o.sum(), q))


@pytest.mark.parametrize("device", DEVICES)
def test_the_public_function_takes_tensors(device):
    q, k, v = (random(1, 16, 2, 32, device=device, dtype=torch.bfloat16, seed=seed) for seed in (1, 2, 3))
    options = {"score": Score(capped), "score_inputs": {"cap": 2.0}}
    assert torch.equal(ferroflash.attention(q, k, v, **options), attention(q, k, v, **options)[0])
    assert "cap * tanh_full(score / cap)" in ferroflash.explain(q, k, v, score=options["score"], backward=True)


def test_the_example():
    example = Path(__file__).parent.parent / "examples" / "custom_score.py"
    done = subprocess.run([sys.executable, example, "--seqlen", "250"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("an error of") == 4, done.stderr


# ---- what is refused ----


def refused(device="cpu", **options):
    q, k, v = (random(2, 16, heads, 64, device=device, dtype=torch.bfloat16) for heads in (4, 2, 2))
    return attention(q, k, v, **options)


SLOPES = torch.ones(4)


@pytest.mark.parametrize(
    ("error", "word", "options"),
    [
        (TypeError, "score is function; allowed: ferroflash.Score", {"score": alibi}),
        (TypeError, "score is Mask", {"score": Mask(same_document)}),
        (TypeError, "mask is Score", {"mask": Score(alibi)}),
        (TypeError, "score_inputs is list", {"score": Score(alibi), "score_inputs": [SLOPES]}),
        (ValueError, "slopes is missing; needed: a tensor of float32 with 1 dimensions", {"score": Score(alibi)}),
        (ValueError, "cap is missing; needed: a number of float32", {"score": Score(capped), "score_inputs": {}}),
        (ValueError, "scale was given; .* slopes", {"score": Score(alibi), "score_inputs": {"slopes": SLOPES, "scale": 1.0}}),
        (ValueError, "slopes was given; .* none", {"score_inputs": {"slopes": SLOPES}}),
        (TypeError, "slopes is list", {"score": Score(alibi), "score_inputs": {"slopes": [1.0]}}),
        (TypeError, "slopes is a tensor of torch.float64", {"score": Score(alibi), "score_inputs": {"slopes": SLOPES.double()}}),
        (TypeError, "slopes is a tensor of bfloat16", {"score": Score(alibi), "score_inputs": {"slopes": SLOPES.bfloat16()}}),
        (ValueError, "slopes is a tensor of float32 with 2", {"score": Score(alibi), "score_inputs": {"slopes": SLOPES[None]}}),
        (ValueError, "tensor slopes has 3 elements; allowed: 4", {"score": Score(alibi), "score_inputs": {"slopes": SLOPES[:3]}}),
        (TypeError, "cap is str", {"score": Score(capped), "score_inputs": {"cap": "3"}}),
        (TypeError, "cap is Tensor", {"score": Score(capped), "score_inputs": {"cap": SLOPES[0]}}),
        (TypeError, "size is float; needed: an int", {"mask": Mask(blocks), "score_inputs": {"size": 3.0}}),
        (ValueError, "size is 4294967296", {"mask": Mask(blocks), "score_inputs": {"size": 2**32}}),
        (
            NotImplementedError,
            "slopes has no gradient: a dimension must be indexed by q",
            {"score": Score(alibi), "score_inputs": {"slopes": torch.ones(4, requires_grad=True)}},
        ),
        (
            ValueError,
            "slopes is a tensor of float32 with 1 dimensions in the score, and in the mask a number of int32",
            {"score": Score(alibi), "mask": Mask(lambda at: at.i32("slopes") > at.q), "score_inputs": {"slopes": SLOPES}},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(error, word, options):
    with pytest.raises(error, match=word):
        refused(**options)


def test_tensors_may_ask_for_gradients_where_nobody_takes_any():
    slopes = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        refused(score=Score(alibi), score_inputs={"slopes": slopes})


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_devices_do_not_mix():
    with pytest.raises(TypeError, match="slopes lies on cpu"):
        refused("cuda", score=Score(alibi), score_inputs={"slopes": SLOPES})


# ---- PyTorch's machinery ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["alibi", "composite", "document"])
def test_compiled_as_one_graph(name, device):
    score, mask, given = case(name, device)
    score, mask = None if score is None else Score(score), None if mask is None else Mask(mask)

    def block(q, k, v, given):
        o, lse = attention(q * 2, k, v, causal=True, score=score, mask=mask, score_inputs=given)
        return (o.float() ** 2).sum() + lse.exp().sum()

    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    q, k, v = (random(2, 64, heads, 64, device=device, dtype=torch.float16, seed=at) for at, heads in enumerate((4, 2, 2)))
    ours = torch.autograd.grad(compiled(q, k, v, given), (q, k, v))
    eager = torch.autograd.grad(block(q, k, v, given), (q, k, v))
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_the_operators_are_what_they_say(device):
    q, k, v = (random(2, 20, heads, 64, device=device, dtype=torch.bfloat16, seed=at) for at, heads in enumerate((4, 2, 2)))
    given = [tensors(device)["gates"]]
    said = options(score=Score(composite), mask=Mask(blocks), read=given, params=[16.0], right=0)
    operators = torch.ops.ferroflash
    torch.library.opcheck(operators.forward.default, (q, k, v, *said))
    with torch.no_grad():
        o, lse = operators.forward.default(q, k, v, *said)
    arguments = (torch.ones_like(o), None, q.detach(), k.detach(), v.detach(), o, lse, *said, [])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operators.backward.default, arguments, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_the_operator_refuses_gradients_of_tensors(device):
    q, k, v = (random(2, 20, heads, 64, device=device, dtype=torch.bfloat16, seed=at) for at, heads in enumerate((4, 2, 2)))
    slopes = torch.ones(4, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match="slopes has no gradient"):
        torch.ops.ferroflash.forward.default(q, k, v, *options(score=Score(alibi), read=[slopes], right=0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_and_tensors_changed_in_between(device, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    q, k, v = (random(2, 20, heads, 64, device=device, dtype=torch.bfloat16, seed=at) for at, heads in enumerate((4, 2, 2)))
    score, slopes = Score(alibi), torch.ones(4, device=device)

    def block(q, k, v):
        return attention(q, k, v, score=score, score_inputs={"slopes": slopes})[0]

    o = block(q, k, v)
    plain = gradients([o], [torch.ones_like(o)], (q, k, v))
    checkpoint(block, q, k, v, use_reentrant=use_reentrant).sum().backward()
    assert all(torch.equal(x.grad, b) for x, b in zip((q, k, v), plain, strict=True))
    o = block(q, k, v)
    slopes.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_leaves_what_expressions_read(device):
    q, k, v = (random(2, 20, heads, 64, device=device, seed=at) for at, heads in enumerate((4, 2, 2)))
    options = {"score": Score(alibi), "score_inputs": {"slopes": torch.full((4,), 0.3, device=device)}}
    with torch.autocast(device, torch.bfloat16):
        o, _ = attention(q, k, v, **options)
    assert torch.equal(o, attention(*(x.bfloat16() for x in (q, k, v)), **options)[0])
