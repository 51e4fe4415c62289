"""The door: the fast path of eager calls. Native code takes plain tensors from their call to their kernels, and returns None for any other
call.

A call is plain if only its caller has to see it: no compiler, tracer, transformation or mode, no subclass of tensors, no forward mode, no
type that autocast changes. Other calls go through `_torch`. The door works by what it finds in PyTorch, not by PyTorch's version:

| | from torch | otherwise |
|---|---|---|
| tensors are read by DLPack's exchange table | 2.10 | by DLPack's capsules |
| results are allocated by PyTorch's C functions | 2.14 | by `torch.empty_like` and `Tensor.new_empty` |
| operators have native kernels, which use the door's plans | 2.10 | they are Python functions |
| nodes of autograd's graph are native, for calls without lengths that want only o | 2.10 | they are an `autograd.Function` |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _call, _native
from ._call import Beside, Numbers, Plan

Found = tuple[Plan, "_native.Call | None", int, tuple[int, ...]]


def planned(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[Tensor | None, ...] | None, numbers: Numbers) -> Found:
    """The plan that the door keeps of a call that it sees for the first time. Raises the call's refusal."""
    plan = _call.plan(q, k, v, numbers, Beside.of_lengths(lengths))
    forward = plan.forward()[0] if plan.reads else None
    return plan, forward, plan.misaligned, plan.shape_lse


class _Closed:
    """A door for a PyTorch that lacks what it needs."""

    def flash(self, *_: Any) -> None:
        """No call is plain."""

    n_served = (0, 0, 0, 0, 0, 0)

    put_kernels = put_node = attention = behind_operator = behind_operator_backward = behind_sdpa = behind_sdpa_backward = flash


def opened(function: type[torch.autograd.Function], *, table: bool = True, library: bool = True) -> _native.Door | _Closed:
    """A door whose calls are nodes of this function if gradients are wanted. It also works without the table or the library."""
    # Past what `Function.apply` asks about transformations: the door has asked.
    apply: Callable = super(torch.autograd.Function, function).apply
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None) if table else None
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so" if library else None
    try:
        return _native.Door(planned, apply, exchange=exchange, library=path)
    except AttributeError:
        return _Closed()
