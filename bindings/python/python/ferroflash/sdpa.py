"""ferroflash as the provider of `torch.nn.functional.scaled_dot_product_attention` on GPUs.

    ferroflash.install()        # from here on
    ferroflash.uninstall()      # PyTorch's own kernels again
    with ferroflash.install():  # for this block only
        ...

SDPA chooses a backend for each call: flash, cuDNN, efficient or math. `install` replaces the kernels of the flash backend by ferroflash's,
as PyTorch does with FlashAttention-3 and -4, and puts that backend first, since PyTorch prefers cuDNN's on Hopper. Calls that SDPA does
not give to its flash backend are unaffected: those with
`attn_mask`, in float32, on the CPU, and those with `is_causal` and seqlen_q != seqlen_k.

The causal mask of `scaled_dot_product_attention` is aligned to the top left. That of its flash backend's operator is aligned to the bottom
right, as ferroflash's is. So SDPA calls the operator with `is_causal` only if both lengths are equal, and then both masks are the same.
`torch.nn.attention.bias.causal_lower_right` calls it with other lengths as well, and means the bottom right.

Calls without a kernel in ferroflash go to PyTorch's own kernel: with the debug mask, with a scale that is not greater than 0, and those
that the library refuses with NotImplementedError. So do calls with `dropout_p` > 0: PyTorch looks up a backward pass when it runs, so one
outside a `with install()` whose forward pass was inside, or the other way round, would silently drop other weights than its forward pass.
`sdpa_calls()` counts these calls with their reasons.
Nested tensors and `torch.nn.attention.varlen` call another operator, `_flash_attention_forward`, which remains PyTorch's.

From torch 2.10 on native kernels precede the functions `forward` and `backward`: they run calls that have a plan, and pass the others on.

Graphs of `torch.compile` keep the backend that was first when they were compiled: install before compiling.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from . import _torch
from ._call import NOTHING
from ._spelling import spelled

__all__ = ["Installation", "install", "sdpa_calls", "uninstall"]

_NAME = "ferroflash"
_MAX_HEAD_DIM = 256

# forward and backward: calls that functions of Python served; passed_on: reasons why PyTorch's kernel ran.
_forward_calls = 0
_backward_calls = 0
_passed_on: Counter[str] = Counter()

# The door whose native kernels serve, and how many calls they had served at the last reset.
_DOOR = _torch.DOOR
_served_before = [0, 0]


def install() -> Installation:
    """Makes ferroflash the provider of `scaled_dot_product_attention` on GPUs.

    If PyTorch has a registry of such providers (`torch.nn.attention.register_flash_attention_impl`), ferroflash is in it under the name
    "ferroflash". Other versions get the same overrides of two operators.

    Returns:
        a context manager: at its end the earlier provider is restored.
    """
    previous = _active()
    if previous != _NAME:
        _activate(_NAME)
    return Installation(previous)


def uninstall() -> None:
    """Restores the own kernels of `scaled_dot_product_attention`. Does nothing if ferroflash is not installed."""
    if _active() == _NAME:
        _restore()


def sdpa_calls(*, reset: bool = False) -> dict[str, Any]:
    """How often SDPA's flash backend has called ferroflash since the start, or since the last reset.

    Replays of a CUDA graph are not counted.

    Args:
        reset: restarts the counts from 0 after this call.

    Returns:
        `{"forward": n, "backward": n, "passed_on": {reason: n}}`: calls that ferroflash ran, and those that PyTorch's own kernel ran, with
        the reason.
    """
    global _forward_calls, _backward_calls, _served_before
    served = list(_DOOR.n_served[2:4])
    forward, backward = (after - before for after, before in zip(served, _served_before))
    calls = {"forward": _forward_calls + forward, "backward": _backward_calls + backward, "passed_on": dict(_passed_on)}
    if reset:
        _served_before = served
        _forward_calls = _backward_calls = 0
        _passed_on.clear()
    return calls


class Installation:
    """The result of `install`. As a context manager it restores the earlier provider."""

    def __init__(self, previous: str | None) -> None:
        self._previous = previous

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._previous == _NAME:
            return
        uninstall()
        if self._previous is not None:
            _activate(self._previous)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """`aten::_scaled_dot_product_flash_attention`.

    Args:
        query, key, value: `[batch, heads, seqlen, head_dim]`.
        is_causal: aligned to the bottom right.

    Returns:
        (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, rng_state, unused, debug_attn_mask), as in the operator's schema; output
        has the memory order of query.
    """
    global _forward_calls
    reason = _reason(query, dropout_p, return_debug_mask, scale)
    if reason is None:
        try:
            o, lse = _torch.DOOR.behind_sdpa(query, key, value, is_causal, scale) or _by_operator(query, key, value, is_causal, scale)
        except NotImplementedError as error:
            reason = _first_line(error)
        else:
            _forward_calls += 1
            # New ones each time: a compiled graph may take their memory for its own.
            nothing = (torch.empty_like(x) for x in _nothing(query.dtype, query.device))
            return o, lse, None, None, query.shape[2], key.shape[2], *nothing
    _passed_on[reason] += 1
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    o, lse, *rest = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.size(1), k.size(1), dropout_p, is_causal, return_debug_mask, scale=scale
    )
    return o.transpose(1, 2), lse, None, None, query.size(2), key.size(2), *rest


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_scaled_dot_product_flash_attention_backward`: the gradients of query, key and value, in their memory
    orders.

    Without dropout it needs only out and logsumexp of the forward pass, and these are the same in ferroflash and in PyTorch's kernel: it
    does not matter which one computed them.
    """
    global _backward_calls
    reason = _reason(query, dropout_p, False, scale)
    if reason is None:
        given = grad_out, query, key, value, out, logsumexp, is_causal, scale
        try:
            gradients = _torch.DOOR.behind_sdpa_backward(*given) or _gradients_by_operator(*given)
        except NotImplementedError as error:
            reason = "backward: " + _first_line(error)
        else:
            _backward_calls += 1
            return tuple(gradients)
    _passed_on[reason] += 1
    d_o, q, k, v, o = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    # Of a row that sees no key, PyTorch's kernel has lse = inf, ferroflash -inf.
    lse = torch.where(logsumexp == float("-inf"), float("inf"), logsumexp)
    rest = (cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset)
    gradients = torch.ops.aten._flash_attention_backward(d_o, q, k, v, o, lse, *rest, scale=scale)
    return tuple(d_x.transpose(1, 2) for d_x in gradients)


