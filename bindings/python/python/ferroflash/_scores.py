"""ALiBi and soft caps of FlashAttention's interfaces, as expressions; and tensors of models in float32.

ALiBi adds −slope · |k − (q + seqlen_k − seqlen_q)| to a score, as flash-attn's documentation says. (Under a causal mask its kernels leave the part
out that all keys of a query share: o is the same, and lse is not.) The soft cap comes first: softcap · tanh(s / softcap).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._checks import DTYPES, number
from ._refuse import refuse
from ._symbols import At, Num
from .expression import Score

Window = tuple[int | None, int | None]


def _score(capped: bool, rank: int, behind: bool) -> Score:
    """The score with a soft cap or without, and ALiBi by slopes of so many dimensions; 0 is none. `behind`: no query sees a key beyond
    its place."""

    def score(s: Num, at: At) -> Num:
        if capped:
            s = s.soft_cap(at.f32("softcap"))
        if rank > 0:
            slopes = at.tensor_f32("alibi_slopes")
            slope = slopes[at.head] if rank == 1 else slopes[at.batch, at.head]
            # What needs no |x| is cheaper: it is linear in k.
            s = s - slope * (at.distance() if behind else abs(at.distance()))
        return s

    return Score(score)


# Made once, outside of what torch.compile traces.
_SCORES = {
    (capped, rank, behind): _score(capped, rank, behind)
    for capped in (False, True)
    for rank in (0, 1, 2)
    for behind in (False, True)
    if capped or rank > 0
}


def edit(
    q: Tensor, window: Window, softcap: float = 0.0, alibi_slopes: Tensor | None = None, cu_seqlens_q: Tensor | None = None
) -> dict[str, Any]:
    """The options of `_torch.attention` that say so: none where neither is asked for."""
    softcap = number("softcap", softcap)
    if not 0.0 <= softcap < math.inf:
        refuse("softcap", softcap, "a number greater than 0, or 0 for none")
    if softcap == 0.0 and alibi_slopes is None:
        return {}
    inputs: dict[str, Any] = {"softcap": float(softcap)} if softcap > 0.0 else {}
    if alibi_slopes is not None:
        _check(q, alibi_slopes, cu_seqlens_q)
        inputs["alibi_slopes"] = alibi_slopes
    rank = 0 if alibi_slopes is None else alibi_slopes.dim()
    return {"score": _SCORES[softcap > 0.0, rank, window[1] == 0], "score_inputs": inputs}


def in_f32(argument: str, given: Tensor | None) -> Tensor | None:
    """A tensor of any type of floats as `_torch.attention` takes it; gradients go back to its own."""
    if given is None:
        return None
    if not isinstance(given, Tensor):
        raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor, or None")
    if given.dtype not in DTYPES:
        raise TypeError(f"{argument} is {given.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    return given.float().contiguous()


def _check(q: Tensor, slopes: Tensor, cu_seqlens_q: Tensor | None) -> None:
    """Whether slopes are float32 `[heads_q]` or `[batch, heads_q]`, beside q, and want no gradient."""
    if not isinstance(slopes, Tensor):
        raise TypeError(f"alibi_slopes is {type(slopes).__name__}; allowed: torch.Tensor, or None")
    if slopes.dtype != torch.float32:
        raise TypeError(f"alibi_slopes is {slopes.dtype}; needed: torch.float32")
    if slopes.requires_grad and torch.is_grad_enabled():
        refuse("alibi_slopes", slopes, "a tensor that asks for no gradient, as ferroflash has none of slopes")
    if not isinstance(q, Tensor) or q.dim() < 3:
        return  # Attention refuses q.
    if slopes.device != q.device:
        raise TypeError(f"alibi_slopes lies on {slopes.device}; needed: {q.device}, as q")
    heads = q.shape[-2]
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError(f"alibi_slopes has the shape {list(slopes.shape)}; needed: [{heads}], or [{batch}, {heads}]")
