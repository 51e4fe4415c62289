"""Attention by its definition, in float64, and how far a result may lie from it: what the tests compare with.

q is `[batch, seqlen_q, heads_q, head_dim]`, k and v `[batch, seqlen_k, heads_k, head_dim]`; packed, `[total, heads, head_dim]` with
cu_seqlens. All of them, and d_o and d_lse, are anything that `array64` takes: numbers that the tested type holds exactly.

Bounds are those of rounding, element by element: each product and each sum that leads to an element, taken with its absolute value, times
the unit of the type it is rounded to. They grow where a result is a small difference of large numbers, and with nothing else.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

# Half the distance from 1 to the next number.
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# Half the smallest number greater than 0.
_FLOORS = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}

# Bounds count every rounding once; a kernel that rounds some numbers twice, or in another order, is still right.
_FACTOR = 2.0

# Exponentials below the least normal number of f32 may be 0.
_LOST = 2.0**-126


class Expected(NamedTuple):
    """A result, and how far from each element the tested one may lie."""

    value: np.ndarray
    bound: np.ndarray


class Options(NamedTuple):
    """What is said beside q, k and v."""

    softmax_scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)


def array64(given: Any) -> np.ndarray:
    """Numbers of numpy, JAX or PyTorch in float64."""
    if hasattr(given, "detach"):
        return given.detach().cpu().double().numpy()
    return np.asarray(given).astype(np.float64)


def visible(seqlen_q: int, seqlen_k: int, options: Options) -> np.ndarray:
    """`[seqlen_q, seqlen_k]`: whether a query sees a key. Masks are aligned to the bottom right."""
    left, right = options.window
    if options.causal:
        right = 0
    place = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = np.arange(seqlen_k)[None, :]
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if left is not None:
        seen &= key >= place - left
    if right is not None:
        seen &= key <= place + right
    return seen


class Sequence:
    """One sequence: q `[seqlen_q, heads_q, head_dim]`, k and v `[seqlen_k, heads_k, head_dim]`."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options, dtype: str) -> None:
        self.q, self.k, self.v = q, k, v
        seqlen_q, heads_q, head_dim = q.shape
        seqlen_k, self.heads_k, _ = k.shape
        self.group = heads_q // self.heads_k if self.heads_k else 1
        self.scale = head_dim**-0.5 if options.softmax_scale is None else options.softmax_scale
        self.k_of_q, self.v_of_q = (np.repeat(x, self.group, axis=1) for x in (k, v))
        scores = self.scale * np.einsum("qhd,khd->hqk", q, self.k_of_q)
        scores = np.where(visible(seqlen_q, seqlen_k, options), scores, -np.inf)
        most = scores.max(axis=2, initial=-np.inf)
        # Of a row that sees no key every exponential is 0, and no difference of infinities is taken.
        finite = np.where(np.isfinite(most), most, 0.0)
        with np.errstate(divide="ignore"):
            self.lse = finite + np.log(np.exp(scores - finite[:, :, None]).sum(axis=2))
        row = np.where(np.isfinite(self.lse), self.lse, 0.0)
        self.p = np.exp(scores - row[:, :, None])
        # What f32 makes of the scores and of sums of this length, and the type of the weights.
        size = self.scale * np.einsum("qhd,khd->hqk", abs(q), abs(self.k_of_q)).max(axis=2, initial=0.0)
        terms = 8.0 + np.sqrt(max(seqlen_q * self.group, seqlen_k))
        self.in_scores = UNITS["float32"] * (terms + (2.0 + 0.25 * np.sqrt(head_dim)) * size)
        self.unit, self.floor = UNITS[dtype], _FLOORS[dtype]

    def o(self) -> Expected:
        o = np.einsum("hqk,khd->qhd", self.p, self.v_of_q)
        inexact = (self.unit + self.in_scores)[:, :, None] * self.p + _LOST
        return self._expected(o, np.einsum("hqk,khd->qhd", inexact, abs(self.v_of_q)))

    def statistics(self) -> Expected:
        size = np.where(np.isfinite(self.lse), abs(self.lse), 0.0)
        return Expected(self.lse, _FACTOR * (self.in_scores + UNITS["float32"] * size))

    def gradients(self, d_o: np.ndarray, d_lse: np.ndarray) -> tuple[Expected, Expected, Expected]:
        """Of q, k and v, from those of o and of lse `[heads_q, seqlen_q]`."""
        d_p = np.einsum("qhd,khd->hqk", d_o, self.v_of_q)
        delta = (self.p * d_p).sum(axis=2) - d_lse
        d_s = self.scale * self.p * (d_p - delta[:, :, None])
        # The same with absolute values.
        d_p_size = np.einsum("qhd,khd->hqk", abs(d_o), abs(self.v_of_q))
        delta_size = (self.p * d_p_size).sum(axis=2) + abs(d_lse)
        inexact = (2.0 * self.unit + self.in_scores)[:, :, None] * self.p + _LOST
        d_s_error = self.scale * inexact * (d_p_size + delta_size[:, :, None])
        return (
            self._expected(np.einsum("hqk,khd->qhd", d_s, self.k_of_q), np.einsum("hqk,khd->qhd", d_s_error, abs(self.k_of_q))),
            self._of_keys(np.einsum("hqk,qhd->khd", d_s, self.q), np.einsum("hqk,qhd->khd", d_s_error, abs(self.q))),
            self._of_keys(np.einsum("hqk,qhd->khd", self.p, d_o), np.einsum("hqk,qhd->khd", inexact, abs(d_o))),
        )

    def _of_keys(self, value: np.ndarray, error: np.ndarray) -> Expected:
        """Summed over the query heads of each key head."""
        shape = (len(value), self.heads_k, self.group, value.shape[2])
        return self._expected(value.reshape(shape).sum(axis=2), error.reshape(shape).sum(axis=2))

    def _expected(self, value: np.ndarray, error: np.ndarray) -> Expected:
        return Expected(value, _FACTOR * (error + self.unit * abs(value) + self.floor))


