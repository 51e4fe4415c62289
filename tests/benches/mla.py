#!/usr/bin/env python3
"""Times ferroflash's decode of multi-head latent attention beside FlashMLA's dense decode kernel, in one run on one GPU.

Cases are batch x queries x heads x keys: one KV head of 576 columns, whose first 512 are the value, bf16. FlashMLA comes as sgl-kernel ships it:
--flashmla names flashmla_ops.abi3.so, or the same as .xz; it takes pages of 64 keys. Ours is `ferroflash bench --decode --values-in-keys 512`, a process
each, with keys side by side and in pages. Both are timed by a replayed CUDA graph over a cache that L2 does not hold, in shuffled order; FlashMLA
is compared with float32 first. FLOP: 2 * heads * queries * keys * (576 + 512); bytes: keys once, q and o.
"""
import argparse
import json
import lzma
import os
import random
import statistics
import subprocess
import tempfile
import time

ROUND_BYTES, MAX_VIEWS = 384 << 20, 48
CASES = "128x1x128x4096,128x1x128x8192,64x1x128x8192,32x1x128x8192,8x1x128x8192,1x1x128x32768,128x1x16x8192,64x1x64x8192,128x2x128x4096,16x1x128x65536"


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ferroflash", default="./ferroflash", help="the command")
    ap.add_argument("--flashmla", help="flashmla_ops.abi3.so, or .xz; without it ours alone is timed")
    ap.add_argument("--cases", default=CASES, help="batch x queries x heads x keys")
    ap.add_argument("--pages", default="0,64,16", help="page sizes of ours; 0: side by side")
    ap.add_argument("--seed", type=int, default=0)
    return ap.parse_args()


def load(path):
    """FlashMLA's operators."""
    import torch

    if path.endswith(".xz"):
        unpacked = os.path.join(tempfile.mkdtemp(), "flashmla_ops.abi3.so")
        with lzma.open(path) as packed, open(unpacked, "wb") as out:
            out.write(packed.read())
        path = unpacked
    torch.ops.load_library(path)
    return torch.ops.sgl_kernel


def flashmla(ops, batch, queries, heads, keys):
    """Microseconds of a call, and the relative error of the last sequence's o."""
    import torch

    causal = queries > 1
    pages = -(-keys // 64)
    n_views = max(1, min(MAX_VIEWS, -(-ROUND_BYTES // (batch * pages * 64 * 576 * 2))))
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    views = [new(batch * pages, 64, 1, 576) for _ in range(n_views)]
    q = new(batch, queries, heads, 576)
    table = torch.arange(batch * pages, device="cuda", dtype=torch.int32).view(batch, pages)
    lens = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    call = lambda kv, *plan: ops.dense_decode_fwd(q, kv, 512, lens, table, 576**-0.5, causal, *plan)
    o, _, *plan = call(views[0], None, None)
    k = views[0].view(batch, pages * 64, 576)[-1, :keys].float()
    s = q[-1].float().transpose(0, 1) @ k.T * 576**-0.5
    if causal:
        hidden = torch.arange(keys, device="cuda") > torch.arange(queries, device="cuda")[:, None] + keys - queries
        s = s.masked_fill(hidden, float("-inf"))
    expected = (s.softmax(-1) @ k[:, :512]).transpose(0, 1)
    error = float((o[-1].float() - expected).norm() / expected.norm())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for kv in views:
            call(kv, *plan)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for kv in views:
                call(kv, *plan)
        begin = time.time()
        while time.time() - begin < 0.06:
            graph.replay()
            torch.cuda.synchronize()
        times = []
        for _ in range(20):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record(stream)
            graph.replay()
            marks[1].record(stream)
            torch.cuda.synchronize()
            times.append(marks[0].elapsed_time(marks[1]) / n_views)
    return statistics.median(times) * 1e3, error


def ours(command, page, batch, queries, heads, keys):
    """Microseconds of a call."""
    line = f"bench --decode --json --hdims 576 --values-in-keys 512 --heads {heads}/1 --batch {batch} --seqs {queries} --seqlen-k {keys}"
    line += f" --page-size {page} --algorithm flash3 --rep 40 --warm-up 60 --rounds 1"
    run = subprocess.run([command, *line.split()], capture_output=True, text=True, timeout=60)
    rows = [json.loads(row) for row in run.stdout.splitlines() if row.startswith("{")]
    if len(rows) != 1 or "ms" not in rows[0]:
        raise RuntimeError((run.stdout + run.stderr)[-300:])
    return rows[0]["ms"] * 1e3


def main():
    a = arguments()
    random.seed(a.seed)
    ops = load(a.flashmla) if a.flashmla else None
    peers = [("flashmla", 64)] * bool(ops) + [("ours", int(page)) for page in a.pages.split(",")]
    for case in a.cases.split(","):
        batch, queries, heads, keys = (int(n) for n in case.split("x"))
        flops = 2 * batch * heads * queries * keys * (576 + 512)
        n_bytes = 2 * batch * (keys * 576 + queries * heads * (576 + 512))
        for peer, page in random.sample(peers, len(peers)):
            row = {"case": case, "peer": peer, "page": page}
            try:
                if peer == "flashmla":
                    us, row["rel_err"] = flashmla(ops, batch, queries, heads, keys)
                else:
                    us = ours(a.ferroflash, page, batch, queries, heads, keys)
                row.update(us=round(us, 2), tflops=round(flops / us / 1e6, 1), gbps=round(n_bytes / us / 1e3, 1))
            except Exception as e:
                row["err"] = str(e)[:200]
            if ops:
                import torch

                torch.cuda.empty_cache()
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
