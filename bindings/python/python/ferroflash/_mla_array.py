"""FlashMLA's function on arrays of numpy, JAX, CuPy and every other library that speaks DLPack."""

from __future__ import annotations

from typing import Any

from . import _native
from ._array_call import Call, like

_PAGES = ("n_pages", "page_size", "heads_k", "head_dim")
_ROWS = ("batch", "seqlen_cache", "heads_k", "head_dim")


def of_arrays(
    q: Any, k_cache: Any, block_table: Any, cache_seqlens: Any, head_dim_v: int, softmax_scale: float | None, causal: bool
) -> tuple[Any, Any]:
    """o and lse, arrays of q's library."""
    try:
        call = _LatentCall(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal)
        o, lse = call.forward(head_dim_v)
    except ValueError as error:
        text = str(error).replace("seqused_k", "cache_seqlens").replace("page_table", "block_table")
        raise ValueError(text) from error
    return like(q, o), like(q, lse)


class _LatentCall(Call):
    """Arguments of one call, checked and held."""

    def __init__(
        self, q: Any, k_cache: Any, block_table: Any, cache_seqlens: Any, head_dim_v: int, softmax_scale: float | None, causal: bool
    ) -> None:
        batch, head_dim = self._begin(q, softmax_scale)
        in_pages = block_table is not None
        shape = (None if in_pages else batch, None, None, head_dim)
        k = self.tensors["k"] = self._tensor("k_cache", k_cache, (self.dtype,), shape, _PAGES if in_pages else _ROWS)
        # As the table of inputs has them, by FlashMLA's names.
        self.inputs["seqused_k"] = self._contiguous("cache_seqlens", cache_seqlens, "int32", (batch,))
        columns = None
        if in_pages:
            columns = self._columns(block_table)
            self.inputs["page_table"] = self._contiguous("block_table", block_table, "int32", (batch, columns))
        self.problem = _native.Problem(
            self.dtype,
            self.q.shape,
            k.shape,
            batch=batch,
            softmax_scale=softmax_scale,
            right=0 if causal else None,
            columns=columns,
            values_in_keys=head_dim_v,
        )

    def _columns(self, block_table: Any) -> int:
        shape = self._import("block_table", block_table).shape
        if len(shape) != 2 or shape[1] == 0:
            raise ValueError(f"block_table has the shape {shape}; needed: [{self.q.shape[0]}, columns], 1 column or more")
        return shape[1]
