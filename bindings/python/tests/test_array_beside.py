"""Sinks, dropout, and gradients of tensors that a score reads, on arrays, against their definitions in float64."""

from __future__ import annotations

import ferroflash
import numpy as np
import pytest
from array_cases import normal
from ferroflash import Score

BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEAD_DIM = 2, 30, 50, 4, 16
SHAPE = (BATCH, HEADS, SEQLEN_Q, SEQLEN_K)

# 44 of 256 weights are dropped.
DROPOUT_P, KEEP, RNG_STATE = 0.17, 212 / 256, (7, 2**63 + 11)


def tensors():
    """q, k, v and the gradients of o and of lse."""
    q, d_o = (normal(seed, BATCH, SEQLEN_Q, HEADS, HEAD_DIM) for seed in (0, 3))
    k, v = (normal(seed, BATCH, SEQLEN_K, 2, HEAD_DIM) for seed in (1, 2))
    return q, k, v, d_o, normal(4, BATCH, HEADS, SEQLEN_Q)


def plain(q, k, v, d_o, d_lse, *, sinks=None, bias=0.0, kept=None):
    """o, lse and the gradients of q, k, v, sinks and of the scores."""
    q, k, v, d_o = (x.astype(np.float64) for x in (q, k, v, d_o))
    group = HEADS // k.shape[2]
    k, v = (x.repeat(group, 2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * HEAD_DIM**-0.5 + bias
    column = np.full((HEADS, 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(-1) + np.exp(column)[..., 0])
    weights = np.exp(scores - lse[..., None])
    factor = np.ones(SHAPE) if kept is None else kept / KEEP
    o = np.einsum("bhij,bjhd->bihd", factor * weights, v)
    d_weights = factor * np.einsum("bihd,bjhd->bhij", d_o, v)
    delta = (weights * d_weights).sum(-1) - d_lse
    d_scores = weights * (d_weights - delta[..., None])
    d_sinks = -(np.exp(column[..., 0] - lse) * delta).sum((0, 2))
    per_head = [np.einsum("bhij,bihd->bjhd", d_scores, q) * HEAD_DIM**-0.5, np.einsum("bhij,bihd->bjhd", factor * weights, d_o)]
    d_k, d_v = (x.reshape(BATCH, SEQLEN_K, 2, group, HEAD_DIM).sum(3) for x in per_head)
    d_q = np.einsum("bhij,bjhd->bihd", d_scores, k) * HEAD_DIM**-0.5
    return o, lse, d_q, d_k, d_v, d_sinks, d_scores


def near(ours, exact):
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2e-5 * max(1.0, np.abs(exact).max()))


def kept():
    return np.asarray(ferroflash.dropout_mask(SHAPE, DROPOUT_P, *RNG_STATE))


def test_all_of_them_together():
    q, k, v, d_o, d_lse = tensors()
    sinks, bias = np.array([0.5, -3.0, 4.0, 1.0], np.float32), normal(5, HEADS, SEQLEN_Q, SEQLEN_K)
    score = Score(lambda s, at: s + at.tensor_f32("bias")[at.head, at.q, at.k])
    options = {"score": score, "score_inputs": {"bias": bias}, "sinks": sinks, "dropout_p": DROPOUT_P, "rng_state": RNG_STATE}
    o, lse = ferroflash.attention(q, k, v, return_lse=True, **options)
    d_q, d_k, d_v, d_sinks, read = ferroflash.attention_backward(
        d_o, q, k, v, o, lse, d_lse=d_lse, d_sinks=True, d_score_inputs=["bias"], **options
    )
    *exact, d_scores = plain(q, k, v, d_o, d_lse, sinks=sinks, bias=bias, kept=kept())
    assert list(read) == ["bias"] and read["bias"].dtype == np.float32
    for ours, wide in zip((o, lse, d_q, d_k, d_v, d_sinks, read["bias"]), (*exact, d_scores.sum(0)), strict=True):
        near(ours, wide)


@pytest.mark.parametrize("what", ["sinks", "dropout", "bias"])
def test_each_for_itself(what):
    q, k, v, d_o, d_lse = tensors()
    sinks, bias = np.array([0.5, -3.0, 4.0, 1.0], np.float32), normal(5, 1, 1, SEQLEN_Q, SEQLEN_K)
    score = Score(lambda s, at: s + at.tensor_f32("bias")[0, 0, at.q, at.k])
    options, asked, given = {
        "sinks": ({"sinks": sinks}, {"d_sinks": True}, {"sinks": sinks}),
        "dropout": ({"dropout_p": DROPOUT_P, "rng_state": RNG_STATE}, {}, {"kept": kept()}),
        "bias": ({"score": score, "score_inputs": {"bias": bias}}, {"d_score_inputs": ("bias",)}, {"bias": bias}),
    }[what]
    o, lse = ferroflash.attention(q, k, v, return_lse=True, **options)
    ours = ferroflash.attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options, **asked)
    exact = plain(q, k, v, d_o, d_lse, **given)
    for result, wide in zip((o, lse, *ours[:3]), exact):
        near(result, wide)
    assert len(ours) == 3 + len(asked)
    if what == "sinks":
        near(ours[3], exact[5])
    if what == "bias":
        near(ours[3]["bias"], exact[6].sum((0, 1), keepdims=True))
    # Nobody has to ask for them.
    again = ferroflash.attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)
    for first, second in zip(ours[:3], again, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_mask_of_dropout():
    mask = kept()
    assert mask.dtype == bool and mask.shape == SHAPE and 0.8 < mask.mean() < 0.86
    np.testing.assert_array_equal(mask, kept())
    assert (mask != np.asarray(ferroflash.dropout_mask(SHAPE, DROPOUT_P, 7, 0))).any()
    assert np.asarray(ferroflash.dropout_mask(SHAPE, 0.0, 7, 0)).all()
    assert np.asarray(ferroflash.dropout_mask((0, 1, 2, 3), 0.5, 7, 0)).shape == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="dropout is 1"):
        ferroflash.dropout_mask(SHAPE, 1.0, 7, 0)


