"""The exam's own logic: what is left out, how it is counted, and that a sample is drawn evenly and again."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import ferroflash
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from exam import plan, reasons, run

AXES = [
    plan.Axis(("dtype",), [("f16",), ("bf16",)], ["f16", "bf16"]),
    plan.Axis(("alibi",), [(False,), (True,)], ["False", "True"]),
    plan.Axis(("seqlen_q", "seqlen_k"), [(1, 2), (3, 4), (5, 6)], ["1-2", "3-4", "5-6"]),
    plan.Axis(("dropout_p",), [(0.0,), (0.17,)], ["0.0", "0.17"]),
]

RULES = [
    plan.Reason("dropout", "dropout_p", lambda p: p > 0),
    plan.Reason("ALiBi", "alibi"),
    plan.Reason("long", "seqlen_k", lambda n: n > 4, frozenset({"test_a"})),
    plan.Reason("private", tests=frozenset({"test_private"})),
]


def select(name: str = "test_a", axes: list[plan.Axis] = AXES) -> plan.Selection:
    return plan.select(plan.Test(name, axes), RULES)


def test_cases_count_for_their_first_reason() -> None:
    selection = select()
    assert selection.total == 24
    assert selection.deselected == {"dropout": 12, "ALiBi": 6, "long": 2}
    assert selection.selected == 4


def test_counting_agrees_with_asking_every_case() -> None:
    counts: dict[str, int] = {}
    for rows in itertools.product(*(axis.rows for axis in AXES)):
        values = {n: v for axis, row in zip(AXES, rows, strict=True) for n, v in zip(axis.names, row, strict=True)}
        first = next((r.text for r in RULES if r.parameter and r.lacks(values[r.parameter])), None)
        counts[first] = counts.get(first, 0) + 1
    selection = select()
    assert {**selection.deselected, None: selection.selected} == counts


def test_a_reason_looks_at_two_parameters() -> None:
    """As if every case were asked: the axes of both are one, others keep their order in the names of cases."""
    both = plan.Reason("both", ("seqlen_q", "alibi"), lambda seqlen_q, alibi: alibi and seqlen_q < 5)
    missing = plan.Reason("missing", ("alibi", "nobody"), lambda *_: True)
    rules = [both, missing, *RULES[:1]]
    selection = plan.select(plan.Test("test_a", AXES), rules)
    assert selection.deselected == {"both": 8, "dropout": 8}
    assert selection.selected == 8
    cases = [selection.case(number) for number in range(8)]
    names = {
        f"{t}-{a}-{n}-0.0" for t in ("f16", "bf16") for a, n in (("False", "1-2"), ("False", "3-4"), ("False", "5-6"), ("True", "5-6"))
    }
    assert {name for _, name in cases} == names
    assert all(f"{values['dtype']}-{values['alibi']}-{values['seqlen_q']}" == name[: -len("-2-0.0")] for values, name in cases)


def test_a_reason_for_one_test_leaves_others_alone() -> None:
    assert "long" not in select("test_b").deselected


def test_a_reason_for_a_whole_test_leaves_nothing() -> None:
    selection = select("test_private")
    assert selection.deselected == {"dropout": 12, "ALiBi": 6, "private": 6}
    assert selection.selected == 0


@pytest.mark.parametrize(("name", "selected"), [("test_a", 1), ("test_private", 0)])
def test_a_test_without_parameters_is_one_case(name: str, selected: int) -> None:
    selection = select(name, [])
    assert (selection.total, selection.selected) == (1, selected)


def test_every_number_is_another_case_and_each_is_allowed() -> None:
    selection = select()
    cases = [selection.case(number) for number in range(selection.selected)]
    assert len({name for _, name in cases}) == selection.selected
    assert all(values["dropout_p"] == 0 and not values["alibi"] and values["seqlen_k"] <= 4 for values, _ in cases)
    assert {name for _, name in cases} == {f"{t}-False-{n}-0.0" for t in ("f16", "bf16") for n in ("1-2", "3-4")}


def selections(*sizes: int) -> list[plan.Selection]:
    axes = [[plan.Axis(("n",), [(n,) for n in range(size)], list(map(str, range(size))))] for size in sizes]
    return [plan.select(plan.Test(f"test_{n}", axis), RULES) for n, axis in enumerate(axes)]


def test_without_a_sample_everything_runs() -> None:
    all_of = selections(3, 50)
    plan.sample(all_of, None, 1, {"test_1": 2})
    assert [len(s.chosen) for s in all_of] == [3, 50]


@pytest.mark.parametrize(
    ("sizes", "count", "at_most", "expected"),
    [
        ((3, 50, 50), 43, {}, [3, 20, 20]),
        ((3, 50, 50), 43, {"test_1": 5}, [3, 5, 35]),
        ((3, 50, 0), 1000, {}, [3, 50, 0]),
        ((10, 10), 0, {}, [0, 0]),
    ],
)
def test_a_sample_is_spread_evenly(sizes: tuple, count: int, at_most: dict, expected: list) -> None:
    drawn = selections(*sizes)
    plan.sample(drawn, count, 1, at_most)
    assert [len(s.chosen) for s in drawn] == expected
    assert all(len(set(s.chosen)) == len(s.chosen) for s in drawn)


def test_a_seed_repeats_its_sample_and_another_draws_another() -> None:
    drawn = []
    for seed in (1, 1, 2):
        (selection,) = selections(1000)
        plan.sample([selection], 20, seed, {})
        drawn.append(selection.chosen)
    assert drawn[0] == drawn[1] != drawn[2]


class Named:
    __name__ = "bfloat"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, "0.5"), (None, "None"), (True, "True"), ("mha", "mha"), (Named(), "bfloat"), ([], "x3")],
)
def test_values_are_called_as_pytest_calls_them(value: object, expected: str) -> None:
    assert plan.id_of("x", value, 3) == expected


@pytest.mark.parametrize("suite", ["fa2", "fa3", "fa4-varlen", "fa4"])
def test_reasons_leave_a_plain_case_alone(suite: str) -> None:
    plain = {"dropout_p": 0.0, "softcap": 0.0, "alibi": False, "dtype": "torch.bfloat16", "d": 96, "local_enum": 1}
    plain |= {"has_leftpad": True, "page_size": 128, "paged_kv_block_size": 256, "new_kv": True}
    plain |= {"has_qv": False, "rotary_fraction": 0.5, "has_batch_idx": True}
    axes = [plan.Axis((name,), [(value,)], [str(value)]) for name, value in plain.items()]
    assert plan.select(plan.Test("test_flash_attn_output", axes), reasons.reasons(suite)).selected == 1


@pytest.mark.parametrize(
    ("suite", "parameter", "values", "kept"),
    [
        ("fa2", "dropout_p", (0.0, 0.17), 1),
        ("fa2", "softcap", (0.0, 50.0), 2),
        ("fa2", "alibi", (False, True), 2),
        ("fa4", "softcap", (0.0, 15.0), 2),
        ("fa3", "dtype", ("torch.float16", "torch.float8_e4m3fn"), 1),
        ("fa2", "paged_kv_block_size", (None, 256, 512), 3),
        ("fa3", "page_size", (None, 1, 4, 128), 4),
        ("fa3", "d", (64, 96, 128, 192, 256), 3),
        ("fa4", "d", (64, 96, 128, 192, 256), 3),
        ("fa2", "d", (32, 59, 192, 256), 4),
        ("fa4", "local_enum", (0, 1, 2, 3), 2),
        ("fa2", "local", (False, True), 2),
        ("fa2", "has_leftpad", (False, True), 2),
    ],
)
def test_reasons_look_at_values(suite: str, parameter: str, values: tuple, kept: int) -> None:
    axis = plan.Axis((parameter,), [(value,) for value in values], list(map(str, values)))
    selection = plan.select(plan.Test("test_flash_attn_output", [axis]), reasons.reasons(suite))
    assert selection.selected == kept


def test_a_summary_counts_a_record() -> None:
    tests = {
        "test_a": {"total": 9, "deselected": {"dropout": 5}, "selected": 4, "chosen": 3},
        "test_b": {"total": 2, "deselected": {"dropout": 1, "fp8": 1}, "selected": 0, "chosen": 0},
    }
    cases = [
        {"case": "test_a[1-2]", "outcome": "passed", "seconds": 1.0},
        {"case": "test_a[3-4]", "outcome": "failed", "seconds": 1.0, "message": "assert"},
        {"case": "test_a[5-6]", "outcome": "skipped", "seconds": 0.0, "message": ""},
    ]
    text = run.Summary([{"plan": tests}, *cases], 2.0).text("fa2")
    head, *rest = text.splitlines()
    assert head == ("fa2: 11 cases, 4 selected, 3 in the sample, 3 ran in 2 s (90 a minute): 1 passed, 1 failed, 1 skipped themselves")
    rows = [line.split() for line in rest]
    assert ["test_a", "9", "4", "3", "1", "1", "1"] in rows
    assert ["dropout", "6"] in rows
    assert ["failed:", "test_a[3-4]"] in rows


FILE = """
import os

