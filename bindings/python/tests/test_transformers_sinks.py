"""A layer of GPT-OSS, whose sinks are beside its weights: `ferroflash.transformers.attention` against the model's own implementation in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="[not run] no torch")
transformers = pytest.importorskip("transformers", reason="[not run] no transformers")

import ferroflash  # noqa: E402
import transformers.masking_utils as masks  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.bfloat16: 0.16} if DEVICE == "cuda" else {torch.float32: 2e-4, torch.bfloat16: 0.16}
BATCH, SEQLEN, SCALING = 3, 21, 0.25


def kept(kind):
    """Which tokens are not padding; the first sequence has none."""
    mask = torch.ones(BATCH, SEQLEN, dtype=torch.bool)
    if kind != "none":
        mask[1, :4] = False
    if kind == "gaps":
        mask[1, 8:11] = False
    return mask.to(DEVICE)


@pytest.mark.parametrize("kind", ["none", "left", "gaps"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_sinks(dtype, kind):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, heads, SEQLEN, 16, generator=generator).to(DEVICE, dtype) for heads in (4, 2, 2))
    sinks = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.0], device=DEVICE, dtype=dtype))
    layer = torch.nn.Module()
    layer.num_key_value_groups, layer.sinks, layer.training = 2, sinks, False
    tokens = kept(kind)
    seen = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool, device=DEVICE).tril() & tokens[:, None, None]
    # A row of padding sees itself, so that no row of the plain implementation is empty.
    seen = seen | torch.eye(SEQLEN, dtype=torch.bool, device=DEVICE)
    hidden = torch.zeros(BATCH, 1, SEQLEN, SEQLEN, device=DEVICE, dtype=torch.float64).masked_fill(~seen, float("-inf"))
    exact, _ = eager_attention_forward(layer, *(x.double() for x in (q, k, v)), hidden, scaling=SCALING)
    arguments = {"q_length": SEQLEN, "kv_length": SEQLEN, "mask_function": masks.causal_mask_function}
    mask = None if kind == "none" else ferroflash.transformers.make_mask(BATCH, attention_mask=tokens, **arguments)
    ours, _ = ferroflash.transformers.attention(layer, q, k, v, mask, scaling=SCALING, s_aux=sinks)
    of_ours, of_exact = (torch.autograd.grad(o.double()[tokens].square().sum(), sinks)[0].double() for o in (ours, exact))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours.double()[tokens], exact[tokens], rtol=0, atol=tolerance)
    torch.testing.assert_close(of_ours, of_exact, rtol=tolerance, atol=tolerance)
