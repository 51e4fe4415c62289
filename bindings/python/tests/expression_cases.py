"""Values in float64 that behave as the symbols of expressions do, so that one function is traced, and computed by its definition, too.

They are tensors over `[batch, heads, seqlen_q, seqlen_k]`, or what broadcasts to it.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Dense:
    """A value: a number, a whole number, or a truth value."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __and__(self, other):
        return Dense(self.value & _value(other))

    def __or__(self, other):
        return Dense(self.value | _value(other))

    def __xor__(self, other):
        return Dense(self.value ^ _value(other))

    def __invert__(self):
        return Dense(~self.value)

    def select(self, a, b):
        a, b = (torch.as_tensor(_value(x)) for x in (a, b))
        return Dense(torch.where(self.value, a, b))

    def __abs__(self):
        return Dense(self.value.abs())

    def __neg__(self):
        return Dense(-self.value)

    def __pow__(self, n):
        return Dense(self.value**n)

    def __rpow__(self, base):
        return Dense(base ** self.value.double())

    def min(self, other):
        return Dense(torch.minimum(self.value, torch.as_tensor(_value(other)).to(self.value.dtype)))

    def max(self, other):
        return Dense(torch.maximum(self.value, torch.as_tensor(_value(other)).to(self.value.dtype)))

    def __truediv__(self, other):
        return Dense(self.value / _value(other))

    def __rtruediv__(self, other):
        return Dense(other / self.value)

    def __floordiv__(self, other):
        return Dense(_quotient(self.value, _value(other)))

    def __mod__(self, other):
        return Dense(self.value - _quotient(self.value, _value(other)) * _value(other))

    def exp(self):
        return Dense(self.value.exp())

    def ln(self):
        return Dense(self.value.log())

    def tanh(self):
        return Dense(self.value.tanh())

    def sigmoid(self):
        return Dense(self.value.sigmoid())

    def sqrt(self):
        return Dense(self.value.sqrt())

    def exp2(self):
        return Dense(self.value.exp2())

    exp_full, ln_full, tanh_full, sigmoid_full, sqrt_full, exp2_full = exp, ln, tanh, sigmoid, sqrt, exp2

    def to_i32(self):
        return Dense(self.value.trunc().long())

    def to_f32(self):
        return Dense(self.value.double())


def _operator(name):
    def of(self, other):
        return Dense(getattr(self.value, name)(_value(other)))

    return of


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "lt", "le", "gt", "ge", "eq", "ne", "lshift", "rshift"):
    setattr(Dense, f"__{_name}__", _operator(f"__{_name}__"))


def _value(given):
    return given.value if isinstance(given, Dense) else given


def _quotient(a, b):
    """Towards zero; 0 where the divisor is 0."""
    b = torch.as_tensor(b)
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc"))


class DenseAt:
    """Where scores lie, and what a call gives."""

    def __init__(self, shape, heads_k, inputs, device="cpu"):
        def places(dim):
            return torch.arange(shape[dim], device=device).view([-1 if d == dim else 1 for d in range(4)])

        self.batch, self.head, self.q, self.k = (Dense(places(dim)) for dim in range(4))
        self.kv_head = Dense(places(1) // (shape[1] // heads_k))
        self.seqlen_q, self.seqlen_k = (Dense(torch.tensor(n, device=device)) for n in shape[2:])
        self.inputs = inputs

    def f32(self, name):
        return Dense(torch.tensor(float(self.inputs[name]), dtype=torch.float64))

    def i32(self, name):
        return Dense(torch.tensor(int(self.inputs[name])))

    def tensor_f32(self, name):
        return _Tensor(self.inputs[name].double())

    tensor_f16 = tensor_bf16 = tensor_f32

    def tensor_i32(self, name):
        return _Tensor(self.inputs[name].long())


class _Tensor:
    def __init__(self, values):
        self.values = values

    def __getitem__(self, indices):
        indices = indices if isinstance(indices, tuple) else (indices,)
        inside = (torch.as_tensor(_value(x)).clamp(0, n - 1) for x, n in zip(indices, self.values.shape, strict=True))
        return Dense(self.values[tuple(inside)])


def edited(score, mask, inputs, heads_k):
    """What becomes of dense scores `[batch, heads, seqlen_q, seqlen_k]`: `edit` of `reference`."""

    def edit(scores):
        at = DenseAt(scores.shape, heads_k, inputs or {}, scores.device)
        if score is not None:
            scores = torch.as_tensor(_value(score(Dense(scores), at))).double().expand(scores.shape)
        if mask is not None:
            scores = scores.masked_fill(~_value(mask(at)).expand(scores.shape), float("-inf"))
        return scores

    return edit
