"""FlashMLA's function on PyTorch's tensors."""

from __future__ import annotations

from torch import Tensor

from ._checks import Form, check, check_integers, check_rows
from ._forward_only import latent

Results = tuple[Tensor, Tensor]


def of_tensors(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor | None,
    cache_seqlens: Tensor,
    head_dim_v: int,
    softmax_scale: float | None,
    causal: bool,
) -> Results:
    """o and lse, of arguments that are checked by the names that FlashMLA has for them."""
    given = {"k_cache": k_cache, "cache_seqlens": cache_seqlens}
    if block_table is not None:
        given["block_table"] = block_table
    for argument, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument} is {type(tensor).__name__}; allowed: torch.Tensor")
    for argument, tensor in (("q", q), ("k_cache", k_cache)):
        if tensor.dim() != 4:
            first = "batch, seqlen_q, heads_q" if argument == "q" else "n_pages, page_size, heads_k"
            raise ValueError(f"{argument} has the shape {list(tensor.shape)}; allowed: [{first}, head_dim]")
    table = None if block_table is None else block_table.contiguous()
    try:
        return latent(
            q,
            k_cache,
            head_dim_v,
            softmax_scale=softmax_scale,
            causal=bool(causal),
            seqused_k=cache_seqlens.contiguous(),
            page_table=table,
        )
    except (TypeError, ValueError) as error:
        _check(q, k_cache, table, cache_seqlens)
        raise type(error)(spelled(str(error))) from error


def _check(q: Tensor, k_cache: Tensor, table: Tensor | None, cache_seqlens: Tensor) -> None:
    """Raises by FlashMLA's names what is wrong with types, devices and shapes."""
    of_q, of_k = Form.of(q), Form.of(k_cache)
    check(of_q, of_k, of_k, ("k_cache", "k_cache"), in_pages=table is not None)
    check_integers("cache_seqlens", Form.of(cache_seqlens.contiguous()), (q.shape[0],), q.device)
    if table is not None:
        check_integers("block_table", Form.of(table), (q.shape[0], "columns"), q.device)
    check_rows("k_cache", of_k)


def spelled(text: str) -> str:
    """What the library says of its arguments, by FlashMLA's names."""
    return text.replace("seqused_k", "cache_seqlens").replace("page_table", "block_table")
