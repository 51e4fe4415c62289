#!/usr/bin/env python3
"""Times forward attention on q, k and v of e4m3: ferroflash (o in bfloat16; sums of two levels, and of one) beside cuDNN (o in e4m3) and
FlashAttention-3 (o in bfloat16), whose sums have one.

    PYTHONPATH=… e4m3.py [--cudnn FOLDER] [--fa3 FOLDER] [--cases "128:512,1024;64:16384"] [--rounds 3] [--watts SECONDS]

`--cudnn`: a folder with the package `cudnn` (nvidia-cudnn-frontend). `--fa3`: a folder with SGLang's flash_ops.abi3.so. Results are compared with
float32 before they are timed; the peers of a case run in shuffled order, round after round, the L2 cache flushed before each call. A line has
TFLOP/s, and the ratio to the better peer. Scales are 1, one a tensor; cuDNN's o is scaled by 32, out of e4m3's subnormal numbers.

With `--watts` each peer then runs for so many seconds without a pause. Of the second half of them it says TFLOP/s, the clock of the SMs, the power and
what the driver says holds the clock down (NVML: clock info, total energy, clocks event reasons).
"""

import argparse
import ctypes
import os
import random
import statistics
import sys
import time

import torch
from ferroflash import _call

E4M3, DEVICE = torch.float8_e4m3fn, "cuda"


def ours(sums):
    """Calls with sums of these levels, planned once."""

    def make(q, k, v, causal):
        ones = torch.ones(k.shape[0], k.shape[2], device=DEVICE)
        beside = _call.Beside.of({f"{name}_descale": ones for name in "qkv"})._replace(fp8_sums=sums)
        numbers = (None, None, q.shape[-1] ** -0.5, None, 0 if causal else None, 0)
        plan = _call.plan(q, k, v, numbers, beside)
        return lambda: _call.forward(plan, q, k, v, beside)[0]

    return make


def flash_attention_3(q, k, v, causal):
    fwd = torch.ops.sgl_kernel.fwd.default
    given = {
        "q": q,
        "k": k,
        "v": v,
        "softmax_scale": q.shape[-1] ** -0.5,
        "is_causal": causal,
        "window_size_left": -1,
        "window_size_right": -1,
    }
    given |= {"attention_chunk": 0, "softcap": 0.0, "is_rotary_interleaved": False, "num_splits": 1, "sm_margin": 0, "only_qv": False}
    # Versions differ in what else they take.
    arguments = {argument.name: given.get(argument.name) for argument in fwd._schema.arguments}
    return lambda: fwd(**arguments)[0]


def cudnn_graph(q, k, v, causal):
    import cudnn

    types = {E4M3: cudnn.data_type.FP8_E4M3, torch.float32: cudnn.data_type.FLOAT}
    kinds = {"intermediate_data_type": cudnn.data_type.FLOAT, "compute_data_type": cudnn.data_type.FLOAT}
    graph = cudnn.pygraph(io_data_type=types[E4M3], **kinds)
    memory = {}

    def given(x):
        node = graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=types[x.dtype])
        memory[node] = x
        return node

    def wanted(node, x):
        node.set_output(True).set_dim(list(x.shape)).set_stride(list(x.stride())).set_data_type(types[x.dtype])
        memory[node] = x

    one = torch.ones(1, 1, 1, 1, device=DEVICE)
    o = torch.empty_like(q)
    inputs = {name: given(x.transpose(1, 2)) for name, x in (("q", q), ("k", k), ("v", v))}
    inputs |= {name: given(one) for name in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s")}
    mask = {"use_causal_mask": True} if causal else {}
    scale_o = given(torch.full((1, 1, 1, 1), 32.0, device=DEVICE))
    result, _, amax_s, amax_o = graph.sdpa_fp8(**inputs, scale_o=scale_o, generate_stats=False, attn_scale=q.shape[-1] ** -0.5, **mask)
    wanted(result, o.transpose(1, 2))
    for amax in (amax_s, amax_o):
        wanted(amax, torch.zeros(1, 1, 1, 1, device=DEVICE))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=DEVICE)
    handle = cudnn.create_handle()
    cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)

    def run():
        graph.execute(memory, workspace, handle=handle)
        return o

    return run


def error(o, q, k, v, causal):
    """Root mean square of the error of one head, relative; o may have a scale of 32."""
    q, k, v = (x[-1, :, -1].float() for x in (q, k, v))
    s = q @ k.T * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), float("-inf"))
    expected = s.softmax(-1) @ v
    o = o[-1, :, -1].float() / (32 if o.dtype == E4M3 else 1)
    return ((o - expected).square().mean() / expected.square().mean()).sqrt().item()


def time_of(run, flush, rep):
    """Milliseconds of a call, the median of as many as fit `rep`."""

    def measured(n):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        for begin, end in events:
            flush.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events)

    return measured(max(3, min(300, int(rep / measured(3)))))


