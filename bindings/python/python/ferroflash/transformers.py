"""ferroflash as an attention implementation of Hugging Face's transformers, version 5.

    import ferroflash
    from transformers import AutoModelForCausalLM

    ferroflash.transformers.register()
    model = AutoModelForCausalLM.from_pretrained("...", attn_implementation="ferro")

`register` gives transformers two functions: a model calls `make_mask` once in a forward pass, each layer `attention`.

Supported: causal and bidirectional models, cross-attention, grouped heads, padding on the left and on the right, sequences
packed by `position_ids` or by `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, sliding windows,
soft-capped scores, attention sinks (GPT-OSS), attention dropout, dynamic and static caches. A query that sees no key gets 0, whereas
"eager" gives the mean of all values; such queries are padding. Dropout draws from PyTorch's generator, but drops other weights than
"eager".

Refused with NotImplementedError: position biases, sparse attention, `output_attentions`, and masks of other patterns: the
caller's own (four dimensions), image tokens that see each other, chunks.

With a padding mask or a packed batch, `make_mask` waits for the GPU once in a forward pass, as transformers' own functions do, and
`torch.compile` breaks its graph there. `generate` with a static cache calls it outside its compiled graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _torch
from ._refuse import refuse, refuse_given
from ._scores import edit, in_f32

__all__ = ["attention", "make_mask", "register"]


def register(name: str = "ferro") -> None:
    """Makes `attn_implementation=name` known to transformers.

    Args:
        name: letters, digits and underscores, without "flash": transformers looks for such names on its hub.
    """
    if not re.fullmatch(r"\w+", name) or "flash" in name:
        raise ValueError(f"name: {name!r} was given; allowed: letters, digits and underscores, without 'flash'")
    try:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise ImportError("ferroflash.transformers needs transformers 5") from error
    if name == "eager" or AttentionInterface().get(name, attention) is not attention:
        raise ValueError(f"name: {name!r} was given; allowed: one that transformers has no other implementation for")
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_mask)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | Tensor | None = None,
    max_length_k: int | Tensor | None = None,
    output_attentions: bool | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, with the arguments of transformers' attention functions.

    Args:
        query, key, value: `[batch, heads, seqlen, head_dim]`; fewer heads of key and value are not repeated.
        attention_mask: from `make_mask`. It decides causality and windows.
        softcap: if it is greater than 0, softcap · tanh(s / softcap) replaces every score s.
        sliding_window, is_causal: used without a mask; is_causal defaults to that of module.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: for a packed batch: the first rows of its sequences, and the longest of them.
        dropout: the probability that a weight is dropped; models give 0 in evaluation.
        s_aux: `[heads]`, the sinks of the query heads: exp(sink) is added to the sum of exponentials of each row. Gradients flow to it.

    Returns:
        `[batch, seqlen, heads, head_dim]` and None, as there are no weights to return.
    """
    refuse_given(**{name: others.get(name) for name in _REFUSED})
    if output_attentions:
        refuse("output_attentions", True, 'False; only "eager" has the weights')
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    if head_dim_v < head_dim:
        v = torch.nn.functional.pad(v, (0, head_dim - head_dim_v))
    packed = _packed(cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k, max_length_q=max_length_q, max_length_k=max_length_k)
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        mask = _Mask(None, causal, _left_without_mask(sliding_window, causal, k.shape[1]))
    else:
        mask = _Mask.decode(attention_mask)
    sides = (mask.left, 0 if mask.causal else mask.left)
    beside = {"sinks": in_f32("s_aux", s_aux), "dropout_p": dropout}
    options = {"softmax_scale": scaling, "window": sides, **beside, **edit(q, sides, softcap or 0.0)}
    o = _attend(q, k, v, mask, packed, options)
    return (o if head_dim_v >= head_dim else o[..., :head_dim_v]), None


