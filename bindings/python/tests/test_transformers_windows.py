"""Windows of transformers' layers where there is no mask."""

from __future__ import annotations

import pytest
from torch_cases import random

torch = pytest.importorskip("torch", reason="[not run] no torch")
pytest.importorskip("transformers", minversion="5.8", reason="[not run] no transformers")

import ferroflash  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402


def attend(n, window, causal, mask=None):
    q, k, v = (random(2, heads, n, 16, seed=at, grad=False) for at, heads in enumerate((4, 2, 2)))
    module = torch.nn.Module()
    module.is_causal = causal
    return ferroflash.transformers.attention(module, q, k, v, mask, sliding_window=window)[0]


def test_a_bidirectional_window_that_hides_nothing_is_served():
    """A key is hidden that lies more than `sliding_window` away: of 9 keys a window of 8 hides none."""
    function = masks.and_masks(masks.sliding_window_bidirectional_overlay(8), masks.bidirectional_mask_function)
    assert ferroflash.transformers.make_mask(2, 9, 9, mask_function=function, allow_is_bidirectional_skip=True) is None
    for window in (8, 9, 30):
        assert torch.equal(attend(9, window, causal=False), attend(9, None, causal=False))
    with pytest.raises(NotImplementedError, match="sliding_window: 7"):
        attend(9, 7, causal=False)


def test_a_causal_window_counts_the_querys_own_key():
    whole = attend(9, None, causal=True)
    assert torch.equal(attend(9, 9, causal=True), whole)
    narrow = attend(9, 8, causal=True)
    assert torch.equal(narrow[:, :8], whole[:, :8]) and not torch.equal(narrow[:, 8], whole[:, 8])