import pytest
import torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import HELPER
from flash_attn.flash_attn_interface import USE_TRITON_ROCM, _get_block_size_n


@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("d", [32, 64])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(3, 5), (7, 4), (1, 1)])
def test_output(seqlen_q, seqlen_k, d, dropout_p):
    if seqlen_q == 1:
        pytest.skip("too short")
    if "OUT_OF_MEMORY_ONCE" in os.environ and (d, seqlen_q) == (32, 7):
        mark = os.environ["OUT_OF_MEMORY_ONCE"]
        if not os.path.exists(mark):
            open(mark, "w").close()
            raise torch.OutOfMemoryError("the other jobs have it")
    q, k = torch.randn(1, seqlen_q, 2, d), torch.randn(1, seqlen_k, 2, d)
    assert flash_attn_func(q, k, k, dropout_p).shape == q.shape
    assert (d, seqlen_q) != (64, 3), "planted"


def test_private():
    _get_block_size_n()


def test_flash_attn_generator_arg_must_be_none():
    raise AssertionError("left out")
"""


OUTCOMES = {
    "test_output[3-5-32-0.0]": "passed",
    "test_output[3-5-64-0.0]": "failed",
    "test_output[7-4-32-0.0]": "passed",
    "test_output[7-4-64-0.0]": "passed",
    "test_output[1-1-32-0.0]": "skipped",
    "test_output[1-1-64-0.0]": "skipped",
    "test_private": "failed",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one file of tests and one helper, as flash-attention has them."""
    pytest.importorskip("torch", reason="[not run] no torch")
    (tmp_path / "tests").mkdir()
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(FILE)
    (tmp_path / "flash_attn" / "bert_padding.py").write_text("HELPER = 1\n")
    return tmp_path


