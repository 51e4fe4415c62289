"""Steps of training with PyTorch's attention and with ferroflash's, in alternation in one process: needs a GPU.

    python benches/training.py                          # eager and compiled, three shapes
    python benches/training.py --shapes small:1x512     # a preset of examples/train_gpt.py: batch x seqlen

All models take some steps in each round, in shuffled order. Results are lines of JSON, medians of the rounds: milliseconds a step, and the host's part of
them, until all work is enqueued. Where the two are alike, the GPU waits for the host.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import train_gpt

# Steps of each model before any is timed: the first ones compile, and choose kernels.
WARM_UP = 8


def stepper(preset: train_gpt.Preset, attention: train_gpt.Attention, mode: str) -> Callable[[], None]:
    """Trains a model of its own by a step, always on the same bytes."""
    torch.manual_seed(0)
    model = train_gpt.Gpt(preset, attention).cuda()
    losses = torch.compile(model) if mode == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    rows = torch.randint(256, (preset.batch, preset.seqlen + 1), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = losses(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Milliseconds a step, and those until it was enqueued."""
    step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    enqueued = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps * 1e3, (enqueued - begun) / steps * 1e3


def compare(shape: str, mode: str, given: argparse.Namespace) -> None:
    name, _, sizes = shape.partition(":")
    batch, seqlen = map(int, sizes.split("x"))
    preset = replace(train_gpt.PRESETS[name], batch=batch, seqlen=seqlen)
    steppers = {of: stepper(preset, attention, mode) for of, attention in train_gpt.implementations("cuda").items()}
    for step in steppers.values():
        for _ in range(WARM_UP):
            step()
    rounds: dict[str, list[tuple[float, float]]] = {of: [] for of in steppers}
    for _ in range(given.rounds):
        for of in random.sample([*steppers], len(steppers)):
            rounds[of].append(timed(steppers[of], given.steps))
    for of, times in rounds.items():
        ms, host_ms = (round(statistics.median(column), 2) for column in zip(*times, strict=True))
        print(json.dumps({"shape": shape, "mode": mode, "attention": of, "ms": ms, "host_ms": host_ms}), flush=True)
    torch.compiler.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8, help="of each round")
    parser.add_argument("--shapes", nargs="+", default=["small:8x1024", "small:1x512", "llama:2x4096"])
    given = parser.parse_args()
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for mode in ("eager", "compiled"):
        for shape in given.shapes:
            compare(shape, mode, given)


if __name__ == "__main__":
    main()
