#!/usr/bin/env python3
"""Times ferroflash beside the attention that a PyTorch program would use instead, in one run on one machine.

Shapes follow the FlashAttention papers: batch x seqlen = 16k tokens, heads x head_dim = 2048. Operations:
4 * batch * heads * seqlen^2 * head_dim forward (halved when causal), 2.5 times that backward; where v has another
number of columns (--hdims-v), D + Dv stand for 2 * head_dim forward, 3 * D + 2 * Dv for 5 * head_dim backward.
On the CPU (--device cpu) the peer is PyTorch's own choice, "sdpa", and batch 1 with --tokens = seqlen is the usual case.
With --window or --lengths, pairs of a query and a key that it sees are counted, 4 * heads * head_dim operations each.
--score alibi and soft-cap are those of `ferroflash bench --score`: slopes 2^(-8 (head + 1) / heads), a cap of 50.
A peer's results are compared with those of one head in f32 before it is timed.
Within a case everybody runs in shuffled order, --rounds times; the median of the rounds' medians counts. A peer that
cannot run a case says so and is left out.
ferroflash runs through its own command, so it is measured as its users run it. Prints one JSON line per case and peer,
and on standard error a line of ratios to the best peer.
"""
import argparse
import functools
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ModuleNotFoundError as error:
    torch, NO_TORCH = None, error  # --help and what is wrong with arguments want none

