"""The native module: attention on addresses, and DLPack."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Self

__version__: str

def info() -> dict[str, Any]:
    """What this machine has."""

def optional_inputs() -> list[tuple[str, str, tuple[str, ...], bool]]:
    """The library's table of optional inputs: for each the name, the type of its elements, its shape in terms of the problem, and whether it has a
    gradient."""

def dropout_mask(shape: Sequence[int], dropout_p: float, seed: int, offset: int) -> Array:
    """Which weights are kept, for this probability of being dropped, this seed and this offset: bool, of this shape, `[batch, heads_q, seqlen_q,
    seqlen_k]`. What masks hide counts, too; of packed sequences each has the first rows and columns of its entry."""

def find_ptxas(programs: Sequence[str]) -> Path | None:
    """The first of these programs that prints its release of CUDA."""

def keep_kernels_in(folder: str, ptxas: str | None = None) -> None:
    """From now on every GPU of this process keeps compiled kernels in this folder, compiled by this `ptxas`; `None`: by the driver."""

def compile_kernels(
    calls: Sequence[str],
    folder: str,
    ptxas: str | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Compiles the kernels of calls into a folder."""

class Score:
    """A replacement for every score: an expression, which lives as long as the process."""

    @staticmethod
    def parse(text: str) -> Score: ...
    def text(self) -> str: ...
    def takes(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
        """Parameters with their types; tensors with the types of their elements, and how many dimensions they have."""

class Mask:
    """Which keys a query sees: an expression, which lives as long as the process."""

    @staticmethod
    def parse(text: str) -> Mask: ...
    def text(self) -> str: ...
    def takes(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
        """As for a score."""

class Problem:
    """One attention problem. Shapes are `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]`; with `columns` that of k is
    `[n_pages, page_size, heads, head_dim]`. `split_kv` is "auto", "never", or the keys of a split. With `values_in_keys` the value of a key is
    so many first columns of its row. `fp8_kv` is "per_sequence" or "per_page": keys and values in e4m3, and what their scales are of. `fp8` is "per_tensor",
    "per_head" or "per_block": q, k and v in e4m3, likewise; `dtype` is then that of o, and `fp8_sums` is "two_levels" or "one_level". `score` and `mask` are
    expressions. `inputs` are the names of optional inputs that calls give. `dropout_p` is the probability that a weight is dropped. `precision` is "tensor" or "full": how
    exact products of float32 are on a GPU."""

    def __new__(
        cls,
        dtype: str,
        shape_q: Sequence[int],
        shape_k: Sequence[int],
        *,
        batch: int | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        softmax_scale: float | None = None,
        left: int | None = None,
        right: int | None = None,
        columns: int | None = None,
        split_kv: str = "auto",
        values_in_keys: int | None = None,
        fp8_kv: str | None = None,
        fp8: str | None = None,
        fp8_sums: str = "two_levels",
        score: Score | None = None,
        mask: Mask | None = None,
        inputs: Sequence[str] = (),
        dropout_p: float = 0.0,
        precision: str = "tensor",
    ) -> Self: ...
    def score_gradient_shape(self, name: str) -> list[int]:
        """The shape of the gradient of a tensor that the score reads. For a tensor without one, a NotImplementedError says why."""
    def explain(self, ordinal: int | None = None, *, backward: bool = False) -> str:
        """What would run on a device, and why every other candidate would not."""

class Call:
    """A pass of a problem on a device, "forward" or "backward", or an operation, planned. Strides are of tensors by the library's names, without the last one,
    which is 1; the others are contiguous. `giving` names what runs give of that which may be left out, `without` what they leave out of that which is usual."""

    def __new__(
        cls,
        problem: Problem,
        kind: str,
        ordinal: int | None,
        strides: Mapping[str, Sequence[int]],
        giving: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Self: ...
    @staticmethod
    def append(
        dtype: str,
        shape_new: Sequence[int],
        shape_cache: Sequence[int],
        ordinal: int | None,
        strides: Mapping[str, Sequence[int]],
        giving: Sequence[str],
        *,
        batch: int,
        heads_q: int = 0,
        columns: int | None = None,
        rotary: tuple[bool, int, int] | None = None,
        queries_at_first: bool = False,
        fp8_kv: str | None = None,
    ) -> Call:
        """New rows of k and v written to a cache, k and q rotated by their positions. `rotary` is (whether pairs are interleaved, rotary_dim, positions of
        the tables). `fp8_kv`, "per_sequence" or "per_page": the cache is in 8 bits with such scales."""
    @staticmethod
    def rotate(
        dtype: str,
        shape: Sequence[int],
        ordinal: int | None,
        strides: Mapping[str, Sequence[int]],
        giving: Sequence[str],
        *,
        batch: int,
        rotary: tuple[bool, int, int],
    ) -> Call:
        """Rows rotated by their positions."""
    @staticmethod
    def quantize(
        dtype: str,
        shape: Sequence[int],
        ordinal: int | None,
        strides: Mapping[str, Sequence[int]],
        giving: Sequence[str],
        *,
        heads_k: int,
        hadamard: bool,
        giving_descale: bool = False,
        packed: tuple[int, int] | None = None,
    ) -> Call:
        """A tensor rounded to e4m3, with a scale for each sequence and head of keys, a power of 2, or with given ones; with `hadamard` its rows are rotated first.
        `packed` is the number of packed sequences and the most rows of one."""
    @property
    def workspace_bytes(self) -> int: ...
    def run(
        self,
        stream: int,
        workspace: tuple[int, int],
        at: Mapping[str, int],
        params: Sequence[float] = (),
        read: Sequence[tuple[int, Sequence[int], Sequence[int]]] = (),
        d_read: Sequence[int] = (),
        rng: tuple[int, int] | None = None,
    ) -> None:
        """`at` are addresses by name. `params` are numbers, and `read` address, shape and strides of tensors, as the score and the mask take them; `d_read`
        the addresses of gradients of these, 0 of those that are not wanted; `rng` is seed and offset of dropout where they do not lie in memory."""

class Planned:
    """A call that the door has planned."""

    @property
    def plan(self) -> Any: ...
    def backward(self, saved: tuple[Any, ...], d_o: Any | None, d_lse: Any | None) -> tuple[Any, ...] | None:
        """The gradients of q, k and v, then None for each other argument of the node; None if the pass is not plain."""

def forward_of_graph(ctx: Any, q: Any, k: Any, v: Any, planned: Planned, both: bool, *lengths: Any) -> Any:
    """The forward pass of a node of autograd's graph: o, or with `both` o and lse."""

class Kernels:
    """Registered native kernels of operators; they stay registered until removed."""

    def remove(self) -> None: ...

def refuse(text: str) -> None:
    """Refuses a call that a native kernel has passed on to Python, with this text."""

class Door:
    """The door: the fast path of PyTorch's eager calls. `plan` is called with q, k, v, lengths and numbers when these are first seen; `apply` is that of an
    `autograd.Function` whose `forward` is `forward_of_graph`. `exchange` is DLPack's exchange table, `library` the path of PyTorch's library."""

    def __new__(
        cls, plan: Callable[..., tuple[Any, ...]], apply: Callable[..., Any], *, exchange: Any = None, library: Path | None = None
    ) -> Self: ...
    def put_kernels(
        self,
        namespace: str,
        key: str,
        operators: Sequence[tuple[str, str]],
        sdpa: tuple[int, Sequence[tuple[Sequence[int], str]]] | None = None,
    ) -> Kernels | None:
        """Registers native kernels for operators of a namespace and a dispatch key: each operator's name, and its kernel: "forward",
        "backward", "sdpa_forward", "sdpa_backward", "graph_forward" or "graph_backward". `sdpa`, which those of SDPA need, is the greatest head_dim, and
        shape and type of the two results for the state of dropout. None if PyTorch lacks what that needs, or if another door's kernels are registered."""
    def put_node(self, operator: Callable[..., Any]) -> None:
        """Makes nodes of autograd's graph those of this operator, whose kernels are the door's for tensors of every device."""
    def numbers_of_code(self, code: float) -> tuple[float | None, int | None, int | None, int] | None:
        """softmax_scale, the window's keys before and after, and num_splits of a code."""
    @property
    def n_served(self) -> list[int]:
        """How many calls native kernels have run through this door, for each operator in the order of their names above."""
    def flash(
        self,
        q: Any,
        k: Any,
        v: Any,
        softmax_scale: Any,
        causal: Any,
        window: Any,
        num_splits: Any,
        lse: bool | None,
        dropout_p: Any,
        softcap: Any,
    ) -> Any | None:
        """o, or, unless `lse` is None, o and lse, which has a gradient if `lse` is true; None if the call is not plain."""
    def behind_operator(self, q: Any, k: Any, v: Any, lengths: tuple[Any, ...] | None, numbers: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """o and lse, contiguous; None if the door does not support the call."""
    def behind_operator_backward(
        self, saved: tuple[Any, ...], d_o: Any, d_lse: Any | None, lengths: tuple[Any, ...] | None, numbers: tuple[Any, ...]
    ) -> list[Any] | None:
        """The gradients of q, k and v, contiguous, from these, o and lse; None if the door does not support the call."""
    def behind_sdpa(self, q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> tuple[Any, Any] | None:
        """o and lse of tensors `[batch, heads, seqlen, head_dim]`, o in the dimension order of q's memory; None if the door does not support the call."""
    def behind_sdpa_backward(
        self, d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, scale: float | None
    ) -> list[Any] | None:
        """The gradients of q, k and v, each in the dimension order of its tensor's memory; None if the door does not support the call."""
    def attention(self, q: Any, k: Any, v: Any, lengths: tuple[Any, ...] | None, numbers: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """o and lse; None if the call is not plain."""

class Import:
    """Memory of another library's array, kept alive."""

    def __new__(cls, array: Any, stream: int | None = None) -> Self: ...
    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def strides(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> tuple[int, int]: ...

class Array:
    """A contiguous array that other libraries import without a copy, by `numpy.from_dlpack` and the like."""

    def __new__(cls, dtype: str, shape: Sequence[int], ordinal: int | None = None) -> Self: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def address(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Stream:
    """A stream of a CUDA device that waits for no other stream."""

    def __new__(cls, ordinal: int) -> Self: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self) -> None: ...
