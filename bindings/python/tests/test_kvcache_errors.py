"""What `flash_attn_with_kvcache` refuses: the error's type, the argument that its text names, and that no cache was written."""

from __future__ import annotations

import dataclasses

import pytest
from torch_cases import DEVICES

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import fa3  # noqa: E402
from ferroflash import flash_attn_interface as fa2  # noqa: E402
from kvcache_cases import Call, Case, Stored, arguments  # noqa: E402

ROWS = Case(dtype=torch.bfloat16, rotary_dim=8)
PAGES = dataclasses.replace(ROWS, storage="pages")
INDEX = dataclasses.replace(ROWS, storage="index")


def change(**changes):
    return lambda given: given | {name: of(given) if callable(of) else of for name, of in changes.items()}


WRONG = [
    (ValueError, "v is missing", ROWS, change(v=None)),
    (ValueError, "k is missing", ROWS, change(k=None)),
    (ValueError, "cache_seqlens is missing", ROWS, change(cache_seqlens=None)),
    (ValueError, "rotary_sin is missing", ROWS, change(rotary_sin=None)),
    (ValueError, "rotary_cos is missing", ROWS, change(rotary_cos=None)),
    (ValueError, "rotary_cos was given", ROWS, change(k=None, v=None)),
    (ValueError, "rotary_sin has the shape", ROWS, change(rotary_sin=lambda given: given["rotary_sin"][:, :2])),
    (ValueError, "rotary_cos has the shape", ROWS, change(rotary_cos=lambda given: given["rotary_cos"][0])),
    (
        ValueError,
        "rotary_cos has 23 positions",
        ROWS,
        change(**{n: lambda given, n=n: given[n][:23] for n in ("rotary_cos", "rotary_sin")}),
    ),
    (ValueError, "rotary_dim is 18", ROWS, change(**dict.fromkeys(("rotary_cos", "rotary_sin"), lambda _: torch.ones(24, 9)))),
    (TypeError, "rotary_cos is torch.int32", ROWS, change(rotary_cos=lambda given: given["rotary_cos"].int())),
    (TypeError, "k is torch.float16", ROWS, change(k=lambda given: given["k"].half())),
    (TypeError, "v is torch.float32", ROWS, change(v=lambda given: given["v"].float())),
    (TypeError, "v_cache is torch.float16", ROWS, change(v_cache=lambda given: given["v_cache"].half())),
    (TypeError, "k_cache is torch.float16", ROWS, change(k_cache=lambda given: given["k_cache"].half())),
    (ValueError, "k has the shape", ROWS, change(k=lambda given: given["k"][:1])),
    (ValueError, "v has the shape", ROWS, change(v=lambda given: given["v"][:, :, :1])),
    (ValueError, "v_cache has the shape", ROWS, change(v_cache=lambda given: given["v_cache"][:, :9])),
    (ValueError, "k_cache has batch 1", ROWS, change(**{n: lambda given, n=n: given[n][:1] for n in ("k_cache", "v_cache")})),
    (ValueError, "k_cache has the shape", ROWS, change(k_cache=lambda given: given["k_cache"][0])),
    (TypeError, "cache_seqlens is torch.int64", ROWS, change(cache_seqlens=lambda given: given["cache_seqlens"].long())),
    (ValueError, "cache_seqlens has the shape", ROWS, change(cache_seqlens=lambda given: given["cache_seqlens"][:1])),
    (ValueError, "seqlen_new is 30", ROWS, change(**dict.fromkeys("kv", lambda given: given["k"].repeat(1, 10, 1, 1)))),
    (ValueError, "cache_leftpad has the shape", ROWS, change(cache_leftpad=lambda given: given["cache_seqlens"][:1])),
    (ValueError, "cache_leftpad has the shape", PAGES, change(cache_leftpad=lambda given: given["cache_seqlens"][:1])),
    (TypeError, "cache_batch_idx is torch.int64", INDEX, change(cache_batch_idx=lambda given: given["cache_batch_idx"].long())),
    (ValueError, "cache_batch_idx has the shape", INDEX, change(cache_batch_idx=lambda given: given["cache_batch_idx"][:1])),
    (TypeError, "TABLE is torch.int64", PAGES, change(page_table=lambda given: given["page_table"].long())),
    (ValueError, "TABLE has the shape", PAGES, change(page_table=lambda given: given["page_table"][:1])),
    (ValueError, "TABLE has the shape", PAGES, change(page_table=lambda given: given["page_table"][0])),
    (TypeError, "k_cache is list", ROWS, change(k_cache=lambda given: given["k_cache"].tolist())),
    (TypeError, "cache_seqlens is float", ROWS, change(cache_seqlens=3.0)),
    (TypeError, "cache_batch_idx is list", ROWS, change(cache_batch_idx=[0, 1])),
    (ValueError, "q has the shape", ROWS, change(q=lambda given: given["q"][0, 0])),
    (ValueError, "window_size", ROWS, change(window_size=3)),
    (ValueError, "num_splits", ROWS, change(num_splits=-2)),
    (ValueError, "softmax_scale", ROWS, change(softmax_scale=-1.0)),
    (NotImplementedError, "softcap", ROWS, change(softcap=float("inf"))),
]

