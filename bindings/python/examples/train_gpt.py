"""Trains GPT-2 small (124 million weights) on bytes with several implementations of attention, and compares them.

    python train_gpt.py                              # 100 steps on a GPU
    python train_gpt.py --preset llama --compile     # 32 heads of 128 share 8 of keys and values, 4,096 bytes, compiled
    python train_gpt.py --dtype fp8                  # also attention in 8 bits
    python train_gpt.py --text book.txt --plot loss.svg
    python train_gpt.py --device cpu --preset tiny   # a minute on two cores

All start from the same weights and see the same batches. Without --text they learn bytes of which each one suggests
the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Preset:
    """Sizes of a model, and of a batch. GPT-2's vocabulary is kept, of which bytes are the first 256."""

    layers: int
    width: int
    heads: int
    heads_k: int
    vocabulary: int
    batch: int
    seqlen: int


PRESETS = {
    "small": Preset(layers=12, width=768, heads=12, heads_k=12, vocabulary=50304, batch=8, seqlen=1024),
    # Some of the layers of an 8B model, with GPT-2's norms and activations.
    "llama": Preset(layers=4, width=4096, heads=32, heads_k=8, vocabulary=50304, batch=2, seqlen=4096),
    "tiny": Preset(layers=2, width=128, heads=4, heads_k=2, vocabulary=256, batch=4, seqlen=128),
}


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own choice: cuDNN's kernels on Hopper. q is [batch, seqlen, heads, head_dim], k and v have heads_k heads."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    shares = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shares).transpose(1, 2)


def in_8_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """ferroflash's attention in 8 bits, which rounds tensors of 16 bits: those of autocast, or, where the model is float32, copies."""
    from ferroflash import fp8

    narrow = (x.to(torch.bfloat16) if x.dtype == torch.float32 else x for x in (q, k, v))
    return fp8.flash_attn_func(*narrow, causal=True).to(q.dtype)


def implementations(device: str, dtype: str = "bf16") -> dict[str, Attention]:
    """Attention by name: those that can be imported."""
    found: dict[str, Attention] = {"SDPA": sdpa}
    if device == "cuda":
        try:
            from flash_attn.cute import flash_attn_func as flash_attn_4
        except ImportError as error:
            print(f"[not run] flash-attn-4: {error}")
        else:
            found["flash-attn-4"] = lambda q, k, v: first(flash_attn_4(q, k, v, causal=True))
    from ferroflash import flash_attn_func

    found["ferroflash"] = lambda q, k, v: flash_attn_func(q, k, v, causal=True)
    if dtype == "fp8":
        found["ferroflash fp8"] = in_8_bits
    return found


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


class Block(nn.Module):
    """x + attention(x), then x + mlp(x), each of the normalised x."""

    def __init__(self, preset: Preset, attention: Attention) -> None:
        super().__init__()
        width, heads, heads_k = preset.width, preset.heads, preset.heads_k
        self.heads, self.attention = (heads, heads_k, heads_k), attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, width // heads * sum(self.heads)), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (sum(self.heads), -1)).split(self.heads, 2)
        x = x + self.out(self.attention(q, k, v).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """GPT-2 without dropout; the loss of predicting each next byte."""

    def __init__(self, preset: Preset, attention: Attention) -> None:
        super().__init__()
        self.tokens = nn.Embedding(preset.vocabulary, preset.width)
        self.places = nn.Embedding(preset.seqlen, preset.width)
        self.blocks = nn.Sequential(*(Block(preset, attention) for _ in range(preset.layers)))
        self.norm = nn.LayerNorm(preset.width)
        for weights in self.parameters():
            if weights.dim() == 2:
                nn.init.normal_(weights, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def read(path: str | None) -> Tensor:
    """The bytes of a file; or half a million, each of which is three times in four followed by the same one."""
    if path is not None:
        with open(path, "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    draw = torch.Generator().manual_seed(0)
    follows = torch.randperm(256, generator=draw).tolist()
    text = torch.randint(256, (1 << 19,), generator=draw).tolist()
    chance = torch.rand(len(text), generator=draw).tolist()
    for i in range(1, len(text)):
        if chance[i] < 0.75:
            text[i] = follows[text[i - 1]]
    return torch.tensor(text, dtype=torch.uint8)


def train(preset: Preset, attention: Attention, text: Tensor, options: argparse.Namespace) -> tuple[list[float], float, int]:
    """Losses of all steps, seconds for each step after the first tenth, and the most bytes of GPU memory."""
    torch.manual_seed(0)
    model = Gpt(preset, attention).to(options.device)
    step_model = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=options.device == "cuda")
    draw = torch.Generator().manual_seed(1)
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, warm_up, begun = [], max(options.steps // 10, 1), 0.0
    for step in range(options.steps):
        if step == warm_up:
            if on_gpu:
                torch.cuda.synchronize()
            begun = time.perf_counter()
        begins = torch.randint(len(text) - preset.seqlen, (preset.batch, 1), generator=draw)
        rows = text[begins + torch.arange(preset.seqlen + 1)].to(options.device, torch.long, non_blocking=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=on_gpu):
            loss = step_model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    numbers = torch.stack(losses).tolist()  # waits for the GPU
    seconds = (time.perf_counter() - begun) / (options.steps - warm_up)
    return numbers, seconds, torch.cuda.max_memory_allocated() if on_gpu else 0


def plot(curves: dict[str, list[float]], path: str) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        print(f"[not run] --plot {path}: no matplotlib")
        return
    figure, axes = pyplot.subplots()
    for name, losses in curves.items():
        axes.plot(losses, label=name)
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16", help="fp8: also ferroflash's attention in 8 bits")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, help="sequences in a batch")
    parser.add_argument("--seqlen", type=int, help="bytes in a sequence")
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--text", help="a file whose bytes are learnt")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--plot", help="where to write the loss curves: .svg or .png; needs matplotlib")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}; allowed: 2 or more")
    preset = PRESETS[options.preset]
    preset.batch, preset.seqlen = options.batch or preset.batch, options.seqlen or preset.seqlen
    text = read(options.text)
    if len(text) <= preset.seqlen:
        parser.error(f"--text {options.text} has {len(text)} bytes; needed: more than {preset.seqlen}")
    n_weights = sum(weights.numel() for weights in Gpt(preset, sdpa).parameters())
    sizes = f"{options.steps} steps of {preset.batch} x {preset.seqlen} bytes"
    print(f"{n_weights / 1e6:.1f} million weights, {sizes}, {options.device}")
    print(f"{'attention':14}{'ms per step':>12}{'tokens/s':>12}{'GiB':>7}{'last loss':>11}{'from SDPA':>11}")
    curves: dict[str, list[float]] = {}
    for name, attention in implementations(options.device, options.dtype).items():
        curves[name], seconds, n_bytes = train(preset, attention, text, options)
        rate = preset.batch * preset.seqlen / seconds
        apart = max(abs(a - b) for a, b in zip(curves[name], curves["SDPA"], strict=True))
        numbers = f"{seconds * 1e3:12.1f}{rate:12,.0f}{n_bytes / 2**30:7.1f}{curves[name][-1]:11.4f}{apart:11.1e}"
        print(f"{name:14}{numbers}", flush=True)
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
