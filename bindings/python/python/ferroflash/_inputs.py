"""The optional inputs of attention: the one table that checks, operators, saved tensors, gradients, transformations, arrays and documentation go by.

A new input is a row here: a keyword of `attention` on tensors and on arrays, by the name that the library has for it. Nothing imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict, TypeVar, get_type_hints


class SupportsDLPack(Protocol):
    """An array of a library that speaks DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


class Input(NamedTuple):
    """What an optional input must be: contiguous, beside q, of one of these types and of this shape, in words of the problem."""

    dtypes: tuple[str, ...]
    shape: tuple[str, ...]
    what: str = ""
    differentiable: bool = False
    """Whether it has a gradient, of its type and shape."""

    def is_shared(self) -> bool:
        """Whether all sequences have the same."""
        return not self.shape[0].startswith("batch")

    def shape_of(self, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
        """Its shape by the sizes of a problem; a word stays where any number is allowed."""
        return tuple(int(word) if word.isdigit() else sizes.get(word, word) for word in self.shape)


_INT, _FLOAT = ("int32",), ("float32",)
_Given = SupportsDLPack | None


class Inputs(TypedDict, total=False):
    """Keywords of `attention` that stand in its signature as `**inputs`."""

    sinks: Annotated[_Given, Input(_FLOAT, ("heads_q",), "exp(sink) is added to the sum of exponentials of each row of a head", True)]


class InputsAndWanted(Inputs, total=False):
    """With the gradients that a backward pass on arrays may be asked for."""

    d_sinks: bool


INPUTS: dict[str, Input] = {name: hint.__metadata__[0] for name, hint in get_type_hints(Inputs, include_extras=True).items()}

# What says where sequences lie. The order is that of the native module's door.
LENGTHS = {
    "cu_seqlens_q": Input(_INT, ("batch + 1",)),
    "cu_seqlens_k": Input(_INT, ("batch + 1",)),
    "seqused_q": Input(_INT, ("batch",)),
    "seqused_k": Input(_INT, ("batch",)),
    "leftpad_k": Input(_INT, ("batch",)),
    "page_table": Input(_INT, ("batch", "columns")),
}

# All of them. What gives the last ones is no keyword of `attention`'s `**inputs`: scales come with keys and values in 8 bits, a state with dropout.
TABLE = {
    **LENGTHS,
    **INPUTS,
    "k_descale": Input(_FLOAT, ("batch", "heads_k")),
    "v_descale": Input(_FLOAT, ("batch", "heads_k")),
    "rng_state": Input(("int64", "uint64"), ("2",)),
}


def sizes_of(batch: int, heads_q: int) -> dict[str, int]:
    """The words in the table's shapes."""
    return {"batch": batch, "batch + 1": batch + 1, "heads_q": heads_q}


def given_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `**inputs` that are given, in the order of the table."""
    for name in inputs:
        if name not in INPUTS:
            raise TypeError(f"{name} was given; allowed: {', '.join(INPUTS)} beside the keywords of attention")
    return {name: inputs[name] for name in INPUTS if inputs.get(name) is not None}


def handed(
    at: Mapping[str, int], params: Sequence[float], read: Sequence[tuple], d_read: Sequence[int], rng: tuple[int, int] | None = None
) -> tuple[Any, ...]:
    """Addresses by name, what expressions take, and seed and offset as numbers, as passes of the native module have them."""
    backward = ("d_o", "d_lse", "d_q", "d_k", "d_v") if "d_o" in at else ()
    addresses = [at.get(name, 0) for name in ("q", "k", "v", "o", "lse", *backward)]
    beside: dict[str, Any] = {name: at[name] for name in ("sinks", "d_sinks") if name in at}
    if "k_descale" in at:
        beside["scales"] = at["k_descale"], at["v_descale"]
    if rng is not None or "rng_state" in at:
        beside["dropout"] = at["rng_state"] if rng is None else rng
    if params or read:
        beside |= {"values": (params, read), "d_tensors": d_read}
    return addresses, [at.get(name, 0) for name in LENGTHS], beside


_F = TypeVar("_F", bound=Callable[..., Any])


def takes_inputs(function: _F) -> _F:
    """Shows the table's keywords in the signature of a function that takes `**inputs`, and in its documentation, in place of "{inputs}"."""
    own = signature(function)
    wanted = {f"d_{name}": row for name, row in INPUTS.items() if row.differentiable}
    takes_wanted = "InputsAndWanted" in str(own.parameters["inputs"].annotation)
    named = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation="SupportsDLPack | None") for name in INPUTS]
    asked = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation="bool") for name in wanted if takes_wanted]
    parameters = [x for x in own.parameters.values() if x.kind is not Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*parameters, *named, *asked])  # type: ignore[attr-defined]
    lines = [f"{name}: {row.dtypes[0]} `[{', '.join(row.shape)}]`, contiguous: {row.what}." for name, row in INPUTS.items()]
    lines += [f"{x.name}: whether the gradient of {x.name[2:]} is wanted." for x in asked]
    if function.__doc__ is not None:  # Python leaves them out where it is told to.
        function.__doc__ = function.__doc__.replace("{inputs}", "\n        ".join(lines))
    return function