class Nvml:
    """The first device's meters, as NVIDIA's library of management reads them."""

    SM_CLOCK = 1
    # nvmlClocksEventReason…: the bits that matter here.
    REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake"}

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.library.nvmlInit_v2()
        self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))

    def read(self, function, kind, *arguments):
        number = kind()
        status = getattr(self.library, function)(self.device, *arguments, ctypes.byref(number))
        if status != 0:
            raise RuntimeError(f"{function}: {status}")
        return number.value

    def clock(self):
        """MHz."""
        return self.read("nvmlDeviceGetClockInfo", ctypes.c_uint, self.SM_CLOCK)

    def joules(self):
        """Since the driver was loaded."""
        return self.read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong) / 1e3

    def limit(self):
        """Watts."""
        return self.read("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint) / 1e3

    def reasons(self):
        bits = self.read("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong)
        return {name for bit, name in self.REASONS.items() if bits & bit}


def steady(run, seconds, flops, nvml):
    """TFLOP/s, MHz, watts and what holds the clock down, while calls follow each other without a pause."""
    calls = max(1, int(50 / time_of(run, torch.empty(1, device=DEVICE), 20)))  # of 50 ms
    clocks, reasons, done, begin = [], set(), 0, None
    until = time.monotonic() + seconds
    queued = []
    while time.monotonic() < until:
        for _ in range(calls):
            run()
        queued.append(torch.cuda.Event())
        queued[-1].record()
        if len(queued) > 2:
            queued.pop(0).synchronize()
            if begin is None and time.monotonic() > until - seconds / 2:
                begin = time.monotonic(), nvml.joules()
            elif begin is not None:
                done += calls
                clocks.append(nvml.clock())
                reasons |= nvml.reasons()
                end = time.monotonic(), nvml.joules()
    torch.cuda.synchronize()
    if not clocks:
        sys.exit(f"--watts {seconds}: too short to read a meter after half of it; 1 or more is enough")
    took = end[0] - begin[0]
    return done * flops / took / 1e12, statistics.mean(clocks), (end[1] - begin[1]) / took, reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cudnn", help="folder with the package cudnn")
    parser.add_argument("--fa3", help="folder with flash_ops.abi3.so")
    parser.add_argument("--cases", default="128:512,1024,2048,4096,8192,16384;64:1024,4096,16384;256:1024,4096,16384")
    parser.add_argument("--tokens", type=int, default=16384, help="batch · seqlen")
    parser.add_argument("--width", type=int, default=2048, help="heads · head_dim")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rep", type=float, default=20, help="milliseconds of a round")
    parser.add_argument("--watts", type=float, metavar="SECONDS", help="run each peer for so long, and read the meters")
    arguments = parser.parse_args()
    nvml = Nvml() if arguments.watts else None
    peers = {"ferroflash": ours("two_levels"), "one level": ours("one_level")}
    if arguments.cudnn:
        sys.path.insert(0, arguments.cudnn)
        peers["cudnn"] = cudnn_graph
    if arguments.fa3:
        torch.ops.load_library(os.path.join(arguments.fa3, "flash_ops.abi3.so"))
        peers["fa3"] = flash_attention_3
    flush = torch.empty(64 << 20, dtype=torch.float32, device=DEVICE)
    for part in arguments.cases.split(";"):
        head_dim, lens = part.split(":")
        for seqlen, causal in ((int(n), causal) for n in lens.split(",") for causal in (False, True)):
            batch, heads = max(1, arguments.tokens // seqlen), arguments.width // int(head_dim)
            shape = batch, seqlen, heads, int(head_dim)
            q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).to(E4M3) for _ in range(3))
            runs, errors = {}, {}
            for name, make in peers.items():
                try:
                    run = make(q, k, v, causal)
                    errors[name] = error(run(), q, k, v, causal)
                except Exception as failure:  # a peer may lack a case
                    print(name, shape, causal, str(failure).split("\n")[0][:200], flush=True)
                    continue
                if errors[name] < 0.06:
                    runs[name] = run
                else:
                    print(name, shape, causal, "is off by", errors[name], flush=True)
            times = {name: [] for name in runs}
            for _ in range(arguments.rounds):
                for name in random.sample(list(runs), len(runs)):
                    times[name].append(time_of(runs[name], flush, arguments.rep))
            flops = 4 * batch * heads * seqlen**2 * int(head_dim) / (2 if causal else 1)
            speed = {name: flops / statistics.median(ms) / 1e9 for name, ms in times.items()}
            own = [name for name in ("ferroflash", "one level") if name in speed]
            best = max((x for name, x in speed.items() if name not in own), default=None)
            ratio = "".join(f", {name} {speed[name] / best:.3f}" for name in own) + " of the better peer" if best else ""
            figures = ", ".join(f"{name} {x:.0f} (off by {errors[name]:.4f})" for name, x in speed.items())
            print(f"head_dim {head_dim} seqlen {seqlen} {'causal' if causal else 'full'}: {figures}{ratio}", flush=True)
            for name in random.sample(list(runs), len(runs)) if nvml else []:
                tflops, clock, watts, reasons = steady(runs[name], arguments.watts, flops, nvml)
                held = f", held down by {' and '.join(sorted(reasons))}" if reasons else ""
                limit = f"{watts:.0f} W of {nvml.limit():.0f}, {watts / tflops:.2f} pJ/FLOP"
                print(f"    {name}: {tflops:.0f} TFLOP/s, {clock:.0f} MHz, {limit}{held}", flush=True)


if __name__ == "__main__":
    main()
