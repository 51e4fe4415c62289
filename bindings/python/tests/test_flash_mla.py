"""`flash_mla_with_kvcache`: values in the keys, against float64; on tensors, compiled ones, and arrays; and what it refuses."""

from __future__ import annotations

import sys

import pytest
from torch_cases import DEVICES, DTYPES, PLACES, assert_lse_near, assert_near, integers, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
import numpy as np  # noqa: E402
from array_cases import Producer  # noqa: E402
from ferroflash import flash_mla  # noqa: E402
from ferroflash._forward_only import latent  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

HOPPER = "cuda" in DEVICES and torch.cuda.get_device_capability() == (9, 0)

# Where there is a kernel.
SERVED = ["cpu", *(["cuda"] if HOPPER else [])]
SERVED_PLACES = [place for place in PLACES if place.values[0] in SERVED]

NAN = float("nan")


class Call:
    """A call: rows of each sequence, and where its cache has them. What no call may read is NaN."""

    def __init__(
        self, used, *, seqlen_q=1, heads=(8, 1), dims=(96, 64), page_size=None, dtype=torch.float32, device="cpu", seed=0, **options
    ):
        batch, (heads_q, heads_k), (head_dim, self.head_dim_v) = len(used), heads, dims
        self.used, self.options = used, options
        self.q = random(batch, seqlen_q, heads_q, head_dim, dtype=dtype, device=device, seed=seed, grad=False)
        most = max(*used, 1)
        self.rows = random(batch, most, heads_k, head_dim, dtype=dtype, device=device, seed=seed + 1, grad=False)
        for rows, n in zip(self.rows, used, strict=True):
            rows[n:] = NAN
        self.table, self.cache = None, self.rows
        if page_size is not None:
            self.table, self.cache = self._in_pages(page_size, most, seed)
        self.seqlens = integers(device, *used)

    def _in_pages(self, page_size, most, seed):
        columns = -(-most // page_size)
        n_pages = len(self.used) * columns + 2
        pages = torch.randperm(n_pages, generator=torch.Generator().manual_seed(seed))[: len(self.used) * columns]
        table = pages.view(len(self.used), columns).to(self.rows.device, torch.int32)
        cache = self.rows.new_full((n_pages, page_size, *self.rows.shape[2:]), NAN)
        for row in range(most):
            cache[table[:, row // page_size].long(), row % page_size] = self.rows[:, row]
        return table, cache

    def run(self, function=flash_mla.flash_mla_with_kvcache):
        metadata = flash_mla.get_mla_metadata(self.seqlens, self.q.shape[1] * self.q.shape[2], self.rows.shape[2])
        return function(self.q, self.cache, self.table, self.seqlens, self.head_dim_v, *metadata, **self.options)

    def expected(self, sequence):
        keys = self.rows[sequence : sequence + 1, : self.used[sequence]]
        return reference(self.q[sequence : sequence + 1], keys, keys[..., : self.head_dim_v], **self.options)

    def check(self, o, lse):
        assert o.dtype == self.q.dtype and o.shape == (*self.q.shape[:-1], self.head_dim_v)
        for sequence in range(len(self.used)):
            of_o, of_lse = self.expected(sequence)
            # Sums of 576 products reach 10 and more, and exponentials make relative errors of their absolute ones.
            assert_near(o[sequence : sequence + 1], of_o, sums=2**-18)
            assert_lse_near(lse[sequence : sequence + 1], of_lse)


@st.composite
def calls(draw):
    device = draw(st.sampled_from(SERVED))
    head_dim, head_dim_v = draw(st.sampled_from([(576, 512), (96, 64), (64, 64)] + ([(13, 1), (20, 13)] if device == "cpu" else [])))
    heads_k = draw(st.integers(1, 2))
    return Call(
        draw(st.lists(st.integers(0, 60), min_size=1, max_size=4)),
        seqlen_q=draw(st.integers(1, 4)),
        heads=(heads_k * draw(st.integers(1, 5)), heads_k),
        dims=(head_dim, head_dim_v),
        page_size=draw(st.sampled_from([None, 1, 7, 16, 64])),
        dtype=draw(st.sampled_from(DTYPES[device])),
        device=device,
        seed=draw(st.integers(0, 1000)),
        causal=draw(st.booleans()),
        softmax_scale=draw(st.sampled_from([None, 0.1])),
    )


@settings(max_examples=60, deadline=None)
@given(calls())
def test_any_call_is_that_of_its_definition(call):
    call.check(*call.run())


@pytest.mark.parametrize(("device", "dtype"), SERVED_PLACES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_sizes_of_deepseek(device, dtype, causal):
    used = [640, 1, 333, 0, 129] if device == "cuda" else [130, 1, 0]
    heads = 128 if device == "cuda" else 16
    call = Call(used, seqlen_q=2, heads=(heads, 1), dims=(576, 512), page_size=64, dtype=dtype, device=device, causal=causal)
    call.check(*call.run())


@pytest.mark.parametrize("device", SERVED)
def test_queries_of_any_strides(device):
    call = Call([9, 30], seqlen_q=3, dtype=DTYPES[device][0], device=device)
    o, lse = call.run()
    wide = call.q.new_zeros(2, 8, 3, 97)
    wide[..., 1:] = call.q.transpose(1, 2)
    call.q = wide[..., 1:].transpose(1, 2)
    assert all(torch.equal(a, b) for a, b in zip(call.run(), (o, lse), strict=True))


@pytest.mark.parametrize("device", SERVED)
def test_the_operator_is_what_it_says(device):
    for page_size in (None, 16):
        call = Call([9, 30], page_size=page_size, dtype=DTYPES[device][0], device=device)
        arguments = (call.q, call.cache, 64, call.seqlens, call.table, 0.1, True)
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(torch.ops.ferroflash.latent.default, arguments, test_utils=checks)


@pytest.mark.parametrize("device", SERVED)
@pytest.mark.parametrize("page_size", [None, 16])
def test_a_compiled_call_is_the_plain_one(device, page_size):
    call = Call([9, 30], page_size=page_size, dtype=DTYPES[device][0], device=device, causal=True)
    compiled = torch.compile(flash_mla.flash_mla_with_kvcache, backend="aot_eager", fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(call.run(compiled), call.run(), strict=True))


@pytest.mark.skipif(not HOPPER, reason="[not run] no CUDA device of compute capability 9.0")
def test_a_graph_serves_all_lengths():
    call = Call([700, 700], heads=(128, 1), dims=(576, 512), page_size=64, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call.run()
    for used in ([1, 700], [333, 64]):
        call.used = used
        call.seqlens.copy_(integers("cuda", *used))
        graph.replay()
        call.check(*captured)


@pytest.mark.skipif("cuda" not in DEVICES or HOPPER, reason="[not run] no CUDA device but of compute capability 9.0")
def test_other_gpus_say_why():
    with pytest.raises(NotImplementedError, match="flash3"):
        Call([9], dims=(576, 512), dtype=torch.bfloat16, device="cuda").run()


@pytest.mark.parametrize("device", SERVED)
def test_gradients_are_refused(device):
    call = Call([9, 30], dtype=DTYPES[device][0], device=device)
    call.q.requires_grad_()
    o, _ = call.run()
    with pytest.raises(NotImplementedError, match="values are in the keys"):
        o.sum().backward()
    with torch.no_grad():
        assert not call.run()[0].requires_grad


@pytest.mark.parametrize("page_size", [None, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_arrays_are_served_as_tensors_are(page_size, causal):
    call = Call([9, 30, 0], seqlen_q=2, page_size=page_size, causal=causal)
    o, lse = call.run()
    arrays = (None if x is None else x.numpy() for x in (call.q, call.cache, call.table, call.seqlens))
    of_arrays = ferroflash.flash_mla_with_kvcache(*arrays, 64, causal=causal)
    assert all(type(x) is np.ndarray for x in of_arrays)
    assert np.array_equal(of_arrays[0], o.numpy()) and np.array_equal(of_arrays[1], lse.numpy())


@pytest.mark.skipif(not HOPPER, reason="[not run] no CUDA device of compute capability 9.0")
def test_arrays_of_a_gpu():
    call = Call([9, 300, 0], dims=(576, 512), page_size=64, dtype=torch.float16, device="cuda")
    lent = [Producer(x) for x in (call.q, call.cache, call.table, call.seqlens)]
    results = ferroflash.flash_mla_with_kvcache(*lent, 512)
    call.check(*(torch.from_dlpack(x) for x in results))


def test_it_stands_in_for_flash_mla(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_mla", flash_mla)
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    assert flash_mla_with_kvcache is ferroflash.flash_mla_with_kvcache
    assert get_mla_metadata(torch.ones(2), 128, num_heads_k=1) == (None, None)


# Arguments in the order of the function; what is done to one of them; the error.
WRONG = [
    (TypeError, "k_cache is torch.float16; needed: torch.float32, as q", 1, lambda x: x.half()),
    (TypeError, "k_cache is list", 1, lambda x: x.tolist()),
    (TypeError, "block_table is torch.int64", 2, lambda x: x.long()),
    (TypeError, "block_table is list", 2, lambda x: x.tolist()),
    (TypeError, "cache_seqlens is torch.int64", 3, lambda x: x.long()),
    (TypeError, "cache_seqlens is NoneType", 3, lambda x: None),
    (TypeError, "head_dim_v is '64'; allowed: an int", 4, lambda x: "64"),
    (ValueError, "q has the shape", 0, lambda x: x[0]),
    (ValueError, "k_cache has the shape", 1, lambda x: x[0]),
    (ValueError, "k_cache has head_dim 80; needed: 96, as q", 1, lambda x: x[..., :80]),
    (ValueError, "k_cache has the strides", 1, lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)),
    (ValueError, "k_cache has batch 8; needed: 2, as q", 2, lambda x: None),
    (ValueError, "block_table has the shape", 2, lambda x: x[:1]),
    (ValueError, "cache_seqlens has the shape", 3, lambda x: x[:1]),
    (ValueError, "head_dim_v is 97", 4, lambda x: 97),
    (ValueError, "head_dim_v is -1", 4, lambda x: -1),
    (ValueError, "cache_seqlens, sequence 1: 41", 3, lambda x: x + 11),
    (ValueError, "block_table says page", 2, lambda x: x + 100),
]


@pytest.mark.parametrize(("error", "word", "at", "change"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(error, word, at, change):
    call = Call([9, 30], heads=(4, 2), page_size=12)
    arguments = [call.q, call.cache, call.table, call.seqlens, 64]
    arguments[at] = change(arguments[at])
    with pytest.raises(error, match=word):
        flash_mla.flash_mla_with_kvcache(*arguments)


@pytest.mark.parametrize(
    ("error", "word", "at", "change"),
    [
        (TypeError, "k_cache is float16; needed: float32, as q", 1, lambda x: x.astype(np.float16)),
        (TypeError, "block_table is int64; needed: int32", 2, lambda x: x.astype(np.int64)),
        (TypeError, "cache_seqlens is NoneType", 3, lambda x: None),
        (ValueError, r"k_cache has the shape .*; needed: \[n_pages, page_size, heads_k, 96\]", 1, lambda x: x[0]),
        (ValueError, r"k_cache has the shape .*; needed: \[2, seqlen_cache, heads_k, 96\]", 2, lambda x: None),
        (ValueError, "block_table has the shape", 2, lambda x: x[0]),
        (ValueError, "cache_seqlens has the shape", 3, lambda x: x[:1]),
        (ValueError, "cache_seqlens, sequence 1: 41", 3, lambda x: x + np.int32(11)),
        (ValueError, "head_dim_v is 97", 4, lambda x: 97),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_are_checked(error, word, at, change):
    call = Call([9, 30], heads=(4, 2), page_size=12)
    arguments = [*(x.numpy() for x in (call.q, call.cache, call.table, call.seqlens)), 64]
    arguments[at] = change(arguments[at])
    with pytest.raises(error, match=word):
        flash_mla.flash_mla_with_kvcache(*arguments)


def test_fake_tensors_are_checked():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k = torch.empty(2, 1, 16, 576), torch.empty(2, 30, 1, 576)
        o, lse = latent(q, k, 512)
        assert o.shape == (2, 1, 16, 512) and lse.shape == (2, 16, 1) and lse.dtype == torch.float32
        with pytest.raises(TypeError, match="k is torch.float16"):
            latent(q, k.half(), 512)
