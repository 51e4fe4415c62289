"""What stands beside q, k and v as the operators of PyTorch have it, whose arguments are tensors, numbers and texts: expressions are their texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ._call import Beside
from .expression import Given, Mask, Score

# How many pairs of texts are kept as expressions.
_N_EXPRESSIONS = 256


def spelled(beside: Beside | None) -> tuple[Any, ...]:
    """Expressions, what they take, sinks and dropout, as the operators have them."""
    if beside is None:
        return None, None, [], [], None, 0.0, None
    given, *others = beside
    if given is None:
        return None, None, [], [], *others
    return *given.texts(), list(given.tensors), [float(x) for x in given.params], *others


def read(arguments: Sequence[Any]) -> Beside | None:
    """What `spelled` has written."""
    score, mask, tensors, params, sinks, dropout_p, rng_state = arguments
    given = None
    if not (score is None and mask is None):
        given = Given(*_parsed(score, mask), tuple(params), tuple(tensors))
    if given is None and sinks is None and dropout_p == 0:
        return None
    return Beside(given, sinks, dropout_p, rng_state)


@lru_cache(maxsize=_N_EXPRESSIONS)
def _parsed(score: str | None, mask: str | None) -> tuple[Score | None, Mask | None]:
    return None if score is None else Score.parse(score), None if mask is None else Mask.parse(mask)
