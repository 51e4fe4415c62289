#!/usr/bin/env python3
"""Errors of gradients, if products of attention's backward pass had operands of 8 bits: on the processor, in float64 but for what is rounded.

    python3 tests/benches/fp8_gradients.py [--seqlen 1024] [--head-dim 128]

q, k and v are numbers that e4m3 has, so that S and dP = dO Vᵀ lose nothing by them. What is rounded has one scale for the head, its greatest magnitude / 448 or
57344; P has 1 / 448. A line has the error of dQ, dK and dV, relative, root mean square, of one causal head.
"""

import argparse

import torch

GREATEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
E4M3, E5M2 = GREATEST


def rounded(x, dtype, greatest=None):
    """x as a tensor of this type with one scale stands for it."""
    if dtype is None:
        return x
    if dtype == torch.bfloat16:
        return x.to(dtype).double()
    scale = (x.abs().max() if greatest is None else greatest) / GREATEST[dtype]
    return (x / scale).float().to(dtype).double() * scale


def gradients(q, k, v, d_o, types):
    """dQ, dK and dV, where operands have these types: dO of dP and of dV, dS, and P of dV."""
    scale = q.shape[-1] ** -0.5
    hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
    p = (scale * q @ k.T).masked_fill(hidden, -torch.inf).softmax(-1)
    d_p = rounded(d_o, types.get("dP")) @ v.T
    d_s = p * (d_p - (d_o * (p @ v)).sum(-1, keepdim=True))
    d_s = rounded(d_s, types.get("dS"))
    p = rounded(p, types.get("P"), 1.0)
    return scale * d_s @ k, scale * d_s.T @ q, p.T @ rounded(d_o, types.get("dV"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--head-dim", type=int, default=128)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shape = arguments.seqlen, arguments.head_dim
    q, k, v = (torch.randn(shape).to(E4M3).double() for _ in range(3))
    d_o = torch.randn(shape).double()
    exact = gradients(q, k, v, d_o, {})
    ways = {
        "bf16 for dO, dS and P": dict.fromkeys(("dP", "dS", "P", "dV"), torch.bfloat16),
        "dO in e4m3 for dP alone": {"dP": E4M3},
        "dO in e5m2 for dP alone": {"dP": E5M2},
        "dO in e5m2, both products": {"dP": E5M2, "dV": E5M2},
        "dS in e4m3": {"dS": E4M3},
        "dS in e5m2": {"dS": E5M2},
        "P in e4m3": {"P": E4M3},
        "all in 8 bits: dO and dS in e5m2, P in e4m3": {"dP": E5M2, "dV": E5M2, "dS": E5M2, "P": E4M3},
        "all in e4m3": {"dP": E4M3, "dV": E4M3, "dS": E4M3, "P": E4M3},
    }
    for name, types in ways.items():
        found = gradients(q, k, v, d_o, types)
        errors = [((x - y).square().mean() / y.square().mean()).sqrt().item() for x, y in zip(found, exact, strict=True)]
        print(f"{name:46}", *(f"{error:.4f}" for error in errors))


if __name__ == "__main__":
    main()
