"""`flash_attn_with_kvcache` of both interfaces: new rows, rotary embedding, pages, indexed caches, padding; against float64."""

from __future__ import annotations

import dataclasses

import pytest
from torch_cases import DEVICES, DTYPES, FLOAT32_ON_GPU, assert_near, integers, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import fa3, fa4  # noqa: E402
from ferroflash import flash_attn_interface as fa2  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kvcache_cases import Call, Case, Stored, arguments, assert_right  # noqa: E402


def run(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Calls FlashAttention-3's function and, where it can say the same, FlashAttention-2's, and compares both with float64. ALiBi is
    FlashAttention-2's alone."""
    if case.alibi:
        call = Call(dataclasses.replace(case, packed=False, own_positions=False))
        stored = Stored(call)
        given = arguments(call, stored) | {"alibi_slopes": call.slopes.to(case.device)}
        if "page_table" in given:
            given["block_table"] = given.pop("page_table")
        o, lse = fa2.flash_attn_with_kvcache(**given, return_softmax_lse=True)
        assert_right(call, stored, o, lse)
        return o, lse
    call = Call(case)
    stored = Stored(call)
    given = arguments(call, stored)
    before = given["q"].clone()
    o, lse, *_ = fa3.flash_attn_with_kvcache(**given, return_softmax_lse=True)
    assert torch.equal(given["q"], before), "q was changed"
    assert_right(call, stored, o, lse)
    if not case.packed and not case.own_positions:
        stored = Stored(call)
        given = arguments(call, stored)
        if "page_table" in given:
            given["block_table"] = given.pop("page_table")
        again = fa2.flash_attn_with_kvcache(**given, return_softmax_lse=True)
        assert_right(call, stored, *again)
        assert torch.equal(again[0], o) and torch.equal(again[1], lse)
    return o, lse


@st.composite
def cases(draw: st.DrawFn) -> Case:
    device = draw(st.sampled_from(DEVICES))
    dtype = draw(st.sampled_from(DTYPES[device]))
    storage = draw(st.sampled_from(["rows", "index", "pages", "indexed pages"]))
    head_dim = draw(st.sampled_from([8, 20, 64, 80]))
    heads_k = draw(st.integers(1, 3))
    return Case(
        seqlen_q=draw(st.integers(1, 9)),
        seqlen_cache=draw(st.integers(16, 40)),
        heads=(heads_k * draw(st.integers(1, 3)), heads_k),
        head_dim=head_dim,
        batch=draw(st.integers(1, 3)),
        mask=draw(st.sampled_from(["full", "causal", "window"])),
        new=draw(st.sampled_from(["none", "same", "fewer", "other"])),
        packed=draw(st.booleans()),
        rotary_dim=draw(st.sampled_from([0, 2, 6, head_dim])),
        interleaved=draw(st.booleans()),
        own_positions=draw(st.booleans()),
        storage=storage,
        page_size=draw(st.integers(1, 17)),
        leftpad=draw(st.booleans()),
        interlaced=draw(st.booleans()),
        num_splits=draw(st.sampled_from([0, 1, 3])),
        softcap=draw(st.sampled_from([0.0, 0.0, 2.0])),
        alibi=draw(st.integers(0, 3)) == 0,
        dtype=dtype,
        device=device,
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=100, deadline=None)
@given(cases())
def test_any_call_is_that_of_its_definition(case):
    # A window that hides nothing is none, in each interface by rules of its own: see below.
    run(dataclasses.replace(case, seqlen_q=max(case.seqlen_q, 4)) if case.mask == "window" else case)


BASE = {device: Case(device=device, dtype=DTYPES[device][0], batch=3, head_dim=64, rotary_dim=32) for device in DEVICES}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("new", ["none", "same", "fewer", "other"])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("storage", ["rows", "index", "pages", "indexed pages"])
def test_storages_masks_and_rows(device, storage, mask, new, packed):
    run(dataclasses.replace(BASE[device], seqlen_q=6, storage=storage, mask=mask, new=new, packed=packed, leftpad=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("new", ["none", "same"])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("storage", ["rows", "pages"])
@pytest.mark.parametrize("alibi", [False, True])
def test_alibi_and_a_soft_cap(device, storage, mask, new, alibi):
    run(dataclasses.replace(BASE[device], seqlen_q=6, storage=storage, mask=mask, new=new, softcap=1.5, alibi=alibi, leftpad=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 30, 64])
@pytest.mark.parametrize("own_positions", [False, True])
def test_rotary_embeddings(device, rotary_dim, interleaved, own_positions):
    for mask in ("full", "causal"):
        case = dataclasses.replace(BASE[device], rotary_dim=rotary_dim, interleaved=interleaved, own_positions=own_positions, mask=mask)
        run(dataclasses.replace(case, new="fewer", storage="pages"))
        run(case)


@pytest.mark.parametrize(("device", "dtype"), FLOAT32_ON_GPU)
@pytest.mark.parametrize("storage", ["rows", "indexed pages"])
@pytest.mark.parametrize("head_dim", [20, 59, 64, 128])
def test_float32_on_a_gpu(device, dtype, storage, head_dim):
    case = Case(device=device, dtype=dtype, batch=3, head_dim=head_dim, storage=storage, mask="causal")
    for rotary_dim, interleaved in [(0, True), (20, True), (6, False), (16, False)]:
        for new in ["same", "fewer"]:
            run(dataclasses.replace(case, rotary_dim=rotary_dim, interleaved=interleaved, new=new, seqlen_q=5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [59, 72, 128])
def test_head_dims(device, head_dim):
    for dtype in DTYPES[device]:
        run(dataclasses.replace(BASE[device], head_dim=head_dim, dtype=dtype, mask="causal", interlaced=True))


@pytest.mark.parametrize("device", DEVICES)
def test_more_rows_than_a_block_of_kernels(device):
    for num_splits in (0, 1, 3):
        run(
            dataclasses.replace(
                BASE[device], seqlen_cache=700, storage="pages", page_size=64, mask="causal", num_splits=num_splits, seqlen_q=1
            )
        )
        run(dataclasses.replace(BASE[device], seqlen_cache=700, storage="index", leftpad=True, num_splits=num_splits, seqlen_q=140))


@pytest.mark.parametrize("device", DEVICES)
def test_tables_of_float32_are_those_of_the_call(device):
    call = Call(BASE[device])
    results = []
    for dtype in (call.case.dtype, torch.float32):
        given = arguments(call, Stored(call))
        given |= {name: given[name].to(dtype) for name in ("rotary_cos", "rotary_sin")}
        results.append(fa3.flash_attn_with_kvcache(**given))
    assert torch.equal(*results)


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_that_hides_nothing_turns_no_query_by_its_place(device):
    """As flash-attn has it: 24 rows of cache are less than 24 keys to each side, and two queries behind a query are all."""
    for call_of, name, wide, narrow in ((fa2, "block_table", (24, 24), (23, 24)), (fa3, "page_table", (23, 2), (23, 1))):
        call = Call(dataclasses.replace(BASE[device], rotary_dim=64))
        results = {}
        for window_size in ((-1, -1), wide, narrow):
            given = arguments(call, Stored(call)) | {"window_size": window_size, name: None}
            results[window_size] = call_of.flash_attn_with_kvcache(**given)
        assert torch.equal(results[wide], results[-1, -1])
        assert not torch.equal(results[narrow], results[-1, -1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paged", [False, True])
def test_padding_may_end_among_the_new_rows(device, paged):
    """Rows are in use behind the padding once the new ones are there, and not before."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, new = (random(2, 3, heads, 16, device=device, dtype=dtype, seed=at, grad=False) for at, heads in enumerate((4, 2)))
    cache = torch.full((2, 24, 2, 16), float("nan"), device=device, dtype=dtype)
    used, leftpad = integers(device, 4, 0), integers(device, 5, 2)
    options = dict(cache_seqlens=used, cache_leftpad=leftpad)
    if paged:
        cache = cache.view(6, 8, 2, 16)
        options["block_table"] = integers(device, 0, 1, 2, 3, 4, 5).view(2, 3)
    o = fa2.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, **options)
    o_of_new, _ = reference(q, new, new, leftpad_k=leftpad - used)
    assert_near(o, o_of_new)


@pytest.mark.parametrize("device", DEVICES)
def test_one_number_for_all_lengths(device):
    case = dataclasses.replace(BASE[device], mask="causal", storage="index")
    call = Call(case)
    call.used = call.positions = [7] * case.batch
    call.k_cache, call.v_cache = call._caches(case.heads[1])
    stored = Stored(call)
    o, lse = fa2.flash_attn_with_kvcache(**arguments(call, stored) | {"cache_seqlens": 7}, return_softmax_lse=True)
    assert_right(call, stored, o, lse)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k_length", ["cu_seqlens_k", "seqused_k"])
def test_pages_of_packed_queries(device, k_length):
    q = random(40, 4, 64, device=device, dtype=torch.bfloat16)
    k, v = (random(12, 16, 2, 64, device=device, dtype=torch.bfloat16, seed=seed) for seed in (2, 3))
    cu_seqlens_q, used = integers(device, 0, 25, 40), integers(device, 58, 20)
    table = torch.tensor([[3, 0, 7, 9], [5, 1, 99, -1]], dtype=torch.int32, device=device)
    if k_length == "cu_seqlens_k":
        ends = integers(device, 0, 58, 78)
        o, lse, _ = fa2.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, ends, 25, 58, causal=True, block_table=table, return_attn_probs=True
        )  # fmt: skip
    else:
        # Columns that lie apart, and no longest sequence.
        wide = torch.stack([table, table], dim=2)[:, :, 0]
        o, lse = fa4.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=25, seqused_k=used, page_table=wide, causal=True, num_splits=3
        )
    for sequence, (begin, end, rows) in enumerate(((0, 25, 58), (25, 40, 20))):
        pages = table[sequence, : -(-rows // 16)].tolist()
        keys = (x[pages].flatten(0, 1)[None, :rows] for x in (k, v))
        expected, of_lse = reference(q[None, begin:end], *keys, causal=True)
        assert_near(o[begin:end], expected[0])
        assert_near(lse[:, begin:end].double(), of_lse[0].double(), "lse") if device == "cpu" else None
    with pytest.raises(NotImplementedError, match="page_table"):
        o.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_writes_are_known_to_autograd(device):
    call = Call(BASE[device])
    given = arguments(call, Stored(call))
    given["q"].requires_grad_()
    k_cache = given["k_cache"]
    version = k_cache._version
    assert not fa3.flash_attn_with_kvcache(**given).requires_grad
    assert k_cache._version > version
    with torch.inference_mode():
        given = arguments(call, Stored(call))
        fa3.flash_attn_with_kvcache(**given)


@pytest.mark.parametrize("device", DEVICES)
def test_the_operators_are_what_they_say(device):
    for case in (BASE[device], dataclasses.replace(BASE[device], packed=True, new="fewer", storage="pages")):
        given = arguments(Call(case), Stored(Call(case)))
        rows = [given[name] for name in ("k", "v", "k_cache", "v_cache", "cache_seqlens")]
        tables = [given[name].float() for name in ("rotary_cos", "rotary_sin")]
        q = None if case.packed else given["q"]
        options = (True, q is not None, given.get("cu_seqlens_k_new"), given.get("page_table"))
        torch.library.opcheck(torch.ops.ferroflash.append.default, (*rows, q, *tables, *options), test_utils=CHECKS)
        ends = given.get("cu_seqlens_q")
        torch.library.opcheck(torch.ops.ferroflash.rotate.default, (given["q"], *tables, True, given["cache_seqlens"], ends))


# Not that of gradients, which there are none of.
CHECKS = ("test_schema", "test_faketensor")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("storage", ["rows", "index", "pages"])
@pytest.mark.parametrize("new", ["same", "fewer"])
def test_a_compiled_call_is_the_plain_one(device, storage, new):
    # What was compiled for the others counts against a limit of recompilations.
    torch._dynamo.reset()
    case = dataclasses.replace(BASE[device], storage=storage, new=new)
    compiled = torch.compile(fa2.flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    results = []
    for function in (fa2.flash_attn_with_kvcache, compiled):
        stored = Stored(Call(case))
        given = arguments(Call(case), stored)
        given["block_table"] = given.pop("page_table", None)
        results.append((function(**given), stored.k_cache.nan_to_num(7.0), stored.v_cache.nan_to_num(7.0)))
    for plain, same in zip(*results, strict=True):
        assert torch.equal(plain, same)


def test_splits():
    from ferroflash._call import split_kv

    assert [split_kv(n, 1000) for n in (0, 1, 2, 3, 2000)] == ["auto", "never", "500", "334", "1"]
    assert split_kv(3, 0) == "1"
    q, k, v = (random(1, 4, 2, 8, grad=False) for _ in range(3))
    with pytest.raises(ValueError, match="num_splits is -1"):
        fa3.flash_attn_func(q, k, v, num_splits=-1)


@pytest.mark.parametrize("device", DEVICES)
def test_caches_may_interleave_and_new_rows_may_be_rows_of_them(device):
    """One buffer of keys and values, as engines keep it; the new row is one that the cache has already."""
    buffer = random(2, 40, 2, 3, 64, device=device, dtype=torch.bfloat16, grad=False)
    apart = [buffer[:, :, i].clone() for i in range(2)]
    k_cache, v_cache = buffer[:, :, 0], buffer[:, :, 1]
    q = random(2, 1, 3, 64, device=device, dtype=torch.bfloat16, seed=1, grad=False)
    lengths = integers(device, 30, 7)
    new = [cache[:, 3:4].clone() for cache in apart]
    wanted = fa2.flash_attn_with_kvcache(q, *apart, *new, cache_seqlens=lengths, causal=True)
    given = fa2.flash_attn_with_kvcache(q, k_cache, v_cache, k_cache[:, 3:4], v_cache[:, 3:4], cache_seqlens=lengths, causal=True)
    assert torch.equal(given, wanted)
    assert all(torch.equal(cache, one) for cache, one in zip((k_cache, v_cache), apart, strict=True))
    assert torch.equal(k_cache[0, 30], k_cache[0, 3])
