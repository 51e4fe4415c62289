#!/usr/bin/env python3
"""Runs FlashAttention's own tests, unchanged, on ferroflash's functions.

    python tests/exam/run.py --checkout FOLDER [--suite fa2,fa3] [--sample 800] [--seed 1] [--seconds 60]

FOLDER is a checkout of https://github.com/Dao-AILab/flash-attention; nothing is written there. Each suite is one of its files and
runs in a process of its own. Cases that ask for what the library lacks are left out, by reason and counted; with `--sample`
that many of the others run, spread over the tests and drawn by `--seed`. Prints for each suite how many cases were selected,
ran, passed, failed and skipped themselves. The exit status is 1 where a case failed or a process ended early.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
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
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    parser.add_argument("--record", type=Path, help="folder for a file of JSON lines for each suite: the plan, then the cases")
    parser.add_argument("--junit", type=Path, help="folder for a JUnit file for each suite")
    parser.add_argument("--original", action="store_true", help="on FlashAttention's own functions, as installed: to compare")
    parser.add_argument("--collect-only", action="store_true", help="count; runs nothing and needs no GPU")
    given = parser.parse_args()
    given.suite = given.suite.split(",")
    for suite in given.suite:
        if suite not in modules.FILES:
            parser.error(f"--suite: {suite} was given; allowed: {', '.join(modules.FILES)}")
        if not (given.checkout / modules.FILES[suite]).is_file():
            parser.error(f"--checkout: {given.checkout} has no {modules.FILES[suite]}")
    return given


def command(given: argparse.Namespace, suite: str, record: Path) -> list[str]:
    """pytest on a suite's file. Settings of the checkout, caches and other plugins stay out."""
    checkout = given.checkout.resolve()
    line = [sys.executable, "-m", "pytest", "-p", "exam.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    line += [f"--rootdir={checkout}", "-q", "--tb=short", "--no-header"]
    line += [f"--exam-suite={suite}", f"--exam-checkout={checkout}", f"--exam-record={record}"]
    line += [f"--exam-seed={given.seed}", f"--exam-match={given.match}"]
    if given.sample is not None:
        line.append(f"--exam-sample={given.sample}")
    if given.seconds is not None:
        line.append(f"--exam-seconds={given.seconds}")
    if given.junit is not None:
        given.junit.mkdir(parents=True, exist_ok=True)
        line.append(f"--junitxml={given.junit.resolve() / suite}.xml")
    if given.original:
        line.append("--exam-original")
    if given.collect_only:
        line += ["--collect-only", "-qq"]
    return [*line, str(checkout / modules.FILES[suite])]


def run(given: argparse.Namespace, suite: str, folder: Path) -> bool:
    """Runs a suite and prints what came out; whether nothing failed."""
    record = folder / f"{suite}.jsonl"
    record.unlink(missing_ok=True)
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    output = subprocess.DEVNULL if given.collect_only else None
    status = subprocess.run(command(given, suite, record), env=environment, stdout=output).returncode
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    if not lines:
        print(f"{suite}: pytest ended with {status} before it had a plan", flush=True)
        return False
    summary = Summary(lines)
    print(summary.text(suite), flush=True)
    # 0: all passed, 1: some failed, 2: stopped by the time limit, 5: nothing to run. Otherwise the process died, or could
    # not import the file.
    if status not in (0, 1, 2, 5) or (status == 2 and given.seconds is None):
        print(f"{suite}: pytest ended with {status}")
        return False
    return summary.outcomes["failed"] == 0


class Summary:
    """A record, counted."""

    def __init__(self, lines: list[dict]) -> None:
        head, *cases = lines
        self.tests = head["plan"]
        self.deselected = collections.Counter()
        for test in self.tests.values():
            self.deselected.update(test["deselected"])
        self.outcomes = collections.Counter(case["outcome"] for case in cases)
        self.by_test = collections.defaultdict(collections.Counter)
        for case in cases:
            self.by_test[case["case"].partition("[")[0]][case["outcome"]] += 1
        self.seconds = sum(case["seconds"] for case in cases)
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
            f"sample, {ran} ran in {self.seconds:.0f} s: {passed} passed, {failed} failed, {skipped} skipped themselves"
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
