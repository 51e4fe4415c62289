"""Registers, spills, stack and instructions of every compiled module, before and after a change, by ptxas: one table.

    git archive OLD host/ptx/modules | tar x -C /tmp/old
    python3 tests/benches/modules.py /tmp/old/host/ptx/modules host/ptx/modules table.tsv [--rename backward_dq_sm=backward_postprocess_sm]

Each module is assembled without any constant and with those of a causal mask over sequences of different lengths. Cells are one number where both are alike, else
"old → new". Needs `ptxas` and `cuobjdump` on the PATH; with 16 cores it takes a minute. Prints the modules that got more registers, spills or stack, or 2 % more
instructions, and the sums.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

SPECS = {"plain": set(), "causal, lengths": {"right_bound", "lengths"}}
COLUMNS = ["registers", "stack", "spill stores", "spill loads", "instructions"]
# What one cell may grow by before a row is worse: instructions by 2 %, nothing else at all.
ALLOWED = [1.0, 1.0, 1.0, 1.0, 1.02]

Key = tuple[str, str, str]


def ptx(path: Path, constants: set[str]) -> str:
    """A module's text with its constants filled in, and no expression in it."""
    text = zlib.decompress(path.read_bytes(), -15).decode()
    text = re.sub(r"ferroflash_spec_(\w+)", lambda found: "1" if found[1] in constants else "0", text)
    return re.sub(r"(?m)^.*ferroflash_score.*$", "", text)


def measure(path: Path, arch: str, spec: str) -> list[int] | str:
    """The columns; what ptxas says where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "x.ptx"), Path(folder, "x.cubin")
        source.write_text(ptx(path, SPECS[spec]))
        done = subprocess.run(["ptxas", "-arch", arch, "-v", source, "-o", cubin], capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[-1]
        registers = re.search(r"Used (\d+) registers", done.stderr)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        assert registers and frame
        sass = subprocess.run(["cuobjdump", "-sass", cubin], capture_output=True, text=True, check=True).stdout
        instructions = re.findall(r"(?m)^\s+/\*[0-9a-f]{4,}\*/\s+(?!NOP)\S", sass)
        return [int(registers[1]), *map(int, frame.groups()), len(instructions)]


def measured(folder: Path, renamed: list[tuple[str, str]]) -> dict[Key, list[int] | str]:
    """The columns of all modules of a folder, by architecture, name and constants."""
    jobs: dict[Key, tuple[Path, str, str]] = {}
    for path in sorted(folder.glob("sm_*/*.deflate")):
        arch, name = path.parent.name, path.stem
        for old, new in renamed:
            name = name.replace(old, new)
        for spec in SPECS:
            jobs[arch, name, spec] = path, arch, spec
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(jobs, pool.map(lambda job: measure(*job), jobs.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a folder with a folder of modules for each architecture")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("table", type=Path, help="the table to write: tab-separated")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="a part of names that has changed")
    a = parser.parse_args()
    renamed = [tuple(rename.split("=", 1)) for rename in a.rename]
    old, new = measured(a.old, renamed), measured(a.new, [])
    lines, worse, both = ["\t".join(["arch", "module", "constants", *COLUMNS])], 0, []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key, "absent"), new.get(key, "absent")
        if isinstance(before, str) or isinstance(after, str):
            lines.append("\t".join([*key, f"{before} → {after}"]))
            print(*key, f"{before} → {after}")
            continue
        cells = [str(x) if x == y else f"{x} → {y}" for x, y in zip(before, after)]
        lines.append("\t".join([*key, *cells]))
        both.append((before, after))
        if any(y > allowed * x for x, y, allowed in zip(before, after, ALLOWED)):
            worse += 1
            print("worse:", *key, ", ".join(cells))
    a.table.write_text("\n".join(lines) + "\n")
    sums = [f"{name} {sum(x[i] for x, _ in both)} → {sum(y[i] for _, y in both)}" for i, name in enumerate(COLUMNS) if i > 1]
    print(f"{len(both)} rows, {sum(x == y for x, y in both)} alike, {worse} worse; sums: {', '.join(sums)}")


if __name__ == "__main__":
    main()
