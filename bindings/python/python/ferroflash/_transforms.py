"""Attention under the transformations of `torch.func`: grad, vjp, jacrev and vmap, in any order. Forward mode is refused.

These need an `autograd.Function` with its own rules; operators registered with `torch.library` have none that they accept. vmap makes one
call if its dimension can be part of the batch, and otherwise one call for each entry: the tensors that expressions read, dropout, and the
places of packed sequences depend on the batch index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ._call import Beside, Numbers
from ._checks import refuse_forward_mode
from ._inputs import TABLE
from ._spelling import read, spelled


class _Call:
    """A call's arguments other than tensors: one leaf of the tree of arguments that transformations traverse. Tensors are q, k and v, then
    those of `beside`."""

    def __init__(self, numbers: Numbers, beside: Beside) -> None:
        self.numbers, self.beside = tuple(numbers), beside.with_tensors(())

    def options(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The operators' arguments after q, k and v."""
        return spelled(self.numbers, self.beside.with_tensors(tensors[3:]))

    def folds(self, dims: Sequence[int | None]) -> bool:
        """Whether the dimension of vmap can be part of the batch."""
        beside = self.beside
        if beside.score is not None or beside.mask is not None or beside.dropout_p != 0 or "page_table" in beside.names:
            return False
        for name, dim in zip(beside.names, dims[3:]):
            if TABLE[name].shape[0] != "batch" and not (TABLE[name].is_shared() and dim is None):
                return False
        return True

    def folded(self, call: Callable, n: int, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """One call with n times the batch, with the common arguments of all sequences."""
        names = self.beside.names
        shared = [*(False for _ in tensors[len(names) :]), *(TABLE[name].is_shared() for name in names)]
        folded = []
        for x, dim, is_shared in zip(tensors, dims, shared):
            if x is not None and not is_shared:
                x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
                x = x.reshape(n * x.shape[1], *x.shape[2:])
            folded.append(x)
        return tuple(y.reshape(n, y.shape[0] // n, *y.shape[1:]) for y in call(*folded))


def attention(q: Tensor, k: Tensor, v: Tensor, numbers: Numbers, beside: Beside) -> tuple[Tensor, Tensor]:
    """o and lse."""
    return _Forward.apply(_Call(numbers, beside), q, k, v, *beside.tensors)


def vmap(info: Any, in_dims: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Any, Any]:
    """The rule of the operator `ferroflash::forward` for vmap."""
    numbers, beside = read(options)
    dims = None, *in_dims[:3], *(in_dims[3] or ())
    return _Forward.vmap(info, dims, _Call(numbers, beside), q, k, v, *beside.tensors)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(given: _Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.ferroflash.forward.default(*tensors[:3], *given.options(tensors))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.given, *tensors = inputs
        ctx.save_for_backward(*output, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, d_o: Tensor | None, d_lse: Tensor | None):
        o, lse, *tensors = ctx.saved_tensors
        if d_o is None and d_lse is None:
            return (None,) * (1 + len(tensors))
        wanted = ctx.needs_input_grad[4:]
        d_o = torch.zeros_like(o) if d_o is None else d_o
        d_q, d_k, d_v, *others = _Backward.apply(ctx.given, wanted, d_o, d_lse, o, lse, *tensors)
        return None, d_q, d_k, d_v, *spread(others, wanted)

    @staticmethod
    def jvp(ctx, *tangents) -> NoReturn:
        refuse_forward_mode()

    @staticmethod
    def vmap(info, in_dims, given: _Call, *tensors: Tensor):
        def call(*tensors: Tensor):
            return _Forward.apply(given, *tensors)

        dims = in_dims[1:]
        results = (given.folded if given.folds(dims) else _one_by_one)(call, info.batch_size, dims, tensors)
        return results, (0,) * len(results)


class _Backward(torch.autograd.Function):
    """Its tensors are the gradients of o and lse, o, lse, and those of the forward pass."""

    @staticmethod
    def forward(given: _Call, wanted: tuple[bool, ...], *saved: Tensor | None) -> tuple[Tensor, ...]:
        d_o, d_lse, o, lse, *tensors = saved
        return tuple(torch.ops.ferroflash.backward.default(d_o, d_lse, *tensors[:3], o, lse, *given.options(tensors), list(wanted)))

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
    def vmap(info, in_dims, given: _Call, wanted: tuple[bool, ...], *saved: Tensor | None):
        def call(*saved: Tensor | None):
            return _Backward.apply(given, wanted, *saved)

        dims = in_dims[2:]
        folds = given.folds(dims[4:]) and not any(wanted)
        results = (given.folded if folds else _one_by_one)(call, info.batch_size, dims, saved)
        return results, (0,) * len(results)


def spread(gradients: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """With None for each that is not wanted; only None if there are none."""
    remaining = iter(gradients)
    return [next(remaining, None) if asked else None for asked in wanted]


def _one_by_one(call: Callable, n: int, dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    calls = [call(*(x if dim is None else x.select(dim, at) for x, dim in zip(tensors, dims))) for at in range(n)]
    return tuple(torch.stack(results) for results in zip(*calls))


def refuse_second_derivative(*_: Any) -> NoReturn:
    """As the rule of an operator."""
    raise NotImplementedError("ferroflash has no second derivatives: gradients of gradients of attention were asked for")