# Numbers that only the host looks at.
WRONG_NUMBERS = [
    (ValueError, "cache_seqlens, sequence 0: 22", ROWS, change(cache_seqlens=torch.tensor([22, 0], dtype=torch.int32))),
    (ValueError, "cache_seqlens, sequence 1: -1", ROWS, change(cache_seqlens=torch.tensor([0, -1], dtype=torch.int32))),
    (ValueError, "cache_seqlens, sequence 0: 25", ROWS, change(cache_seqlens=25, **dict.fromkeys(("k", "v", "rotary_cos", "rotary_sin")))),
    (ValueError, "cache_leftpad", ROWS, change(cache_leftpad=lambda given: given["cache_seqlens"] + 4)),
    (ValueError, "cache_leftpad", PAGES, change(cache_leftpad=lambda given: given["cache_seqlens"] + 4)),
    (ValueError, "TABLE says page", INDEX, change(cache_batch_idx=torch.tensor([0, 4], dtype=torch.int32))),
    (ValueError, "TABLE says page", PAGES, change(page_table=lambda given: given["page_table"] + 1000)),
]


def refused(interface, table, wrong, device="cpu"):
    error, word, case, changed = wrong
    call = Call(dataclasses.replace(case, device=device))
    stored = Stored(call)
    given = changed(arguments(call, stored))
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    if table == "block_table" and "page_table" in given:
        given["block_table"] = given.pop("page_table")
    before = [cache.clone() for cache in (stored.k_cache, stored.v_cache)]
    with pytest.raises(error, match=word.replace("TABLE", table)):
        interface.flash_attn_with_kvcache(**given)
    for cache, was in zip((stored.k_cache, stored.v_cache), before, strict=True):
        assert torch.equal(cache.nan_to_num(7.0), was.nan_to_num(7.0)), "a cache was written"


INTERFACES = pytest.mark.parametrize(("interface", "table"), [(fa2, "block_table"), (fa3, "page_table")], ids=["fa2", "fa3"])


@INTERFACES
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[1])
def test_refused(interface, table, wrong, device):
    refused(interface, table, wrong, device)


@INTERFACES
@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=lambda wrong: wrong[1])
def test_numbers_on_the_host_are_looked_at(interface, table, wrong):
    refused(interface, table, wrong)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "wrong",
    [
        (ValueError, "cu_seqlens_k_new has the shape", change(cu_seqlens_k_new=lambda given: given["cu_seqlens_k_new"][:2])),
        (ValueError, "k has the shape", change(cu_seqlens_k_new=None)),
        (ValueError, "cu_seqlens_k_new was given", change(k=None, v=None, rotary_cos=None, rotary_sin=None)),
        (ValueError, "cu_seqlens_q", change(cu_seqlens_q=None)),
        (TypeError, "rotary_seqlens is", change(rotary_seqlens=lambda given: given["cache_seqlens"].long())),
        (ValueError, "rotary_seqlens has the shape", change(rotary_seqlens=lambda given: given["cache_seqlens"][:1])),
        (NotImplementedError, "qv", change(qv=lambda given: given["q"])),
        (NotImplementedError, "k_descale", change(k_descale=lambda given: given["q"])),
        (NotImplementedError, "attention_chunk", change(attention_chunk=3)),
    ],
    ids=lambda wrong: wrong[1],
)
def test_packed_rows_are_checked(wrong, device):
    error, word, changed = wrong
    refused(fa3, "page_table", (error, word, dataclasses.replace(ROWS, packed=True), changed), device)


def test_slopes_are_checked():
    refused(fa2, "block_table", (ValueError, "alibi_slopes has the shape", ROWS, change(alibi_slopes=torch.ones(3))))
    refused(fa2, "block_table", (TypeError, "alibi_slopes is torch.float64", ROWS, change(alibi_slopes=torch.ones(4).double())))
