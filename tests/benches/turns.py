"""Two builds of the Python package, timed alternately case by case: what a change costs.

    python3 tests/benches/turns.py OLD NEW [--sets "dense;packed"] [--turns 6] [--again rows.json] [--json rows.json]

OLD and NEW are folders with a package `ferroflash`. Each is a process of its own on the same GPU, with the same inputs; a case is made in both, and
then they are timed in turn, old new new old, so that clocks and temperature are nearly the same for both. Medians count. The mean over all cases repeats to
half a percent; a single case may be 5 % off, and `--again` repeats the slowest of a run with more turns. Ratios are old / new: above 1 the new build is
faster.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from typing import Any

LENGTHS = [7271, 742, 1337, 1638, 76, 1347, 3168, 147, 658]
TOKENS, WIDTH = 16384, 2048
# Time of one measurement.
MEASURED_MS = 12.0


def cases() -> list[tuple[str, dict[str, Any]]]:
    """The record's main tables: the papers' shapes, and what differs from them in one way each."""
    made: list[tuple[str, dict[str, Any]]] = []
    for backward in (False, True):
        for d in (64, 128, 256):
            for causal in (False, True):
                for s in (512, 1024, 2048, 4096, 8192, 16384):
                    made.append(("dense", {"d": d, "h": WIDTH // d, "b": TOKENS // s, "s": s, "causal": causal, "backward": backward}))
        for d in (64, 128):
            base = {"d": d, "h": WIDTH // d, "b": 4, "s": 4096, "causal": True, "backward": backward}
            packed = base | {"lengths": LENGTHS}
            made += [("packed", packed), ("packed", packed | {"causal": False})]
            made.append(("window", base | {"b": 2, "s": 8192, "window_size": (1024, 0)}))
            made += [("soft cap", base | {"softcap": 30.0}), ("ALiBi", base | {"alibi": True})]
            made += [("dropout", base | {"dropout_p": 0.1}), ("dropout, packed", packed | {"dropout_p": 0.1})]
            made += [("grouped heads", base | {"hk": 512 // d}), ("f16", base | {"f16": True})]
        for d in (96, 160, 192):
            for causal in (False, True):
                made.append(("other head_dims", {"d": d, "h": 16, "b": 4, "s": 4096, "causal": causal, "backward": backward}))
    for b, n in ((8, 8192), (64, 1024), (64, 8192), (8, 32768)):
        for h in (32, 64):
            decode = {"d": 128, "b": b, "h": h, "hk": 8, "n": n, "queries": 1}
            made += [("decode", decode), ("decode, pages", decode | {"page_size": 64})]
        made.append(("16 queries, pages", {"d": 128, "b": b, "h": 32, "hk": 8, "n": n, "queries": 16, "page_size": 64}))
        made.append(("MLA, pages", {"b": b, "n": n, "mla": True}))
    return made


def call_of(case: dict[str, Any]) -> Any:
    """A call that runs a case, on inputs made here."""
    import torch
    from ferroflash import flash_attn_interface as flash
    from ferroflash import flash_mla

    dtype = torch.float16 if case.get("f16") else torch.bfloat16

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def forward(call: Any) -> Any:
        def run() -> None:
            with torch.no_grad():
                call()

        return run

    b = case["b"]
    if "n" in case:
        n, size = case["n"], case.get("page_size", 64)
        lens = torch.full((b,), n, device="cuda", dtype=torch.int32)
        table = torch.randperm(b * (n // size), device="cuda").int().view(b, n // size)
        if case.get("mla"):
            q, kv = normal(b, 1, 128, 576), normal(table.numel(), size, 1, 576)
            return forward(lambda: flash_mla.flash_mla_with_kvcache(q, kv, table, lens, 512))
        shape = (table.numel(), size) if "page_size" in case else (b, n)
        k, v = normal(*shape, case["hk"], case["d"]), normal(*shape, case["hk"], case["d"])
        q = normal(b, case["queries"], case["h"], case["d"])
        options = {"cache_seqlens": lens, "causal": case["queries"] > 1}
        if "page_size" in case:
            options["block_table"] = table
        return forward(lambda: flash.flash_attn_with_kvcache(q, k, v, **options))
    h, d = case["h"], case["d"]
    options = {name: case[name] for name in ("causal", "window_size", "softcap", "dropout_p") if name in case}
    options["deterministic"] = True
    if case.get("alibi"):
        options["alibi_slopes"] = torch.rand(h, device="cuda") * 0.5
    rows = (sum(case["lengths"]),) if "lengths" in case else (b, case["s"])
    q, k, v = (normal(*rows, heads, d) for heads in (h, case.get("hk", h), case.get("hk", h)))
    if "lengths" in case:
        ends = torch.tensor([0, *case["lengths"]], device="cuda").cumsum(0).int()
        most = max(case["lengths"])

        def attend() -> Any:
            return flash.flash_attn_varlen_func(q, k, v, ends, ends, most, most, **options)
    else:

        def attend() -> Any:
            return flash.flash_attn_func(q, k, v, **options)

    if not case["backward"]:
        return forward(attend)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    o = attend()
    d_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)


def serve() -> None:
    """What a build's process does: makes cases and times them, as it is told line by line."""
    import torch

    told, sys.stdout = sys.stdout, sys.stderr
    torch.manual_seed(0)
    call: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if "case" in asked:
                call = None
                torch.cuda.empty_cache()
                call = call_of(asked["case"]) if asked["case"] else None
            else:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                for at in range(asked["n"] + 2):
                    if at == 2:
                        begin.record()
                    call()
                end.record()
                torch.cuda.synchronize()
                answer["ms"] = begin.elapsed_time(end) / asked["n"]
        except Exception as error:
            answer["error"] = repr(error)[:300]
        told.write(json.dumps(answer) + "\n")
        told.flush()


