#!/usr/bin/env python3
"""Runs FlashAttention's own tests, unchanged, on ferroflash's functions.

    python tests/exam/run.py --checkout FOLDER [--suite fa2,fa3] [--sample 800] [--seed 1] [--seconds 60] [--jobs 8] [--kernels FOLDER]

FOLDER is a checkout of https://github.com/Dao-AILab/flash-attention; nothing is written there. Each suite is one of its files and
runs in a process of its own, or in `--jobs` that share its cases out. Compiled kernels are kept in the folder `--kernels`, so that
no process waits for what another has compiled. Cases that ask for what the library lacks are left out, by reason and counted; with `--sample`
that many of the others run, spread over the tests and drawn by `--seed`. Prints for each suite how many cases were selected,
ran, passed, failed and skipped themselves. The exit status is 1 where a case failed or a process ended early.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTCOMES = ("passed", "failed", "skipped")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from exam import modules  # noqa: E402


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", required=True, type=Path, help="a checkout of flash-attention")
    parser.add_argument("--suite", default=",".join(modules.FILES), help=f"of {', '.join(modules.FILES)}; all")
    parser.add_argument("--sample", type=int, help="cases of each suite; without, all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the order")
    parser.add_argument("--seconds", type=float, help="how long each suite may run; the case that runs then ends first")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run a suite at once, on one GPU")
    parser.add_argument("--kernels", type=Path, help="folder for compiled kernels, kept for later runs")
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    parser.add_argument("--record", type=Path, help="folder for a file of JSON lines for each suite: the plan, then the cases")
    parser.add_argument("--junit", type=Path, help="folder for a JUnit file for each suite")
    parser.add_argument("--original", action="store_true", help="on FlashAttention's own functions, as installed: to compare")
    parser.add_argument("--collect-only", action="store_true", help="count; runs nothing and needs no GPU")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs: {given.jobs} was given; needed: 1 at least")
    given.suite = given.suite.split(",")
    for suite in given.suite:
        if suite not in modules.FILES:
            parser.error(f"--suite: {suite} was given; allowed: {', '.join(modules.FILES)}")
        if not (given.checkout / modules.FILES[suite]).is_file():
            parser.error(f"--checkout: {given.checkout} has no {modules.FILES[suite]}")
    return given


def command(given: argparse.Namespace, suite: str, record: Path, *options: str) -> list[str]:
    """pytest on a suite's file. Settings of the checkout, caches and other plugins stay out."""
    checkout = given.checkout.resolve()
    line = [sys.executable, "-m", "pytest", "-p", "exam.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    line += [f"--rootdir={checkout}", "-q", "--tb=short", "--no-header"]
    line += [f"--exam-suite={suite}", f"--exam-checkout={checkout}", f"--exam-record={record}"]
    line += [f"--exam-seed={given.seed}", f"--exam-match={given.match}", *options]
    if given.sample is not None:
        line.append(f"--exam-sample={given.sample}")
    if given.seconds is not None:
        line.append(f"--exam-seconds={given.seconds}")
    if given.junit is not None:
        given.junit.mkdir(parents=True, exist_ok=True)
        line.append(f"--junitxml={given.junit.resolve() / record.stem}.xml")
    if given.kernels is not None:
        line.append(f"--exam-kernels={given.kernels.resolve()}")
    if given.original:
        line.append("--exam-original")
    if given.collect_only:
        line += ["--collect-only", "-qq"]
    return [*line, str(checkout / modules.FILES[suite])]


def run(given: argparse.Namespace, suite: str, folder: Path) -> bool:
    """Runs a suite and prints what came out; whether nothing failed."""
    began = time.monotonic()
    if given.jobs == 1:
        head, cases, ended = examine(given, suite, [(folder / f"{suite}.jsonl", ())])
    else:
        parts = [(f"--exam-jobs={given.jobs}", f"--exam-job={job}") for job in range(given.jobs)]
        head, cases, ended = examine(given, suite, [(folder / f"{suite}-{job}.jsonl", part) for job, part in enumerate(parts)])
        # Some cases want half of a GPU's memory, which the other jobs have.
        out_of_memory = [case["case"] for case in cases if "OutOfMemoryError" in case.get("message", "")]
        if out_of_memory:
            named = folder / f"{suite}-alone.cases"
            named.write_text("\n".join(out_of_memory))
            _, again, ended_again = examine(given, suite, [(folder / f"{suite}-alone.jsonl", (f"--exam-cases={named}",))])
            ran_again = {case["case"] for case in again}
            cases = [case for case in cases if case["case"] not in ran_again] + again
            ended = ended and ended_again
        lines = [head, *cases] if head else []
        (folder / f"{suite}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not head:
        return False
    summary = Summary([head, *cases], time.monotonic() - began)
    print(summary.text(suite), flush=True)
    return ended and summary.outcomes["failed"] == 0


def examine(given: argparse.Namespace, suite: str, jobs: list[tuple[Path, tuple[str, ...]]]) -> tuple[dict, list[dict], bool]:
    """Runs processes at once, each with its record and its options: the plan, the cases, and whether every process ended as it should."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    running = []
    with contextlib.ExitStack() as files:
        for record, options in jobs:
            record.unlink(missing_ok=True)
            # What processes beside one another say would be mixed on a terminal.
            output = None if given.jobs == 1 else files.enter_context(record.with_suffix(".txt").open("w"))
            output = subprocess.DEVNULL if given.collect_only else output
            line = command(given, suite, record, *options)
            running.append(subprocess.Popen(line, env=environment, stdout=output, stderr=output))
        statuses = [process.wait() for process in running]
    head: dict = {}
    cases: list[dict] = []
    ended = True
    for status, (record, _) in zip(statuses, jobs, strict=True):
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        if not lines:
            print(f"{record.stem}: pytest ended with {status} before it had a plan", flush=True)
            ended = False
            continue
        # Every process plans the whole suite, and runs its part.
        head = lines[0]
        cases += lines[1:]
        # 0: all passed, 1: some failed, 2: stopped by the time limit, 5: nothing to run. Otherwise the process died, or could
        # not import the file.
        if status not in (0, 1, 2, 5) or (status == 2 and given.seconds is None):
            print(f"{record.stem}: pytest ended with {status}", flush=True)
            ended = False
    return head, cases, ended


class Summary:
    """A record, counted; `seconds` are those of the clock, the start of the processes included."""

    def __init__(self, lines: list[dict], seconds: float) -> None:
        head, *cases = lines
        self.tests = head["plan"]
        self.deselected = collections.Counter()
        for test in self.tests.values():
            self.deselected.update(test["deselected"])
        self.outcomes = collections.Counter(case["outcome"] for case in cases)
        self.by_test = collections.defaultdict(collections.Counter)
        for case in cases:
            self.by_test[case["case"].partition("[")[0]][case["outcome"]] += 1
        self.seconds = seconds
        self.failures = [case["case"] for case in cases if case["outcome"] == "failed"]

    def total(self, key: str) -> int:
        """Of all tests."""
        return sum(test[key] for test in self.tests.values())

    def text(self, suite: str) -> str:
        """A line for the suite, its tests, and the reasons."""
        ran = sum(self.outcomes.values())
        passed, failed, skipped = (self.outcomes[outcome] for outcome in OUTCOMES)
        lines = [
            f"{suite}: {self.total('total')} cases, {self.total('selected')} selected, {self.total('chosen')} in the "
            f"sample, {ran} ran in {self.seconds:.0f} s ({ran / self.seconds * 60:.0f} a minute): {passed} passed, {failed} failed, {skipped} skipped themselves"
        ]
        rows = [("test", "cases", "selected", "sample", *OUTCOMES)]
        for name, test in self.tests.items():
            counts = [test["total"], test["selected"], test["chosen"], *(self.by_test[name][o] for o in OUTCOMES)]
            rows.append((name, *map(str, counts)))
        lines += table(rows)
        reasons = [(reason, str(count)) for reason, count in self.deselected.most_common()]
        lines += table([("deselected", "cases"), *reasons])
        lines += [f"  failed: {case}" for case in self.failures]
        return "\n".join(lines)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  " + "  ".join(cells))
    return lines


def main() -> int:
    """The command."""
    given = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if given.record is None else given.record.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        # Not all(generator): every suite runs, whatever the others do.
        passed = [run(given, suite, folder) for suite in given.suite]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
