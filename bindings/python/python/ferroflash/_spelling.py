"""A call in the form of PyTorch's operators, whose arguments are tensors, numbers and strings: expressions are their text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ._call import Beside, Numbers
from .expression import Mask, Score

# How many pairs of texts are kept as expressions.
_N_EXPRESSIONS = 256

# What follows q, k and v. `names` are of the first of `inputs`; the others are what expressions read.
OPTIONS = (
    "Tensor[] inputs, str[] names, SymInt? max_seqlen_q, SymInt? max_seqlen_k, float softmax_scale, SymInt? left, SymInt? right, "
    "int num_splits, str fp8_sums, str? score, str? mask, float[] score_params, float dropout_p"
)


def spelled(numbers: Numbers, beside: Beside) -> tuple[Any, ...]:
    """In the form of `OPTIONS`."""
    score, mask = (None if x is None else x._text for x in (beside.score, beside.mask))
    params = [float(x) for x in beside.params]
    return list(beside.tensors), list(beside.names), *numbers, beside.fp8_sums, score, mask, params, beside.dropout_p


def read(options: Sequence[Any]) -> tuple[Numbers, Beside]:
    """The inverse of `spelled`."""
    tensors, names, *numbers, fp8_sums, score, mask, params, dropout_p = options
    return tuple(numbers), Beside(tuple(names), tuple(tensors), *_parsed(score, mask), tuple(params), dropout_p, fp8_sums)


@lru_cache(maxsize=_N_EXPRESSIONS)
def _parsed(score: str | None, mask: str | None) -> tuple[Score | None, Mask | None]:
    return None if score is None else Score.parse(score), None if mask is None else Mask.parse(mask)
