"""A score and a mask of one's own: a soft cap and ALiBi among the tokens of the same document, forward and backward.

    python examples/custom_score.py                # the CPU, or a GPU where there is one
    python examples/custom_score.py --seqlen 8192  # on a GPU also the times of FlexAttention, which compiles the same by Triton

Results and gradients are checked against PyTorch's operations on all scores, in float64, up to a length that these have memory for.
"""

from __future__ import annotations

import argparse

import ferroflash
import torch
from torch import Tensor

BATCH, HEADS, HEADS_K, HEAD_DIM = 2, 8, 2, 64
CAP = 20.0

# ANCHOR: score
# What both are, in ferroflash: traced once, compiled when it is first used.
SCORE = ferroflash.Score(lambda s, at: s.soft_cap(at.f32("cap")) - at.tensor_f32("slopes")[at.head] * at.distance())
MASK = ferroflash.Mask(lambda at: at.same("document"))


def ours(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, document: Tensor) -> Tensor:
    inputs = {"cap": CAP, "slopes": slopes, "document": document}
    return ferroflash.attention(q, k, v, causal=True, score=SCORE, mask=MASK, score_inputs=inputs)
    # ANCHOR_END: score


def dense(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, document: Tensor) -> Tensor:
    """The definition: all scores in memory."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // HEADS_K, 1) for x in (k, v))
    place = torch.arange(q.shape[2], device=q.device)
    behind = place[:, None] - place
    scores = CAP * torch.tanh(q @ k.transpose(-1, -2) * HEAD_DIM**-0.5 / CAP) - slopes[:, None, None] * behind
    seen = (behind >= 0) & (document[:, None, :, None] == document[:, None, None, :])
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def flex(slopes: Tensor, document: Tensor, seqlen: int):
    """The same by FlexAttention, compiled, with the blocks of its mask made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def score(s, b, h, q, k):
        return CAP * torch.tanh(s / CAP) - slopes[h] * (q - k)

    def mask(b, h, q, k):
        return (q >= k) & (document[b, q] == document[b, k])

    block_mask = create_block_mask(mask, BATCH, None, seqlen, seqlen)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=True).transpose(1, 2)

    return attend


def both_passes(attend, inputs: list[Tensor], d_o: Tensor) -> list[Tensor]:
    """o and the gradients of q, k and v."""
    o = attend(*inputs)
    return [o, *torch.autograd.grad(o, inputs[:3], d_o.to(o.dtype))]


def milliseconds(attend, inputs: list[Tensor], d_o: Tensor) -> float:
    """The median of some runs of both passes on a GPU."""
    times = []
    for n in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        both_passes(attend, inputs, d_o)
        end.record()
        end.synchronize()
        if n >= 3:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=512)
    seqlen = parser.parse_args().seqlen
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    q, k, v, d_o = (torch.randn(BATCH, seqlen, heads, HEAD_DIM, device=device, dtype=dtype) for heads in (HEADS, HEADS_K, HEADS_K, HEADS))
    slopes = 2.0 ** -torch.arange(1.0, HEADS + 1, device=device)
    document = (torch.arange(seqlen, device=device) // 200).int().expand(BATCH, -1)
    inputs = [*(x.requires_grad_() for x in (q, k, v)), slopes, document]

    print(f"score: {SCORE}\nmask:  {MASK}")
    results = both_passes(ours, inputs, d_o)
    if seqlen <= 4096:
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        exact = both_passes(dense, [*wide, slopes.double(), document], d_o)
        for name, result, wanted in zip(("o", "d_q", "d_k", "d_v"), results, exact):
            error = (result.double() - wanted).norm() / wanted.norm()
            print(f"{name}: an error of {error:.1e}")
            assert error < (1e-2 if dtype == torch.bfloat16 else 1e-5)
    if device == "cuda":
        print(f"ferroflash:    {milliseconds(ours, inputs, d_o):.2f} ms, both passes, on {torch.cuda.get_device_name()}")
        print(f"FlexAttention: {milliseconds(flex(slopes, document, seqlen), inputs, d_o):.2f} ms")


if __name__ == "__main__":
    main()
