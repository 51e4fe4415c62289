"""`attention` on PyTorch's tensors, both passes, against float64; and the machinery of PyTorch around it."""

from __future__ import annotations

import pytest
from torch_cases import DEVICES, PLACES, assert_lse_near, assert_near, gradients, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
from ferroflash._torch import attention  # noqa: E402

SIZES = [
    # batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim
    (2, 128, 128, 4, 4, 64),
    (1, 113, 203, 6, 2, 128),
    (3, 257, 100, 4, 1, 96),
    (2, 1, 339, 8, 2, 64),
    (1, 64, 77, 3, 3, 59),
    (1, 70, 70, 2, 2, 256),
]

MASKS = [
    {},
    {"causal": True},
    {"window": (17, 0)},
    {"window": (5, 9)},
    {"window": (None, 3)},
    {"softmax_scale": 0.3},
]


def both(q, k, v, **options):
    """Our results and gradients beside those in float64."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    ours, exact = attention(q, k, v, **options), reference(*wide, **options)
    d_o = random(*q.shape, device=q.device, dtype=q.dtype, seed=9, grad=False)
    ours_d = gradients(ours[:1], [d_o], (q, k, v))
    exact_d = gradients(exact[:1], [d_o], wide)
    return ours, exact, ours_d, exact_d


def check(q, k, v, **options):
    ours, exact, ours_d, exact_d = both(q, k, v, **options)
    assert_near(ours[0], exact[0])
    assert_lse_near(ours[1], exact[1])
    for name, a, b in zip(("d_q", "d_k", "d_v"), ours_d, exact_d, strict=True):
        assert_near(a, b, what=name)


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_both_passes(device, dtype, sizes, mask):
    batch, n_q, n_k, heads_q, heads_k, head_dim = sizes
    q = random(batch, n_q, heads_q, head_dim, device=device, dtype=dtype, seed=1)
    k = random(batch, n_k, heads_k, head_dim, device=device, dtype=dtype, seed=2)
    v = random(batch, n_k, heads_k, head_dim, device=device, dtype=dtype, seed=3)
    check(q, k, v, **mask)


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_used_lengths_and_padding_on_the_left(device, dtype):
    q = random(3, 40, 4, 64, device=device, dtype=dtype, seed=1)
    k, v = (random(3, 90, 2, 64, device=device, dtype=dtype, seed=seed) for seed in (2, 3))
    used = torch.tensor([90, 50, 0], dtype=torch.int32, device=device)
    check(q, k, v, seqused_k=used, causal=True)
    pad = torch.tensor([0, 13, 0], dtype=torch.int32, device=device)
    check(q, k, v, seqused_k=used, leftpad_k=pad)


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_a_gradient_of_lse(device, dtype):
    q, k, v = (random(2, 65, 2, 32, device=device, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    d_o = random(2, 65, 2, 32, device=device, dtype=dtype, seed=4, grad=False)
    d_lse = random(2, 2, 65, device=device, seed=5, grad=False)
    ours = gradients(attention(q, k, v), (d_o, d_lse), (q, k, v))
    exact = gradients(reference(*wide), (d_o, d_lse), wide)
    for name, a, b in zip(("d_q", "d_k", "d_v"), ours, exact, strict=True):
        assert_near(a, b, what=name)
    # Of lse alone.
    _, lse = attention(q, k, v)
    only = gradients((lse,), (d_lse,), (q, k))
    assert_near(only[0], gradients(reference(*wide)[1:], (d_lse,), wide[:1])[0], what="d_q")


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_any_strides(device, dtype):
    heads_first = [random(2, 4, 50, 64, device=device, dtype=dtype, seed=seed) for seed in (1, 2, 3)]
    check(*(x.transpose(1, 2).detach().requires_grad_() for x in heads_first))
    packed = random(2, 50, 3, 4, 64, device=device, dtype=dtype, grad=False)
    check(*(x.detach().requires_grad_() for x in packed.unbind(2)))
    # One head of keys that is repeated, without memory of its own.
    q = random(2, 50, 4, 64, device=device, dtype=dtype, seed=1)
    k, v = (random(2, 50, 1, 64, device=device, dtype=dtype, seed=seed, grad=False).expand(-1, -1, 4, -1) for seed in (2, 3))
    check(q, k.detach().requires_grad_(), v.detach().requires_grad_())
    # Columns that are not contiguous, and rows that begin between two multiples of 16 bytes.
    columns = [random(1, 30, 2, 64, 2, device=device, dtype=dtype, seed=seed, grad=False)[..., 0] for seed in (1, 2, 3)]
    check(*(x.detach().requires_grad_() for x in columns))
    shifted = [random(1, 30, 2, 67, device=device, dtype=dtype, seed=seed, grad=False)[..., 3:] for seed in (1, 2, 3)]
    check(*(x.detach().requires_grad_() for x in shifted))
    offset = [random(1 + 30 * 2 * 64, device=device, dtype=dtype, seed=seed, grad=False)[1:].view(1, 30, 2, 64) for seed in (1, 2, 3)]
    check(*(x.detach().requires_grad_() for x in offset))


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_a_gradient_of_o_with_any_strides(device, dtype):
    q, k, v = (random(2, 33, 2, 64, device=device, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    for d_o in (
        random(2, 2, 33, 64, device=device, dtype=dtype, grad=False).transpose(1, 2),
        random(1, 1, 1, 1, device=device, dtype=dtype, grad=False).expand(2, 33, 2, 64),
        random(2, 33, 64, 2, device=device, dtype=dtype, grad=False).transpose(2, 3),
    ):
        ours = torch.autograd.grad(attention(q, k, v)[0], (q, k, v), d_o)
        exact = gradients(reference(*wide)[:1], (d_o,), wide)
        for name, a, b in zip(("d_q", "d_k", "d_v"), ours, exact, strict=True):
            assert_near(a, b, what=name)


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("sizes", [(0, 5, 5, 2), (2, 0, 5, 2), (2, 5, 0, 2), (2, 5, 5, 0), (0, 0, 0, 0)])
def test_sizes_of_zero(device, dtype, sizes):
    batch, n_q, n_k, heads = sizes
    q = random(batch, n_q, heads, 64, device=device, dtype=dtype)
    k, v = (random(batch, n_k, heads, 64, device=device, dtype=dtype) for _ in range(2))
    o, lse = attention(q, k, v)
    assert o.shape == q.shape and lse.shape == (batch, heads, n_q)
    if n_k == 0:
        assert not o.any()
        assert (lse == float("-inf")).all()
    for x, gradient in zip((q, k, v), torch.autograd.grad(o.sum(), (q, k, v)), strict=True):
        assert gradient.shape == x.shape
        if n_q == 0 or n_k == 0:
            assert not gradient.any()


def cumulative(device, lengths):
    """Where sequences of these lengths begin, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=torch.int32)


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_packed_sequences_are_as_each_alone(device, dtype):
    lengths_q, lengths_k = [40, 0, 129, 7], [40, 30, 129, 0]
    q = random(sum(lengths_q), 4, 64, device=device, dtype=dtype, seed=1)
    k, v = (random(sum(lengths_k), 2, 64, device=device, dtype=dtype, seed=seed) for seed in (2, 3))
    o, lse = attention(
        q,
        k,
        v,
        causal=True,
        cu_seqlens_q=cumulative(device, lengths_q),
        cu_seqlens_k=cumulative(device, lengths_k),
        max_seqlen_q=max(lengths_q),
        max_seqlen_k=max(lengths_k),
    )
    assert lse.shape == (4, sum(lengths_q))
    d_o = random(*o.shape, device=device, dtype=dtype, seed=4, grad=False)
    packed = torch.autograd.grad(o, (q, k, v), d_o)
    at_q = at_k = 0
    for n_q, n_k in zip(lengths_q, lengths_k, strict=True):
        rows_q, rows_k = slice(at_q, at_q + n_q), slice(at_k, at_k + n_k)
        alone = [x.detach()[None].double().requires_grad_() for x in (q[rows_q], k[rows_k], v[rows_k])]
        exact = reference(*alone, causal=True)
        assert_near(o[rows_q], exact[0][0])
        assert_lse_near(lse[:, rows_q], exact[1][0])
        of_alone = gradients(exact[:1], [d_o[rows_q][None]], alone)
        for ours, rows, wide in zip(packed, (rows_q, rows_k, rows_k), of_alone, strict=True):
            assert_near(ours[rows], wide[0], what="a gradient")
        at_q, at_k = at_q + n_q, at_k + n_k


