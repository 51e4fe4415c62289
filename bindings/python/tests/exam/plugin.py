"""The pytest plugin of the exam: replaces modules, chooses cases while pytest collects, and writes down what came out.

Lines of JSON go to `--exam-record`: one with the plan, then one for each case when it has run, so that a process that dies
leaves what it did.
"""

from __future__ import annotations

import inspect
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import modules, plan, reasons


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exam")
    group.addoption("--exam-suite", choices=list(modules.FILES))
    group.addoption("--exam-checkout", type=Path)
    group.addoption("--exam-record", type=Path)
    group.addoption("--exam-sample", type=int)
    group.addoption("--exam-seed", type=int, default=0)
    group.addoption("--exam-seconds", type=float)
    group.addoption("--exam-match", default="")
    group.addoption("--exam-jobs", type=int, default=1)
    group.addoption("--exam-job", type=int, default=0)
    group.addoption("--exam-cases", type=Path)
    group.addoption("--exam-kernels")
    group.addoption("--exam-original", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.exam_suite:
        if config.option.collectonly:
            _pretend_hopper()
        modules.install(config.option.exam_suite, config.option.exam_checkout, config.option.exam_original)
        if config.option.exam_kernels:
            import ferroflash

            ferroflash.keep_kernels_in(config.option.exam_kernels)
        config.pluginmanager.register(Exam(config))


def _pretend_hopper() -> None:
    """The test files ask for the GPU's compute capability when they are imported; to count cases, 9.0 does without a GPU."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.get_device_capability = lambda device=None: (9, 0)


def _versions() -> dict[str, str]:
    import ferroflash
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"ferroflash": ferroflash.__version__, "torch": torch.__version__, "device": device}


class Exam:
    """The hooks, with the state of one run of one suite."""

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.option
        self.selections: dict[str, plan.Selection] = {}
        self.module: object = None
        self.record = open(config.option.exam_record, "w", encoding="utf-8")
        self.began = time.monotonic()
        self.outcome: dict[str, object] = {}

    def write(self, **line: object) -> None:
        """Appends to the record at once."""
        print(json.dumps(line), file=self.record, flush=True)

    def pytest_unconfigure(self) -> None:
        self.record.close()

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Module, name: str, obj: object) -> list | None:
        """Plans the whole file at its first name; a test of which nothing runs makes no item."""
        if not self.selections and isinstance(collector, pytest.Module):
            self.plan_module(collector.module)
        selection = self.selections.get(name)
        return [] if selection is not None and not selection.chosen else None

    def plan_module(self, module: object) -> None:
        """Selects and samples the cases of all tests of a file."""
        self.module = module
        rules = reasons.reasons(self.option.exam_suite)
        for name, function in vars(module).items():
            if name.startswith("test") and inspect.isfunction(function):
                self.selections[name] = plan.select(plan.Test(name, list(_axes(function))), rules)
        plan.sample(self.selections.values(), self.option.exam_sample, self.option.exam_seed, reasons.AT_MOST)
        tests = {
            name: {"total": s.total, "deselected": s.deselected, "selected": s.selected, "chosen": len(s.chosen)}
            for name, s in self.selections.items()
        }
        self.write(seed=self.option.exam_seed, sample=self.option.exam_sample, **_versions(), plan=tests)

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrises a test once, with its chosen cases, in place of its own marks."""
        selection = self.selections[metafunc.function.__name__]
        marks = metafunc.definition.own_markers
        marks[:] = [mark for mark in marks if mark.name != "parametrize"]
        names = [name for axis in selection.test.axes for name in axis.names]
        if names:
            cases = [selection.case(number) for number in selection.chosen]
            rows = [tuple(values[name] for name in names) for values, _ in cases]
            metafunc.parametrize(names, rows, ids=[case for _, case in cases])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffles, so that what runs before a time limit is a sample, too; keeps this job's part; and sets the file's switches."""
        items[:] = [item for item in items if self.option.exam_match in item.name]
        random.Random(self.option.exam_seed).shuffle(items)
        items[:] = items[self.option.exam_job :: self.option.exam_jobs]
        if self.option.exam_cases is not None:
            named = set(self.option.exam_cases.read_text().splitlines())
            items[:] = [item for item in items if item.name in named]
        for switch, value in reasons.SWITCHES.get(self.option.exam_suite, {}).items():
            if not hasattr(self.module, switch):
                raise pytest.UsageError(f"{self.module.__file__}: no switch {switch}; the exam knows another version")
            setattr(self.module, switch, value)

    # The run

    def pytest_collection_finish(self) -> None:
        self.began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A case is what its worst phase is: its fixtures count, too."""
        if report.when == "setup":
            self.outcome = {"outcome": "passed", "seconds": 0.0}
        self.outcome["seconds"] += report.duration
        if report.failed:
            self.outcome |= {"outcome": "failed", "message": _why_failed(report)}
        elif report.skipped:
            self.outcome |= {"outcome": "skipped", "message": _why_skipped(report)}
        if report.when == "teardown":
            self.write(case=report.nodeid.rpartition("::")[2], **self.outcome)

    def pytest_runtest_logfinish(self) -> None:
        if self.option.exam_jobs > 1:
            # Memory that this process keeps for its next case is not there for the others.
            import torch

            torch.cuda.empty_cache()
        limit = self.option.exam_seconds
        if limit is not None and time.monotonic() - self.began > limit:
            self.session.shouldstop = f"the time limit of {limit:g} s"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session


def _axes(function: object) -> Iterator[plan.Axis]:
    """The axes of a test, in pytest's order: the mark next to the function first."""
    for mark in getattr(function, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, rows = mark.args
        names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
        rows = [(row,) if len(names) == 1 else tuple(row) for row in rows]
        ids = mark.kwargs.get("ids")
        if ids is None:
            ids = ["-".join(map(plan.id_of, names, row, [n] * len(names))) for n, row in enumerate(rows)]
        yield plan.Axis(names, rows, list(ids))


def _why_failed(report: pytest.TestReport) -> str:
    """Where, and the beginning of what: the texts of failed assertions go on with whole tensors."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext[-1000:] if crash is None else f"{crash.path}:{crash.lineno}: {crash.message[:1000]}"


def _why_skipped(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
