"""What calls of attention cost beside other providers: the host's time of a call, and a training step's.

    python benches/calls.py host --rounds 50        # batch 1, seqlen 512: medians of single calls
    python benches/calls.py steps --rounds 9        # both passes, 16,384 tokens, head_dim 128, causal: medians of rounds

Providers run in shuffled order within each round. `fa4` is flash-attn-4, where it can be imported; `flash` and `cudnn` are backends of
`scaled_dot_product_attention`. Results are lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from ferroflash import flash_attn_func
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


def tensors(batch: int, seqlen: int) -> tuple[list[Tensor], Tensor]:
    q, k, v, d_o = (torch.randn(batch, seqlen, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v)], d_o


def median_us(call: Callable[[], object], n: int = 200) -> float:
    """Of single calls, with the device let catch up now and then."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    times = []
    for at in range(n):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
        if at % 20 == 0:
            torch.cuda.synchronize()
    return statistics.median(times) / 1000


def host(given: argparse.Namespace) -> None:
    inputs, d_o = tensors(1, 512)
    rows = {
        "nothing": (Nothing.apply, nullcontext),
        "empty operator": (lambda q, k, v: empty_operator(q, k, v)[0], nullcontext),
        **providers(),
    }
    medians: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.rounds):
        for name, (attention, context) in shuffled(rows):

            def forward(attention=attention):
                return attention(*inputs)

            def both(attention=attention):
                return torch.autograd.grad(attention(*inputs), inputs, d_o)

            with context():
                with torch.no_grad():
                    medians.setdefault((name, "forward"), []).append(median_us(forward))
                medians.setdefault((name, "forward, with a graph"), []).append(median_us(forward))
                medians.setdefault((name, "forward + backward"), []).append(median_us(both))
    for (name, what), times in sorted(medians.items()):
        print(json.dumps({"provider": name, "what": what, "host_us": round(statistics.median(times), 1)}))


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
    given = parser.parse_args()
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rounds": given.rounds}))
    {"host": host, "steps": steps}[given.what](given)


if __name__ == "__main__":
    main()
