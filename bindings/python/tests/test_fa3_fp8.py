"""FlashAttention-3's functions with q, k and v of 8 bits, against float64 on what they stand for."""

import pytest
import torch
from ferroflash import fa3

FP8 = torch.float8_e4m3fn
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def quantised(shape, heads_k, device):
    """Elements, and their scales, `[batch, heads_k]`: those of a group of heads are alike."""
    x = torch.randn(shape, dtype=torch.float64, device=device)
    batch, _, heads, _ = shape
    descale = x.abs().amax((1, 3)).view(batch, heads_k, heads // heads_k).amax(2) / 448
    factor = descale.repeat_interleave(heads // heads_k, 1)[:, None, :, None]
    return (x / factor).to(torch.float32).to(FP8), descale.float()


def stands_for(x, descale):
    batch, _, heads, _ = x.shape
    return x.to(torch.float64) * descale.double().repeat_interleave(heads // descale.shape[1], 1)[:, None, :, None]


def reference(q, k, v, causal, scale):
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if causal:
        n_q, n_k = s.shape[-2:]
        s = s.masked_fill(~torch.ones(n_q, n_k, dtype=torch.bool, device=s.device).tril(n_k - n_q), float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v), s.logsumexp(-1)


def close(o, expected, device):
    """P is rounded to 8 bits on a GPU."""
    error = (o.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < (0.035 if device == "cuda" else 0.005), error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256, 80])
def test_scales_of_heads(device, causal, head_dim):
    torch.manual_seed(0)
    q, of_q = quantised((2, 200, 4, head_dim), 2, device)
    k, of_k = quantised((2, 333, 2, head_dim), 2, device)
    v, of_v = quantised((2, 333, 2, head_dim), 2, device)
    o, lse = fa3.flash_attn_func(q, k, v, causal=causal, q_descale=of_q, k_descale=of_k, v_descale=of_v, return_attn_probs=True)
    assert o.dtype == torch.bfloat16 and o.shape == q.shape
    exact = (stands_for(x, s) for x, s in ((q, of_q), (k, of_k), (v, of_v)))
    expected, expected_lse = reference(*exact, causal, head_dim**-0.5)
    close(o, expected, device)
    # The sums of 8-bit products keep fewer bits than f32.
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=2e-3 if device == "cuda" else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_scales_of_one(device):
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 130, 2, 64, device=device).to(FP8) for _ in range(3))
    o = fa3.flash_attn_func(q, k, v)
    close(o, reference(q.double(), k.double(), v.double(), False, 0.125)[0], device)


@pytest.mark.parametrize("device", DEVICES)
def test_packed(device):
    torch.manual_seed(2)
    lens = [150, 70, 1]
    ends = torch.tensor([0, 150, 220, 221], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(221, 2, 128, device=device).to(FP8) for _ in range(3))
    scales = torch.rand(3, 2, device=device) + 0.5
    o = fa3.flash_attn_varlen_func(q, k, v, ends, ends, 150, 150, causal=True, q_descale=scales, k_descale=scales, v_descale=scales)
    first = 0
    for at, n in enumerate(lens):
        rows = [stands_for(x[None, first : first + n], scales[at : at + 1]) for x in (q, k, v)]
        close(o[first : first + n], reference(*rows, True, 128**-0.5)[0][0], device)
        first += n


def test_refusals():
    q, k, v = (torch.randn(1, 16, 2, 64).to(FP8) for _ in range(3))
    scale = torch.ones(1, 2)
    with pytest.raises(NotImplementedError, match="softcap"):
        fa3.flash_attn_func(q, k, v, softcap=30.0)
    with pytest.raises(NotImplementedError, match="ferroflash.fp8"):
        fa3.flash_attn_func(q.detach().requires_grad_(), k, v)
    with pytest.raises(ValueError, match=r"q_descale has the shape \[2\]; needed: \[1, 2\]"):
        fa3.flash_attn_func(q, k, v, q_descale=torch.ones(2), k_descale=scale, v_descale=scale)
    with pytest.raises(TypeError, match="k is torch.bfloat16"):
        fa3.flash_attn_func(q, k.to(torch.bfloat16), v, q_descale=scale, k_descale=scale, v_descale=scale)
    with pytest.raises(NotImplementedError, match="q_descale"):
        fa3.flash_attn_func(*(x.to(torch.bfloat16) for x in (q, k, v)), q_descale=scale)
