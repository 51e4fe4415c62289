"""Scores and masks as Python traces them: what is written, what is computed, and what is refused; on arrays."""

from __future__ import annotations

import copy
import doctest
import pickle
import sys
import threading

import ferroflash
import numpy as np
import pytest
from ferroflash import Mask, Score, expression


def alibi(s, at):
    return s + at.tensor_f32("slopes")[at.head] * (at.k - at.q)


def document(at):
    of = at.tensor_i32("document")
    return of[at.batch, at.q] == of[at.batch, at.k]


def value(function, n=12, **inputs):
    """What a function of `at` gives at queries 0 to n − 1, head 0, sequence 0: lse of one key is its score."""
    q, k = np.zeros((1, n, 1, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
    q[0, :, 0, 0] = np.arange(n)
    _, lse = ferroflash.attention(q, k, k, score=Score(function), score_inputs=inputs, softmax_scale=1.0, return_lse=True)
    return lse[0, 0]


X = np.arange(12.0)
I = np.arange(12)  # noqa: E741


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda s, at: s, X),
        (lambda s, at: s + 1, X + 1),
        (lambda s, at: 1 - s, 1 - X),
        (lambda s, at: 3 * s - at.q, 2 * X),
        (lambda s, at: s / 4 + 4 / (s + 1), X / 4 + 4 / (X + 1)),
        (lambda s, at: -s, -X),
        (lambda s, at: abs(s - 5), np.abs(X - 5)),
        (lambda s, at: abs(at.q - 5), np.abs(X - 5)),
        (lambda s, at: at.q / 5, X / 5),
        (lambda s, at: 5 / (at.q + 1), 5 / (X + 1)),
        (lambda s, at: (at.q - 5) // 3, np.trunc((X - 5) / 3)),
        (lambda s, at: (at.q - 5) % 3, np.fmod(X - 5, 3)),
        (lambda s, at: 20 // (at.q + 1) * 100 + 20 % (at.q + 1), 20 // (I + 1) * 100 + 20 % (I + 1)),
        (lambda s, at: at.q // (at.q - at.q) * 100 + at.q % (at.q - at.q), X),
        (lambda s, at: (at.q << 2) + (1 << at.q) + (at.q >> 1) + (4095 >> at.q), (I << 2) + (1 << I) + (I >> 1) + (4095 >> I)),
        (lambda s, at: (at.q & 6) + 100 * (at.q | 6) + 10000 * (at.q ^ 6), (I & 6) + 100 * (I | 6) + 10000 * (I ^ 6)),
        (lambda s, at: (6 & at.q) + 100 * (6 | at.q) + 10000 * (6 ^ at.q), (I & 6) + 100 * (I | 6) + 10000 * (I ^ 6)),
        (lambda s, at: ~at.q, ~I),
        (lambda s, at: s**1 + s**2 + s**5, X + X**2 + X**5),
        (lambda s, at: s**0.5, X**0.5),
        (lambda s, at: at.q**3, X**3),
        (lambda s, at: 2**s + 1.5**at.q, 2**X + 1.5**X),
        (lambda s, at: s.min(5) + at.q.min(5) + s.max(at.q) + at.q.max(2.5), 2 * np.minimum(X, 5) + X + np.maximum(X, 2.5)),
        (lambda s, at: (s * 0.1).exp_full() + (s * 0.1).exp(), 2 * np.exp(X * 0.1)),
        (lambda s, at: (s * 0.1).exp2_full() + (s * 0.1).exp2(), 2 * np.exp2(X * 0.1)),
        (lambda s, at: (s + 1).ln_full() + (s + 1).ln(), 2 * np.log(X + 1)),
        (lambda s, at: (s * 0.1).tanh_full() + (s * 0.1).tanh(), 2 * np.tanh(X * 0.1)),
        (lambda s, at: (s - 5).sigmoid_full() + (s - 5).sigmoid(), 2 / (1 + np.exp(5 - X))),
        (lambda s, at: s.sqrt_full() + s.sqrt(), 2 * np.sqrt(X)),
        (lambda s, at: (s * 0.7 - 3).to_i32(), np.trunc(X * 0.7 - 3)),
        (lambda s, at: at.q.to_f32() * 0.5, X * 0.5),
        (lambda s, at: ((s < 3) | (s >= 9)).select(1, 2.5), np.where((X < 3) | (X >= 9), 1, 2.5)),
        (lambda s, at: ((3 < at.q) & ~(at.q == 7) ^ (at.q != 2)).select(at.q, -1), np.where((I > 3) & (I != 7) ^ (I != 2), I, -1)),
        (lambda s, at: ((at.q <= 3.5) & True | False ^ (at.q > s)).select(s, 0), np.where(X <= 3.5, X, 0)),
        (lambda s, at: (at.q < 4).select(at.q > 1, True).select(5, 6), np.where((I >= 4) | (I > 1), 5, 6)),
        (lambda s, at: at.seqlen_q * 100 + at.seqlen_k * 10 + at.batch + at.head + at.kv_head + at.k, np.full(12, 1210.0)),
        (lambda s, at: np.float32(2) * s + np.int64(3) * at.q + s * np.float64(0.5), 5.5 * X),
        (lambda s, at: 4, np.full(12, 4.0)),
        (lambda s, at: at.q, X),
    ],
)
def test_what_operators_compute(function, expected):
    np.testing.assert_allclose(value(function), expected, rtol=2e-6, atol=1e-6)


def test_parameters_and_tensors():
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = np.array([2.5 * table[min(i, 1), 2] + 7 for i in range(12)])
    for given in (table, np.ascontiguousarray(table.T).T, table.astype(np.float16)):
        read = "tensor_f32" if given.dtype == np.float32 else "tensor_f16"
        result = value(lambda s, at, read=read: at.f32("a") * getattr(at, read)("t")[at.q, 2] + at.i32("b"), a=2.5, b=7, t=given)
        np.testing.assert_allclose(result, expected)
    np.testing.assert_allclose(value(lambda s, at: at.tensor_i32("t")[at.q - 3], t=np.array([5, 6], np.int32))[:5], [5, 5, 5, 5, 6])
    np.testing.assert_allclose(value(lambda s, at: at.f32("a") * 2, a=3), 6.0)
    np.testing.assert_allclose(value(lambda s, at: at.f32("a") * at.i32("b"), a=np.float32(3), b=np.int64(2)), 6.0)


def test_text_and_equality():
    score, mask = Score(alibi), Mask(document)
    assert str(score) == "score + slopes[head] * f32(k - q)" and repr(score) == f"Score({score})"
    assert str(mask) == "document[batch, q] == document[batch, k]"
    assert (score.params, score.tensors) == ({}, {"slopes": ("float32", 1)})
    assert (mask.tensors, Mask(lambda at: at.q < at.i32("n")).params) == ({"document": ("int32", 2)}, {"n": "int32"})
    for one in (score, mask):
        kind = type(one)
        for other in (kind.parse(one.text), pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            assert other == one and hash(other) == hash(one) and type(other) is kind and str(other) == str(one)
    assert score == Score(alibi) and score != Score(lambda s, at: s) and score != mask
    assert len({score, Score(alibi), mask}) == 2
    with pytest.raises(ValueError, match="type bool"):
        Score.parse(mask.text)
    with pytest.raises(ValueError, match="line 1"):
        Mask.parse("q < k")


def test_the_examples_of_the_module():
    for module in (expression,):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda s, at: s if s > 0 else 0.0,
        lambda s, at: (s > 0) and s,
        lambda s, at: s if not s else s,
        lambda s, at: s if at.q else s,
        lambda s, at: (0 < s < 3).select(s, 0),
        lambda s, at: min(s, 3.0),
        lambda s, at: max(at.q, at.k),
    ],
)
def test_python_decides_nothing(function):
    with pytest.raises(TypeError, match=r"neither true nor false.*a & b for `a and b`.*select\(a, b\)"):
        Score(function)


@pytest.mark.parametrize(
    ("error", "word", "function"),
    [
        (TypeError, "the function returned NoneType; allowed: a number", lambda s, at: None),
        (TypeError, "the function returned Cond; allowed: a number", lambda s, at: s > 0),
        (TypeError, "the function returned Tensor; allowed: a number", lambda s, at: at.tensor_f32("x")),
        (TypeError, "the function returned bool", lambda s, at: True),
        (TypeError, "unsupported operand", lambda s, at: s + "1"),
        (TypeError, "unsupported operand", lambda s, at: s + (s > 0)),
        (TypeError, "unsupported operand", lambda s, at: s // 2),
        (TypeError, "unsupported operand", lambda s, at: s % 2),
        (TypeError, "unsupported operand", lambda s, at: at.q // 2.0),
        (TypeError, "unsupported operand", lambda s, at: s & at.q),
        (TypeError, "unsupported operand", lambda s, at: (s > 0) & at.q),
        (TypeError, "the exponent", lambda s, at: s**s),
        (TypeError, "the exponent -1; allowed", lambda s, at: s**-1),
        (TypeError, "the exponent 17", lambda s, at: at.q**17),
        (TypeError, "a base", lambda s, at: (-2) ** s),
        (TypeError, "min was given str", lambda s, at: s.min("a")),
        (TypeError, "max was given NoneType", lambda s, at: at.q.max(None)),
        (TypeError, "min was given Cond", lambda s, at: s.min(s > 0)),
        (TypeError, "select was given", lambda s, at: (s > 0).select(s, s > 0)),
        (TypeError, "x is indexed by .*Num", lambda s, at: at.tensor_f32("x")[s]),
        (TypeError, "x is indexed by .*slice", lambda s, at: at.tensor_f32("x")[:]),
        (TypeError, "iterable", lambda s, at: sum(at.tensor_f32("x"))),
        (ValueError, "the tensor x has 5 dimensions", lambda s, at: at.tensor_f32("x")[at.q, 0, 0, 0, 0]),
        (ValueError, "the tensor x has 0 dimensions", lambda s, at: at.tensor_f32("x")[()]),
        (ValueError, "x is a parameter of type f32 and later", lambda s, at: at.f32("x") + at.i32("x")),
        (ValueError, '"2x" is no name', lambda s, at: at.f32("2x")),
        (ValueError, "2147483648 was given", lambda s, at: at.q + 2**31),
        (ValueError, "1e[+]?300 was given", lambda s, at: s * 1e300),
        (ZeroDivisionError, "division", lambda s, at: s + 1 / 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(error, word, function):
    with pytest.raises(error, match=word):
        Score(function)


def test_what_is_no_function_or_no_mask():
    with pytest.raises(TypeError, match="function is int"):
        Score(3)
    with pytest.raises(TypeError, match="positional argument"):
        Score(lambda s: s)
    with pytest.raises(TypeError, match="the function returned Num; allowed: a truth value"):
        Mask(lambda at: at.f32("x"))
    assert str(Mask(lambda at: True)) == "true"


def test_values_are_of_one_function():
    kept = []
    Score(lambda s, at: kept.append((s, at)) or s)
    (s, at) = kept[0]
    for function in (lambda *_: s, lambda x, _: x + s, lambda x, _: x * at.f32("a")):
        with pytest.raises(ValueError, match="expression that it is not of"):
            Score(function)
    # What is left of a function that has returned, or raised, harms nothing.
    assert repr(s + 1) and repr(at.tensor_f32("x")[at.q])
    with pytest.raises(KeyError):
        Score(lambda s, at: {}["a"])
    assert str(Score(lambda s, at: Score(lambda x, _: x * 2) and s)) == "score"


def test_threads_trace_for_themselves():
    found = []

    def many():
        found.extend(str(Score(lambda s, at, n=n: s * at.f32("a") + n)) for n in range(200))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800 and all(found.count(text) == 4 for text in found)


def dense(q, k, edit, scale):
    s = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64)) * scale
    s, slope = edit(s)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True), slope


def test_arrays_both_passes():
    """The soft cap and ALiBi, with the gradient by hand."""
    rng = np.random.default_rng(3)
    q, k, v, d_o = (rng.standard_normal((2, 20, 3, 16)).astype(np.float32) for _ in range(4))
    slopes, cap = np.array([0.5, 0.1, 0.02], np.float32), 2.0
    score = Score(lambda s, at: at.f32("cap") * (s / at.f32("cap")).tanh_full() - at.tensor_f32("slopes")[at.head] * abs(at.q - at.k))
    far = np.abs(np.arange(20)[:, None] - np.arange(20))

    def edit(s):
        bent = np.tanh(s / cap)
        return cap * bent - slopes[None, :, None, None] * far, 1 - bent**2

    options = {"score": score, "score_inputs": {"cap": cap, "slopes": slopes}, "softmax_scale": 0.25}
    o, lse = ferroflash.attention(q, k, v, return_lse=True, **options)
    d_q, d_k, d_v = ferroflash.attention_backward(d_o, q, k, v, o, lse, **options)
    p, slope = dense(q, k, edit, 0.25)
    d_p = np.einsum("bqhd,bkhd->bhqk", d_o, v)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * slope * 0.25
    for ours, exact in (
        (o, np.einsum("bhqk,bkhd->bqhd", p, v)),
        (d_q, np.einsum("bhqk,bkhd->bqhd", d_s, k)),
        (d_k, np.einsum("bhqk,bqhd->bkhd", d_s, q)),
        (d_v, np.einsum("bhqk,bqhd->bkhd", p, d_o)),
    ):
        np.testing.assert_allclose(ours, exact, atol=2e-5)


def test_a_mask_is_that_of_the_library():
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 30, 2, 8)).astype(np.float32) for _ in range(3))
    causal = Mask(lambda at: at.k <= at.q + at.seqlen_k - at.seqlen_q)
    np.testing.assert_allclose(ferroflash.attention(q, k, v, mask=causal), ferroflash.attention(q, k, v, causal=True), atol=1e-6)


