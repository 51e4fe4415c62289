#!/usr/bin/env python3
"""Makes window_d64.safetensors: the activations of causal_d64.safetensors under a sliding window, o, lse and gradients worked out in
float64 by PyTorch from the definition. Wants torch and safetensors:

    python3 tests/data/window.py
"""
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LEFT, RIGHT = 64, 3
HERE = Path(__file__).parent

with safe_open(HERE / "causal_d64.safetensors", "pt") as given:
    kept = {name: given.get_tensor(name) for name in ("q", "k", "v", "d_o")}
    metadata = given.metadata()

q, k, v, d_o = (kept[name].double().transpose(1, 2) for name in ("q", "k", "v", "d_o"))
leaves = [x.clone().requires_grad_() for x in (q, k, v)]
scores = leaves[0] @ leaves[1].transpose(2, 3) * float(metadata["softmax_scale"])
place, key = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
scores = scores.masked_fill(~((place - LEFT <= key) & (key <= place + RIGHT)), float("-inf"))
o = torch.softmax(scores, -1) @ leaves[2]
gradients = torch.autograd.grad(o, leaves, d_o)

results = dict(zip(("o", "d_q", "d_k", "d_v"), (o, *gradients)))
tensors = {name: x.detach().transpose(1, 2).float().contiguous() for name, x in results.items()}
tensors["lse"] = torch.logsumexp(scores, -1).detach().float().contiguous()
metadata |= {"causal": "false", "window_left": str(LEFT), "window_right": str(RIGHT)}
save_file(kept | tensors, HERE / "window_d64.safetensors", metadata)
