"""Forward passes without a backward pass, on PyTorch's tensors: values in the keys, keys and values in 8 bits, and queries, too.

Values in the keys are the operator `ferroflash::latent`; scales of keys and values in 8 bits are optional inputs of `ferroflash::forward`. Keys and values
are read in place, or refused: a copy of a cache could be as large as the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _call
from ._call import Beside, lse_shape
from ._checks import FP8, Form, check, default_scale, number, whole
from ._refuse import refuse
from ._torch import _LIBRARY, _TAGS, _are_plain, attend

_LIBRARY.define(
    "latent(Tensor q, Tensor k, SymInt head_dim_v, Tensor? seqused_k, Tensor? page_table, float softmax_scale, bool causal) "
    "-> (Tensor, Tensor)",
    tags=_TAGS,
)


def latent(
    q: Tensor,
    k: Tensor,
    head_dim_v: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`_torch.attention` with the first `head_dim_v` columns of k for v: o, `[batch, seqlen_q, heads_q, head_dim_v]`, and lse."""
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    options = (head_dim_v, seqused_k, page_table, scale, causal)
    # Nobody has to see the call, and nobody may want a gradient, which the operator refuses.
    if _are_plain(q, k) and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return _latent(q, k, *options)
    return torch.ops.ferroflash.latent.default(q, k, *options)


def forward_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    *,
    softmax_scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
    cu_seqlens_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    page_table: Tensor | None = None,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor]:
    """`_torch.attention` with k and v of e4m3, multiplied by their scales, `[batch, heads_k]` or, in pages, `[n_pages, heads_k]`; None is 1."""
    k_descale, v_descale = descales((q, k, v), k_descale, v_descale, cu_seqlens_q)
    inputs = {
        "cu_seqlens_q": cu_seqlens_q,
        "seqused_k": seqused_k,
        "leftpad_k": leftpad_k,
        "page_table": page_table,
        "k_descale": k_descale,
        "v_descale": v_descale,
    }
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    left, right = (whole("window", side) for side in window)
    numbers = (whole("max_seqlen_q", max_seqlen_q), None, scale, left, right, whole("num_splits", num_splits))
    return attend(q, k, v, numbers, Beside.of(inputs))


def forward_e4m3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    descales: tuple[Tensor | None, Tensor | None, Tensor | None],
    *,
    softmax_scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
    num_splits: int = 0,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    **lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`_torch.attention` with q, k and v of e4m3, multiplied by their scales, `[batch, heads_k]`; None is 1. o is bfloat16."""
    names = ("q_descale", "k_descale", "v_descale")
    given = [x for x in descales if x is not None]
    for argument, x in (("q", q), ("k", k), ("v", v), *((n, x) for n, x in zip(names, descales) if x is not None)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{argument} is {type(x).__name__}; allowed: torch.Tensor")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("gradients were asked for of tensors of 8 bits, which hold none; ferroflash.fp8 has them of 16 bits")
    if len(given) < len(names):
        ends = lengths.get("cu_seqlens_q")
        batch = q.shape[0] if ends is None else ends.numel() - 1
        ones = torch.ones_like(given[0]) if given else torch.ones(batch, k.shape[-2], dtype=torch.float32, device=k.device)
        descales = tuple(ones if x is None else x for x in descales)
    inputs = lengths | {name: x.contiguous() for name, x in zip(names, descales)}
    scale = default_scale(q.shape) if softmax_scale is None else number("softmax_scale", softmax_scale)
    left, right = (whole("window", side) for side in window)
    lens = (whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k))
    return attend(q, k, v, (*lens, scale, left, right, whole("num_splits", num_splits)), Beside.of(inputs))


def in_8_bits(argument: str, k: Tensor, **descales: Tensor | None) -> bool:
    """Whether keys, with this name in errors, are e4m3. Other types have no scales."""
    if getattr(k, "dtype", None) == FP8:
        return True
    for name, given in descales.items():
        if given is not None:
            refuse(name, given, f"None but with {argument} of {FP8}")
    return False


def descales(
    tensors: tuple[Tensor, Tensor, Tensor], k_descale: Tensor | None, v_descale: Tensor | None, cu_seqlens_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Both scales, contiguous."""
    q, k, _ = tensors
    scales = [(name, given) for name, given in (("k_descale", k_descale), ("v_descale", v_descale)) if given is not None]
    for argument, given in (*zip(("q", "k", "v"), tensors, strict=True), *scales):
        if not isinstance(given, Tensor):
            raise TypeError(f"{argument} is {type(given).__name__}; allowed: torch.Tensor")
    if k_descale is None and v_descale is None:
        # Of tensors that are refused later, what they have.
        batch = q.shape[:1] if cu_seqlens_q is None else (cu_seqlens_q.numel() - 1,)
        k_descale = torch.ones(*batch, *k.shape[-2:-1], dtype=torch.float32, device=k.device)
        return k_descale, k_descale
    if k_descale is None or v_descale is None:
        ones = torch.ones_like(v_descale if k_descale is None else k_descale)
        k_descale, v_descale = (ones if given is None else given for given in (k_descale, v_descale))
    return k_descale.contiguous(), v_descale.contiguous()


@torch.library.impl(_LIBRARY, "latent", "CPU")
@torch.library.impl(_LIBRARY, "latent", "CUDA")
def _latent(q, k, head_dim_v, seqused_k, page_table, softmax_scale, causal):
    numbers = None, None, softmax_scale, None, 0 if causal else None, 0
    beside = Beside.of({"seqused_k": seqused_k, "page_table": page_table})
    return _call.forward(_call.plan(q, k, k, numbers, beside, head_dim_v), q, k, k, beside)


@torch.library.register_fake("ferroflash::latent", lib=_LIBRARY)
def _fake_latent(q, k, head_dim_v, seqused_k, page_table, *options):
    check(Form.of(q), Form.of(k), Form.of(k), in_pages=page_table is not None)
    return q.new_empty((*q.shape[:-1], head_dim_v)), q.new_empty(lse_shape(q.shape), dtype=torch.float32)


def _refuse_gradients(ctx, *gradients):
    raise NotImplementedError(f"gradients were asked for; {_call.NO_BACKWARD}")


def _refuse_vmap(info, in_dims, *args):
    raise NotImplementedError("ferroflash has no rule for torch.func.vmap: batch is a dimension of q and k")


torch.library.register_autograd("ferroflash::latent", _refuse_gradients, lib=_LIBRARY)
torch.library.register_vmap("ferroflash::latent", _refuse_vmap, lib=_LIBRARY)
