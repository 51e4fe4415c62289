"""Which cases of a test file run: those the library has the features for, and of these a sample.

A parametrised test is a product of axes, and a reason to leave cases out looks at one parameter. So the cases are counted by
multiplication and drawn by number, without making a list of all of them: flash-attention's largest file has half a million.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why cases are left out: every case of a test whose parameter has a value that the library cannot serve."""

    text: str
    parameter: str | None = None
    """None: the whole test."""
    lacks: Callable[[object], bool] = bool
    tests: frozenset[str] | None = None
    """None: every test that has the parameter."""

    def concerns(self, test: str) -> bool:
        """Whether it looks at cases of this test."""
        return self.tests is None or test in self.tests


@dataclasses.dataclass(frozen=True)
class Axis:
    """One `parametrize`: names that vary together, their rows of values, and how each row is called in a case's name."""

    names: tuple[str, ...]
    rows: Sequence[tuple]
    ids: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Test:
    """A test function. A test without axes has one case."""

    name: str
    axes: Sequence[Axis]


@dataclasses.dataclass
class Selection:
    """What runs of a test, and how many cases do not, by reason. A case with several reasons counts for the first."""

    test: Test
    total: int
    deselected: dict[str, int]
    axes: list[list[int]]
    """Of each axis, the rows that no reason leaves out."""
    chosen: list[int] = dataclasses.field(default_factory=list)
    """The cases that run, as numbers below `selected`."""

    @property
    def selected(self) -> int:
        """How many cases the library can run."""
        return self.total - sum(self.deselected.values())

    def case(self, number: int) -> tuple[dict[str, object], str]:
        """The values and the id of a case: its number read as digits, one for each axis."""
        values: dict[str, object] = {}
        ids = []
        for axis, rows in zip(self.test.axes, self.axes, strict=True):
            number, digit = divmod(number, len(rows))
            row = rows[digit]
            values.update(zip(axis.names, axis.rows[row], strict=True))
            ids.append(axis.ids[row])
        return values, "-".join(ids)


def select(test: Test, reasons: Sequence[Reason]) -> Selection:
    """Leaves out what the reasons say, and counts it."""
    first = [[_first_reason(test, axis, row, reasons) for row in axis.rows] for axis in test.axes]
    whole = next((i for i, reason in enumerate(reasons) if reason.parameter is None and reason.concerns(test.name)), len(reasons))

    def without(n: int) -> int:
        """How many cases have none of the first `n` reasons."""
        return math.prod(sum(reason >= n for reason in rows) for rows in first) if whole >= n else 0

    deselected: dict[str, int] = {}
    for n, reason in enumerate(reasons):
        count = without(n) - without(n + 1)
        if count:
            deselected[reason.text] = deselected.get(reason.text, 0) + count
    kept = [[row for row, reason in enumerate(rows) if reason == len(reasons)] for rows in first]
    return Selection(test, math.prod(len(axis.rows) for axis in test.axes), deselected, kept)


def _first_reason(test: Test, axis: Axis, row: tuple, reasons: Sequence[Reason]) -> int:
    values = dict(zip(axis.names, row, strict=True))
    for n, reason in enumerate(reasons):
        if reason.parameter in values and reason.concerns(test.name) and reason.lacks(values[reason.parameter]):
            return n
    return len(reasons)


def sample(selections: Iterable[Selection], count: int | None, seed: int, at_most: Mapping[str, int]) -> None:
    """Chooses the cases that run: all, or `count`, as evenly over the tests as their sizes allow.

    `at_most` bounds the cases of tests that take long; only where a sample is drawn.
    """
    selections = list(selections)
    if count is None:
        shares = {selection.test.name: selection.selected for selection in selections}
    else:
        sizes = {s.test.name: min(s.selected, at_most.get(s.test.name, s.selected)) for s in selections}
        shares = _shares(sizes, count)
    for selection in selections:
        name = selection.test.name
        drawn = random.Random(f"{seed} {name}").sample(range(selection.selected), shares[name])
        selection.chosen = sorted(drawn)


def _shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Splits `count` evenly; what the small leave over goes to the larger."""
    shares = {}
    by_size = sorted(sizes, key=lambda name: (sizes[name], name))
    for n, name in enumerate(by_size):
        shares[name] = min(sizes[name], count // (len(by_size) - n))
        count -= shares[name]
    return shares


def id_of(name: str, value: object, row: int) -> str:
    """How pytest calls a parameter's value in the name of a case."""
    if value is None or isinstance(value, bool | int | float | complex | str):
        return str(value)
    called = getattr(value, "__name__", None)
    return called if isinstance(called, str) else f"{name}{row}"
