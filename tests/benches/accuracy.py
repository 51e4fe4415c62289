"""Errors of attention against float64, ours beside what else a PyTorch program has: one table.

    PYTHONPATH=FOLDER python3 tests/benches/accuracy.py [--fa3 FOLDER] [--fa4] [--seqlen 4096] [--head-dim 128] [--json rows.json]

FOLDER has the package `ferroflash`. Inputs are normally distributed, rounded to the type; the reference reads the same numbers in float64. Errors are root mean
squares of the difference, divided by that of the reference, in units of 10^-3; the largest error of o is beside them. All results are of one GPU and one run.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensors = tuple[torch.Tensor, ...]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_o: torch.Tensor, causal: bool) -> Tensors:
    """o and the gradients of q, k and v in float64, head by head, from [batch, seqlen, heads, head_dim]."""
    results = []
    for head in range(q.shape[2]):
        leaves = tuple(x[:, :, head].double().requires_grad_() for x in (q, k, v))
        scores = leaves[0] @ leaves[1].mT * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        o = torch.softmax(scores, -1) @ leaves[2]
        results.append((o.detach(), *torch.autograd.grad(o, leaves, d_o[:, :, head].double())))
    return tuple(torch.stack(parts, 2) for parts in zip(*results))


def of_sdpa(backend: SDPBackend) -> Callable[..., torch.Tensor]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)

    return attend


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    import ferroflash

    return ferroflash.flash_attn_func(q, k, v, causal=causal)


def flash_attn_3(folder: str) -> Callable[..., torch.Tensor]:
    """Its forward pass, as sglang-kernel ships it."""
    torch.ops.load_library(f"{folder}/flash_ops.abi3.so")

    forward = torch.ops.sgl_kernel.fwd.default
    plain = {"int": 0, "bool": False, "float": 0.0}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        words: dict[str, Any] = {x.name: plain.get(str(x.type)) for x in forward._schema.arguments}
        words.update(q=q.detach(), k=k.detach(), v=v.detach(), softmax_scale=q.shape[-1] ** -0.5, is_causal=causal)
        words.update(window_size_left=-1, window_size_right=-1, num_splits=1)
        return forward(*words.values())[0]

    return attend


def flash_attn_4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    from flash_attn.cute import flash_attn_func

    o = flash_attn_func(q, k, v, causal=causal)
    return o[0] if isinstance(o, tuple) else o


def errors(attend: Callable[..., torch.Tensor], tensors: Tensors, d_o: torch.Tensor, causal: bool, expected: Tensors) -> dict[str, float]:
    """Of o, and where there is a backward pass of the gradients."""
    leaves = tuple(x.detach().requires_grad_() for x in tensors)
    o = attend(*leaves, causal)
    results = [o.detach()]
    if o.grad_fn is not None:
        results += torch.autograd.grad(o, leaves, d_o)
    found: dict[str, float] = {}
    for name, result, exact in zip(("o", "d_q", "d_k", "d_v"), results, expected):
        found[name] = float((result.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    found["largest of o"] = float((results[0].double() - expected[0]).abs().max())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fa3", help="folder of flash_ops.abi3.so")
    parser.add_argument("--fa4", action="store_true", help="flash-attn-4 is installed")
    parser.add_argument("--dtypes", default="bfloat16,float16,float32")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--json", help="where the rows go")
    a = parser.parse_args()
    peers: dict[str, Callable[..., torch.Tensor]] = {
        "ferroflash": ours,
        "cuDNN": of_sdpa(SDPBackend.CUDNN_ATTENTION),
        "FlashAttention 2": of_sdpa(SDPBackend.FLASH_ATTENTION),
        "SDPA math": of_sdpa(SDPBackend.MATH),
    }
    if a.fa3:
        peers["FlashAttention 3"] = flash_attn_3(a.fa3)
    if a.fa4:
        peers["FlashAttention 4"] = flash_attn_4
    rows: list[dict[str, Any]] = []
    for dtype in (getattr(torch, name) for name in a.dtypes.split(",")):
        for causal in (False, True):
            torch.manual_seed(0)
            q, k, v, d_o = (torch.randn(1, a.seqlen, a.heads, a.head_dim, device="cuda").to(dtype) for _ in range(4))
            expected = reference(q, k, v, d_o, causal)
            for name, attend in peers.items():
                row: dict[str, Any] = {"peer": name, "dtype": str(dtype).removeprefix("torch."), "causal": causal}
                try:
                    row |= errors(attend, (q, k, v), d_o, causal, expected)
                except Exception as error:  # a peer that cannot run a case is left out
                    print(f"{row}: {str(error).splitlines()[0][:160]}", file=sys.stderr)
                    continue
                rows.append(row)
                cells = [f"{1000 * row[x]:6.3f}" if x in row else "     -" for x in ("o", "d_q", "d_k", "d_v")]
                print(f"{row['dtype']:9} {'causal' if causal else 'full':7} {name:17}", *cells, f"{row['largest of o']:.2e}", flush=True)
    if a.json:
        with open(a.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
