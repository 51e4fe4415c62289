#!/usr/bin/env python3
"""Times ferroflash's decode beside cuDNN and FlashAttention-3 in one run on one GPU.

Peers, each left out with an "error" line where it does not run a case:
  cudnn     torch's scaled_dot_product_attention, cuDNN back end (one query, keys side by side)
  cudnn-fe  cuDNN's graph API through its Python front end (causal at the lower right, pages)
  fa3       FlashAttention-3's forward as sgl-kernel ships it: --fa3 names the folder of flash_ops.abi3.so, or a .tar.xz of it
  ours      `ferroflash bench --decode --json`, a process a case, while this process keeps its own pool and does nothing

Every peer of this process is compared with float32 before it is timed. All are timed alike: one CUDA graph of a call on each of many
views of a cache that L2 does not hold (384 MiB together, 48 views at most), repeated until a replay takes 1 ms; --warm-up ms of
replays, then the median of --rep ms of them. A pass visits the cases in shuffled order, and in each case the peers in shuffled order;
passes follow until --passes or the time is spent. A figure is the median over passes.

Nothing starts after --max-seconds, less what the last unit needs. Lines go to $OUT/decode.jsonl (or --out) as they come; the table comes last.
--plan prints the cases and ends (no GPU, no torch). --self-test checks this script without a GPU.
"""
import argparse
import collections
import functools
import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

T0 = time.time()
D = 128
Case = collections.namedtuple("Case", "H Hk nq B S page")
ROUND_BYTES, MAX_VIEWS, REPLAY_MS, MAX_ROUNDS = 384 << 20, 48, 1.0, 64
FEW_QUERIES = ((1, 1024), (1, 8192), (1, 131072), (8, 8192), (64, 8192), (256, 1024))    # of 4 queries


def arguments(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(x) for x in text.split(",")]
    heads = lambda text: [tuple(int(y) for y in x.split("/")) for x in text.split(",")]
    ap.add_argument("--ferroflash", default="./ferroflash", help="the command")
    ap.add_argument("--fa3", help="folder of flash_ops.abi3.so, or the same as .tar.xz; without it FlashAttention-3 is left out")
    ap.add_argument("--site", default="", help="folder that holds the cuDNN front end, or the same as .tar.xz, where it is not installed")
    ap.add_argument("--peers", default="cudnn,cudnn-fe,fa3,ours")
    ap.add_argument("--heads", type=heads, default=[(32, 8), (64, 8), (32, 32)])
    ap.add_argument("--batch", type=numbers, default=[1, 4, 8, 64, 256])
    ap.add_argument("--keys", type=numbers, default=[1024, 8192, 32768, 131072])
    ap.add_argument("--queries", type=numbers, default=[1, 4, 16], help="4: a few cases alone, unless it is all that is asked for")
    ap.add_argument("--pages", type=numbers, default=[0], help="page sizes; 0: keys side by side")
    ap.add_argument("--most-gb", type=float, default=40, help="K and V of a case, 1e9 bytes")
    ap.add_argument("--algorithm", default="auto", help="ours: auto, or several as flash2,flash3")
    ap.add_argument("--rep", type=int, default=15, help="milliseconds of measuring for each peer, case and pass")
    ap.add_argument("--warm-up", type=int, default=30, help="milliseconds of running before that")
    ap.add_argument("--passes", type=int, default=2)
    ap.add_argument("--max-seconds", type=float, default=525)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "decode.jsonl"))
    ap.add_argument("--plan", action="store_true")
    ap.add_argument("--self-test", action="store_true")
    return ap.parse_args(argv)


def kv_bytes(c):
    return 4 * c.B * c.S * c.Hk * D


def planned(a, most_bytes):
    """The cases, those of one query first, as far as their keys and values fit."""
    cases = []
    for nq in a.queries:
        for page in a.pages:
            for H, Hk in a.heads:
                for S in a.keys:
                    for B in a.batch:
                        c = Case(H, Hk, nq, B, S, page)
                        few = nq == 4 and a.queries != [4] and (B, S) not in FEW_QUERIES
                        if kv_bytes(c) <= most_bytes and not few:
                            cases.append(c)
    return cases


# ---------------------------------------------------------------- what comes out

