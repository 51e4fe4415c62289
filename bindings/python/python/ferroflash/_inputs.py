"""The optional inputs of attention: the one table that checks, operators, saved tensors, gradients, transformations, arrays and
documentation use.

An input of the library's table (`optional_inputs` of the kernels' crate) is a keyword of `attention` on tensors and on arrays, with its
name there. `Inputs` declares them for readers and type checkers. Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict, TypeVar, get_type_hints

from . import _native


class SupportsDLPack(Protocol):
    """An array of a library that supports DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


class Input(NamedTuple):
    """The requirements of an optional input: contiguous, on q's device, of one of these types and of this shape, in terms of the problem."""

    dtypes: tuple[str, ...]
    shape: tuple[str, ...]
    differentiable: bool = False
    """Whether it has a gradient, of its type and shape."""

    def is_shared(self) -> bool:
        """Whether all sequences have the same."""
        return not self.shape[0].startswith("batch")

    def shape_of(self, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
        """Its shape by the sizes of a problem; a word stays where any number is allowed."""
        return tuple(int(word) if word.isdigit() else sizes.get(word, word) for word in self.shape)


class Inputs(TypedDict, total=False):
    """Keywords of `attention` that stand in its signature as `**inputs`, each with what is said of it."""

    sinks: Annotated[SupportsDLPack | None, "exp(sink) is added to the sum of exponentials of each row of a head"]
    head_scale: Annotated[SupportsDLPack | None, "what the scores of each head are multiplied by, beside softmax_scale"]


class InputsAndWanted(Inputs, total=False):
    """With the gradients that a backward pass on arrays may be asked for."""

    d_sinks: bool


# What says where sequences lie, keywords of their own. The order is that of the native module's door.
LENGTHS = {
    "cu_seqlens_q": Input(("int32",), ("batch + 1",)),
    "cu_seqlens_k": Input(("int32",), ("batch + 1",)),
    "seqused_q": Input(("int32",), ("batch",)),
    "seqused_k": Input(("int32",), ("batch",)),
    "leftpad_k": Input(("int32",), ("batch",)),
    "page_table": Input(("int32",), ("batch", "columns")),
}

# The others of the library's table.
INPUTS = {name: Input((dtype,), tuple(shape), has) for name, dtype, shape, has in _native.optional_inputs() if name not in LENGTHS}

# All of them. The last ones are no keywords: scales come with keys and values in 8 bits, a state with dropout.
TABLE = {
    **LENGTHS,
    **INPUTS,
    "q_descale": Input(("float32",), ("batch", "heads_k")),
    "k_descale": Input(("float32",), ("batch", "heads_k")),
    "v_descale": Input(("float32",), ("batch", "heads_k")),
    "rng_state": Input(("int64", "uint64"), ("2",)),
}


def sizes_of(batch: int, heads_q: int) -> dict[str, int]:
    """The words in the table's shapes."""
    return {"batch": batch, "batch + 1": batch + 1, "heads_q": heads_q}


def unwanted(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Of optional inputs that are given, the gradients that a backward pass leaves out, as the library calls them."""
    return [f"d_{name}" for name in names if TABLE[name].differentiable and name not in wanted]


def given_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `**inputs` that are given, in the order of the table."""
    for name in inputs:
        if name not in INPUTS:
            raise TypeError(f"{name} was given; allowed: {', '.join(INPUTS)} beside the keywords of attention")
    return {name: inputs[name] for name in INPUTS if inputs.get(name) is not None}


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
    said = {name: f": {hint.__metadata__[0]}" for name, hint in get_type_hints(Inputs, include_extras=True).items()}
    lines = [f"{name}: {row.dtypes[0]} `[{', '.join(row.shape)}]`, contiguous{said.get(name, '')}." for name, row in INPUTS.items()]
    lines += [f"{x.name}: whether the gradient of {x.name[2:]} is wanted." for x in asked]
    if function.__doc__ is not None:  # Python leaves them out where it is told to.
        function.__doc__ = function.__doc__.replace("{inputs}", "\n        ".join(lines))
    return function