# Arguments of transformers' attention functions that change the result in ways ferroflash has no kernel for.
_REFUSED = ("position_bias", "head_mask", "indices", "block_indices")


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: _Mask, packed: dict[str, Any] | None, options: dict[str, Any]) -> Tensor:
    """Calls the library with the mask's lengths."""
    rows = mask.lengths
    if rows is not None and rows.dtype == torch.uint8:
        kind = _KEPT
    else:
        kind = 0 if rows is None else rows.shape[0]
    if packed is not None and kind not in (0, _CU_SEQLENS):
        refuse("attention_mask", rows, "None together with cu_seq_lens_q: a packed batch has no padding")
    if packed is None and kind == _CU_SEQLENS:
        cu_seqlens, longest = rows[0].contiguous(), mask.max_seqlen or q.shape[1]
        packed = {
            "cu_seqlens_q": cu_seqlens,
            "max_seqlen_q": longest,
            "cu_seqlens_k": cu_seqlens,
            "max_seqlen_k": longest,
        }
    if packed is not None:
        o, _ = _torch.attention(*(x.flatten(0, 1) for x in (q, k, v)), **packed, **options)
        return o.view(q.shape)
    if kind == 0:
        return _torch.attention(q, k, v, **options)[0]
    if kind == _KEPT:
        return _attend_kept(q, k, v, rows.bool(), options)
    lengths = dict(zip(("leftpad_k", "seqused_k", "seqused_q"), (row.contiguous() for row in rows), strict=False))
    return _torch.attention(q, k, v, **lengths, **options)[0]


