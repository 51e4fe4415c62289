"""Which cases of a test file run: those the library has the features for, and of these a sample.

A parametrised test is a product of axes, and a reason to leave cases out looks at one parameter, or at a few whose axes are then one. So
the cases are counted by multiplication and drawn by number, without making a list of all of them: flash-attention's largest file has half a
million.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why cases are left out: every case of a test whose parameters have values that the library cannot serve."""

    text: str
    parameter: str | tuple[str, ...] | None = None
    """None: the whole test."""
    lacks: Callable[..., object] = bool
    """Takes the value of each parameter."""
    tests: frozenset[str] | None = None
    """None: every test that has the parameter."""

    def concerns(self, test: str) -> bool:
        """Whether it looks at cases of this test."""
        return self.tests is None or test in self.tests

    @property
    def parameters(self) -> tuple[str, ...]:
        """What it looks at."""
        return (self.parameter,) if isinstance(self.parameter, str) else self.parameter or ()

    def holds(self, values: Mapping[str, object]) -> bool:
        """Whether it leaves out cases with these values; not where it looks at others, too."""
        names = self.parameters
        return bool(names) and all(name in values for name in names) and bool(self.lacks(*(values[name] for name in names)))


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
    groups: list[tuple[tuple[int, ...], list[tuple[int, ...]]]]
    """Axes that reasons look at together, by number, and of these the combinations of rows that no reason leaves out."""
    chosen: list[int] = dataclasses.field(default_factory=list)
    """The cases that run, as numbers below `selected`."""

    @property
    def selected(self) -> int:
        """How many cases the library can run."""
        return self.total - sum(self.deselected.values())

    def case(self, number: int) -> tuple[dict[str, object], str]:
        """The values and the id of a case: its number read as digits, one for each group of axes."""
        rows: dict[int, int] = {}
        for axes, combinations in self.groups:
            number, digit = divmod(number, len(combinations))
            rows.update(zip(axes, combinations[digit], strict=True))
        values: dict[str, object] = {}
        ids = []
        for at, axis in enumerate(self.test.axes):
            values.update(zip(axis.names, axis.rows[rows[at]], strict=True))
            ids.append(axis.ids[rows[at]])
        return values, "-".join(ids)


def select(test: Test, reasons: Sequence[Reason]) -> Selection:
    """Leaves out what the reasons say, and counts it."""
    reasons = [reason if reason.concerns(test.name) else Reason(reason.text, ()) for reason in reasons]
    groups = _groups(test, reasons)
    combinations = [list(itertools.product(*(range(len(test.axes[at].rows)) for at in axes))) for axes in groups]
    first = [[_first_reason(test, axes, rows, reasons) for rows in of_axes] for axes, of_axes in zip(groups, combinations, strict=True)]
    whole = next((i for i, reason in enumerate(reasons) if reason.parameter is None), len(reasons))

    def without(n: int) -> int:
        """How many cases have none of the first `n` reasons."""
        return math.prod(sum(reason >= n for reason in of_axes) for of_axes in first) if whole >= n else 0

    deselected: dict[str, int] = {}
    for n, reason in enumerate(reasons):
        count = without(n) - without(n + 1)
        if count:
            deselected[reason.text] = deselected.get(reason.text, 0) + count
    kept = [
        (axes, [rows for rows, reason in zip(of_axes, reasons_of, strict=True) if reason == len(reasons)])
        for axes, of_axes, reasons_of in zip(groups, combinations, first, strict=True)
    ]
    return Selection(test, math.prod(len(axis.rows) for axis in test.axes), deselected, kept)


def _groups(test: Test, reasons: Sequence[Reason]) -> list[tuple[int, ...]]:
    """The axes by number, those together that a reason looks at together."""
    axis_of = {name: at for at, axis in enumerate(test.axes) for name in axis.names}
    groups = [{at} for at in range(len(test.axes))]
    for reason in reasons:
        if all(name in axis_of for name in reason.parameters):
            looked_at = {axis_of[name] for name in reason.parameters}
            joined = [group for group in groups if group & looked_at]
            groups = [group for group in groups if not group & looked_at]
            groups += [set().union(*joined)] if joined else []
    return sorted(tuple(sorted(group)) for group in groups)


def _first_reason(test: Test, axes: Sequence[int], rows: Sequence[int], reasons: Sequence[Reason]) -> int:
    values: dict[str, object] = {}
    for at, row in zip(axes, rows, strict=True):
        values.update(zip(test.axes[at].names, test.axes[at].rows[row], strict=True))
    return next((n for n, reason in enumerate(reasons) if reason.holds(values)), len(reasons))


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