def examine(checkout: Path, *options: str) -> tuple[int, str, list[dict]]:
    record = checkout / "record"
    line = [sys.executable, run.__file__, "--checkout", checkout, "--suite", "fa2", "--record", record, *options]
    # The package that is tested: from a wheel, or from the sources.
    package = Path(ferroflash.__file__).resolve().parent.parent
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    lines = (record / "fa2.jsonl").read_text().splitlines()
    return done.returncode, done.stdout, [json.loads(line) for line in lines]


def test_a_file_of_tests_is_examined(checkout: Path) -> None:
    status, text, (head, *cases) = examine(checkout)
    assert status == 1
    assert "14 cases, 7 selected, 7 in the sample, 7 ran" in text
    outcomes = {case["case"]: case["outcome"] for case in cases}
    assert outcomes == OUTCOMES
    messages = {case["case"]: case.get("message", "") for case in cases}
    assert "planted" in messages["test_output[3-5-64-0.0]"]
    assert "too short" in messages["test_output[1-1-32-0.0]"]
    assert "_get_block_size_n is private to FlashAttention" in messages["test_private"]
    assert head["plan"]["test_output"]["deselected"] == {"dropout": 6}
    assert not list(checkout.rglob("__pycache__"))


def test_a_sample_of_a_file(checkout: Path) -> None:
    *_, (head, *cases) = examine(checkout, "--sample", "3", "--seed", "4")
    assert len(cases) == 3 and {case["case"] for case in cases} >= {"test_private"}
    assert head["seed"] == 4


def test_jobs_share_the_cases_and_one_that_found_no_memory_runs_again_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT_OF_MEMORY_ONCE", str(checkout / "mark"))
    kernels = checkout / "kernels"
    status, text, (_, *cases) = examine(checkout, "--jobs", "2", "--kernels", str(kernels))
    assert status == 1 and "7 in the sample, 7 ran" in text
    assert {case["case"]: case["outcome"] for case in cases} == OUTCOMES
    assert kernels.is_dir()
    record = checkout / "record"
    assert sorted(path.name for path in record.glob("*.txt")) == ["fa2-0.txt", "fa2-1.txt", "fa2-alone.txt"]
    assert (checkout / "mark").exists()
    assert (record / "fa2-alone.cases").read_text() == "test_output[7-4-32-0.0]"


def test_counting_runs_nothing(checkout: Path) -> None:
    status, text, (_, *cases) = examine(checkout, "--collect-only")
    assert (status, cases) == (0, [])
    assert "14 cases, 7 selected" in text


def test_a_time_limit_ends_the_cases_that_match_early(checkout: Path) -> None:
    status, _, (_, *cases) = examine(checkout, "--seconds", "0", "--match", "7-4")
    assert (status, len(cases)) == (0, 1) and "7-4" in cases[0]["case"]


def test_a_checkout_without_the_file_is_named(tmp_path: Path) -> None:
    line = [sys.executable, run.__file__, "--checkout", tmp_path, "--suite", "fa2"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2 and "--checkout" in done.stderr