class Rows(NamedTuple):
    """The rows of one sequence among those of its batch entry, or of all packed ones."""

    entry: int
    first: int
    end: int


def _rows(given: np.ndarray, cu_seqlens: Any, seqused: Any, leftpad: Any) -> list[Rows]:
    if cu_seqlens is None:
        room = [Rows(entry, 0, given.shape[1]) for entry in range(given.shape[0])]
    else:
        ends = [int(n) for n in array64(cu_seqlens)]
        room = [Rows(0, first, end) for first, end in pairwise(ends)]
    used = [end - first for _, first, end in room] if seqused is None else [int(n) for n in array64(seqused)]
    padding = [0] * len(room) if leftpad is None else [int(n) for n in array64(leftpad)]
    return [Rows(entry, first + pad, first + n) for (entry, first, _), n, pad in zip(room, used, padding)]


class Problem:
    """Attention on padded or packed tensors; results are shaped as the library's. Rows of no sequence: 0, and -inf in lse."""

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        dtype: str,
        softmax_scale: float | None = None,
        causal: bool = False,
        window: tuple[int | None, int | None] = (None, None),
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        seqused_q: Any = None,
        seqused_k: Any = None,
        leftpad_k: Any = None,
    ) -> None:
        q, k, v = (array64(x) for x in (q, k, v))
        self.packed_q, self.packed_k = cu_seqlens_q is not None, cu_seqlens_k is not None
        self.q = q[None] if self.packed_q else q
        self.k, self.v = (x[None] if self.packed_k else x for x in (k, v))
        self.rows_q = _rows(self.q, cu_seqlens_q, seqused_q, None)
        self.rows_k = _rows(self.k, cu_seqlens_k, seqused_k, leftpad_k)
        options = Options(softmax_scale, causal, window)
        self.sequences = [
            Sequence(_cut(self.q, of_q), _cut(self.k, of_k), _cut(self.v, of_k), options, dtype)
            for of_q, of_k in zip(self.rows_q, self.rows_k)
        ]

    def forward(self) -> tuple[Expected, Expected]:
        """o and lse, which is `[batch, heads_q, seqlen_q]`, packed `[heads_q, total_q]`."""
        o = _put(self.q, self.rows_q, [sequence.o() for sequence in self.sequences])
        batch, seqlen_q, heads_q, _ = self.q.shape
        lse = Expected(np.full((batch, heads_q, seqlen_q), -np.inf), np.zeros((batch, heads_q, seqlen_q)))
        for (entry, first, end), sequence in zip(self.rows_q, self.sequences):
            for all_rows, part in zip(lse, sequence.statistics()):
                all_rows[entry, :, first:end] = part
        return self._as_q(o), self._as_q(lse)

    def backward(self, d_o: Any, d_lse: Any = None) -> tuple[Expected, Expected, Expected]:
        """Gradients of q, k and v."""
        d_o = array64(d_o)
        d_o = d_o[None] if self.packed_q else d_o
        batch, seqlen_q, heads_q, _ = self.q.shape
        shape = (batch, heads_q, seqlen_q)
        d_lse = np.zeros(shape) if d_lse is None else array64(d_lse).reshape(shape)
        parts = [
            sequence.gradients(_cut(d_o, rows), d_lse[rows.entry, :, rows.first : rows.end])
            for rows, sequence in zip(self.rows_q, self.sequences)
        ]
        d_q = _put(self.q, self.rows_q, [part[0] for part in parts])
        d_k = _put(self.k, self.rows_k, [part[1] for part in parts])
        d_v = _put(self.v, self.rows_k, [part[2] for part in parts])
        return self._as_q(d_q), self._as_k(d_k), self._as_k(d_v)

    def _as_q(self, expected: Expected) -> Expected:
        return Expected(*(part[0] for part in expected)) if self.packed_q else expected

    def _as_k(self, expected: Expected) -> Expected:
        return Expected(*(part[0] for part in expected)) if self.packed_k else expected


def _cut(given: np.ndarray, rows: Rows) -> np.ndarray:
    return given[rows.entry, rows.first : rows.end]


def _put(like: np.ndarray, rows: list[Rows], parts: list[Expected]) -> Expected:
    whole = Expected(np.zeros(like.shape), np.zeros(like.shape))
    for (entry, first, end), part in zip(rows, parts):
        for all_rows, some in zip(whole, part):
            all_rows[entry, first:end] = some
    return whole


def assert_close(name: str, given: Any, expected: Expected) -> None:
    """Shape, infinities, and every element within its bound."""
    given = array64(given)
    assert given.shape == expected.value.shape, f"{name} has the shape {given.shape}; needed: {expected.value.shape}"
    same = given == expected.value
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, abs(given - expected.value))
    # What is no number is not within a bound.
    wrong = ~(error <= expected.bound)
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, error / np.maximum(expected.bound, 1e-300), 0.0)), wrong.shape)
        raise AssertionError(
            f"{name}: {wrong.sum()} of {wrong.size} elements are wrong; {[int(index) for index in worst]} is {given[worst]}, "
            f"needed: {expected.value[worst]} to within {expected.bound[worst]}"
        )