def _by_operator(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """o and lse of tensors that the door does not support."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    o, lse = torch.ops.ferroflash.forward.default(q, k, v, *_options(query, is_causal, scale))
    return _as_bhsd(o, query), lse


def _gradients_by_operator(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, is_causal: bool, scale: float | None
) -> list[Tensor]:
    """The gradients of query, key and value, for tensors that the door does not support."""
    d_o, q, k, v, o = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    gradients = torch.ops.ferroflash.backward.default(d_o, None, q, k, v, o, lse, *_options(query, is_causal, scale), [])
    return [_as_bhsd(d_x, x) for d_x, x in zip(gradients, (query, key, value), strict=True)]


def _reason(query: Tensor, dropout_p: float, return_debug_mask: bool, scale: float | None) -> str | None:
    """Why ferroflash cannot run a call, judged by its arguments; None if it may."""
    if dropout_p > 0:
        return "dropout_p > 0"
    if return_debug_mask:
        return "return_debug_mask"
    if scale is not None and not scale > 0:
        return "scale <= 0"
    if query.size(-1) > _MAX_HEAD_DIM:
        return f"head_dim > {_MAX_HEAD_DIM}"
    return None


def _options(query: Tensor, is_causal: bool, scale: float | None) -> tuple[Any, ...]:
    """The arguments after the tensors in the operators of ferroflash: the scale and the mask."""
    scale = query.size(-1) ** -0.5 if scale is None else scale
    return spelled((None, None, scale, None, 0 if is_causal else None, 0), NOTHING)


def _as_bhsd(result: Tensor, like: Tensor) -> Tensor:
    """A result `[batch, seqlen, heads, head_dim]` as `[batch, heads, seqlen, head_dim]`, in the memory order of
    another.

    The operator's fake kernel promises this, and compiled graphs check it. Copies only if ferroflash chose otherwise.
    """
    result = result.transpose(1, 2)
    if result.stride() == like.stride():
        return result
    promised = torch.empty_like(like, device="meta").stride()
    if result.stride() == promised:
        return result
    return torch.empty_strided(result.shape, promised, dtype=result.dtype, device=result.device).copy_(result)


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Empty tensors in place of rng_state, unused and the debug mask."""
    state = (torch.empty_like(x, device=device) for x in _states())
    return [*state, torch.empty(0, dtype=dtype, device=device)]


def _states() -> tuple[Tensor, Tensor]:
    """rng_state and unused, without memory: they differ between versions of PyTorch, and only dropout reads them."""
    x = torch.empty((1, 1, 1, 8), dtype=torch.float16, device="meta")
    return torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)[6:8]


