"""Caches in 8 bits: `flash_attn_with_kvcache` and `flash_attn_func` against float64 on the caches that they stand for; and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from torch_cases import DEVICES, DTYPES, assert_lse_near, assert_near, integers, options, random, reference

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import fa3  # noqa: E402
from ferroflash import flash_attn_interface as fa2  # noqa: E402
from ferroflash._forward_only import forward_fp8  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kvcache_cases import Call, Case, Stored, arguments  # noqa: E402

FP8 = torch.float8_e4m3fn

# Where there is a kernel.
HAS_KERNEL = "cuda" in DEVICES and torch.cuda.get_device_capability() >= (8, 9)
SERVED = ["cpu", *(["cuda"] if HAS_KERNEL else [])]


class Fp8:
    """A call on caches of e4m3: those of a call on plain ones, divided by their scales and rounded; and, in float64, what they stand for when it has
    run. New rows, if there are any, are appended."""

    def __init__(self, case: Case, scales: str, new: str = "none") -> None:
        self.case = dataclasses.replace(case, new=new)
        self.call = Call(self.case)
        self.stored = Stored(self.call)
        self.given = arguments(self.call, self.stored)
        self.scales, self.of_rows = {}, {}
        for name, seed in (("k", 1), ("v", 2)):
            cache = self.given[f"{name}_cache"]
            scale = self._scales(scales, cache, self.stored, seed)
            rows = scale[:, None] if scale.shape[0] == cache.shape[0] else torch.ones_like(cache[..., 0], dtype=torch.float32)
            if scales == "sequence":
                rows = self._rows(cache, self.stored, scale)
            self.given[f"{name}_cache"] = (cache.float() / rows[..., None]).to(FP8)
            self.of_rows[name] = rows.expand(cache.shape[:3])
            if scales != "none":
                self.scales[f"{name}_descale"] = scale

    def rows(self, name: str) -> torch.Tensor:
        """What the rows of all sequences stand for."""
        return self.stored.rows(self.given[f"{name}_cache"].float() * self.of_rows[name][..., None]).double()

    def _scales(self, scales, cache, stored, seed):
        heads_k, entries = self.case.heads[1], {"sequence": self.case.batch, "page": cache.shape[0], "none": 0}[scales]
        generator = torch.Generator().manual_seed(self.case.seed + seed)
        return (torch.rand(entries, heads_k, generator=generator) + 0.5).to(cache.device)

    def _rows(self, cache, stored, scale):
        """The scale of each row of a cache and its heads."""
        rows = torch.ones(cache.shape[:3], device=cache.device)
        for b in range(self.case.batch):
            for row in range(self.case.seqlen_cache):
                rows[stored._place(b, row)] = scale[b]
        return rows

    def run(self, interface=fa3):
        given = self.given | self.scales
        if interface is fa2 and "page_table" in given:
            given["block_table"] = given.pop("page_table")
        return interface.flash_attn_with_kvcache(**given, return_softmax_lse=True)[:2]

    def check(self, o, lse):
        case, begin = self.case, 0
        k, v = self.rows("k"), self.rows("v")
        assert o.dtype == case.dtype
        for b, n in enumerate(self.call.n_q):
            ours = (o[begin : begin + n], lse[:, begin : begin + n]) if case.packed else (o[b], lse[b])
            begin += n
            end = self.call.used[b] + self.call.n_new[b]
            seen = (x[b : b + 1, self.call.leftpad[b] : end] for x in (k, v))
            window = (5, 2) if case.mask == "window" else (None, None)
            of_o, of_lse = reference(self.call.turned(b)[0][None], *seen, causal=case.mask == "causal", window=window)
            assert_near(ours[0].cpu(), of_o[0])
            assert_lse_near(ours[1].cpu(), of_lse[0])

    def check_rows(self, before):
        """New rows are divided by their scales, and rounded; all others are as they were."""
        for name, old in before.items():
            now, written = self.given[f"{name}_cache"].view(torch.uint8), self.rows(name)
            scale = self.stored.rows(self.of_rows[name]).double()
            for b, used in enumerate(self.call.used):
                new = slice(used, used + self.call.n_new[b])
                exact = self.call.turned(b)[1] if name == "k" else self.call.v[b].double()
                exact, unit = exact / scale[b, new, :, None], 2**-4
                # Positions of their own rotate k in its type.
                unit += torch.finfo(self.case.dtype).eps if self.case.own_positions else 2**-20
                off = (written[b, new] / scale[b, new, :, None] - exact.clamp(-448, 448)).abs()
                assert (off <= unit * exact.abs() + 2**-10 + 2**-20 * exact.abs().amax(-1, keepdim=True)).all()
                for row in range(new.start, new.stop):
                    place = self.stored._place(b, row)
                    old[place] = now[place]
            assert torch.equal(now, old)


@st.composite
def calls(draw):
    device = draw(st.sampled_from(SERVED))
    storage = draw(st.sampled_from(["rows", "index", "pages", "indexed pages"]))
    heads_k = draw(st.integers(1, 3))
    case = Case(
        seqlen_q=draw(st.integers(1, 5)),
        seqlen_cache=draw(st.integers(16, 40)),
        heads=(heads_k * draw(st.integers(1, 3)), heads_k),
        head_dim=draw(st.sampled_from([64, 128] + ([20] if device == "cpu" else []))),
        batch=draw(st.integers(1, 3)),
        mask=draw(st.sampled_from(["full", "causal", "window"])),
        # The kernel of a GPU takes no packed queries.
        packed=device == "cpu" and draw(st.booleans()),
        storage=storage,
        page_size=draw(st.sampled_from([1, 7, 16])),
        leftpad=draw(st.booleans()),
        interlaced=draw(st.booleans()),
        num_splits=draw(st.sampled_from([0, 1, 3])),
        dtype=draw(st.sampled_from(DTYPES[device])),
        device=device,
        seed=draw(st.integers(0, 1000)),
    )
    case = dataclasses.replace(
        case,
        rotary_dim=draw(st.sampled_from([0, 6, 16, case.head_dim])),
        interleaved=draw(st.booleans()),
        own_positions=draw(st.booleans()),
    )
    new = draw(st.sampled_from(["none", "same", "fewer", "other"]))
    return Fp8(case, draw(st.sampled_from(["none", "sequence", *(["page"] if case.paged else [])])), new)


BASE = {device: Case(device=device, dtype=DTYPES[device][1], batch=3, head_dim=64, storage="pages", mask="causal") for device in DEVICES}


@settings(max_examples=100, deadline=None)
@given(calls())
def test_any_call_is_that_on_the_caches_that_it_stands_for(call):
    before = {name: call.given[f"{name}_cache"].view(torch.uint8).clone() for name in "kv"}
    q = call.given["q"].clone()
    call.check(*call.run())
    call.check_rows(before)
    assert torch.equal(call.given["q"], q)


@pytest.mark.parametrize("device", SERVED)
def test_new_rows_that_are_too_large_become_448_times_their_scale(device):
    call = Fp8(BASE[device], "sequence", "same")
    call.given["v"] *= 1e7
    call.run()
    new = call.stored.rows(call.given["v_cache"].float())[0, call.call.used[0]]
    assert torch.equal(new.abs(), torch.full_like(new, 448.0))
    assert torch.equal(new.sign(), call.given["v"][0, 0].float().cpu().sign())


@pytest.mark.parametrize("device", SERVED)
def test_flash_attn_2s_function_has_no_scales(device):
    call = Fp8(BASE[device], "none")
    call.check(*call.run(fa2))
    assert all(torch.equal(a, b) for a, b in zip(call.run(fa2), call.run(), strict=True))


@pytest.mark.parametrize("device", SERVED)
@pytest.mark.parametrize("missing", ["k_descale", "v_descale"])
def test_a_scale_that_is_not_given_is_1(device, missing):
    call = Fp8(BASE[device], "page")
    call.scales[missing] = torch.ones_like(call.scales[missing])
    expected = call.run()
    del call.scales[missing]
    assert all(torch.equal(a, b) for a, b in zip(call.run(), expected, strict=True))


@pytest.mark.parametrize("device", SERVED)
def test_scales_of_any_strides(device):
    call = Fp8(BASE[device], "sequence")
    expected = call.run()
    call.scales = {name: scale.t().contiguous().t() for name, scale in call.scales.items()}
    assert all(torch.equal(a, b) for a, b in zip(call.run(), expected, strict=True))


@pytest.mark.parametrize("device", SERVED)
def test_keys_and_values_without_a_cache(device):
    q = random(2, 9, 4, 64, device=device, dtype=torch.bfloat16, grad=False)
    k, v = (random(2, 30, 2, 64, device=device, seed=seed, grad=False).to(FP8) for seed in (1, 2))
    scales = [torch.rand(2, 2, device=device) + 0.5 for _ in range(2)]
    o, lse = fa3.flash_attn_func(q, k, v, causal=True, k_descale=scales[0], v_descale=scales[1], return_attn_probs=True)
    wide = (x.double() * scale[:, None, :, None].double() for x, scale in zip((k, v), scales, strict=True))
    of_o, of_lse = reference(q, *wide, causal=True)
    assert_near(o, of_o)
    assert_lse_near(lse, of_lse)


@pytest.mark.parametrize("device", SERVED)
def test_the_operator_is_what_it_says(device):
    call = Fp8(BASE[device], "page")
    given = call.given
    inputs = {"seqused_k": given["cache_seqlens"], "page_table": given["page_table"], **call.scales}
    tensors = [given[name] for name in ("q", "k_cache", "v_cache")]
    # Its other checks compute with numbers in 8 bits, which the CPU does not.
    torch.library.opcheck(
        torch.ops.ferroflash.forward.default, (*tensors, *options(inputs, scale=0.1, right=0)), test_utils="test_faketensor"
    )


@pytest.mark.parametrize("device", SERVED)
@pytest.mark.parametrize("scales", ["none", "page"])
def test_a_compiled_call_is_the_plain_one(device, scales):
    torch._dynamo.reset()
    call = Fp8(BASE[device], scales)
    given = call.given | call.scales
    compiled = torch.compile(fa3.flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**given), fa3.flash_attn_with_kvcache(**given))


@pytest.mark.parametrize("device", SERVED)
@pytest.mark.parametrize("scales", ["none", "sequence", "page"])
def test_a_compiled_call_appends_as_the_plain_one(device, scales):
    torch._dynamo.reset()
    compiled = torch.compile(fa3.flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    results = []
    for function in (fa3.flash_attn_with_kvcache, compiled):
        call = Fp8(dataclasses.replace(BASE[device], rotary_dim=16), scales, "same")
        o = function(**call.given | call.scales)
        results.append((o, *(call.given[f"{name}_cache"].view(torch.uint8) for name in "kv")))
    for plain, same in zip(*results, strict=True):
        assert torch.equal(plain, same)


@pytest.mark.parametrize("device", SERVED)
def test_gradients_are_refused(device):
    call = Fp8(BASE[device], "none")
    call.given["q"].requires_grad_()
    o, _ = call.run()
    with pytest.raises(NotImplementedError, match="keys and values are in 8 bits"):
        o.sum().backward()
    with torch.no_grad():
        assert not call.run()[0].requires_grad


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_what_no_kernel_serves_says_so():
    with pytest.raises(NotImplementedError, match="e4m3" if HAS_KERNEL else "compute capability"):
        Fp8(dataclasses.replace(BASE["cuda"], head_dim=72), "none").run()


def test_fake_tensors_are_checked():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k = torch.empty(2, 3, 4, 64, dtype=torch.float16), torch.empty(2, 30, 2, 64).to(FP8)
        o, lse = forward_fp8(q, k, k, None, None)
        assert o.shape == q.shape and o.dtype == torch.float16 and lse.shape == (2, 4, 3)
        with pytest.raises(TypeError, match="v is torch.float16"):
            forward_fp8(q, k, k.half(), None, None)


@pytest.mark.parametrize("argument", ["q", "v"])
def test_arguments_that_are_no_tensors_are_named(argument):
    given = {"q": torch.ones(1, 4, 2, 8), "k": torch.ones(1, 4, 2, 8).to(FP8), "v": torch.ones(1, 4, 2, 8).to(FP8)}
    with pytest.raises(TypeError, match=f"{argument} is NoneType; allowed: torch.Tensor"):
        fa3.flash_attn_func(**given | {argument: None})


ROW = torch.ones(3, 2)
NEW = torch.ones(3, 1, 2, 64)

WRONG = [
    (ValueError, "v is missing; needed: k, v and cache_seqlens", {"k": ROW}),
    (TypeError, "k is torch.float8_e4m3fn; allowed", {"k": NEW.to(FP8), "v": NEW.to(FP8)}),
    (TypeError, "v is torch.float32; needed: torch.bfloat16, as k", {"k": NEW.bfloat16(), "v": NEW}),
    (ValueError, r"k has the shape \[3, 1, 2, 16\]; needed: \[3, 1, 2, 64\]", {"k": NEW[..., :16].bfloat16(), "v": NEW}),
    (ValueError, "v_descale is 0 at [0-9]+; allowed: finite", {"k": NEW.bfloat16(), "v": NEW.bfloat16(), "v_descale": ROW * 0}),
    (NotImplementedError, "^q_descale", {"q_descale": ROW}),
    (NotImplementedError, "^softcap: 2.0 was given; allowed: none with k_cache of torch.float8_e4m3fn", {"softcap": 2.0}),
    (NotImplementedError, "^k_descale: .* allowed: None but with k_cache", {"k_cache": lambda x: x.bfloat16(), "k_descale": ROW}),
    (TypeError, "v_cache is torch.bfloat16; needed: torch.float8_e4m3fn, as the other", {"v_cache": lambda x: x.bfloat16()}),
    (TypeError, "v_cache is torch.float8_e4m3fn; needed: torch.bfloat16", {"k_cache": lambda x: x.bfloat16()}),
    (TypeError, "q is torch.float8_e4m3fn", {"q": lambda x: x.to(FP8)}),
    (TypeError, "k_cache is torch.float8_e5m2", {"k_cache": lambda x: x.float().to(torch.float8_e5m2)}),
    (TypeError, "k_descale is torch.float64", {"k_descale": ROW.double()}),
    (TypeError, "v_descale is float", {"v_descale": 1.0}),
    (ValueError, r"k_descale has the shape \[2\]; needed: \[3, 2\] or \[12, 2\]", {"k_descale": ROW[0]}),
    (ValueError, r"v_descale has the shape \[12, 2\]; needed: \[3, 2\]$", {"k_descale": ROW, "v_descale": torch.ones(12, 2)}),
    (ValueError, "v_cache has the shape", {"v_cache": lambda x: x[:3]}),
    (ValueError, "cache_seqlens has the shape", {"cache_seqlens": integers("cpu", 3)}),
    (ValueError, "page_table has the shape", {"page_table": lambda x: x[:1]}),
    (ValueError, "page_table says page", {"page_table": lambda x: x + 100}),
    (ValueError, "cache_seqlens, sequence 0: 90", {"cache_seqlens": integers("cpu", 90, 1, 1)}),
    (ValueError, "k_cache has the strides", {"k_cache": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)}),
]


@pytest.mark.parametrize(("error", "word", "change"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(error, word, change):
    call = Fp8(BASE["cpu"], "none")
    given = call.given | {name: of(call.given[name]) if callable(of) else of for name, of in change.items()}
    with pytest.raises(error, match=word):
        fa3.flash_attn_with_kvcache(**given)
