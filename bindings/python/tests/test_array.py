"""`ferroflash.attention` and its gradients on arrays, against float64: 1,000 random problems, layouts, types, libraries."""

from __future__ import annotations

import doctest
import os
from dataclasses import dataclass
from typing import Any

import ferroflash
import numpy as np
import pytest
from array_cases import LAYOUTS, handed, normal, numbers
from ferroflash.array import Array
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from reference import Problem, assert_close

DTYPES = ["float32", "float16", "bfloat16"]

SEQLENS = st.one_of(st.integers(0, 12), st.integers(0, 80), st.sampled_from([63, 64, 65, 127, 128, 129, 200]))
HEAD_DIMS = st.one_of(st.integers(1, 40), st.sampled_from([64, 80, 96, 128, 255, 256]))
SIDES = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 100))


@dataclass(frozen=True)
class Call:
    """Sizes of a call, how its arrays lie, and what is said beside them."""

    dtype: str
    batch: int
    seqlens: tuple[int, int]
    heads: tuple[int, int]
    head_dim: int
    layouts: list[str]
    seed: int
    has_d_lse: bool
    used: dict[str, list[int]]
    options: dict[str, Any]

    def arrays(self) -> list[np.ndarray]:
        """q, k, v and the gradient of o, as numbers."""
        (seqlen_q, seqlen_k), (heads_q, heads_k) = self.seqlens, self.heads
        sides = [(seqlen_q, heads_q), (seqlen_k, heads_k), (seqlen_k, heads_k), (seqlen_q, heads_q)]
        values = [normal(self.seed + index, self.batch, *side, self.head_dim, dtype=self.dtype) for index, side in enumerate(sides)]
        return [LAYOUTS[layout](array) for layout, array in zip(self.layouts, values)]

    def check(self) -> None:
        d_lse = normal(self.seed + 4, self.batch, self.heads[0], self.seqlens[0]) if self.has_d_lse else None
        used = {name: np.array(lengths, np.int32) for name, lengths in self.used.items()}
        check(self.dtype, self.arrays(), d_lse, self.options | used)


@st.composite
def calls(draw):
    dtype = draw(st.sampled_from(DTYPES))
    batch, heads_k, group = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    seqlens = draw(SEQLENS), draw(SEQLENS)
    # An Array has no strides of its own.
    layouts = st.sampled_from(["bshd"] if dtype == "bfloat16" else list(LAYOUTS))
    used = {}
    for name, seqlen in zip(("seqused_q", "seqused_k"), seqlens):
        if draw(st.booleans()):
            used[name] = draw(st.lists(st.integers(0, seqlen), min_size=batch, max_size=batch))
    options = {
        "causal": draw(st.booleans()),
        "window": (draw(SIDES), draw(SIDES)),
        "softmax_scale": draw(st.one_of(st.none(), st.floats(0.01, 2.0))),
    }
    return Call(
        dtype,
        batch,
        seqlens,
        (heads_k * group, heads_k),
        draw(HEAD_DIMS),
        draw(st.lists(layouts, min_size=4, max_size=4)),
        draw(st.integers(0, 2**32)),
        draw(st.booleans()),
        used,
        options,
    )


def check(dtype, arrays, d_lse, options):
    """Both passes of a call against float64."""
    expected = Problem(*arrays[:3], dtype=dtype, **options)
    q, k, v, d_o = (handed(array, dtype) for array in arrays)
    o, lse = ferroflash.attention(q, k, v, return_lse=True, **options)
    for name, result, one in zip(("o", "lse"), (o, lse), expected.forward()):
        assert_close(name, numbers(result), one)
    gradients = ferroflash.attention_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)
    for name, result, one in zip(("d_q", "d_k", "d_v"), gradients, expected.backward(arrays[3], d_lse)):
        assert_close(name, numbers(result), one)