# By PyTorch's names.
BACKENDS = {"fa2": ["FLASH_ATTENTION"], "cudnn": ["CUDNN_ATTENTION"], "math": ["MATH"],
            "sdpa": ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
CAP = 50.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferroflash", required=True, help="the command")
    parser.add_argument("--peers", default="fa2,cudnn",
                        help="of fa3 (forward), fa4, flex, cudnn-fe (cuDNN by its front end), " + ", ".join(BACKENDS))
    parser.add_argument("--fa3", default="", help="folder of flash_ops.abi3.so, FlashAttention-3 as sgl-kernel ships it")
    parser.add_argument("--algorithms", default="auto", help="ferroflash's: auto is the fastest that can serve; flash3,flash2,...")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--hdims", default="64,128")
    parser.add_argument("--hdims-v", default="", help="columns of v and o, each with each of --hdims; else those of q and k")
    parser.add_argument("--seqs", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--passes", default="fwd,bwd")
    parser.add_argument("--tokens", type=int, default=16384, help="batch x seqlen, at least one batch entry")
    parser.add_argument("--width", type=int, default=2048, help="heads x head_dim")
    parser.add_argument("--heads", default="", help="in place of --width: query heads/KV heads, as 32/8,71/1")
    parser.add_argument("--window", type=int, help="keys that a query sees to the left of its own place")
    parser.add_argument("--score", default="", choices=["", "alibi", "soft-cap"], help="in place of q * k")
    parser.add_argument("--lengths", default="", help="sequences of these lengths, packed, in place of --seqs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=300, help="milliseconds of running before each measurement on a GPU: "
                        "one that has rested is faster, and nobody is to have rested more than the others")
    parser.add_argument("--rep", type=int, default=40, help="milliseconds of measuring per peer and round")
    return parser.parse_args()


def random_tensors(case, options):
    """q, k, v and d_o: [B, S, heads, columns], or [total, heads, columns] of packed sequences."""
    rows = (sum(case["lengths"]),) if case["lengths"] else (case["B"], case["S"])
    shapes = itertools.product(("H", "Hk"), ("D", "Dv"))
    dtype = getattr(torch, DTYPES[options.dtype])
    q, d_o, k, v = (torch.randn(*rows, case[heads], case[columns], device=options.device, dtype=dtype)
                    for heads, columns in shapes)
    return q, k, v, d_o


def first_rows(case, options):
    """cu_seqlens: the first row of each packed sequence, and one past the last."""
    ends = [0]
    for length in case["lengths"]:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32, device=options.device)


def slopes(case, options):
    """ALiBi's, one for each head."""
    heads = torch.arange(1, case["H"] + 1, device=options.device, dtype=torch.float32)
    return torch.exp2(-8 / case["H"] * heads)


def both_passes(case, forward, tensors, d_o):
    """A function that runs one pass and gives o, or dq, dk and dv."""
    if case["p"] == "fwd":
        def run():
            with torch.no_grad():
                return (forward(*tensors),)
        return run
    leaves = tuple(x.detach().requires_grad_() for x in tensors)
    o = forward(*leaves)
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


@functools.cache
def alibi_of_flash_attn_4(heads):
    """ALiBi and its derivative as flash-attn-4 compiles them."""
    import cutlass
    from cutlass import cute

    @cute.jit
    def alibi(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        exponent = (h_idx + cute.full_like(h_idx, 1)).to(cutlass.Float32) * cute.full_like(score, -8 / heads)
        return score + cute.math.exp2(exponent) * (kv_idx - q_idx).to(cutlass.Float32)

    @cute.jit
    def derivative(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        return grad
    for function in (alibi, derivative):  # its folder of compiled kernels would else know them by this file's place
        getattr(function, "__wrapped__", function).__cute_hash__ = f"peers.py {function.__name__} {heads}"
    return dict(score_mod=alibi, score_mod_bwd=derivative)


def flash_attn_4(case, options, tensors):
    """A function that runs one pass of the package flash-attn-4."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    kind = dict(causal=bool(case["causal"]))
    if case["window"] is not None:
        kind["window_size"] = (case["window"], 0 if case["causal"] else None)
    if case["score"] == "soft-cap":
        kind["softcap"] = CAP
    if case["score"] == "alibi":
        kind.update(alibi_of_flash_attn_4(case["H"]))
    call = flash_attn_func
    if case["lengths"]:
        call, ends, longest = flash_attn_varlen_func, first_rows(case, options), max(case["lengths"])
        kind.update(cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest, max_seqlen_k=longest)

    def forward(*tensors):
        result = call(*tensors, **kind)
        return result[0] if isinstance(result, tuple) else result
    return both_passes(case, forward, tensors[:3], tensors[3])


@functools.cache
def flash_ops(folder):
    torch.ops.load_library(os.path.join(folder, "flash_ops.abi3.so"))
    return torch.ops.sgl_kernel


def flash_attn_3(case, options, tensors):
    """A function that runs FlashAttention-3's forward pass, the only one that the wheel has."""
    if case["p"] != "fwd" or case["score"] == "alibi":
        raise NotImplementedError("no backward pass and no ALiBi")
    q, k, v, _ = tensors
    ends = first_rows(case, options) if case["lengths"] else None
    longest = max(case["lengths"]) if case["lengths"] else None
    left = -1 if case["window"] is None else case["window"]
    right = 0 if case["window"] is not None and case["causal"] else -1
    cap = CAP if case["score"] == "soft-cap" else 0.0
    forward = flash_ops(options.fa3).fwd.default
    plain = {"int": 0, "bool": False, "float": 0.0}
    words = {x.name: plain.get(str(x.type)) for x in forward._schema.arguments}  # versions of the wheel have more or fewer
    words.update(q=q, k=k, v=v, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest, max_seqlen_k=longest,
                 softmax_scale=case["D"] ** -0.5, is_causal=bool(case["causal"]), window_size_left=left,
                 window_size_right=right, softcap=cap, num_splits=1)
    return lambda: forward(*words.values())[:1]


def seen_pairs(case):
    """Pairs of a query and a key that it sees, in all sequences of a head."""
    if case["window"] is None:
        lengths = case["lengths"] or [case["S"]] * case["B"]
        return sum(n * n for n in lengths) / (2 if case["causal"] else 1)
    left = case["window"]
    return case["B"] * sum((i if case["causal"] else case["S"] - 1) - max(0, i - left) + 1 for i in range(case["S"]))


def operations(case):
    columns = 3 * case["D"] + 2 * case["Dv"] if case["p"] == "bwd" else case["D"] + case["Dv"]
    return 2 * case["H"] * seen_pairs(case) * columns


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


def torch_peer(backend, case, options, tensors):
    """A function that runs one pass of scaled_dot_product_attention on one of its backends."""
    if case["window"] is not None or case["lengths"] or case["score"]:
        raise NotImplementedError("no windows, no packed lengths and no scores of one's own")
    causal, grouped = bool(case["causal"]), case["H"] != case["Hk"]
    backends = [getattr(SDPBackend, name) for name in BACKENDS[backend]]

    def forward(*tensors):
        with sdpa_kernel(backends):
            q, k, v = (x.transpose(1, 2) for x in tensors)
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)
    return both_passes(case, forward, tensors[:3], tensors[3])


@functools.cache
def flex_attention():
    from torch.nn.attention import flex_attention
    torch._dynamo.config.recompile_limit = 1000
    return flex_attention.create_block_mask, torch.compile(flex_attention.flex_attention, dynamic=False)


def flex(case, options, tensors):
    """A function that runs one pass of PyTorch's flex_attention, compiled once for both."""
    if case["window"] is not None or case["lengths"]:
        raise NotImplementedError("no windows and no packed lengths here")
    block_mask, attend = flex_attention()
    of_head = slopes(case, options)
    score = {"": None, "soft-cap": lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
             "alibi": lambda s, b, h, i, j: s + of_head[h] * (j - i)}[case["score"]]
    mask = None
    if case["causal"]:
        mask = block_mask(lambda b, h, i, j: j <= i, None, None, case["S"], case["S"], device=options.device)

    def forward(*tensors):
        q, k, v = (x.transpose(1, 2) for x in tensors)
        return attend(q, k, v, score_mod=score, block_mask=mask, enable_gqa=case["H"] != case["Hk"]).transpose(1, 2)
    if case["p"] == "fwd":  # with gradients on, so that what is compiled serves both passes
        leaves = [x.detach().requires_grad_() for x in tensors[:3]]
        return lambda: (forward(*leaves).detach(),)
    return both_passes(case, forward, tensors[:3], tensors[3])


@functools.cache
def cudnn_handle():
    import cudnn
    return cudnn.create_handle()


class CudnnGraph:
    """A graph of cuDNN's front end on tensors [B, S, heads, columns]."""

    def __init__(self, dtype):
        import cudnn
        self.cudnn, self.memory = cudnn, {}
        kind = cudnn.data_type
        self.kinds = {torch.bfloat16: kind.BFLOAT16, torch.float16: kind.HALF, torch.float32: kind.FLOAT}
        self.graph = cudnn.pygraph(io_data_type=self.kinds[dtype], intermediate_data_type=kind.FLOAT,
                                   compute_data_type=kind.FLOAT, handle=cudnn_handle())

    def like(self, memory):
        """What a tensor of the graph is to know of its memory."""
        view = memory.transpose(1, 2)
        self.memory[len(self.memory) + 1] = view
        return dict(uid=len(self.memory), dim=list(view.size()), stride=list(view.stride()),
                    data_type=self.kinds[view.dtype])

    def input(self, memory):
        return self.graph.tensor(**self.like(memory))

    def number(self, value):
        self.memory[len(self.memory) + 1] = torch.full((1, 1, 1, 1), value)
        return self.graph.tensor(uid=len(self.memory), dim=[1] * 4, stride=[1] * 4, is_pass_by_value=True,
                                 data_type=self.cudnn.data_type.FLOAT)

    def output(self, tensor, memory):
        of = self.like(memory)
        tensor.set_uid(of["uid"]).set_output(True).set_dim(of["dim"]).set_stride(of["stride"]).set_data_type(of["data_type"])

    def ready(self):
        """A function that runs the graph."""
        mode = self.cudnn.heur_mode
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([mode.A, mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans()
        workspace = torch.empty(max(1, self.graph.get_workspace_size()), device="cuda", dtype=torch.uint8)

        def run():
            self.cudnn.set_stream(handle=cudnn_handle(), stream=torch.cuda.current_stream().cuda_stream)
            self.graph.execute(self.memory, workspace, handle=cudnn_handle())
        return run


class CudnnCap:
    """A soft cap in a graph, and its derivative. A graph with one takes no mask beside it, so a causal mask is a part."""

    def __init__(self, graph, causal):
        self.graph, self.causal = graph, causal
        self.cap, self.hidden, self.zero = (graph.number(value) for value in (CAP, -1e9, 0.0))

    def where_seen(self, sub, score, hidden):
        if not self.causal:
            return score
        kind = self.graph.cudnn.data_type
        row, column = (sub.gen_index(input=score, axis=axis).set_data_type(kind.INT32) for axis in (2, 3))
        seen = sub.cmp_ge(input=row, comparison=column, compute_data_type=kind.BOOLEAN).set_data_type(kind.BOOLEAN)
        return sub.binary_select(input0=score, input1=hidden, mask=seen)

    def score(self, sub, score):
        self.part = sub.div(a=score, b=self.cap)
        return self.where_seen(sub, sub.mul(a=sub.tanh(input=self.part), b=self.cap), self.hidden)

    def derivative(self, sub, d_score):
        d_part = sub.tanh_backward(loss=sub.mul(a=d_score, b=self.cap), input=self.part)
        return self.where_seen(sub, sub.div(a=d_part, b=self.cap), self.zero)


def cudnn_front_end(case, options, tensors):
    """A function that runs one pass of cuDNN's attention by its own front end."""
    if case["window"] is not None or case["lengths"]:
        raise NotImplementedError("no windows and no packed lengths here")
    q, k, v, d_o = tensors
    o, lse = torch.empty_like(d_o), torch.empty(case["B"], case["S"], case["H"], 1, device="cuda", dtype=torch.float32)
    lse = lse.transpose(1, 2).contiguous().transpose(1, 2)

    def score(graph, backward):
        words = dict(attn_scale=case["D"] ** -0.5)
        if case["score"] == "soft-cap":
            cap = CudnnCap(graph, case["causal"])
            return dict(words, score_mod=cap.score, **(dict(score_mod_bprop=cap.derivative) if backward else {}))
        return dict(words, use_alibi_mask=case["score"] == "alibi", diagonal_band_right_bound=0 if case["causal"] else None)

    forward = CudnnGraph(q.dtype)
    results = forward.graph.sdpa(q=forward.input(q), k=forward.input(k), v=forward.input(v), generate_stats=True,
                                 **score(forward, False))
    for result, memory in zip(results, (o, lse)):
        forward.output(result, memory)
    run_forward = forward.ready()
    if case["p"] == "fwd":
        return lambda: run_forward() or (o,)
    run_forward()
    backward = CudnnGraph(q.dtype)
    inputs = {name: backward.input(x) for name, x in dict(q=q, k=k, v=v, o=o, dO=d_o, stats=lse).items()}
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    results = backward.graph.sdpa_backward(**inputs, **score(backward, True))
    for result, memory in zip(results, gradients):
        backward.output(result, memory)
    run_backward = backward.ready()
    return lambda: run_backward() or gradients


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
    if case["Dv"] != case["D"]:
        command += ["--hdims-v", case["Dv"]]
    if case["score"]:
        command += ["--score", case["score"]]
    output = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    if output.returncode != 0:
        sys.exit(output.stderr)
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    for row in rows:
        if "err" in row:
            print(f"{row['peer']} {case}: {row['err']}", file=sys.stderr)
    return [row for row in rows if "ms" in row]


def last_head(tensor, case):
    """The rows of the last sequence's last head."""
    return (tensor[-case["lengths"][-1]:] if case["lengths"] else tensor[-1])[:, -1]


def reference(case, options, tensors):
    """o, or dq, dk and dv, of the last sequence's last head in f32."""
    q, k, v, d_o = (last_head(x, case).float() for x in tensors)
    leaves = tuple(x.requires_grad_() for x in (q, k, v))
    i, j = torch.arange(len(q), device=options.device)[:, None], torch.arange(len(k), device=options.device)
    s = q @ k.T * case["D"] ** -0.5
    if case["score"] == "soft-cap":
        s = CAP * torch.tanh(s / CAP)
    if case["score"] == "alibi":
        s = s + slopes(case, options)[-1] * (j - i)
    if case["causal"]:
        s = s.masked_fill(j > i, -torch.inf)
    if case["window"] is not None:
        s = s.masked_fill(j < i - case["window"], -torch.inf)
    o = torch.softmax(s, -1) @ v
    return (o.detach(),) if case["p"] == "fwd" else torch.autograd.grad(o, leaves, d_o)


def check(results, case, options, tensors):
    """Raises where results are not the reference's; heads that share keys add up dk and dv, which are not looked at."""
    expected = reference(case, options, tensors)
    for result, expected in zip(results[:None if case["H"] == case["Hk"] else 1], expected):
        error = (last_head(result, case).float() - expected).norm() / expected.norm()
        if not error < 0.03:
            raise ArithmeticError(f"a relative error of {error:.3g}")


def prepare(peer, case, options):
    """A function that runs one pass of a peer, after a look at what it gives."""
    tensors = random_tensors(case, options)
    if case["score"]:
        tensors[0].mul_(8)  # scores so far from 0 that a cap matters; ferroflash's, and those that are timed, are not
    run = PEERS[peer](case, options, tensors)
    check(run(), case, options, tensors)
    return PEERS[peer](case, options, random_tensors(case, options)) if case["score"] else run


PEERS = {"fa3": flash_attn_3, "fa4": flash_attn_4, "flex": flex, "cudnn-fe": cudnn_front_end,
         **{name: functools.partial(torch_peer, name) for name in BACKENDS}}


def measure(options, case):
    """A line for every peer."""
    runs, times, rows = {}, {}, {}
    for peer in options.peers.split(","):
        try:
            runs[peer] = prepare(peer, case, options)
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
    columns = [(int(D), int(Dv)) for D in options.hdims.split(",") for Dv in (options.hdims_v or D).split(",")]
    for D, Dv in columns:
        for heads in (options.heads or f"{options.width // D}/{options.width // D}").split(","):
            H, Hk = map(int, heads.split("/"))
            for causal in map(int, options.causal.split(",")):
                for S in [sum(lengths)] if lengths else map(int, options.seqs.split(",")):
                    for p in options.passes.split(","):
                        B = 1 if lengths else max(1, options.tokens // S)
                        case = dict(D=D, Dv=Dv, causal=causal, S=S, B=B, H=H, Hk=Hk, p=p, window=options.window,
                                    lengths=lengths, score=options.score)
                        mask = ("causal" if causal else "full") + (f" window {options.window}" if options.window else "")
                        words = f"d{D}" + (f"/{Dv}" if Dv != D else "") + (f" {options.score}" if options.score else "")
                        yield case, f"{words} {heads} {mask} {p} {'packed ' if lengths else ''}{S}"


def main():
    options = arguments()
    if torch is None:
        sys.exit(f"peers.py runs PyTorch's attention beside ferroflash's, and cannot import it: {NO_TORCH}")
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


if __name__ == "__main__":
    main()
