"""Attention in float64 by PyTorch's own operations, and how far results may lie from it: for the tests of PyTorch's tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="[not run] no torch")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# The types that each device takes.
DTYPES = {
    "cpu": [torch.float32, torch.bfloat16, torch.float16],
    "cuda": [torch.bfloat16, torch.float16],
}

# Beside these: float32 on a GPU, up to head_dim 128.
FLOAT32_ON_GPU = [pytest.param("cuda", torch.float32, id="cuda-float32")] if "cuda" in DEVICES else []

PLACES = [pytest.param(device, dtype, id=f"{device}-{dtype}") for device in DEVICES for dtype in DTYPES[device]]


def random(*shape, device="cpu", dtype=torch.float32, seed=0, grad=True):
    """Normal numbers that do not depend on the device."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)
    return values.requires_grad_(grad)


def dense(device, heads_k=2, dtype=torch.bfloat16):
    """q of 40 rows, k and v of 56."""
    q = random(2, 40, 4, 64, device=device, dtype=dtype, seed=1)
    return q, *(random(2, 56, heads_k, 64, device=device, dtype=dtype, seed=seed) for seed in (2, 3))


def integers(device, *numbers):
    """Lengths, as arguments take them."""
    return torch.tensor(numbers, device=device, dtype=torch.int32)


def options(
    inputs=None, *, score=None, mask=None, read=(), params=(), dropout_p=0.0, scale=0.125, left=None, right=None, longest=(None, None)
):
    """What the operators `forward` and `backward` are given behind their tensors: optional inputs by name, `read` by expressions, and numbers."""
    given = {} if inputs is None else inputs
    texts = (None if x is None else x.text for x in (score, mask))
    return [*given.values(), *read], list(given), *longest, scale, left, right, 0, "two_levels", *texts, list(params), dropout_p


def reference(
    q,
    k,
    v,
    *,
    softmax_scale=None,
    causal=False,
    window=(None, None),
    seqused_k=None,
    leftpad_k=None,
    edit=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    kept=None,
    keep=1.0,
):
    """o and lse of [batch, seqlen, heads, head_dim], in float64; rows that see no key have o = 0. `edit` is what becomes of the scores, `[batch,
    heads, seqlen_q, seqlen_k]`; then come the soft cap and the slopes, `[heads]` or `[batch, heads]`. `sinks`, `[heads]`, are one more column of scores, which has no value.
    `kept`, `[batch, heads, seqlen_q, seqlen_k]`, says which weights are kept; these are divided by `keep`."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    hidden = _hidden(q, k, causal, window, seqused_k, leftpad_k)
    scores = q @ k.transpose(-1, -2) * scale
    scores = scores if edit is None else edit(scores)
    scores = scores if softcap <= 0 else softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        slopes = alibi_slopes.double().expand(q.shape[0], -1)[:, :, None, None]
        end = torch.full((q.shape[0],), k.shape[-2], device=q.device) if seqused_k is None else seqused_k.long()
        place = torch.arange(q.shape[-2], device=q.device)[:, None] + (end - q.shape[-2])[:, None, None, None]
        scores = scores - slopes * (place - torch.arange(k.shape[-2], device=q.device)).abs()
    scores = scores.masked_fill(hidden, float("-inf"))
    columns = scores
    if sinks is not None:
        columns = torch.cat((scores, sinks.double()[None, :, None, None].expand(*scores.shape[:-1], 1)), -1)
    lse = columns.logsumexp(-1) if columns.shape[-1] else scores.new_full(scores.shape[:-1], float("-inf"))
    weights = torch.exp(scores - lse.clamp_min(torch.finfo(lse.dtype).min)[..., None])
    weights = weights if kept is None else weights * kept.to(weights.device) / keep
    return (weights @ v).transpose(1, 2), lse


def _hidden(q, k, causal, window, seqused_k, leftpad_k):
    batch, n_q, n_k = q.shape[0], q.shape[-2], k.shape[-2]
    full = torch.full((batch,), n_k, device=q.device)
    end = full if seqused_k is None else seqused_k.long()
    begin = torch.zeros_like(full) if leftpad_k is None else leftpad_k.long()
    keys = torch.arange(n_k, device=q.device)[None, None]
    place = torch.arange(n_q, device=q.device)[None, :, None] + (end - n_q)[:, None, None]
    left, right = window
    right = 0 if causal else right
    hidden = (keys < begin[:, None, None]) | (keys >= end[:, None, None])
    if right is not None:
        hidden = hidden | (keys > place + right)
    if left is not None:
        hidden = hidden | (keys < place - left)
    return hidden[:, None]


def assert_near(ours, wide, what="o", dtype=None, sums=2**-20):
    """Within a few roundings of this type, or of the tensor's own, or of sums in float32, for each element and in the mean. `sums` is what these may
    be off by, relatively: more where scores are large."""
    assert ours.shape == wide.shape, f"{what}: {list(ours.shape)}, not {list(wide.shape)}"
    if ours.numel() == 0:
        return
    unit = max(torch.finfo(dtype or ours.dtype).eps, sums)
    error, size = (ours.double() - wide).abs(), wide.abs().max().item()
    assert not ours.isnan().any(), f"{what} has a NaN"
    rms = wide.square().mean().sqrt().item()
    assert error.max().item() <= 4 * unit * max(size, 1.0), f"{what}: off by {error.max().item():.2e}"
    assert error.square().mean().sqrt().item() <= 2 * unit * max(rms, 1e-2), f"{what}: off in the mean"


def assert_lse_near(ours, wide):
    """float32 whatever the inputs are; −inf where a row sees no key."""
    assert ours.dtype == torch.float32 and ours.shape == wide.shape
    empty = wide == float("-inf")
    assert torch.equal(ours == float("-inf"), empty)
    error = (ours.double() - wide)[~empty].abs()
    assert error.numel() == 0 or error.max().item() <= 2e-5 * max(1.0, wide[~empty].abs().max().item())


def gradients(outputs, of_outputs, inputs):
    """Gradients of the sum of products."""
    total = sum((output.double() * given.double()).sum() for output, given in zip(outputs, of_outputs, strict=True))
    return torch.autograd.grad(total, inputs)