# The environment variable SEED decides which ones; `CASES=all` takes four times as many.
@seed(int(os.environ.get("SEED", "0")))
@settings(max_examples=1000 if os.environ.get("CASES") == "all" else 250, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_random_problems(call):
    call.check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [(0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 0, 0, 2), (2, 3, 4, 0)], ids=lambda sizes: str(list(sizes))
)
def test_nothing_in_a_dimension(sizes, dtype):
    batch, seqlen_q, seqlen_k, heads = sizes
    q, k = normal(0, batch, seqlen_q, heads, 16, dtype=dtype), normal(1, batch, seqlen_k, heads, 16, dtype=dtype)
    check(dtype, [q, k, k, q], None, {"causal": True})
    used = np.zeros(batch, np.int32)
    check(dtype, [q, k, k, q], None, {"seqused_q": used, "seqused_k": used})


def test_rows_without_a_key_are_zero_and_their_lse_is_minus_infinity():
    q, k = normal(0, 1, 5, 2, 8), normal(1, 1, 3, 2, 8)
    o, lse = ferroflash.attention(q, k, k, causal=True, return_lse=True)
    assert (o[:, :2] == 0).all() and (lse[:, :, :2] == -np.inf).all()
    assert np.isfinite(lse[:, :, 2:]).all()


def test_rows_out_of_use_are_not_read():
    q, k = normal(0, 2, 6, 2, 8), normal(1, 2, 6, 2, 8)
    used = np.array([4, 0], np.int32)
    options = {"seqused_q": used, "seqused_k": used, "return_lse": True}
    clean = ferroflash.attention(q, k, k, **options)
    for array in (q, k):
        array[0, 4:], array[1] = np.nan, np.nan
    for before, after in zip(clean, ferroflash.attention(q, k, k, **options)):
        np.testing.assert_array_equal(before, after)


def test_equal_arguments_give_equal_bits():
    q, k = normal(0, 2, 150, 4, 64), normal(1, 2, 150, 2, 64)

    def run():
        o, lse = ferroflash.attention(q, k, k, causal=True, return_lse=True)
        return o, lse, *ferroflash.attention_backward(o, q, k, k, o, lse, causal=True)

    for first, second in zip(run(), run()):
        np.testing.assert_array_equal(first, second)


def test_results_of_numpy_are_its_own_and_may_be_written():
    q = normal(0, 1, 3, 2, 8)
    o = ferroflash.attention(q, q, q)
    assert type(o) is np.ndarray and o.dtype == q.dtype
    before = o.copy()
    o += 1
    np.testing.assert_array_equal(ferroflash.attention(q, q, q), before)


def test_the_example_of_the_module():
    assert doctest.testmod(ferroflash.array) == doctest.TestResults(failed=0, attempted=5)


def test_results_of_a_library_without_from_dlpack_are_our_own():
    q = handed(normal(0, 1, 3, 2, 8, dtype="bfloat16"), "bfloat16")
    o, lse = ferroflash.attention(q, q, q, return_lse=True)
    assert (type(o), o.shape, o.dtype) == (Array, (1, 3, 2, 8), "bfloat16")
    assert (type(lse), lse.shape, lse.dtype) == (Array, (1, 2, 3), "float32")
    assert repr(o) == "ferroflash.Array([1, 3, 2, 8], bfloat16, cpu)"


def test_a_sum_of_o_and_lse_has_the_gradients_that_differences_have():
    q, k, v = (normal(seed, 1, 3, 2, 4).astype(np.float32) for seed in range(3))
    of_o, of_lse = normal(3, 1, 3, 2, 4), normal(4, 1, 2, 3)

    def loss(*arrays):
        o, lse = (result.value for result in Problem(*arrays, dtype="float32", causal=True).forward())
        return (o * of_o).sum() + (lse * of_lse).sum()

    o, lse = ferroflash.attention(q, k, v, causal=True, return_lse=True)
    gradients = ferroflash.attention_backward(of_o, q, k, v, o, lse, d_lse=of_lse, causal=True)
    step = normal(5, 1, 3, 2, 4).astype(np.float64)
    for index, gradient in enumerate(gradients):
        moved = [[x + sign * 1e-5 * step if at == index else x for at, x in enumerate((q, k, v))] for sign in (1, -1)]
        slope = (loss(*moved[0]) - loss(*moved[1])) / 2e-5
        assert slope == pytest.approx((gradient * step).sum(), rel=1e-3)