class Log:
    def __init__(self, path):
        self.file = open(path, "a")
        self.us = collections.defaultdict(lambda: collections.defaultdict(list))
        self.wrong = {}

    def say(self, **row):
        line = json.dumps({k: (round(v, 5) if isinstance(v, float) else v) for k, v in row.items()})
        self.file.write(line + "\n")
        self.file.flush()

    def timed(self, c, peer, us, **more):
        self.us[c][peer].append(us)
        self.say(**c._asdict(), peer=peer, us=us, gbs=round(kv_bytes(c) / us / 1e3), at=round(time.time() - T0, 1), **more)

    def failed(self, c, peer, text):
        self.wrong.setdefault((c, peer), text)
        self.say(**c._asdict(), peer=peer, error=text, at=round(time.time() - T0, 1))


def mine(peer):
    return peer.startswith("ours")


def table(log, cases):
    """Lines of the table: medians over passes in µs, GB/s of ours, and the best peer's time by ours (above 1 ours is faster)."""
    names = [p for p in ("cudnn", "cudnn-fe", "fa3") if any(p in log.us[c] for c in cases)]
    names += sorted({p for c in cases for p in log.us[c] if mine(p)})
    lines, groups = [], {}
    for c in cases:
        groups.setdefault((c.nq, c.page, c.H, c.Hk), []).append(c)
    key = lambda k: k if k < 1024 else f"{k // 1024}k"
    every = []
    for (nq, page, H, Hk), members in groups.items():
        lines.append(f"== {H}/{Hk} heads, {nq} quer{'y' if nq == 1 else 'ies'}{f', page {page}' if page else ''}")
        lines.append(f"{'batch·keys':>11} " + " ".join(f"{p:>11}" for p in names) + f" {'GB/s':>6} {'best/ours':>9}  best")
        ratios = []
        for c in members:
            us = {p: statistics.median(x) for p, x in log.us[c].items()}
            ours = min((x for p, x in us.items() if mine(p)), default=None)
            best = min(((x, p) for p, x in us.items() if not mine(p)), default=None)
            cell = lambda p: f"{us[p]:.2f}" if p in us else "error" if (c, p) in log.wrong else "-"
            line = f"{c.B:>5}·{key(c.S):>5} " + " ".join(f"{cell(p):>11}" for p in names)
            line += f" {kv_bytes(c) / ours / 1e3:>6.0f}" if ours else f" {'-':>6}"
            if ours and best:
                ratios.append(best[0] / ours)
                line += f" {best[0] / ours:>9.3f}  {best[1]}" + ("  <" if best[0] < ours else "")
            lines.append(line)
        if ratios:
            every += ratios
            lines.append(f"   geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}, "
                         f"below 1: {sum(r < 1 for r in ratios)} of {len(ratios)}")
    if every:
        lines.append(f"== all {len(every)}: geometric mean {statistics.geometric_mean(every):.3f}, least {min(every):.3f}, "
                     f"below 1: {sum(r < 1 for r in every)}, below 0.98: {sum(r < 0.98 for r in every)}")
    kinds = collections.Counter((p, text[:160]) for (_, p), text in log.wrong.items())
    for (p, text), n in kinds.most_common(12):
        lines.append(f"error of {p} in {n} cases: {text}")
    return lines


# ---------------------------------------------------------------- ours

def ours_command(a, c):
    return [a.ferroflash, "bench", "--decode", "--json", "--backend", "cuda", "--dtype", "bf16", "--hdims", str(D), "--heads", f"{c.H}/{c.Hk}",
            "--batch", str(c.B), "--seqlen-k", str(c.S), "--seqs", str(c.nq), "--page-size", str(c.page), "--algorithm", a.algorithm,
            "--rep", str(a.rep), "--warm-up", str(a.warm_up), "--rounds", "1"]


def parse_ours(text, c):
    """(name, µs, rest) or (name, None, error) of each row; ValueError where a row is of another case."""
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        there = Case(row["H"], row["Hk"], row["S"], row["B"], row["Sk"], row.get("page", 0))
        if there != c or row["D"] != D:
            raise ValueError(f"asked for {c}, got {there}")
        name = row["peer"].replace("ferroflash-", "").replace(f"-page{c.page}", "")
        if "err" in row:
            found.append((name, None, row["err"]))
            continue
        found.append((name, row["ms"] * 1e3, {k: row[k] for k in ("host_us", "graph", "views", "extra_bytes") if k in row}))
    if not found:
        raise ValueError("no row")
    return found