@pytest.mark.parametrize("device", DEVICES)
def test_equal_inputs_give_equal_bits(device):
    q, k, v = (random(2, 300, 4, 64, device=device, dtype=torch.bfloat16, seed=seed) for seed in (1, 2, 3))

    def run():
        o, lse = attention(q, k, v, causal=True)
        return (o, lse, *torch.autograd.grad(o.sum(), (q, k, v)))

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_what_runs_is_explained(device):
    q = random(1, 256, 4, 64, device=device, dtype=torch.bfloat16)
    text = ferroflash.explain(q, q, q, causal=True, backward=True)
    assert ("flash" in text) and ("standard" in text), text


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize(("lengths_q", "lengths_k"), [([40, 30], [0, 0]), ([4090, 4096], [0, 0]), ([0, 0], [40, 30])], ids=str)
def test_packed_sequences_without_any_key_or_query(device, dtype, lengths_q, lengths_k):
    q = random(sum(lengths_q), 6, 96, device=device, dtype=dtype, seed=1)
    k, v = (random(sum(lengths_k), 6, 96, device=device, dtype=dtype, seed=seed) for seed in (2, 3))
    lengths = {"cu_seqlens_q": cumulative(device, lengths_q), "cu_seqlens_k": cumulative(device, lengths_k)}
    o, lse = attention(q, k, v, max_seqlen_q=max(lengths_q), max_seqlen_k=max(lengths_k), **lengths)
    assert o.shape == q.shape and not o.any()
    assert (lse == float("-inf")).all()
    assert not any(gradient.any() for gradient in torch.autograd.grad(o.sum(), (q, k, v)))


@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_lengths_of_no_sequences(device, dtype):
    q, k, v = (random(0, 5, 2, 64, device=device, dtype=dtype) for _ in range(3))
    none = torch.zeros(0, dtype=torch.int32, device=device)
    o, lse = attention(q, k, v, seqused_q=none, seqused_k=none, leftpad_k=none)
    assert o.shape == q.shape and lse.shape == (0, 2, 5)
    assert all(gradient.shape == q.shape for gradient in torch.autograd.grad(o.sum(), (q, k, v)))
