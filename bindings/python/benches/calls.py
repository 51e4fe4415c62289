"""What calls of attention cost beside other providers: the host's time of a call, and a training step's.

    python benches/calls.py host --rounds 50                # medians of single calls; on a machine without a GPU of their thread's time on the processor
    python benches/calls.py host --shapes 1x128x8x64        # batch, seqlen, heads, head_dim
    python benches/calls.py steps --rounds 9                # both passes, 16,384 tokens, head_dim 128, causal: medians of rounds

Providers run in shuffled order within each round. `fa4` is flash-attn-4, where it can be imported; `flash` and `cudnn` are backends of
`scaled_dot_product_attention`. Results are lines of JSON. Of `host`:

| provider | |
|---|---|
| nothing | an `autograd.Function` of Python that allocates what attention returns |
| kernels alone | our passes on addresses, into memory that is there |
| ferroflash, as fa3, as fa4 | `flash_attn_func` in the spelling of each interface |
| without the door | the same calls the way that calls go which are not plain |
| sdpa | `scaled_dot_product_attention`, its own choice of a backend, on tensors `[batch, heads, seqlen, head_dim]` |
| sdpa, transposed | with the four transpositions that a model needs around it |
| installed | sdpa with `ferroflash.install()`; on the processor, where SDPA does not ask for it, PyTorch's operator behind it |
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from ferroflash import _call, _door, _torch, fa3, flash_attn_func
from ferroflash import fa4 as spelled_as_fa4
from ferroflash import sdpa as sdpa_module
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HEAD_DIM = 16, 128

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flash_attn_func(q, k, v, causal=True)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Nothing(torch.autograd.Function):
    """The machinery of PyTorch around both passes alone: allocates what attention returns and computes nothing."""

    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@torch.library.custom_op("ferroflash_benches::nothing", mutates_args=())
def empty_operator(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What PyTorch's dispatch of an operator written in Python costs: allocates what attention returns and computes nothing."""
    return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


empty_operator.register_autograd(
    lambda ctx, d_o, d_lse: tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


def providers() -> dict[str, tuple[Attention, Callable[[], AbstractContextManager]]]:
    """Each with the context that it is called in, which is not timed."""
    found: dict[str, tuple[Attention, Callable[[], AbstractContextManager]]] = {
        "ferroflash": (ours, nullcontext),
        "cudnn": (sdpa, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)),
        "flash": (sdpa, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
    }
    try:
        from flash_attn.cute.interface import flash_attn_func as fa4
    except ImportError:
        return found
    found["fa4"] = (lambda q, k, v: fa4(q, k, v, causal=True)[0], nullcontext)
    return found


def shuffled(rows: dict) -> list:
    return random.sample([*rows.items()], len(rows))


def tensors(batch: int, seqlen: int, heads: int = HEADS, head_dim: int = HEAD_DIM, device: str = "cuda") -> tuple[list[Tensor], Tensor]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v, d_o = (torch.randn(batch, seqlen, heads, head_dim, device=device, dtype=dtype) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v)], d_o


def median_us(call: Callable[[], object], device: str, n: int = 200) -> float:
    """Of single calls, with the device let catch up now and then."""
    catch_up = torch.cuda.synchronize if device == "cuda" else lambda: None
    # On the processor kernels run on threads of their own, or not: that is not the call's.
    clock = time.perf_counter_ns if device == "cuda" else time.thread_time_ns
    for _ in range(20):
        call()
    catch_up()
    times = []
    for at in range(n):
        begin = clock()
        call()
        times.append(clock() - begin)
        if at % 20 == 0:
            catch_up()
    return statistics.median(times) / 1000


@contextmanager
def without_the_door() -> Iterator[None]:
    before, _torch.DOOR = _torch.DOOR, _door._Closed()
    try:
        yield
    finally:
        _torch.DOOR = before


@contextmanager
def installed(device: str) -> Iterator[None]:
    overrides = sdpa_module._Overrides("CUDA" if device == "cuda" else "CPU")
    try:
        yield
    finally:
        overrides.remove()


class Alone:
    """Our passes on addresses."""

    def __init__(self, inputs: list[Tensor], d_o: Tensor) -> None:
        q, k, v = (x.detach() for x in inputs)
        self.plan = _call.plan(q, k, v, None, (None, None, None, None, 0, 0))
        o, lse = _call.forward(self.plan, q, k, v, None)
        self.held = q, k, v, o, lse, d_o, *(torch.empty_like(x) for x in (q, k, v))
        addresses = [x.data_ptr() for x in self.held]
        self.of_forward, self.of_backward = addresses[:5], [*addresses[:6], 0, *addresses[6:]]
        self.ready = self.plan.forward(), self.plan.backward(d_o)

    def forward(self) -> None:
        self.plan.run(self.ready[0], self.of_forward, None)

    def both(self) -> None:
        self.plan.run(self.ready[0], self.of_forward, None)
        self.plan.run(self.ready[1], self.of_backward, None)


