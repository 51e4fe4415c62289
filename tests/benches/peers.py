#!/usr/bin/env python3
"""Times ferroflash beside the attention that a PyTorch program would use instead, in one run on one machine.

Shapes follow the FlashAttention papers: batch x seqlen = 16k tokens, heads x head_dim = 2048. Operations:
4 * batch * heads * seqlen^2 * head_dim forward (halved when causal), 2.5 times that backward.
On the CPU (--device cpu) the peer is PyTorch's own choice, "sdpa", and batch 1 with --tokens = seqlen is the usual case.
Within a case everybody runs in shuffled order, --rounds times; the median of the rounds' medians counts.
ferroflash runs through its own command, so it is measured as its users run it. Prints one JSON line per case and peer,
then a table of ratios to the first peer on standard error.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"fa2": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION], "math": [SDPBackend.MATH],
            "sdpa": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferroflash", required=True, help="the command")
    parser.add_argument("--peers", default="fa2,cudnn", help="of fa4, " + ", ".join(BACKENDS))
    parser.add_argument("--algorithms", default="auto", help="ferroflash's: auto is the fastest that can serve; flash3,flash2,...")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--hdims", default="64,128")
    parser.add_argument("--seqs", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--passes", default="fwd,bwd")
    parser.add_argument("--tokens", type=int, default=16384, help="batch x seqlen, at least one batch entry")
    parser.add_argument("--width", type=int, default=2048, help="heads x head_dim")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=300, help="milliseconds of running before each measurement on a GPU: "
                        "one that has rested is faster, and nobody is to have rested more than the others")
    parser.add_argument("--rep", type=int, default=40, help="milliseconds of measuring per peer and round")
    return parser.parse_args()


def flash_attn_4(case, options):
    """A function that runs one pass of the package flash-attn-4."""
    from flash_attn.cute import flash_attn_func
    shape = (case["B"], case["S"], case["H"], case["D"])
    q, k, v, d_o = (torch.randn(shape, device=options.device, dtype=DTYPES[options.dtype]) for _ in range(4))
    causal = bool(case["causal"])
    if case["p"] == "fwd":
        def run():
            with torch.no_grad():
                flash_attn_func(q, k, v, causal=causal)
        return run
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    result = flash_attn_func(*leaves, causal=causal)
    o = result[0] if isinstance(result, tuple) else result
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def operations(case):
    forward = 4 * case["B"] * case["H"] * case["S"] ** 2 * case["D"] / (2 if case["causal"] else 1)
    return forward * (2.5 if case["p"] == "bwd" else 1)


def median_ms(run, options):
    """The median time of a call, over about --rep milliseconds, after a warm-up."""
    if options.device == "cuda":
        from triton.testing import do_bench
        return do_bench(run, warmup=options.warm_up, rep=options.rep, return_mode="median")
    times = []
    run()
    while sum(times) < options.rep or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def torch_peer(backend, case, options):
    """A function that runs one pass of scaled_dot_product_attention on one of its backends."""
    shape = (case["B"], case["S"], case["H"], case["D"])
    q, k, v, d_o = (torch.randn(shape, device=options.device, dtype=DTYPES[options.dtype]).transpose(1, 2) for _ in range(4))
    causal = bool(case["causal"])

    def forward(*tensors):
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(*tensors, is_causal=causal)

    if case["p"] == "fwd":
        def run():
            with torch.no_grad():
                forward(q, k, v)
        return run
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    o = forward(*leaves)
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def ferroflash(options, case):
    """Milliseconds of each of ferroflash's variants of a case, and what else its lines say."""
    command = [options.ferroflash, "bench", "--json", "--backend", options.device, "--algorithm", options.algorithms,
               "--hdims", case["D"], "--seqs", case["S"], "--causal", case["causal"], "--passes", case["p"],
               "--dtype", options.dtype, "--tokens", options.tokens, "--width", options.width, "--rounds", 1, "--rep", options.rep,
               "--warm-up", options.warm_up if options.device == "cuda" else 15]
    output = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    if output.returncode != 0:
        sys.exit(output.stderr)
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    for row in rows:
        if "err" in row:
            print(f"{row['peer']} {case}: {row['err']}", file=sys.stderr)
    return [row for row in rows if "ms" in row]


def measure(options, case):
    """A line for every peer."""
    peers = options.peers.split(",")
    runs = {peer: flash_attn_4(case, options) if peer == "fa4" else torch_peer(peer, case, options) for peer in peers}
    times, rows = {}, {}
    for _ in range(options.rounds):
        for peer in random.sample(peers + ["ferroflash"], len(peers) + 1):
            if peer == "ferroflash":
                for row in ferroflash(options, case):
                    rows[row["peer"]] = row
                    times.setdefault(row["peer"], []).append(row["ms"])
            else:
                rows[peer] = dict(peer=peer, dtype=options.dtype, **case)
                times.setdefault(peer, []).append(median_ms(runs[peer], options))
    for peer, row in rows.items():
        row["ms"] = round(statistics.median(times[peer]), 4)
        row["tflops"] = float(f"{operations(case) / row['ms'] / 1e9:.4g}")
    return [rows[peer] for peer in sorted(rows)]


def main():
    options = arguments()
    first = options.peers.split(",")[0]
    table = []
    for D in map(int, options.hdims.split(",")):
        for causal in map(int, options.causal.split(",")):
            for S in map(int, options.seqs.split(",")):
                for p in options.passes.split(","):
                    case = dict(D=D, causal=causal, S=S, B=max(1, options.tokens // S), H=options.width // D, p=p)
                    rows = measure(options, case)
                    base = next(row["ms"] for row in rows if row["peer"] == first)
                    for row in rows:
                        print(json.dumps(row), flush=True)
                    words = [f"{row['peer']} {row['tflops']:.3g} ({base / row['ms']:.2f})" for row in rows]
                    mask = "causal" if causal else "full"
                    table.append(f"d{D} {mask} {p} {S}: " + ", ".join(words))
    print("\n".join(table), file=sys.stderr)


main()