class TestJax:
    jax = None

    @pytest.fixture(autouse=True)
    def with_jax(self):
        self.jax = pytest.importorskip("jax", reason="[not run] no jax")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_results_and_gradients(self, dtype):
        q, k, v, d_o = (normal(seed, 2, 33, 4, 40, dtype=dtype) for seed in range(4))
        k, v = k[:, :, :2], v[:, :, :2]
        expected = Problem(q, k, v, dtype=dtype, causal=True)
        on_jax = [self.jax.numpy.asarray(array, dtype) for array in (q, k, v, d_o)]
        # Of float32 as exact on a GPU as on the CPU.
        options = {"causal": True, "precision": "full" if dtype == "float32" else None}
        o, lse = ferroflash.attention(*on_jax[:3], return_lse=True, **options)
        assert isinstance(o, self.jax.Array) and o.dtype == on_jax[0].dtype
        gradients = ferroflash.attention_backward(on_jax[3], *on_jax[:3], o, lse, **options)
        for name, result, one in zip(
            ("o", "lse", "d_q", "d_k", "d_v"),
            (o, lse, *gradients),
            (*expected.forward(), *expected.backward(d_o)),
        ):
            assert_close(name, result, one)

    def test_nothing_in_a_dimension(self):
        q = self.jax.numpy.zeros((2, 0, 3, 8))
        assert ferroflash.attention(q, q, q).shape == (2, 0, 3, 8)

    def test_lengths_of_jax(self):
        q = self.jax.numpy.asarray(normal(0, 2, 5, 2, 8))
        used = self.jax.numpy.asarray([3, 5], "int32")
        o = ferroflash.attention(q, q, q, seqused_q=used, seqused_k=used)
        assert (o[0, 3:] == 0).all() and (o[1] != 0).any()

    def test_a_rule_for_gradients_and_a_callback_under_jit(self):
        jax, np_ = self.jax, self.jax.numpy

        def shapes(*arrays):
            return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays)

        @jax.custom_vjp
        def attention(q, k, v):
            return forward(q, k, v)[0]

        def forward(q, k, v):
            batch, seqlen, heads, _ = q.shape
            out = shapes((q.shape, q.dtype), ((batch, heads, seqlen), np_.float32))
            o, lse = jax.pure_callback(lambda *x: ferroflash.attention(*x, causal=True, return_lse=True), out, q, k, v)
            return o, (q, k, v, o, lse)

        def backward(saved, d_o):
            out = shapes(*((x.shape, x.dtype) for x in saved[:3]))
            return jax.pure_callback(lambda *x: ferroflash.attention_backward(*x, causal=True), out, d_o, *saved)

        attention.defvjp(forward, backward)
        q, k, v = (normal(seed, 1, 9, 2, 8) for seed in range(3))
        gradients = jax.jit(jax.grad(lambda *x: attention(*x).sum(), argnums=(0, 1, 2)))(q, k, v)
        expected = Problem(q, k, v, dtype="float32", causal=True).backward(np.ones_like(q))
        for name, result, one in zip(("d_q", "d_k", "d_v"), gradients, expected):
            assert_close(name, result, one)


def test_tensors_go_to_the_operators_of_torch():
    torch = pytest.importorskip("torch", reason="[not run] no torch")
    q = torch.from_numpy(normal(0, 1, 5, 2, 8)).requires_grad_()
    o, lse = ferroflash.attention(q, q, q, causal=True, return_lse=True)
    assert isinstance(o, torch.Tensor) and lse.shape == (1, 2, 5)
    o.sum().backward()
    assert q.grad is not None
    with pytest.raises(TypeError, match=r"q is a torch\.Tensor"):
        ferroflash.attention_backward(o, q, q, q, o, lse)


@pytest.mark.parametrize("precision", [None, "tensor", "full"])
def test_precisions_are_taken(precision):
    q, k, v = (np.ones((1, 4, 2, 8), np.float32) for _ in range(3))
    o = ferroflash.attention(q, k, v, precision=precision)
    assert np.array_equal(o, v)


def test_other_precisions_are_refused():
    q = np.ones((1, 4, 2, 8), np.float32)
    with pytest.raises(ValueError, match="precision is half: it must be tensor or full"):
        ferroflash.attention(q, q, q, precision="half")
    half = q.astype(np.float16)
    with pytest.raises(ValueError, match="precision"):
        ferroflash.attention(half, half, half, precision="full")