def passes(attention: Attention, inputs: list[Tensor], d_o: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed of a provider."""

    def forward() -> object:
        return attention(*inputs)

    def both() -> object:
        return torch.autograd.grad(attention(*inputs), inputs, d_o)

    return {"forward": forward, "forward, with a graph": forward, "forward + backward": both}


def hosted(
    inputs: list[Tensor], d_o: Tensor, device: str
) -> dict[str, tuple[dict[str, Callable[[], object]], Callable[[], AbstractContextManager]]]:
    """Each provider's passes, and the context that they run in."""
    rotated = [x.detach().transpose(1, 2).requires_grad_() for x in inputs]
    alone = Alone(inputs, d_o)

    def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]

    rows = {
        "nothing": (passes(Nothing.apply, inputs, d_o), nullcontext),
        "empty operator": (passes(lambda q, k, v: empty_operator(q, k, v)[0], inputs, d_o), nullcontext),
        "kernels alone": ({"forward": alone.forward, "forward + backward": alone.both}, nullcontext),
        "ferroflash": (passes(ours, inputs, d_o), nullcontext),
        "as fa3": (passes(lambda q, k, v: fa3.flash_attn_func(q, k, v, causal=True), inputs, d_o), nullcontext),
        "as fa4": (passes(lambda q, k, v: spelled_as_fa4.flash_attn_func(q, k, v, causal=True)[0], inputs, d_o), nullcontext),
        "without the door": (passes(ours, inputs, d_o), without_the_door),
        "sdpa": (passes(bare, rotated, d_o.transpose(1, 2)), nullcontext),
        "sdpa, transposed": (passes(sdpa, inputs, d_o), nullcontext),
    }
    of_sdpa = bare if device == "cuda" else behind
    rows["installed"] = (passes(of_sdpa, rotated, d_o.transpose(1, 2)), lambda: installed(device))
    if device == "cuda":
        others = {name: row for name, row in providers().items() if name != "ferroflash"}
        rows |= {name: (passes(attention, inputs, d_o), context) for name, (attention, context) in others.items()}
    return rows


def host(given: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in given.shapes:
        batch, seqlen, heads, head_dim = map(int, shape.split("x"))
        rows = hosted(*tensors(batch, seqlen, heads, head_dim, device), device)
        medians: dict[tuple[str, str], list[float]] = {}
        for _ in range(given.rounds):
            for name, (calls, context) in shuffled(rows):
                with context():
                    for what, call in calls.items():
                        with torch.no_grad() if what == "forward" else nullcontext():
                            medians.setdefault((name, what), []).append(median_us(call, device))
        for (name, what), times in sorted(medians.items()):
            print(json.dumps({"shape": shape, "provider": name, "what": what, "host_us": round(statistics.median(times), 1)}))


def steps(given: argparse.Namespace) -> None:
    rows = providers()
    for seqlen in (2048, 8192):
        batch = 16384 // seqlen
        inputs, d_o = tensors(batch, seqlen)
        times: dict[str, list[float]] = {}
        warm_up = [*rows.items()]
        for name, (attention, context) in [*warm_up, *(row for _ in range(given.rounds) for row in shuffled(rows))]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with context():
                torch.cuda.synchronize()
                begin.record()
                for _ in range(20):
                    torch.autograd.grad(attention(*inputs), inputs, d_o)
                end.record()
            torch.cuda.synchronize()
            times.setdefault(name, []).append(begin.elapsed_time(end) / 20)
        # Seven products of half of seqlen · seqlen · head_dim multiplications and additions each; two of them forward.
        flops = 7 * batch * HEADS * seqlen * seqlen * HEAD_DIM
        for name, of_rounds in times.items():
            ms = statistics.median(of_rounds[1:])
            print(json.dumps({"seqlen": seqlen, "provider": name, "ms": round(ms, 4), "tflops": round(flops / ms / 1e9, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["host", "steps"])
    parser.add_argument("--rounds", type=int, default=5)
    # The second is GPT-2's.
    parser.add_argument("--shapes", nargs="+", default=["1x128x8x64", "8x1024x12x64"], help="of host: batch x seqlen x heads x head_dim")
    given = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
    print(json.dumps({"device": device, "torch": torch.__version__, "rounds": given.rounds}))
    {"host": host, "steps": steps}[given.what](given)


if __name__ == "__main__":
    main()