def run_ours(a, log, c, seconds):
    done = subprocess.run(ours_command(a, c), capture_output=True, text=True, timeout=seconds)
    try:
        if done.returncode:
            raise ValueError(f"exit {done.returncode}")
        rows = parse_ours(done.stdout, c)
    except ValueError as e:
        raise RuntimeError(f"{e}: {' '.join(done.stderr.split())[-300:]}") from None
    alone = len(a.algorithm.split(",")) == 1
    for name, us, more in rows:
        peer = "ours" if alone else f"ours-{name}"
        if us is None:
            log.failed(c, peer, more)
        else:
            log.timed(c, peer, us, algorithm=name, **more)


# ---------------------------------------------------------------- peers of this process

def unpack(packed, folder):
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")


def fatal(e):
    return any(s in str(e) for s in ("illegal memory access", "unspecified launch failure", "device-side assert", "misaligned address",
                                     "illegal instruction"))


def why(e):
    return f"{type(e).__name__}: {' '.join(str(e).split())[:220]}"


class Peers:
    """torch, its pool of keys and values, and the peers' calls on views of it."""

    def __init__(self, a, log):
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        if a.site.endswith(".tar.xz"):
            packed, a.site = a.site, os.path.join(tempfile.gettempdir(), "cudnn_fe")
            if not os.path.exists(os.path.join(a.site, "cudnn")):
                unpack(packed, a.site)
        if a.site:
            sys.path.insert(0, a.site)
        import torch
        self.a, self.log, self.torch = a, log, torch
        torch.manual_seed(a.seed)
        torch.ones(1, device="cuda")
        free, total = torch.cuda.mem_get_info()
        self.most_bytes = min(a.most_gb * 1e9, (free - 6e9) / (2 if "ours" in a.peers else 1))
        self.torn = None                                    # why the context is of no more use
        log.say(gpu=torch.cuda.get_device_name(), free_gb=free / 1e9, total_gb=total / 1e9, torch=torch.__version__,
                cudnn=torch.backends.cudnn.version(), most_gb=self.most_bytes / 1e9)

    def reserve(self, cases):
        views = lambda c: min(MAX_VIEWS, -(-ROUND_BYTES // kv_bytes(c)))
        most = max(max(kv_bytes(c) // 4, min(self.most_bytes // 4, views(c) * kv_bytes(c) // 4)) for c in cases)
        self.pool = [self.torch.empty(int(most), device="cuda", dtype=self.torch.bfloat16) for _ in range(2)]
        for x in self.pool:
            for part in x.split(1 << 28):
                part.normal_()

    @functools.lru_cache(None)
    def fa3_ops(self):
        folder = self.a.fa3
        if folder.endswith(".tar.xz"):
            packed, folder = folder, os.path.join(tempfile.gettempdir(), "fa3")
            if not os.path.exists(os.path.join(folder, "flash_ops.abi3.so")):
                unpack(packed, folder)
        self.torch.ops.load_library(os.path.join(folder, "flash_ops.abi3.so"))
        return self.torch.ops.sgl_kernel

    def fa3_forward(self, **given):
        """The call by the names of its schema, of which versions of the wheel have more or fewer."""
        op = self.fa3_ops().fwd.default
        zero = {"int": 0, "bool": False, "float": 0.0}
        plain = {x.name: zero.get(str(x.type)) for x in op._schema.arguments}
        plain.update(window_size_left=-1, window_size_right=-1, softmax_scale=D ** -0.5)
        unknown = set(given) - set(plain)
        if unknown:
            raise TypeError(f"the wheel's fwd has no {unknown}; it has {list(plain)}")
        plain.update(given)
        return op(*[plain[x.name] for x in op._schema.arguments])

    @functools.lru_cache(None)
    def cudnn(self):
        import cudnn
        return cudnn, cudnn.create_handle()

    def tensors(self, c):
        torch = self.torch
        e = kv_bytes(c) // 4
        n = max(1, min(MAX_VIEWS, self.pool[0].numel() // e, -(-ROUND_BYTES // (4 * e))))
        P = c.B * c.S // c.page if c.page else 0
        shape = (P, c.page, c.Hk, D) if c.page else (c.B, c.S, c.Hk, D)
        kv = [tuple(x[i * e:(i + 1) * e].view(shape) for x in self.pool) for i in range(n)]
        q = torch.randn(c.B, c.nq, c.H, D, device="cuda", dtype=torch.bfloat16)
        lens = torch.full((c.B,), c.S, dtype=torch.int32, device="cuda")
        table = torch.randperm(P).to(torch.int32).cuda().view(c.B, c.S // c.page) if c.page else None
        return q, kv, lens, table

    def call(self, peer, c, q, kv, lens, table):
        """A function of k and v."""
        torch = self.torch
        causal = c.nq > 1
        if peer == "fa3":
            more = {}
            if c.page:                                      # lengths given and the schedule made beforehand, as servers do
                meta = self.fa3_ops().get_scheduler_metadata.default(c.B, c.nq, c.S, c.H, c.Hk, D, D, torch.bfloat16, lens, None, None, None,
                                                                     None, None, c.page, 0, causal, -1, -1, 0, False, 0, None, 0)
                more = dict(seqused_k=lens, page_table=table, scheduler_metadata=meta)
            return lambda k, v: self.fa3_forward(q=q, k=k, v=v, is_causal=causal, num_splits=0, **more)[0]
        if peer == "cudnn":
            from torch.nn.attention import SDPBackend, sdpa_kernel
            if causal or c.page:
                return None

            def sdpa(k, v):
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    x = [t.transpose(1, 2) for t in (q, k, v)]
                    return torch.nn.functional.scaled_dot_product_attention(*x, enable_gqa=c.H != c.Hk).transpose(1, 2)
            return sdpa
        if peer == "cudnn-fe":
            return self.front_end(c, q, kv, lens, table, causal)
        raise ValueError(peer)

    def front_end(self, c, q, kv, lens, table, causal):
        torch = self.torch
        cudnn, handle = self.cudnn()
        t = cudnn.data_type
        g = cudnn.pygraph(io_data_type=t.BFLOAT16, intermediate_data_type=t.FLOAT, compute_data_type=t.FLOAT, handle=handle)
        io = {}

        def inp(x):
            uid = len(io) + 1
            io[uid] = x
            kind = {torch.bfloat16: t.BFLOAT16, torch.int32: t.INT32}[x.dtype]
            return g.tensor(uid=uid, dim=list(x.size()), stride=list(x.stride()), data_type=kind)
        o = torch.empty_like(q)
        k, v = [x.transpose(1, 2) for x in kv[0]]
        kk, vv = inp(k), inp(v)
        kw = dict(diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT, diagonal_band_right_bound=0) if causal else {}
        if c.page:
            sq, sk = torch.full((c.B, 1, 1, 1), c.nq, dtype=torch.int32, device="cuda"), lens.view(c.B, 1, 1, 1)
            tb = table.view(c.B, 1, c.S // c.page, 1)
            kw.update(use_padding_mask=True, seq_len_q=inp(sq), seq_len_kv=inp(sk), paged_attention_k_table=inp(tb),
                      paged_attention_v_table=inp(tb), paged_attention_max_seq_len_kv=c.S)
        x, _ = g.sdpa(q=inp(q.transpose(1, 2)), k=kk, v=vv, generate_stats=False, attn_scale=D ** -0.5, **kw)
        out = o.transpose(1, 2)
        uid = len(io) + 1
        io[uid] = out
        x.set_uid(uid).set_output(True).set_dim(list(out.size())).set_stride(list(out.stride())).set_data_type(t.BFLOAT16)
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        g.check_support()
        g.build_plans()
        n = max(1, g.get_workspace_size())
        if n > 8 << 30:
            raise RuntimeError(f"workspace of {n >> 30} GiB")
        room = torch.empty(n, device="cuda", dtype=torch.uint8)

        def run(k, v):
            cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            g.execute({**io, 1: k.transpose(1, 2), 2: v.transpose(1, 2)}, room, handle=handle)
            return o
        return run

    def reference(self, c, q, kv, table):
        """o of the last sequence's last head, in float32."""
        torch = self.torch
        b, h = c.B - 1, c.H - 1
        k, v = [x[table[b].long()].reshape(c.S, c.Hk, D)[:, -1].float() if c.page else x[b, :, -1].float() for x in kv[0]]
        s = q[b, :, h].float() @ k.T * D ** -0.5
        if c.nq > 1:
            i, j = torch.arange(c.nq, device="cuda")[:, None], torch.arange(c.S, device="cuda")[None, :]
            s = s.masked_fill(j > i + c.S - c.nq, float("-inf"))
        return torch.softmax(s, -1) @ v

    def capture(self, f, kv, rounds):
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            f(*kv[0])
            f(*kv[-1])
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for x in kv:
                    kept = f(*x)                            # its memory may serve the next call, as it does in a model
                    del kept
        return graph

    def replays(self, graph, n):
        """The median ms between the ends of replays."""
        torch = self.torch
        ev = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        ev[0].record()
        for e in ev[1:]:
            graph.replay()
            e.record()
        torch.cuda.synchronize()
        return statistics.median(x.elapsed_time(y) for x, y in zip(ev, ev[1:]))

    def run(self, peer, c):
        torch = self.torch
        with torch.no_grad():
            q, kv, lens, table = self.tensors(c)
            f = self.call(peer, c, q, kv, lens, table)
            if f is None:
                return
            out, want = f(*kv[0])[-1, :, -1].float(), self.reference(c, q, kv, table)
            err = float((out - want).norm() / want.norm())
            if not err < 0.03:
                raise ArithmeticError(f"relative error {err:.3g} against float32")
            graph, rounds = self.capture(f, kv, 1), 1
            graph.replay()
            one = self.replays(graph, 3)
            wanted = max(1, min(MAX_ROUNDS, int(-(-REPLAY_MS // max(one, 1e-3)))))
            if wanted > 1:
                graph, rounds = self.capture(f, kv, wanted), wanted
            torch.cuda.synchronize()
            begin = time.time()
            while True:
                graph.replay()
                torch.cuda.synchronize()
                if (time.time() - begin) * 1e3 >= self.a.warm_up:
                    break
            ms = self.replays(graph, 3)
            ms = self.replays(graph, max(3, min(1000, int(self.a.rep / ms))))
            self.log.timed(c, peer, ms * 1e3 / (rounds * len(kv)), rel_err=err, views=len(kv), rounds=rounds)


# ---------------------------------------------------------------- all of it

def measure(a, log, peers, cases):
    """Passes over the cases, until the time is spent; what was begun is finished."""
    names = [peer for peer in a.peers.split(",") if peer != "fa3" or a.fa3]
    rng = random.Random(a.seed)
    slowest = collections.defaultdict(float)                # of a peer
    broken = collections.Counter()                          # cases in a row that a peer failed
    for number in range(a.passes):
        for c in rng.sample(cases, len(cases)):
            for peer in rng.sample(names, len(names)):
                left = a.max_seconds - (time.time() - T0)
                if left < 1.5 * slowest[peer] + 2:
                    log.say(skipped="time is spent", at=round(time.time() - T0, 1), number=number)
                    return
                if (c, peer) in log.wrong or broken[peer] >= 12 or (peer != "ours" and peers.torn):
                    continue
                begin = time.time()
                try:
                    if peer == "ours":
                        run_ours(a, log, c, min(60, max(5, left - 1)))
                    else:
                        peers.run(peer, c)
                    broken[peer] = 0
                except Exception as e:
                    log.failed(c, peer, why(e))
                    broken[peer] += 1
                    if peer != "ours" and fatal(e):
                        peers.torn = why(e)
                if peer != "ours":
                    gc.collect()
                    peers.tidy()
                slowest[peer] = max(slowest[peer], min(time.time() - begin, 12))


def tidy(peers):
    torch = peers.torch
    if not peers.torn and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > 2 << 30:
        torch.cuda.empty_cache()


Peers.tidy = tidy


def main():
    a = arguments()
    if a.self_test:
        return self_test()
    if a.plan:
        cases = planned(a, a.most_gb * 1e9)
        for c in cases:
            print(*c, f"{kv_bytes(c) / 1e9:.2f} GB")
        print(len(cases), "cases")
        return
    log = Log(a.out)
    log.say(command=sys.argv, max_seconds=a.max_seconds)
    peers = Peers(a, log)
    cases = planned(a, peers.most_bytes)
    if not cases:
        sys.exit("no case fits")
    peers.reserve(cases)
    print(f"{len(cases)} cases, K and V to {max(map(kv_bytes, cases)) / 1e9:.1f} GB; set up in {time.time() - T0:.1f} s", flush=True)

    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
    try:
        measure(a, log, peers, cases)
    except KeyboardInterrupt:
        print("stopped")
    lines = table(log, cases)
    if peers.torn:
        lines.append(f"the peers' context broke: {peers.torn}")
    lines.append(f"{time.time() - T0:.0f} s; best/ours above 1: ours is faster; '<' marks the others")
    for line in lines:
        print(line)
    with open(os.path.splitext(a.out)[0] + ".txt", "w") as f:
        f.write("\n".join(lines) + "\n")


def self_test():
    a = arguments([])
    cases = planned(a, 40e9)
    assert len(set(cases)) == len(cases) and max(map(kv_bytes, cases)) <= 40e9
    assert Case(32, 8, 1, 64, 131072, 0) in cases and Case(32, 32, 1, 64, 131072, 0) not in cases
    assert Case(64, 8, 4, 8, 8192, 0) in cases and Case(64, 8, 4, 4, 8192, 0) not in cases
    assert len(planned(a, 20e9)) < len(cases)
    one = arguments(["--heads", "32/8", "--batch", "1,8", "--queries", "1", "--max-seconds", "60"])
    assert [x.B for x in planned(one, 40e9)] == [1, 8] * 4 and one.max_seconds == 60
    c = Case(32, 8, 1, 1, 1024, 0)
    row = {"peer": "ferroflash-flash2", "dtype": "bf16", "D": 128, "causal": 0, "S": 1, "B": 1, "H": 32, "p": "fwd", "backend": "cuda", "Sk": 1024,
           "Hk": 8, "ms": 0.0069, "tflops": 1, "gbps": 1, "extra_bytes": 0, "host_us": 4.1, "graph": True, "views": 48}
    [(name, us, more)] = parse_ours("noise\n" + json.dumps(row) + "\n", c)
    assert name == "flash2" and abs(us - 6.9) < 1e-9 and more["views"] == 48
    [(name, us, more)] = parse_ours(json.dumps({**row, "err": "skipped"}), c)
    assert us is None and more == "skipped"
    for bad in ("", json.dumps({**row, "Sk": 8192})):
        try:
            parse_ours(bad, c)
        except ValueError:
            continue
        raise AssertionError(bad)
    with tempfile.TemporaryDirectory() as folder:
        log = Log(os.path.join(folder, "x.jsonl"))
        script = os.path.join(folder, "fake")
        with open(script, "w") as f:
            f.write("#!/bin/sh\necho '" + json.dumps(row) + "'\n")
        os.chmod(script, 0o755)
        fake = arguments(["--ferroflash", script, "--peers", "ours,fa3", "--fa3", folder, "--passes", "2", "--max-seconds", "20"])

        class Fake:
            torn = None

            def run(self, peer, c):
                if c.B == 8:
                    raise RuntimeError("no kernel")
                log.timed(c, peer, 7.2)

            def tidy(self):
                pass
        measure(fake, log, Fake(), [c, c._replace(B=8)])
        assert log.us[c]["ours"] == [row["ms"] * 1e3] * 2 and log.us[c]["fa3"] == [7.2, 7.2]
        assert "no kernel" in log.wrong[(c._replace(B=8), "fa3")] and "got Case" in log.wrong[(c._replace(B=8), "ours")]
        text = "\n".join(table(log, [c, c._replace(B=8)]))
        assert "1.043  fa3" in text and "error" in text, text
        print(text)
        begin = time.time()
        late = arguments(["--ferroflash", script, "--peers", "ours", "--max-seconds", str(time.time() - T0 + 1)])
        measure(late, log, None, [c] * 9)
        assert time.time() - begin < 2
    print("ok")


if __name__ == "__main__":
    main()