def _attend_kept(q: Tensor, k: Tensor, v: Tensor, kept: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention among the rows that are not padding, at any positions: packs them, and scatters the results back. Waits for the GPU."""
    kept_k, kept_q = kept.t().split((k.shape[1], q.shape[1]), dim=1)
    cu_seqlens = {"cu_seqlens_q": _cumulative(kept_q), "cu_seqlens_k": _cumulative(kept_k)}
    longest = {"max_seqlen_q": q.shape[1], "max_seqlen_k": k.shape[1]}
    o, _ = _torch.attention(q[kept_q], k[kept_k], v[kept_k], **cu_seqlens, **longest, **options)
    padded = q.new_zeros(q.shape)
    padded[kept_q] = o
    return padded


def _cumulative(kept: Tensor) -> Tensor:
    return torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0)).to(torch.int32)


def _packed(**given: Tensor | int | None) -> dict[str, Any] | None:
    """The caller's description of a packed batch, in the library's form."""
    missing = [name for name, x in given.items() if x is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise ValueError(f"{', '.join(missing)}: None was given; allowed: all of {', '.join(given)}, or none of them")
    return {
        "cu_seqlens_q": given["cu_seq_lens_q"].to(torch.int32),
        "cu_seqlens_k": given["cu_seq_lens_k"].to(torch.int32),
        "max_seqlen_q": int(given["max_length_q"]),
        "max_seqlen_k": int(given["max_length_k"]),
    }


def _left_without_mask(sliding_window: int | None, causal: bool, seqlen_k: int) -> int | None:
    """Keys before its own that a query sees, by the argument of a layer, which in a causal mask counts the query's own key, and in a
    bidirectional one does not."""
    if sliding_window is None:
        return None
    left = sliding_window - 1 if causal else sliding_window
    if left >= seqlen_k - 1:
        return None  # It hides nothing.
    if not causal:
        refuse("sliding_window", sliding_window, "None where there is no mask and is_causal is False")
    return left


# How many rows of int32 a mask has, by what they are.
_KEYS = 2  # leftpad_k, seqused_k
_KEYS_AND_QUERIES = 3  # and seqused_q
_CU_SEQLENS = 4  # cu_seqlens in each
_KEPT = -1  # none of these: uint8


class _Mask(NamedTuple):
    """A parsed mask.

    Between `make_mask` and `attention` it is a tensor, since models pass on only tensors, move them to other devices, and compile graphs
    with them. It has four dimensions: those transformers leaves alone. Lengths are its values, and stay on
    the device; what the host must know is its shape: `[n, rows, 1 + causal, 1]`, or with a window
    `[n, rows, 1 + causal, 2 + left]`. The last two have strides of 0, so the window costs no memory.

    lengths: None; or int32 `[rows, n]`, see `_KEYS` and the others; or, for padding with gaps, uint8
        `[seqlen_k + seqlen_q, batch]`: which keys and which queries are not padding.
    causal: whether a query sees no key after its own position.
    left: how many keys a query sees before its position and, if the mask is not causal, after it; None: all.
    max_seqlen: the longest sequence, if known.
    """

    lengths: Tensor | None
    causal: bool
    left: int | None
    max_seqlen: int | None = None

    def encode(self, batch: int, device: torch.device | str) -> Tensor:
        lengths = torch.empty((0, batch), dtype=torch.int32, device=device) if self.lengths is None else self.lengths
        code = 1 if self.left is None else 2 + self.left
        mask = lengths.t()[:, :, None, None].expand(-1, -1, 1 + self.causal, code)
        if self.max_seqlen is not None:
            mask.ferroflash_max_seqlen = self.max_seqlen  # copies lose it: the length of the batch's rows will do, too
        return mask

    @staticmethod
    def decode(mask: Tensor) -> _Mask:
        ours = mask.dim() == 4 and mask.shape[2] in (1, 2)
        if mask.dtype == torch.uint8:
            ours = ours and mask.shape[3] == 1
        else:
            ours = ours and mask.dtype == torch.int32 and mask.shape[1] in (0, _KEYS, _KEYS_AND_QUERIES, _CU_SEQLENS)
        if not ours:
            refuse("attention_mask", mask, "None, or a padding mask [batch, seqlen], given to the model")
        lengths = mask[:, :, 0, 0].t() if mask.shape[1] > 0 else None
        left = None if mask.shape[3] == 1 else mask.shape[3] - 2
        return _Mask(lengths, mask.shape[2] == 2, left, getattr(mask, "ferroflash_max_seqlen", None))


@torch.compiler.disable
def make_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    cache_position: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """The mask of one forward pass, with the arguments of transformers' mask functions.

    Args:
        q_length, q_offset: the number of queries, and the position of the first.
        kv_length, kv_offset: the same for the keys; for a static cache, its capacity.
        mask_function: which keys a query sees, as transformers composes it.
        attention_mask: bool `[batch, length]`: which tokens are not padding.
        cache_position: the positions of the queries; some versions give these in place of q_length and q_offset.

    Returns:
        the mask for `attention`; None if every query sees all keys, or all up to its own position.
    """
    if cache_position is not None:
        q_length, q_offset = cache_position.shape[0], int(cache_position[0])
    if attention_mask is not None:
        device = attention_mask.device
    pattern = _Pattern.of(mask_function, kv_offset + kv_length)
    left = pattern.left if pattern.left is not None and pattern.left < kv_length - 1 else None
    allow_none = allow_is_causal_skip if pattern.causal else allow_is_bidirectional_skip
    if pattern.sequences is not None:
        packed = _mask_of_packed(pattern, left)
        if packed is not None:
            return packed
        allow_none = True
    if left is not None and not pattern.causal and q_length != kv_length:
        given = f"a window to both sides with {q_length} queries and {kv_length} keys"
        refuse("mask_function", given, "as many queries as keys")
    # Where the keys end that a query may see, and where the first query stands among the keys.
    end = q_offset + q_length - kv_offset if pattern.causal else kv_length
    shift = q_offset - kv_offset
    if not isinstance(end, Tensor) and end > kv_length:
        raise ValueError(f"kv_length: {kv_length} was given; needed: {end}, as queries stand behind that many keys")
    lengths = None
    if attention_mask is not None:
        lengths = _lengths_of_padding(attention_mask, kv_length, kv_offset, q_length, end, shift, pattern.causal, left)
    # Where transformers allows no None, it compiles graphs: there a mask has lengths in each step.
    if lengths is None and (isinstance(end, Tensor) or end != kv_length or not allow_none):
        zeros = torch.zeros(batch_size, dtype=torch.int32, device=device)
        lengths = _lengths(zeros, zeros + end)
    if lengths is None and left is None:
        return None
    return _Mask(lengths, pattern.causal, left).encode(batch_size, device)


def _lengths(*rows: Tensor) -> Tensor:
    return torch.stack([row.to(torch.int32) for row in rows])


def _lengths_of_padding(
    padding: Tensor,
    kv_length: int,
    kv_offset: int,
    q_length: int,
    end: int | Tensor,
    shift: int | Tensor,
    causal: bool,
    left: int | None,
) -> Tensor | None:
    """Lengths for a padding mask `[batch, length]`, in the form of `_Mask`; None without padding."""
    kept = padding[:, kv_offset : kv_offset + kv_length].bool()
    kept = torch.nn.functional.pad(kept, (0, kv_length - kept.shape[1]))
    kept = kept & (torch.arange(kv_length, device=kept.device) < end)
    numbers = kept.to(torch.int32)
    counts, first = numbers.sum(1), numbers.argmax(1)
    last = torch.where(counts > 0, kv_length - numbers.flip(1).argmax(1), 0)
    facts = torch.stack([(last - first != counts).any(), (counts == kv_length).all(), (last < end).any()])
    has_gaps, is_full, ends_early = facts.tolist()  # waits for the GPU
    if is_full:
        return None
    if has_gaps:
        if left is not None:
            refuse("attention_mask", padding, "with sliding windows, padding on the left and on the right, not between")
        shift = int(shift)
        kept_q = kept[:, shift : shift + q_length] if causal else kept.new_ones((kept.shape[0], q_length))
        return torch.cat([kept, kept_q], dim=1).t().to(torch.uint8)
    if ends_early and (causal or left is not None):
        # Queries are cut where the keys are, so that masks stay aligned to the same keys.
        return _lengths(first, last, (last - shift).clamp(min=0))
    return _lengths(first, last)


def _mask_of_packed(pattern: _Pattern, left: int | None) -> Tensor | None:
    """The mask of a batch `[batch, seqlen]` with several sequences in a row; None if each row is one sequence."""
    sequences = pattern.sequences
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    places = begins.flatten().nonzero().flatten()  # waits for the GPU
    if len(places) == len(sequences):
        return None  # transformers asks without looking when it compiles graphs
    cu_seqlens = torch.cat([places, places.new_tensor([sequences.numel()])]).to(torch.int32)
    max_seqlen = int(cu_seqlens.diff().max())
    lengths = cu_seqlens.expand(_CU_SEQLENS, -1)
    return _Mask(lengths, pattern.causal, left, max_seqlen).encode(len(cu_seqlens), sequences.device)


class _Pattern(NamedTuple):
    """The pattern of keys that a mask function of transformers lets a query see.

    causal and left as in `_Mask`; sequences: `[batch, seqlen]`: the packed sequence of each token.
    """

    causal: bool = False
    left: int | None = None
    sequences: Tensor | None = None

    @staticmethod
    def of(function: Callable[..., Any] | None, reach: int) -> _Pattern:
        """Reads a mask function: which of transformers' functions made it, and its closure.

        reach: one past the position of the last key.
        """
        name = getattr(function, "__qualname__", repr(function)).partition(".")[0]
        if function is None or name == "causal_mask_function":
            return _Pattern(causal=True)
        if name == "bidirectional_mask_function":
            return _Pattern()
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
        inner = {} if code is None else dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
        if name == "and_masks":
            return _Pattern._all_of([_Pattern.of(part, reach) for part in inner["mask_functions"]])
        if name == "sliding_window_overlay":
            return _Pattern(left=inner["sliding_window"] - 1)
        if name == "sliding_window_bidirectional_overlay":
            return _Pattern(left=inner["sliding_window"])
        if name == "packed_sequence_mask_function":
            return _Pattern(sequences=inner["packed_sequence_mask"])
        if name == "remap_positions_for_packed_sequence":
            return _Pattern.of(inner["mask_function"], reach)  # places in a sequence differ as those in its row do
        if name == "chunked_overlay" and reach <= inner["chunk_size"]:
            return _Pattern()  # there is one chunk
        refuse("mask_function", name, "causal and bidirectional masks, sliding windows, packed sequences")

    @staticmethod
    def _all_of(patterns: list[_Pattern]) -> _Pattern:
        lefts = [pattern.left for pattern in patterns if pattern.left is not None]
        sequences = [pattern.sequences for pattern in patterns if pattern.sequences is not None]
        causal = any(pattern.causal for pattern in patterns)
        return _Pattern(causal, min(lefts, default=None), sequences[0] if sequences else None)