_OPERATORS = {"_scaled_dot_product_flash_attention": forward, "_scaled_dot_product_flash_attention_backward": backward}
_NATIVE = dict(zip(_OPERATORS, ("sdpa_forward", "sdpa_backward")))

# The operators as native kernels know them: types of arguments, and of results.
_SCHEMAS = {
    "_scaled_dot_product_flash_attention": (
        ["Tensor"] * 3 + ["float", "bool", "bool", "Optional[float]"],
        ["Tensor"] * 4 + ["int", "int"] + ["Tensor"] * 3,
    ),
    "_scaled_dot_product_flash_attention_backward": (
        ["Tensor"] * 8 + ["int", "int", "float", "bool", "Tensor", "Tensor", "Optional[float]"],
        ["Tensor"] * 3,
    ),
}


def _put_native_kernels(dispatch_key: str) -> Any | None:
    """Native kernels before `forward` and `backward`, which run the calls that those pass on; None if there are none."""
    for name, (arguments, results) in _SCHEMAS.items():
        schema = getattr(torch.ops.aten, name).default._schema
        if [str(x.type) for x in schema.arguments] != arguments or [str(x.type) for x in schema.returns] != results:
            return None
    states = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in _states()]
    return _torch.DOOR.put_kernels("aten", dispatch_key, list(_NATIVE.items()), (_MAX_HEAD_DIM, states))


def _forward_by_python(query, key, value, dropout_p, is_causal, return_debug_mask, scale):
    o, lse, _, _, _, _, *others = forward(query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
    return o, lse, *others


def _backward_by_python(*arguments):
    *arguments, scale = arguments
    return backward(*arguments, scale=scale)


_QKV = "Tensor query, Tensor key, Tensor value"
_torch.define_for_native(
    f"sdpa_by_python({_QKV}, float dropout_p, bool is_causal, bool return_debug_mask, float? scale) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward_by_python,
)
_torch.define_for_native(
    f"sdpa_backward_by_python(Tensor grad_out, {_QKV}, Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, "
    "SymInt max_k, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, float? scale) -> (Tensor, Tensor, Tensor)",
    _backward_by_python,
)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _Overrides:
    """ferroflash as the kernels of `aten`'s operators, and the flash backend first. PyTorch's registry calls `remove`."""

    def __init__(self, dispatch_key: str = "CUDA") -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL", dispatch_key)
        with warnings.catch_warnings():
            # That there was another kernel before is known.
            warnings.filterwarnings("ignore", message=r"(?s).*Overriding a previously registered kernel")
            for name, kernel in _OPERATORS.items():
                self._library.impl(name, kernel, dispatch_key)
        self._kernels = _put_native_kernels(dispatch_key)
        self._order_before = _backend_order()
        flash = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
        self._order = [flash, *(backend for backend in self._order_before if backend != flash)]
        torch._C._set_sdp_priority_order(self._order)

    def remove(self) -> None:
        if self._kernels is not None:
            self._kernels.remove()
        self._library = None  # the library's finaliser takes its functions off the operators
        if torch._C._get_sdp_priority_order() == self._order:
            torch._C._set_sdp_priority_order(self._order_before)


def _backend_order() -> list[int]:
    """SDPA's backends in the order of preference.

    PyTorch sets it for the current GPU when SDPA first chooses a backend, and overwrites earlier settings: so this makes SDPA choose one first.
    """
    if torch.cuda.is_available():
        x = torch.empty((1, 1, 1, 8), dtype=torch.float16, device="cuda")
        torch._fused_sdp_choice(x, x, x)
    return list(torch._C._get_sdp_priority_order())


# What is installed where PyTorch has no registry.
_installed: _Overrides | None = None


def _has_registry() -> bool:
    return hasattr(torch.nn.attention, "register_flash_attention_impl")


def _active() -> str | None:
    """The active provider; None: PyTorch's own kernels."""
    if _has_registry():
        return torch.nn.attention.current_flash_attention_impl()
    return _NAME if _installed is not None else None


def _activate(name: str) -> None:
    global _installed
    if _has_registry():
        torch.nn.attention.register_flash_attention_impl(_NAME, register_fn=_Overrides)
        torch.nn.attention.activate_flash_attention_impl(name)
    else:
        _installed = _Overrides()


def _restore() -> None:
    global _installed
    if _has_registry():
        torch.nn.attention.restore_flash_attention_impl()
    elif _installed is not None:
        _installed.remove()
        _installed = None