def test_helpers_are_what_they_abbreviate():
    assert Score(lambda s, at: s.soft_cap(3.0)) == Score(lambda s, at: 3.0 * (s / 3.0).tanh())
    assert Mask(lambda at: at.distance() >= 0) == Mask(lambda at: at.q + at.seqlen_k - at.seqlen_q - at.k >= 0)
    assert Mask(lambda at: at.same("image")) == Mask(
        lambda at: at.tensor_i32("image")[at.batch, at.place()] == at.tensor_i32("image")[at.batch, at.k]
    )
    with pytest.raises(TypeError, match="soft_cap was given bool; allowed: a number"):
        Score(lambda s, at: s.soft_cap(True))


def test_arrays_that_are_refused():
    q = np.ones((1, 4, 2, 8), np.float32)
    with pytest.raises(TypeError, match="score_inputs: slopes is list"):
        ferroflash.attention(q, q, q, score=Score(alibi), score_inputs={"slopes": [1.0, 2.0]})
    with pytest.raises(TypeError, match="slopes is a tensor of float64"):
        ferroflash.attention(q, q, q, score=Score(alibi), score_inputs={"slopes": np.ones(2)})
    with pytest.raises(ValueError, match="stride of dimension 0 of tensor slopes is -1"):
        ferroflash.attention(q, q, q, score=Score(alibi), score_inputs={"slopes": np.ones(2, np.float32)[::-1]})
    with pytest.raises(ValueError, match="slopes is missing"):
        ferroflash.attention_backward(q, q, q, q, q, np.ones((1, 2, 4), np.float32), score=Score(alibi))


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="[not run] no reference counts")
def test_functions_are_let_go():
    def function(s, at):
        return s

    before = sys.getrefcount(function)
    Score(function)
    assert sys.getrefcount(function) == before