@pytest.mark.parametrize(
    ("error", "word", "options"),
    [
        (ValueError, "rng_state is missing", {"dropout_p": 0.5}),
        (TypeError, "rng_state is 7; allowed: two whole numbers", {"dropout_p": 0.5, "rng_state": 7}),
        (TypeError, "rng_state is .*; allowed: two whole numbers", {"dropout_p": 0.5, "rng_state": (1.5, 2)}),
        (ValueError, "rng_state is .*; allowed: whole numbers from 0", {"dropout_p": 0.5, "rng_state": (-1, 2)}),
        (ValueError, "dropout is 1", {"dropout_p": 1.0, "rng_state": (1, 2)}),
        (TypeError, "dropout_p is '1'", {"dropout_p": "1"}),
        (TypeError, "sinks is float64; needed: float32", {"sinks": np.ones(HEADS)}),
        (ValueError, r"sinks has the shape \[3\]; needed: \[4\]", {"sinks": np.ones(3, np.float32)}),
    ],
)
def test_refused(error, word, options):
    q, k, v, *_ = tensors()
    with pytest.raises(error, match=word):
        ferroflash.attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("error", "word", "options", "asked"),
    [
        (ValueError, "d_sinks was given; allowed with sinks", {}, {"d_sinks": True}),
        (ValueError, "d_score_inputs: bias was given; .* none", {}, {"d_score_inputs": ["bias"]}),
        (TypeError, "d_score_inputs is 'slopes'", {}, {"d_score_inputs": "slopes"}),
        (NotImplementedError, "tensor slopes has no gradient: a dimension", {"slopes": True}, {"d_score_inputs": ["slopes"]}),
    ],
)
def test_gradients_that_are_refused(error, word, options, asked):
    q, k, v, d_o, d_lse = tensors()
    given = {}
    if options:
        score = Score(lambda s, at: s * at.tensor_f32("slopes")[at.head])
        given = {"score": score, "score_inputs": {"slopes": np.ones(HEADS, np.float32)}}
    o, lse = ferroflash.attention(q, k, v, return_lse=True, **given)
    with pytest.raises(error, match=word):
        ferroflash.attention_backward(d_o, q, k, v, o, lse, **given, **asked)


def test_tensors_take_numbers_too():
    torch = pytest.importorskip("torch", reason="[not run] no torch")
    q, k, v, *_ = tensors()
    ours = ferroflash.attention(q, k, v, dropout_p=DROPOUT_P, rng_state=RNG_STATE)
    same = ferroflash.attention(*(torch.from_numpy(x) for x in (q, k, v)), dropout_p=DROPOUT_P, rng_state=RNG_STATE)
    np.testing.assert_array_equal(ours, same.numpy())