class Build:
    """A build's process."""

    def __init__(self, folder: str) -> None:
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, os.path.abspath(__file__), "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process has ended"}


def measured(builds: list[Build], case: dict[str, Any], turns: int) -> list[float] | str:
    """Medians of both builds' times, in ms; or what went wrong."""
    for build in builds:
        if "error" in (answer := build.ask(case=case)):
            return str(answer["error"])
    first = [build.ask(n=3) for build in builds]
    if errors := [answer["error"] for answer in first if "error" in answer]:
        return str(errors[0])
    n = max(3, min(60, int(MEASURED_MS / first[0]["ms"])))
    times: list[list[float]] = [[], []]
    for turn in range(turns):
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            times[at].append(builds[at].ask(n=n)["ms"])
    for build in builds:
        build.ask(case=None)
    return [statistics.median(of_build) for of_build in times]


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        return serve()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--sets", help="some sets, separated by semicolons; unless given, all")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--again", help="rows of a run, of which the 30 slowest cases run again")
    parser.add_argument("--json", help="where the rows go")
    a = parser.parse_args()
    chosen = [case for case in cases() if a.sets is None or case[0] in a.sets.split(";")]
    if a.again:
        with open(a.again) as file:
            chosen = [(row["set"], row["case"]) for row in json.load(file)[:30]]
    random.Random(7).shuffle(chosen)
    builds = [Build(a.old), Build(a.new)]
    rows = []
    for name, case in chosen:
        outcome = measured(builds, case, a.turns)
        if isinstance(outcome, str):
            print(f"{name} {case}: {outcome}", flush=True)
            continue
        rows.append({"set": name, "case": case, "old_ms": outcome[0], "new_ms": outcome[1], "ratio": outcome[0] / outcome[1]})
    rows.sort(key=lambda row: row["ratio"])
    for name in dict.fromkeys(name for name, _ in cases()):
        if ratios := [row["ratio"] for row in rows if row["set"] == name]:
            print(f"{name}: {len(ratios)} cases, mean {mean(ratios):.4f}, least {ratios[0]:.4f}, most {ratios[-1]:.4f}")
    print(f"all: {len(rows)} cases, mean {mean([row['ratio'] for row in rows]):.4f}")
    for row in rows[:20]:
        print(f"{row['ratio']:.4f} {row['set']} {row['case']}: {row['old_ms']:.4f} and {row['new_ms']:.4f} ms")
    if a.json:
        with open(a.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
