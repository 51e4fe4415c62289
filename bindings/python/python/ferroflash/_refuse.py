"""Arguments of FlashAttention's interfaces that ferroflash has no kernel for: refused by name; and windows, read.

`refuse_given(qv=qv, page_table=page_table)` refuses each that is not None, `refuse_unless_zero(softcap=softcap)` each that
is neither None nor 0, `refuse(argument, given, allowed)` always.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["pair", "refuse", "refuse_given", "refuse_unless_zero", "window"]


def refuse(argument: str, given: object, allowed: str) -> NoReturn:
    """Raises NotImplementedError that names the argument, what was given and what is allowed."""
    raise NotImplementedError(f"{argument}: {_shown(given)} was given; allowed: {allowed}")


def refuse_given(**arguments: object) -> None:
    """Refuses each argument that is not None."""
    for argument, given in arguments.items():
        if given is not None:
            refuse(argument, given, "None, as ferroflash has no kernel for it")


def refuse_unless_zero(**arguments: float | None) -> None:
    """Refuses each argument that is neither None nor 0."""
    for argument, given in arguments.items():
        if given is not None and given != 0:
            refuse(argument, given, "0, as ferroflash has no kernel for it")


def window(window_size: Sequence[int | None] | None, causal: bool = False) -> tuple[int | None, int | None]:
    """A window of FlashAttention-2 and -3 as `_torch.attention` takes it: (left, right), each None for no limit.

    * `window_size`: (left, right), or an integer tensor of two on the CPU. None or a negative number is no limit.
    * `causal`: sets right to 0.
    """
    if window_size is None or (type(window_size) is tuple and window_size == (-1, -1)):
        left, right = None, None
    else:
        left, right = (_limit(side) for side in pair(window_size))
    return left, 0 if causal else right


def pair(window_size: Sequence[int | None]) -> tuple[int | None, int | None]:
    """The two numbers of a window; None stays."""
    try:
        left, right = (_integer(side) for side in window_size)
    except (TypeError, ValueError):
        raise ValueError(f"window_size: {_shown(window_size)} was given; allowed: two integers (left, right), None for no limit") from None
    return left, right


def _integer(side: int | None) -> int | None:
    # Not all through operator.index: torch.compile traces symbolic integers as they are.
    return side if side is None or isinstance(side, int) else operator.index(side)


def _limit(side: int | None) -> int | None:
    return None if side is None or side < 0 else side


def _shown(given: object) -> str:
    """What was given, in words: of a tensor its shape and dtype, as its numbers may lie on a device."""
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape is not None and dtype is not None:
        return f"a tensor {list(shape)} of {dtype}"
    return repr(given)
