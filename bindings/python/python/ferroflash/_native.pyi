"""The native module: attention on addresses, and DLPack."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Self

__version__: str

def info() -> dict[str, Any]:
    """What there is on this machine."""

class Problem:
    """One attention problem. Shapes are `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]`; with `columns` that of k is
    `[n_pages, page_size, heads, head_dim]`. `split_kv` is "auto", "never", or the keys of a split. With `values_in_keys` the value of a key is
    so many first columns of its row. `fp8_kv` is "per_sequence" or "per_page": keys and values in e4m3, and what their scales are of."""

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
    ) -> Self: ...
    def explain(self, ordinal: int | None = None, *, backward: bool = False) -> str:
        """What would run on a device, and what became of every other candidate."""

class Forward:
    """The forward pass of a problem on a device, planned."""

    def __new__(cls, problem: Problem, ordinal: int | None, strides: tuple[Sequence[int], ...], given: Sequence[bool]) -> Self: ...
    @property
    def workspace_bytes(self) -> int: ...
    def run(
        self,
        stream: int,
        workspace: tuple[int, int],
        addresses: Sequence[int],
        lengths: Sequence[int],
        scales: Sequence[int] = (0, 0),
    ) -> None: ...

class Backward:
    """The backward pass of a problem on a device, planned."""

    def __new__(cls, problem: Problem, ordinal: int | None, strides: tuple[Sequence[int], ...], given: Sequence[bool]) -> Self: ...
    @property
    def workspace_bytes(self) -> int: ...
    def run(self, stream: int, workspace: tuple[int, int], addresses: Sequence[int], lengths: Sequence[int]) -> None: ...

class Append:
    """New rows of k and v written to a cache, k and q turned by their positions, planned. `rotary` is (whether pairs are interleaved,
    rotary_dim, positions of the tables)."""

    def __new__(
        cls,
        dtype: str,
        shape_new: Sequence[int],
        shape_cache: Sequence[int],
        ordinal: int | None,
        strides: Sequence[Sequence[int]],
        *,
        batch: int,
        heads_q: int = 0,
        columns: int | None = None,
        rotary: tuple[bool, int, int] | None = None,
        queries_at_first: bool = False,
    ) -> Self: ...
    def run(self, stream: int, tensors: Sequence[int], vectors: Sequence[int]) -> None: ...

class Rotate:
    """Rows turned by their positions, planned."""

    def __new__(
        cls,
        dtype: str,
        shape: Sequence[int],
        ordinal: int | None,
        strides: Sequence[int],
        *,
        batch: int,
        rotary: tuple[bool, int, int],
    ) -> Self: ...
    def run(self, stream: int, tensors: Sequence[int], vectors: Sequence[int]) -> None: ...

class Import:
    """Memory of another library's array, held."""

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
    """A contiguous array that other libraries take over without a copy, by `numpy.from_dlpack` and the like."""

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
    """A stream of a CUDA device, which waits for no other one."""

    def __new__(cls, ordinal: int) -> Self: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self) -> None: ...
