#!/usr/bin/env python3
"""Times ferroflash beside the attention that a PyTorch program would use instead, in one run on one machine.

Shapes follow the FlashAttention papers: batch x seqlen = 16k tokens, heads x head_dim = 2048. Operations:
4 * batch * heads * seqlen^2 * head_dim forward (halved when causal), 2.5 times that backward.
On the CPU (--device cpu) the peer is PyTorch's own choice, "sdpa", and batch 1 with --tokens = seqlen is the usual case.
With --window or --lengths, pairs of a query and a key that it sees are counted, 4 * heads * head_dim operations each.
Within a case everybody runs in shuffled order, --rounds times; the median of the rounds' medians counts. A peer that
cannot run a case says so and is left out.
ferroflash runs through its own command, so it is measured as its users run it. Prints one JSON line per case and peer,
and on standard error a line of ratios to the best peer.
"""
import argparse
import functools
import json
import os
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
    parser.add_argument("--peers", default="fa2,cudnn", help="of fa3 (forward), fa4, " + ", ".join(BACKENDS))
    parser.add_argument("--fa3", default="", help="folder of flash_ops.abi3.so, FlashAttention-3 as sgl-kernel ships it")
    parser.add_argument("--algorithms", default="auto", help="ferroflash's: auto is the fastest that can serve; flash3,flash2,...")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--hdims", default="64,128")
    parser.add_argument("--seqs", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--passes", default="fwd,bwd")
    parser.add_argument("--tokens", type=int, default=16384, help="batch x seqlen, at least one batch entry")
    parser.add_argument("--width", type=int, default=2048, help="heads x head_dim")
    parser.add_argument("--heads", default="", help="in place of --width: query heads/KV heads, as 32/8,71/1")
    parser.add_argument("--window", type=int, help="keys that a query sees to the left of its own place")
    parser.add_argument("--lengths", default="", help="sequences of these lengths, packed, in place of --seqs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=300, help="milliseconds of running before each measurement on a GPU: "
                        "one that has rested is faster, and nobody is to have rested more than the others")
    parser.add_argument("--rep", type=int, default=40, help="milliseconds of measuring per peer and round")
    return parser.parse_args()


def random_tensors(case, options):
    """q, k, v and d_o: [B, S, heads, D], or [total, heads, D] of packed sequences."""
    rows = (sum(case["lengths"]),) if case["lengths"] else (case["B"], case["S"])
    return [torch.randn(*rows, heads, case["D"], device=options.device, dtype=DTYPES[options.dtype])
            for heads in (case["H"], case["Hk"], case["Hk"], case["H"])]


def first_rows(case, options):
    """cu_seqlens: the first row of each packed sequence, and one past the last."""
    ends = [0]
    for length in case["lengths"]:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32, device=options.device)


def flash_attn_4(case, options):
    """A function that runs one pass of the package flash-attn-4."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    q, k, v, d_o = random_tensors(case, options)
    kind = dict(causal=bool(case["causal"]))
    if case["window"] is not None:
        kind["window_size"] = (case["window"], 0 if case["causal"] else None)
    call = flash_attn_func
    if case["lengths"]:
        call, ends, longest = flash_attn_varlen_func, first_rows(case, options), max(case["lengths"])
        kind.update(cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest, max_seqlen_k=longest)
    if case["p"] == "fwd":
        def run():
            with torch.no_grad():
                call(q, k, v, **kind)
        return run
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    result = call(*leaves, **kind)
    o = result[0] if isinstance(result, tuple) else result
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


@functools.cache
def flash_ops(folder):
    torch.ops.load_library(os.path.join(folder, "flash_ops.abi3.so"))
    return torch.ops.sgl_kernel


def flash_attn_3(case, options):
    """A function that runs FlashAttention-3's forward pass, the only one that the wheel has."""
    if case["p"] != "fwd":
        raise NotImplementedError("no backward pass")
    q, k, v, _ = random_tensors(case, options)
    ends = first_rows(case, options) if case["lengths"] else None
    longest = max(case["lengths"]) if case["lengths"] else None
    left = -1 if case["window"] is None else case["window"]
    right = 0 if case["window"] is not None and case["causal"] else -1
    forward = flash_ops(options.fa3).fwd.default
    return lambda: forward(q, k, v, None, None, None, None, ends, ends, None, None, None, longest, longest, None, None,
                           None, None, None, None, None, None, None, case["D"] ** -0.5, bool(case["causal"]), left, right,
                           0, 0.0, False, None, 1, None, 0, None)


