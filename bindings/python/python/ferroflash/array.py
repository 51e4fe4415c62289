"""Attention on arrays of numpy, JAX, CuPy and every other library that supports DLPack.

    >>> import numpy as np
    >>> import ferroflash
    >>> q = np.ones((1, 4, 2, 8), np.float32)
    >>> k = v = np.ones((1, 6, 1, 8), np.float32)
    >>> ferroflash.attention(q, k, v, causal=True).shape
    (1, 4, 2, 8)

Arguments are read in place. Results are new arrays of q's library; if that library has no `from_dlpack` they have the type `Array`, which
other libraries can import. Other threads run during a call: none of them may write its arguments.

A call returns when its results are ready. On a GPU it allocates, and runs on its own stream, after the work that the arguments' libraries
have enqueued. PyTorch tensors go to the operators for PyTorch, which neither wait nor use another stream.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._array_call import Call, Window, like, seed_and_offset
from ._inputs import INPUTS, Inputs, InputsAndWanted, SupportsDLPack, takes_inputs
from ._native import Array
from .expression import Mask, Score

__all__ = ["Array", "SupportsDLPack", "attention", "attention_backward"]


if TYPE_CHECKING:
    from typing_extensions import Unpack

A = TypeVar("A", bound=SupportsDLPack)


@overload
def attention(
    q: A,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window: Window = ...,
    seqused_q: SupportsDLPack | None = ...,
    seqused_k: SupportsDLPack | None = ...,
    score: Score | None = ...,
    mask: Mask | None = ...,
    score_inputs: Mapping[str, Any] | None = ...,
    dropout_p: float = ...,
    rng_state: Any = ...,
    precision: str | None = ...,
    return_lse: Literal[False] = ...,
    **inputs: Unpack[Inputs],
) -> A: ...


@overload
def attention(
    q: A,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window: Window = ...,
    seqused_q: SupportsDLPack | None = ...,
    seqused_k: SupportsDLPack | None = ...,
    score: Score | None = ...,
    mask: Mask | None = ...,
    score_inputs: Mapping[str, Any] | None = ...,
    dropout_p: float = ...,
    rng_state: Any = ...,
    precision: str | None = ...,
    return_lse: Literal[True],
    **inputs: Unpack[Inputs],
) -> tuple[A, A]: ...


@takes_inputs
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: Window = (None, None),
    seqused_q: Any = None,
    seqused_k: Any = None,
    score: Score | None = None,
    mask: Mask | None = None,
    score_inputs: Mapping[str, Any] | None = None,
    dropout_p: float = 0.0,
    rng_state: Any = None,
    precision: str | None = None,
    return_lse: bool = False,
    **inputs: Unpack[Inputs],
) -> Any:
    """softmax(q · kᵀ · softmax_scale, masked) · v.

    Query head h reads key and value head h // (heads_q // heads_k). Masks are aligned to the bottom right: query i has the position i +
    seqlen_k − seqlen_q among the keys. Equal arguments give equal bits.

    Args:
        q: `[batch, seqlen_q, heads_q, head_dim]`; bfloat16, float16 or float32. Any strides that are not negative, 1 in the
            last dimension. On a GPU head_dim is a multiple of 8, for float32 a multiple of 4 up to 128; address and strides are multiples
            of 16 bytes.
        k, v: `[batch, seqlen_k, heads_k, head_dim]`; heads_q is a multiple of heads_k. Of q's type, on q's device.
        softmax_scale: factor of the scores, greater than 0; 1/√head_dim by default.
        causal: a query sees the keys up to its own position.
        window: how many keys a query sees before and after its position; None is no limit.
        seqused_q, seqused_k: int32 `[batch]`: how many rows of each sequence are in use, from the first on. The others are not read.
        score, mask: expressions of `ferroflash.expression`: a replacement for every score, and a further condition on which keys a query sees.
        score_inputs: their inputs by name: numbers for parameters; and arrays on q's device, of any strides that are not negative.
        {inputs}
        dropout_p: the probability that a weight is dropped, at least 0 and less than 1; the others are divided by the probability of being
            kept. Both are rounded to multiples of 1/256. lse is that of all weights.
        rng_state: (seed, offset), two integers from 0 to 2**64 - 1; needed with dropout_p greater than 0. Equal ones drop the same
            weights, as given by `dropout_mask`, on every device. (With PyTorch tensors it may be a tensor, or be left out.)
        precision: how exact products of float32 are on a GPU: "tensor", tf32, a relative error of 2**-11 of each element; or "full", three
            products of tf32 in place of one, as exact as float32, at about a third of the speed. By default "tensor"; with PyTorch tensors
            "full" if `torch.get_float32_matmul_precision()` is "highest".
        return_lse: whether lse is returned as well.

    Returns:
        o, like q. With return_lse o and lse, float32 `[batch, heads_q, seqlen_q]`: the natural logarithm of each row's sum of exponentials.
        A row that sees no key, or is not in use, has o = 0 and lse = −inf; with sinks, a used row that sees no key has lse = sink.

    Raises:
        TypeError: an argument is not an array, cannot be exported, or has a wrong type or device.
        ValueError: a shape, a stride, a size or a length is not allowed. (The numbers in seqused_q and seqused_k are not checked on a GPU;
        with wrong ones the results are undefined.)
        NotImplementedError: no kernel supports the call; the text lists every candidate with its reason.
        RuntimeError: an error of the driver.
    """
    options = {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "score": score,
        "mask": mask,
        "score_inputs": score_inputs,
        "dropout_p": dropout_p,
        "rng_state": rng_state,
        **inputs,
    }
    if _is_torch(q):
        if precision is not None:
            raise TypeError(f"precision is {precision!r}; allowed beside a torch.Tensor: None. torch.set_float32_matmul_precision says it")
        from ._torch import attention as of_tensors

        if isinstance(rng_state, (tuple, list)):
            options["rng_state"] = _state_beside(q, dropout_p, rng_state)
        o, lse = of_tensors(q, k, v, **options)
    else:
        call = Call(q, k, v, precision=precision, **options)
        o, lse = (like(q, result) for result in call.forward())
    return (o, lse) if return_lse else o


@takes_inputs
def attention_backward(
    d_o: SupportsDLPack,
    q: A,
    k: SupportsDLPack,
    v: SupportsDLPack,
    o: SupportsDLPack,
    lse: SupportsDLPack,
    *,
    d_lse: SupportsDLPack | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: Window = (None, None),
    seqused_q: SupportsDLPack | None = None,
    seqused_k: SupportsDLPack | None = None,
    score: Score | None = None,
    mask: Mask | None = None,
    score_inputs: Mapping[str, Any] | None = None,
    dropout_p: float = 0.0,
    rng_state: tuple[int, int] | None = None,
    precision: str | None = None,
    d_score_inputs: Sequence[str] = (),
    **inputs: Unpack[InputsAndWanted],
) -> tuple[Any, ...]:
    """Gradients of q, k and v, and, if asked for, of optional inputs and of tensors that the score reads.

    Args:
        d_o: gradient of o, with its shape and type; strides as for q.
        q, k, v, softmax_scale, causal, window, seqused_q, seqused_k, score, mask, score_inputs, dropout_p, rng_state, precision: as for
            `attention`.
        o, lse: as `attention` returned them, with return_lse; contiguous.
        d_lse: gradient of lse, float32 `[batch, heads_q, seqlen_q]`, contiguous; for a loss that depends on lse.
        {inputs}
        d_score_inputs: the names of tensors in score_inputs whose gradients are wanted. `ferroflash.expression` says which tensors have one.

    Returns:
        Gradients of q, k and v, with their shapes and types. Those of rows that see no key, or are not in use, are 0. Then those of the
        wanted optional inputs; and with d_score_inputs a dict of the gradients of these tensors, each of the tensor's type, with an
        element for each value of its indices: batch, heads_q or heads_k, seqlen_q, seqlen_k, or 1 if the index is 0. Equal arguments give
        equal bits.

    Raises:
        The exceptions of `attention`, and NotImplementedError if a tensor has no gradient; the text says why.
    """
    if _is_torch(q):
        raise TypeError("q is a torch.Tensor; allowed: arrays of other libraries. ferroflash.attention is differentiable on tensors")
    wanted = [name for name in INPUTS if inputs.pop(f"d_{name}", False)]
    call = Call(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window=window,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        score=score,
        mask=mask,
        score_inputs=score_inputs,
        dropout_p=dropout_p,
        rng_state=rng_state,
        precision=precision,
        **inputs,
    )
    gradients, of_read = call.backward(d_o, o, lse, d_lse, wanted, d_score_inputs)
    named = {name: like(q, gradient) for name, gradient in of_read.items()}
    return *(like(q, gradient) for gradient in gradients), *((named,) if named else ())


def _state_beside(q: Any, dropout_p: float, rng_state: Sequence[int]) -> Any:
    """Seed and offset on the device of a PyTorch tensor."""
    import torch

    state = seed_and_offset(dropout_p, tuple(rng_state))
    return None if state is None else torch.tensor(state, dtype=torch.uint64, device=q.device)


def _is_torch(array: Any) -> bool:
    # Whoever has a tensor has imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)
