"""Attention under the transformations of `torch.func`: grad, vjp, jacrev and vmap, in any order. Forward mode is refused.

These want an `autograd.Function` with rules of its own; operators that `torch.library` registers have none that they take. vmap makes one call where
its dimension can be a part of the batch, and otherwise one call for each entry: what expressions read, dropout, and where packed sequences lie
depend on the batch's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ._checks import N_LENGTHS, refuse_forward_mode

# q, k and v; lengths; then sinks, seed and offset, and what expressions read.
_N_BEFORE_SINKS = 3 + N_LENGTHS
_CU_SEQLENS_Q, _CU_SEQLENS_K, _PAGE_TABLE = 3, 4, 8


class _Constants:
    """What an operator is given beside tensors: one leaf of the tree of arguments that transformations go through."""

    def __init__(self, numbers: Sequence[Any], texts: Sequence[str | None], params: Sequence[float], dropout_p: float) -> None:
        self.numbers, self.texts, self.params, self.dropout_p = tuple(numbers), tuple(texts), tuple(params), dropout_p

    def options(self, tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """What the operators are given behind q, k and v."""
        sinks, rng_state, *read = tensors[_N_BEFORE_SINKS:]
        lengths = tensors[3:_N_BEFORE_SINKS]
        return *lengths, *self.numbers, *self.texts, read, list(self.params), sinks, self.dropout_p, rng_state


class _Wanted(NamedTuple):
    sinks: bool
    tensors: list[bool]


def _split(arguments: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of the operator: what is no tensor, numbers, texts, params and dropout_p; and the tensors."""
    *before, score, mask, read, params, sinks, dropout_p, rng_state = arguments
    tensors = (*before[:_N_BEFORE_SINKS], sinks, rng_state, *(read or ()))
    return (before[_N_BEFORE_SINKS:], (score, mask), params or (), dropout_p), tensors


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The operator `ferroflash::forward`, of its arguments."""
    constants, tensors = _split(arguments)
    return _Forward.apply(_Constants(*constants), *tensors)


def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """The rule of the operator `ferroflash::forward` for vmap."""
    constants, tensors = _split(arguments)
    return _Forward.vmap(info, (None, *_split(in_dims)[1]), _Constants(*constants), *tensors)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(constants: _Constants, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.ops.ferroflash.forward.default(*tensors[:3], *constants.options(tensors))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.constants, *tensors = inputs
        ctx.save_for_backward(*output, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, d_o: Tensor | None, d_lse: Tensor | None):
        o, lse, *tensors = ctx.saved_tensors
        if d_o is None and d_lse is None:
            return (None,) * (1 + len(tensors))
        of_sinks, _, *of_read = ctx.needs_input_grad[1 + _N_BEFORE_SINKS :]
        d_o = torch.zeros_like(o) if d_o is None else d_o
        wanted = _Wanted(of_sinks, of_read)
        d_q, d_k, d_v, *others = _Backward.apply(ctx.constants, wanted, d_o, d_lse, o, lse, *tensors)
        remaining = iter(others)
        d_sinks, *d_read = (next(remaining) if asked else None for asked in (of_sinks, *of_read))
        return None, d_q, d_k, d_v, *(None,) * N_LENGTHS, d_sinks, None, *d_read

    @staticmethod
    def jvp(ctx, *tangents) -> NoReturn:
        refuse_forward_mode()

    @staticmethod
    def vmap(info, in_dims, constants: _Constants, *tensors: Tensor | None):
        def call(*tensors: Tensor | None):
            return _Forward.apply(constants, *tensors)

        dims = in_dims[1:]
        results = (_folded if _folds(constants, dims, tensors) else _one_by_one)(call, info.batch_size, dims, tensors)
        return results, (0,) * len(results)


class _Backward(torch.autograd.Function):
    """Its tensors are the gradients of o and lse, o, lse, and those of the forward pass."""

    @staticmethod
    def forward(constants: _Constants, wanted: _Wanted, *given: Tensor | None) -> tuple[Tensor, ...]:
        d_o, d_lse, o, lse, *tensors = given
        options = constants.options(tensors)
        return tuple(torch.ops.ferroflash.backward.default(d_o, d_lse, *tensors[:3], o, lse, *options, *wanted))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *gradients) -> NoReturn:
        refuse_second_derivative()

    @staticmethod
    def jvp(ctx, *tangents) -> NoReturn:
        refuse_second_derivative()

    @staticmethod
    def vmap(info, in_dims, constants: _Constants, wanted: _Wanted, *given: Tensor | None):
        def call(*given: Tensor | None):
            return _Backward.apply(constants, wanted, *given)

        constants_dim, wanted_dim, *dims = in_dims
        folds = _folds(constants, dims[4:], given[4:]) and not wanted.sinks and not any(wanted.tensors)
        results = (_folded if folds else _one_by_one)(call, info.batch_size, dims, given)
        return results, (0,) * len(results)


def _folds(constants: _Constants, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> bool:
    """Whether the dimension of vmap can be a part of the batch."""
    sinks_dim = dims[_N_BEFORE_SINKS]
    is_plain = constants.texts == (None, None) and constants.dropout_p == 0 and sinks_dim is None
    return is_plain and all(tensors[at] is None for at in (_CU_SEQLENS_Q, _CU_SEQLENS_K, _PAGE_TABLE))


def _folded(call: Callable, n: int, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """One call, of n times the batch. Sinks, the one tensor without a batch, are those of all."""
    at_sinks = len(tensors) - 2  # Behind them come seed and offset, and nothing that expressions read.
    folded = []
    for at, (x, dim) in enumerate(zip(tensors, dims)):
        if x is not None and at < at_sinks:
            x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.reshape(n * x.shape[1], *x.shape[2:])
        folded.append(x)
    return tuple(y.reshape(n, y.shape[0] // n, *y.shape[1:]) for y in call(*folded))


def _one_by_one(call: Callable, n: int, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    calls = [call(*(x if dim is None else x.select(dim, at) for x, dim in zip(tensors, dims))) for at in range(n)]
    return tuple(torch.stack(results) for results in zip(*calls))


def refuse_second_derivative(*_: Any) -> NoReturn:
    """As the rule of an operator."""
    raise NotImplementedError("ferroflash has no second derivatives: gradients of gradients of attention were asked for")