def seen_pairs(case):
    """Pairs of a query and a key that it sees, in all sequences of a head."""
    if case["window"] is None:
        lengths = case["lengths"] or [case["S"]] * case["B"]
        return sum(n * n for n in lengths) / (2 if case["causal"] else 1)
    left = case["window"]
    return case["B"] * sum((i if case["causal"] else case["S"] - 1) - max(0, i - left) + 1 for i in range(case["S"]))


def operations(case):
    return 4 * case["H"] * seen_pairs(case) * case["D"] * (2.5 if case["p"] == "bwd" else 1)


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
    if case["window"] is not None or case["lengths"]:
        raise NotImplementedError("no windows and no packed lengths")
    q, k, v, d_o = (x.transpose(1, 2) for x in random_tensors(case, options))
    causal, grouped = bool(case["causal"]), case["H"] != case["Hk"]

    def forward(*tensors):
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=grouped)

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
               "--hdims", case["D"], "--causal", case["causal"], "--passes", case["p"], "--dtype", options.dtype,
               "--width", case["H"] * case["D"], "--heads-k", case["Hk"], "--order", "deterministic",
               "--rounds", 1, "--rep", options.rep, "--warm-up", options.warm_up if options.device == "cuda" else 15]
    if case["lengths"]:
        command += ["--lengths", ",".join(map(str, case["lengths"]))]
    else:
        command += ["--seqs", case["S"], "--tokens", options.tokens]
    if case["window"] is not None:
        command += ["--window", case["window"]]
    output = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    if output.returncode != 0:
        sys.exit(output.stderr)
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    for row in rows:
        if "err" in row:
            print(f"{row['peer']} {case}: {row['err']}", file=sys.stderr)
    return [row for row in rows if "ms" in row]


PEERS = {"fa3": flash_attn_3, "fa4": flash_attn_4, **{name: functools.partial(torch_peer, name) for name in BACKENDS}}


def measure(options, case):
    """A line for every peer."""
    runs, times, rows = {}, {}, {}
    for peer in options.peers.split(","):
        try:
            runs[peer] = PEERS[peer](case, options)
            runs[peer]()
        except Exception as error:
            runs.pop(peer, None)
            print(f"{peer} {case}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    for _ in range(options.rounds):
        for peer in random.sample([*runs, "ferroflash"], len(runs) + 1):
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


def cases(options):
    """Every case, with what its line of the table begins with."""
    lengths = [int(word) for word in options.lengths.split(",") if word]
    for D in map(int, options.hdims.split(",")):
        for heads in (options.heads or f"{options.width // D}/{options.width // D}").split(","):
            H, Hk = map(int, heads.split("/"))
            for causal in map(int, options.causal.split(",")):
                for S in [sum(lengths)] if lengths else map(int, options.seqs.split(",")):
                    for p in options.passes.split(","):
                        B = 1 if lengths else max(1, options.tokens // S)
                        case = dict(D=D, causal=causal, S=S, B=B, H=H, Hk=Hk, p=p, window=options.window, lengths=lengths)
                        mask = ("causal" if causal else "full") + (f" window {options.window}" if options.window else "")
                        yield case, f"d{D} {heads} {mask} {p} {'packed ' if lengths else ''}{S}"


def main():
    options = arguments()
    table = []
    for case, name in cases(options):
        rows = measure(options, case)
        for row in rows:
            print(json.dumps(row), flush=True)
        theirs = [row["ms"] for row in rows if row["peer"] in PEERS]
        base = min(theirs, default=rows[0]["ms"])
        words = [f"{row['peer']} {row['tflops']:.3g} ({base / row['ms']:.2f})" for row in rows]
        table.append(f"{name}: " + ", ".join(words))
        print(table[-1], file=sys.stderr, flush=True)


main()
