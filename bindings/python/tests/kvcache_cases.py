"""Calls of `flash_attn_with_kvcache`: a case in words, its tensors, and what has to come of it, in float64, sequence by sequence.

Every row that no call may read is NaN: rows of the cache behind those in use and before the padding's end, and pages of no sequence.
"""

from __future__ import annotations

import dataclasses

import torch
from torch_cases import assert_lse_near, assert_near, reference

NAN = float("nan")
N_PAGES_TO_SPARE = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A call."""

    seqlen_q: int = 3
    seqlen_cache: int = 24
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 16
    batch: int = 2
    mask: str = "full"
    """full, causal, or window."""
    new: str = "same"
    """New rows: none, same (as many as queries), fewer, or other (as many as the queries of the next sequence)."""
    packed: bool = False
    rotary_dim: int = 0
    interleaved: bool = True
    own_positions: bool = False
    """Whether rows are rotated by positions other than their rows in the cache."""
    storage: str = "rows"
    """Of the caches: rows, index (by cache_batch_idx), pages, or indexed pages."""
    page_size: int = 8
    leftpad: bool = False
    interlaced: bool = False
    """Whether k_cache and v_cache lie in one tensor."""
    num_splits: int = 0
    softcap: float = 0.0
    alibi: bool = False
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0

    @property
    def paged(self) -> bool:
        return self.storage.endswith("pages")

    @property
    def window(self) -> tuple[int, int]:
        return (5, 2) if self.mask == "window" else (-1, -1)


class Call:
    """The tensors of a case. Lengths are drawn; `used` counts rows of the cache before, `n_new` new ones."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(case.seed)
        heads_q, heads_k = case.heads
        n_new = {"none": 0, "same": case.seqlen_q, "other": case.seqlen_q, "fewer": max(case.seqlen_q - 1, 1)}[case.new]
        self.n_q = self._lengths(case.seqlen_q)
        if case.new == "same":
            self.n_new = self.n_q
        elif case.new == "other":
            self.n_new = [*self.n_q[1:], self.n_q[0]]
        else:
            self.n_new = self._lengths(n_new) if n_new else [0] * case.batch
        longest = max(case.seqlen_q, n_new) if n_new else 0
        self.used = [self._integer(0 if n_new else 1, case.seqlen_cache - longest + 1) for _ in range(case.batch)]
        self.leftpad = [self._integer(0, max(used, 1)) if case.leftpad else 0 for used in self.used]
        # Not at the same numbers as rows, and all in the tables.
        self.positions = [used // 2 for used in self.used] if case.own_positions else self.used
        self.q = [self._random(n, heads_q, case.head_dim) for n in self.n_q]
        self.k, self.v = ([self._random(n, heads_k, case.head_dim) for n in self.n_new] for _ in range(2))
        self.k_cache, self.v_cache = self._caches(heads_k)
        angles = torch.rand(case.seqlen_cache + 20, case.rotary_dim // 2, generator=self.generator) * 6.3
        self.cos, self.sin = (of(angles).to(case.dtype) for of in (torch.cos, torch.sin))
        self.slopes = torch.rand(case.batch, heads_q, generator=self.generator)

    def _integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self.generator))

    def _lengths(self, most: int) -> list[int]:
        if not self.case.packed:
            return [most] * self.case.batch
        return [most, *(self._integer(0, most + 1) for _ in range(self.case.batch - 1))]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.case.dtype)

    def _caches(self, heads_k: int) -> list[torch.Tensor]:
        """Of each sequence, [seqlen_cache, heads_k, head_dim]."""
        case, caches = self.case, []
        for _ in range(2):
            rows = []
            for used, leftpad in zip(self.used, self.leftpad, strict=True):
                cache = self._random(case.seqlen_cache, heads_k, case.head_dim)
                cache[used:], cache[:leftpad] = NAN, NAN
                rows.append(cache)
            caches.append(torch.stack(rows))
        return caches

    def expected(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """o and lse of each sequence, and the caches afterwards, with k in float64 before it is rounded."""
        case = self.case
        outputs, statistics, k_caches, v_caches = [], [], [], []
        for b in range(case.batch):
            q, k = self.turned(b)
            k_cache, v_cache = self.k_cache[b].double(), self.v_cache[b].double()
            end = self.used[b] + self.n_new[b]
            k_cache[self.used[b] : end], v_cache[self.used[b] : end] = k, self.v[b].double()
            rows = slice(self.leftpad[b], end)
            window = (5, 2) if case.mask == "window" else (None, None)
            seen = (x[None, rows].to(case.dtype) for x in (k_cache, v_cache))
            slopes = self.slopes[b : b + 1] if case.alibi else None
            o, lse = reference(q[None], *seen, causal=case.mask == "causal", window=window, softcap=case.softcap, alibi_slopes=slopes)
            outputs.append(o[0])
            statistics.append(lse[0])
            k_caches.append(k_cache)
            v_caches.append(v_cache)
        return outputs, statistics, k_caches, v_caches

    def turned(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries of a sequence, and its new keys in float64, rotated if the call rotates."""
        case, q, k = self.case, self.q[b], self.k[b].double()
        if case.rotary_dim == 0 or case.new == "none":
            return q, k
        step = torch.arange(len(q)) if case.mask != "full" else torch.zeros(len(q), dtype=torch.long)
        return self._turn(q, self.positions[b] + step).to(case.dtype), self._turn(k, self.positions[b] + torch.arange(len(k)))

    def _turn(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """RoPE by its definition."""
        n_pairs = self.case.rotary_dim // 2
        cos, sin = (table.double()[positions][:, None] for table in (self.cos, self.sin))
        rows = rows.double().clone()
        if self.case.interleaved:
            first, second = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
        else:
            first, second = slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
        x, y = rows[..., first].clone(), rows[..., second].clone()
        rows[..., first], rows[..., second] = x * cos - y * sin, x * sin + y * cos
        return rows


class Stored:
    """The caches of a call as its storage has them."""

    def __init__(self, call: Call) -> None:
        self.case = case = call.case
        generator = torch.Generator().manual_seed(case.seed + 1)
        self.index: list[int] | None = None
        entries = case.batch
        if case.storage in ("index", "indexed pages"):
            entries = 2 * case.batch
            self.index = torch.randperm(entries, generator=generator)[: case.batch].tolist()
        self.table: torch.Tensor | None = None
        self.rows_of = self.index if self.index is not None else list(range(case.batch))
        if case.paged:
            columns = -(-case.seqlen_cache // case.page_size)
            n_pages = entries * columns + N_PAGES_TO_SPARE
            pages = torch.randperm(n_pages, generator=generator)[: entries * columns]
            self.table = pages.view(entries, columns).to(torch.int32)
            shape = (n_pages, case.page_size)
        else:
            shape = (entries, case.seqlen_cache)
        like = (*shape, case.heads[1], case.head_dim)
        if case.interlaced:
            both = torch.full((*like[:2], 2, *like[2:]), NAN, dtype=case.dtype, device=case.device)
            self.k_cache, self.v_cache = both.unbind(2)
        else:
            self.k_cache, self.v_cache = (torch.full(like, NAN, dtype=case.dtype, device=case.device) for _ in range(2))
        for cache, rows in ((self.k_cache, call.k_cache), (self.v_cache, call.v_cache)):
            for b in range(case.batch):
                for row in range(case.seqlen_cache):
                    cache[self._place(b, row)] = rows[b, row].to(case.device)

    def _place(self, sequence: int, row: int) -> tuple[int, int]:
        entry = self.rows_of[sequence]
        if self.table is None:
            return entry, row
        return int(self.table[entry, row // self.case.page_size]), row % self.case.page_size

    def rows(self, cache: torch.Tensor) -> torch.Tensor:
        """The rows of all sequences, [batch, seqlen_cache, heads_k, head_dim]."""
        places = [[self._place(b, row) for row in range(self.case.seqlen_cache)] for b in range(self.case.batch)]
        return torch.stack([torch.stack([cache[place] for place in of_sequence]) for of_sequence in places]).cpu()

    def others(self, cache: torch.Tensor) -> torch.Tensor:
        """Rows that belong to no sequence: NaN before, and for ever."""
        mine = torch.zeros(cache.shape[:2], dtype=torch.bool)
        for b in range(self.case.batch):
            for row in range(self.case.seqlen_cache):
                mine[self._place(b, row)] = True
        return cache.cpu()[~mine]


def arguments(call: Call, stored: Stored) -> dict[str, object]:
    """What both interfaces have in common, by FlashAttention-3's names."""
    case = call.case

    def integers(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=case.device)

    def together(rows: list[torch.Tensor]) -> torch.Tensor:
        return (torch.cat(rows) if case.packed else torch.stack(rows)).to(case.device)

    def ends(lengths: list[int]) -> torch.Tensor:
        return integers([sum(lengths[:n]) for n in range(len(lengths) + 1)])

    given: dict[str, object] = {
        "q": together(call.q),
        "k_cache": stored.k_cache,
        "v_cache": stored.v_cache,
        "cache_seqlens": integers(call.used),
        "causal": case.mask == "causal",
        "window_size": case.window,
        "num_splits": case.num_splits,
        "rotary_interleaved": case.interleaved,
        "softcap": case.softcap,
    }
    if case.new != "none":
        given |= {"k": together(call.k), "v": together(call.v)}
        if case.rotary_dim > 0:
            given |= {"rotary_cos": call.cos.to(case.device), "rotary_sin": call.sin.to(case.device)}
        if case.own_positions:
            given["rotary_seqlens"] = integers(call.positions)
    if case.packed:
        given |= {"cu_seqlens_q": ends(call.n_q), "max_seqlen_q": case.seqlen_q}
        if case.new == "same":
            given["cu_seqlens_k_new"] = given["cu_seqlens_q"]
        elif case.new != "none":
            given["cu_seqlens_k_new"] = ends(call.n_new)
    if stored.index is not None:
        given["cache_batch_idx"] = integers(stored.index)
    if stored.table is not None:
        given["page_table"] = stored.table.to(case.device)
    if case.leftpad:
        given["cache_leftpad"] = integers(call.leftpad)
    return given


def assert_right(call: Call, stored: Stored, o: torch.Tensor, lse: torch.Tensor) -> None:
    """Results, the caches, and what nobody may touch."""
    case = call.case
    outputs, statistics, k_caches, v_caches = call.expected()
    begin = 0
    for b, n in enumerate(call.n_q):
        ours = (o[begin : begin + n], lse[:, begin : begin + n]) if case.packed else (o[b], lse[b])
        begin += n
        assert_near(ours[0].cpu(), outputs[b])
        assert_lse_near(ours[1].cpu(), statistics[b])
    unit = torch.finfo(case.dtype).eps
    for b, used in enumerate(call.used):
        k, v = (stored.rows(cache)[b].double() for cache in (stored.k_cache, stored.v_cache))
        new = slice(used, used + call.n_new[b])
        before = torch.ones(case.seqlen_cache, dtype=torch.bool)
        before[new] = False
        assert torch.equal(v[new], v_caches[b][new])
        assert ((k[new] - k_caches[b][new]).abs() <= 2 * unit * k_caches[b][new].abs().amax(-1, keepdim=True)).all()
        if case.rotary_dim == 0:
            assert torch.equal(k[new], k_caches[b][new])
        for ours, was in ((k, call.k_cache[b]), (v, call.v_cache[b])):
            assert torch.equal(ours[before].nan_to_num(7.0), was[before].double().nan_to_num(7.0))
    for cache in (stored.k_cache, stored.v_cache):
        assert stored.others(cache).isnan().all()
