"""An attention function of transformers by its definition, for the tests of models."""

from __future__ import annotations

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def exact_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, **others):
    """SDPA, under another name, as some models refuse that one; with a soft cap, which SDPA has not, by its definition."""
    if softcap is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = softcap * torch.tanh(query @ key.transpose(-1, -2) * scaling / softcap)
    if attention_mask is None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        attention_mask = seen.tril(scores.shape[-1] - scores.shape[-2])
    # Rows of padding see no key: what becomes of them does not count.
    weights = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), None
