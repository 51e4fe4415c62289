"""`ferroflash.install`: the operators behind SDPA's flash backend on any device, and SDPA itself on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="[not run] no torch")

import ferroflash  # noqa: E402
from ferroflash import _door, _torch, sdpa  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
TOLERANCE = 2e-2 if DEVICE == "cuda" else 1e-5
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="[not run] no GPU")
aten = torch.ops.aten


def inputs(batch=2, heads=4, heads_k=2, seqlen_q=13, seqlen_k=13, head_dim=32, memory="bshd", dtype=DTYPE):
    """q, k and v [batch, heads, seqlen, head_dim], in one of two orders of memory."""
    made, draw = [], torch.Generator().manual_seed(0)
    for n_heads, seqlen in ((heads, seqlen_q), (heads_k, seqlen_k), (heads_k, seqlen_k)):
        if memory == "bshd":
            x = torch.randn(batch, seqlen, n_heads, head_dim, generator=draw).transpose(1, 2)
        else:
            x = torch.randn(batch, n_heads, seqlen, head_dim, generator=draw)
        made.append(x.to(DEVICE, dtype).requires_grad_())
    return made


def exact(q, k, v, *, causal=False, scale=None):
    """The definition in float64, its mask aligned to the bottom right."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    n_groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(n_groups, 1).transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~visible.tril(k.shape[2] - q.shape[2]), float("-inf"))
    lse = scores.logsumexp(-1)
    o = scores.softmax(-1).nan_to_num() @ v.repeat_interleave(n_groups, 1)
    return o, lse, (q, k, v)


def gradients(o, of):
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return torch.autograd.grad(o, of, weights.to(o))


def close(ours, wanted):
    torch.testing.assert_close(ours.double(), wanted, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.fixture(params=["library", "python", "closed"])
def operators(request, monkeypatch):
    """ferroflash behind aten's operators on this machine's device: through a door that allocates by PyTorch's library, or by its functions of Python, or by
    ferroflash's operators."""
    if request.param == "closed":
        monkeypatch.setattr(_torch, "DOOR", _door._Closed())
    elif request.param == "python":
        monkeypatch.setattr(_torch, "DOOR", _door.opened(_torch._Plain, library=False, table=False))
    overrides = sdpa._Overrides("CUDA" if DEVICE == "cuda" else "CPU")
    yield
    overrides.remove()


@pytest.mark.parametrize("memory", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(13, 13), (5, 13), (13, 5), (1, 13)])
def test_the_operator(operators, seqlen_q, seqlen_k, causal, memory):
    """Results, gradients through PyTorch's own formula, and the order of their memory."""
    q, k, v = inputs(seqlen_q=seqlen_q, seqlen_k=seqlen_k, memory=memory)
    ferroflash.sdpa_calls(reset=True)
    o, lse, cum_seq_q, cum_seq_k, max_q, max_k, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    wanted_o, wanted_lse, of = exact(q, k, v, causal=causal)
    close(o, wanted_o)
    close(lse, wanted_lse)
    assert (cum_seq_q, cum_seq_k, max_q, max_k) == (None, None, seqlen_q, seqlen_k)
    assert o.stride() == torch.empty_like(q).stride()
    for x, ours, wanted in zip((q, k, v), gradients(o, (q, k, v)), gradients(wanted_o, of), strict=True):
        close(ours, wanted)
        assert ours.stride() == torch.empty_like(x).stride()
    assert ferroflash.sdpa_calls() == {"forward": 1, "backward": 1, "passed_on": {}}


def test_a_scale_and_memory_with_gaps(operators):
    """q, k and v are slices of one tensor."""
    qkv = torch.randn(2, 13, 3, 4, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE, DTYPE)
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2))
    assert q.stride() != torch.empty_like(q).stride()
    o = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.3)[0]
    wanted, _, of = exact(q, k, v, causal=True, scale=0.3)
    close(o, wanted)
    assert o.stride() == torch.empty_like(q).stride()
    for ours, wanted_gradient in zip(gradients(o, (q, k, v)), gradients(wanted, of), strict=True):
        close(ours, wanted_gradient)


SIZES = [dict(batch=1), dict(batch=1, heads=1, heads_k=1), dict(seqlen_q=1, seqlen_k=1), dict(heads=1, heads_k=1), {}]


def sliced(x):
    """Rows with a gap behind each."""
    return torch.cat([x.detach().transpose(1, 2)] * 2, 3)[..., : x.shape[-1]].transpose(1, 2)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("place", [lambda x: x.detach(), lambda x: x.detach().contiguous(), sliced], ids=["rows", "heads", "gaps"])
def test_the_order_of_memory_is_that_of_empty_like(operators, sizes, place):
    """Where sizes of 1 and gaps leave a choice, too."""
    q, k, v = (place(x).requires_grad_() for x in inputs(**sizes))
    o = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    assert o.stride() == torch.empty_like(q).stride()
    wanted, _, of = exact(q, k, v, causal=True)
    close(o, wanted)
    for x, ours, exactly in zip((q, k, v), gradients(o, (q, k, v)), gradients(wanted, of), strict=True):
        close(ours, exactly)
        assert ours.stride() == torch.empty_like(x).stride()


def test_the_door_serves_rows_with_their_heads_side_by_side(monkeypatch):
    """As models make them: nothing is copied, and no operator is called."""
    monkeypatch.setattr(torch.ops.ferroflash, "forward", None)
    monkeypatch.setattr(torch.ops.ferroflash, "backward", None)
    q, k, v = (x.detach() for x in inputs())
    o, lse, *_ = sdpa.forward(q, k, v)
    close(o, exact(q, k, v)[0])
    assert len(sdpa.backward(o, q, k, v, o, lse, None, None, 13, 13, 0.0, False, lse, lse)) == 3


def test_results_match_the_fake_kernel(operators):
    """Shapes, dtypes and strides are those that compiled graphs expect."""
    q, k, v = inputs()
    ours = aten._scaled_dot_product_flash_attention(q, k, v)
    promised = aten._scaled_dot_product_flash_attention(*(x.to("meta") for x in (q, k, v)))
    for given, wanted in zip(ours, promised, strict=True):
        assert type(given) is type(wanted)
        if isinstance(given, torch.Tensor):
            assert (given.shape, given.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dropout_p": 0.5}, "dropout_p > 0"),
        ({"return_debug_mask": True}, "return_debug_mask"),
        ({"scale": 0.0}, "scale <= 0"),
        ({"scale": -1.0}, "scale <= 0"),
        ({"head_dim": 264}, "head_dim > 256"),
    ],
)
def test_what_is_passed_on(monkeypatch, options, reason):
    """PyTorch's own operator gets the call, [batch, seqlen, heads, head_dim], and it is counted."""
    q, k, v = (x.detach() for x in inputs(head_dim=options.pop("head_dim", 32)))
    seen = []

    def own(*arguments, **scale):
        seen.append((arguments, scale))
        return tuple(arguments[0] if i == 0 else torch.zeros(i) for i in range(5))

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", own)
    ferroflash.sdpa_calls(reset=True)
    results = sdpa.forward(q, k, v, **options)
    assert ferroflash.sdpa_calls() == {"forward": 0, "backward": 0, "passed_on": {reason: 1}}
    ((given_q, given_k, _, *rest), scale) = seen[0]
    assert torch.equal(given_q, q.transpose(1, 2)) and torch.equal(given_k, k.transpose(1, 2))
    assert rest == [None, None, 13, 13, options.get("dropout_p", 0.0), False, options.get("return_debug_mask", False)]
    assert scale == {"scale": options.get("scale")}
    assert len(results) == 9 and torch.equal(results[0], q)


def test_what_no_kernel_serves_is_passed_on(monkeypatch):
    def refuse(*arguments):
        raise NotImplementedError("no kernel serves this\nflash3: it has its reasons")

    class Refusing:
        default = staticmethod(refuse)

    q, k, v = (x.detach() for x in inputs())
    monkeypatch.setattr(_torch, "DOOR", _door._Closed())
    monkeypatch.setattr(torch.ops.ferroflash, "forward", Refusing)
    monkeypatch.setattr(torch.ops.ferroflash, "backward", Refusing)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", lambda *a, **s: (a[0], *range(4)))
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", lambda *a, **s: a[1:4])
    ferroflash.sdpa_calls(reset=True)
    assert torch.equal(sdpa.forward(q, k, v)[0], q)
    lse = torch.zeros(2, 4, 13)
    results = sdpa.backward(q, q, k, v, q, lse, None, None, 13, 13, 0.0, False, lse, lse)
    assert all(torch.equal(x, y) for x, y in zip(results, (q, k, v), strict=True))
    assert ferroflash.sdpa_calls()["passed_on"] == {"no kernel serves this": 1, "backward: no kernel serves this": 1}


# ---- native kernels ----


@pytest.fixture
def native():
    """As `install` does it, with native kernels; gives how many calls these have served, forward and backward."""
    overrides = sdpa._Overrides("CUDA" if DEVICE == "cuda" else "CPU")
    before = _torch.DOOR.n_served[2:4]
    if overrides._kernels is None:
        overrides.remove()
        pytest.skip("[not run] this PyTorch takes no native kernels")
    ferroflash.sdpa_calls(reset=True)
    yield lambda: [after - n for after, n in zip(_torch.DOOR.n_served[2:4], before)]
    overrides.remove()


@pytest.mark.parametrize("memory", ["bshd", "bhsd", "gaps"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.31])
def test_native_kernels_serve_all_but_the_first_call(native, memory, causal, scale):
    """With the results of the first one, which a function of Python has served, bit for bit."""
    q, k, v = inputs(batch=3, memory="bhsd" if memory == "bhsd" else "bshd")
    if memory == "gaps":
        q, k, v = (sliced(x).requires_grad_() for x in (q, k, v))
    wanted, wanted_lse, of = exact(q, k, v, causal=causal, scale=scale)
    of_wanted = gradients(wanted, of)
    promised = aten._scaled_dot_product_flash_attention(*(x.to("meta") for x in (q, k, v)), 0.0, causal, scale=scale)
    seen = []
    for _ in range(3):
        o, lse, *others = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
        seen.append((o, lse, *gradients(o, (q, k, v))))
        assert others[:4] == [None, None, 13, 13]
        for given, like in zip((o, lse, *others[4:]), (*promised[:2], *promised[6:]), strict=True):
            assert (given.shape, given.dtype, given.device.type) == (like.shape, like.dtype, DEVICE)
    # In the order of memory in which heads come before rows, kernels write nothing.
    assert native() == ([0, 0] if memory == "bhsd" else [2, 2])
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[2], strict=True))
    assert ferroflash.sdpa_calls() == {"forward": 3, "backward": 3, "passed_on": {}}
    assert ferroflash.sdpa_calls(reset=True)["forward"] == 3 and ferroflash.sdpa_calls()["forward"] == 0
    for o, lse, *ours in seen:
        close(o, wanted)
        close(lse, wanted_lse)
        assert o.stride() == torch.empty_like(q).stride()
        for x, ours_x, wanted_x in zip((q, k, v), ours, of_wanted, strict=True):
            close(ours_x, wanted_x)
            assert ours_x.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((0.5, False, False), "dropout_p > 0"),
        ((0.0, False, True), "return_debug_mask"),
        ((0.0, False, False, -1.0), "scale <= 0"),
    ],
)
def test_native_kernels_hand_on_what_is_passed_on(native, monkeypatch, options, reason):
    q, k, v = (x.detach() for x in inputs(heads=2))
    seen = []

    def own(*arguments, scale):
        seen.append((arguments, scale))
        return tuple(2 * arguments[0] if i == 0 else torch.full((i,), 1.0, device=DEVICE) for i in range(5))

    def own_backward(*arguments, scale):
        seen.append((arguments, scale))
        return arguments[1:4]

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", own)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", own_backward)
    call, back = aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_flash_attention_backward.default
    o, lse, *_ = call(q, k, v)
    served, _ = native()
    call(q, k, v)
    assert native() == [served + 1, 0]
    p, causal, mask, scale = *options, *(None,) * (4 - len(options))
    results = call(q, k, v, p, causal, mask, scale=scale)
    assert torch.equal(results[0], 2 * q) and results[1].shape == (1,) and [x.shape for x in results[6:]] == [(2,), (3,), (4,)]
    assert results[2:6] == (None, None, 13, 13) and seen[0][0][7:] == (p, causal, mask) and seen[0][1] == scale
    state = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    counted = {reason: 1}
    if not mask:
        ours = back(q, q, k, v, o, lse, None, None, 13, 13, p, causal, state, state, scale=scale)
        assert all(torch.equal(a, b) for a, b in zip(ours, (q, k, v), strict=True))
        counted = {reason: 2}
    assert native() == [served + 1, 0] and ferroflash.sdpa_calls() == {"forward": 2, "backward": 0, "passed_on": counted}


def test_native_kernels_hand_on_large_heads(native, monkeypatch):
    """Also where a plan of the same words is there, of another operator's call."""
    q, k, v = (x.detach() for x in inputs(head_dim=264))
    rotated = [x.transpose(1, 2) for x in (q, k, v)]
    for _ in range(2):
        try:
            _torch.attention(*rotated, softmax_scale=0.25)
        except NotImplementedError:
            pass
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", lambda *a, **s: (a[0], *(torch.zeros(1, device=DEVICE),) * 4))
    assert torch.equal(aten._scaled_dot_product_flash_attention(q, k, v, scale=0.25)[0], q)
    assert native() == [0, 0] and ferroflash.sdpa_calls()["passed_on"] == {"head_dim > 256": 1}


def test_native_kernels_keep_nothing(native):
    q, k, v = (x.detach() for x in inputs(seqlen_q=7))
    call, back = aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_flash_attention_backward.default
    o, lse, *_ = call(q, k, v)
    state = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    held = [q, k, v, o, lse, state]
    before = [x._use_count() for x in held]
    for _ in range(4):
        results = [*call(q, k, v, scale=0.25), *back(o, q, k, v, o, lse, None, None, 7, 13, 0.0, False, state, state, scale=0.25)]
        with pytest.raises((RuntimeError, ValueError), match="head_dim"):
            call(q, k[..., :16], v[..., :16])
    assert native() == [3, 3]
    assert [x._use_count() for x in held] == before
    assert all(x._use_count() == 1 for x in results if isinstance(x, torch.Tensor))


def test_native_kernels_of_threads(native):
    from concurrent.futures import ThreadPoolExecutor

    tensors = {n: [x.detach() for x in inputs(seqlen_q=n, seqlen_k=n)] for n in range(20, 40)}
    expected = {n: aten._scaled_dot_product_flash_attention(*given)[0] for n, given in tensors.items()}
    with ThreadPoolExecutor(8) as threads:
        ours = threads.map(lambda n: (n, aten._scaled_dot_product_flash_attention(*tensors[n])[0]), [*tensors] * 8)
        assert all(torch.equal(o, expected[n]) for n, o in ours)
    assert native() == [160, 0] and ferroflash.sdpa_calls()["forward"] == 180


@pytest.mark.parametrize("native_ones", [True, False])
def test_kernels_are_taken_away(monkeypatch, native_ones):
    """Another installation serves like the first one; without one the operator is PyTorch's, which has none on the CPU."""
    if not native_ones:
        monkeypatch.setattr(sdpa, "_put_native_kernels", lambda key: None)
    q, k, v = (x.detach() for x in inputs(seqlen_q=6))
    ferroflash.sdpa_calls(reset=True)
    for n in range(1, 4):
        overrides = sdpa._Overrides("CUDA" if DEVICE == "cuda" else "CPU")
        close(aten._scaled_dot_product_flash_attention(q, k, v)[0], exact(q, k, v)[0].detach())
        overrides.remove()
        assert ferroflash.sdpa_calls()["forward"] == n
        if DEVICE == "cpu":
            with pytest.raises(NotImplementedError):
                aten._scaled_dot_product_flash_attention(q, k, v)


def test_schemas_that_are_not_known_get_no_native_kernels(monkeypatch):
    monkeypatch.setitem(sdpa._SCHEMAS, "_scaled_dot_product_flash_attention", (["Tensor"] * 4, ["Tensor"]))
    overrides = sdpa._Overrides("CUDA" if DEVICE == "cuda" else "CPU")
    try:
        assert overrides._kernels is None
        q, k, v = (x.detach() for x in inputs())
        close(aten._scaled_dot_product_flash_attention(q, k, v)[0], exact(q, k, v)[0].detach())
    finally:
        overrides.remove()


def test_wrong_arguments_are_errors():
    q, k, v = (x.detach() for x in inputs())
    with pytest.raises(ValueError, match="head_dim"):
        sdpa.forward(q, k[..., :16], v[..., :16])


# ---- installation ----


@pytest.fixture(params=["registry", "overrides"])
def registry(request, monkeypatch):
    """Both ways to install, whichever this version of PyTorch has."""
    if request.param == "overrides":
        monkeypatch.setattr(sdpa, "_has_registry", lambda: False)
    elif not sdpa._has_registry():
        pytest.skip("[not run] this PyTorch has no registry of flash attention")
    yield request.param
    ferroflash.uninstall()


def test_installing(registry):
    before = torch._C._get_sdp_priority_order()
    assert sdpa._active() is None
    ferroflash.install()
    ferroflash.install()
    assert sdpa._active() == "ferroflash"
    assert torch._C._get_sdp_priority_order()[0] == int(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
    assert sorted(torch._C._get_sdp_priority_order()) == sorted(before)
    if registry == "registry":
        assert torch.nn.attention.current_flash_attention_impl() == "ferroflash"
        assert "ferroflash" in torch.nn.attention.list_flash_attention_impls()
    ferroflash.uninstall()
    ferroflash.uninstall()
    assert sdpa._active() is None
    if DEVICE == "cpu":  # a GPU's own order is decided on in between
        assert torch._C._get_sdp_priority_order() == before


def test_installing_for_a_block(registry):
    with ferroflash.install():
        assert sdpa._active() == "ferroflash"
        with pytest.raises(ZeroDivisionError), ferroflash.install():
            raise ZeroDivisionError
        assert sdpa._active() == "ferroflash", "the inner block has not installed it"
    assert sdpa._active() is None


def test_an_order_of_the_users_own_stays(registry):
    before = torch._C._get_sdp_priority_order()
    ferroflash.install()
    try:
        torch._C._set_sdp_priority_order(before[::-1])
        ferroflash.uninstall()
        assert torch._C._get_sdp_priority_order() == before[::-1]
    finally:
        torch._C._set_sdp_priority_order(before)


def test_on_the_cpu_sdpa_stays_pytorchs():
    q, k, v = (x.detach().cpu().float() for x in inputs())
    ferroflash.sdpa_calls(reset=True)
    with ferroflash.install():
        torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert ferroflash.sdpa_calls() == {"forward": 0, "backward": 0, "passed_on": {}}


# ---- through PyTorch ----


@needs_gpu
@pytest.mark.parametrize("memory", ["bshd", "bhsd"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [40, 64, 100, 128, 256])
def test_scaled_dot_product_attention(head_dim, causal, compiled, memory):
    torch.compiler.reset()
    q, k, v = inputs(seqlen_q=200, seqlen_k=200, head_dim=head_dim, memory=memory)

    def call(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True) * 1.0

    ferroflash.sdpa_calls(reset=True)
    with ferroflash.install():
        o = (torch.compile(call, fullgraph=True) if compiled else call)(q, k, v)
        ours = gradients(o, (q, k, v))
    wanted, _, of = exact(q, k, v, causal=causal)
    close(o, wanted)
    for ours_x, wanted_x in zip(ours, gradients(wanted, of), strict=True):
        close(ours_x, wanted_x)
    assert ferroflash.sdpa_calls() == {"forward": 1, "backward": 1, "passed_on": {}}


@needs_gpu
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(70, 200), (200, 70)])
def test_masks_with_other_lengths(seqlen_q, seqlen_k):
    """is_causal is aligned to the top left, and stays PyTorch's; causal_lower_right is ours."""
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = (x.detach() for x in inputs(heads_k=4, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
    attend = torch.nn.functional.scaled_dot_product_attention
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=DEVICE).tril()
    ferroflash.sdpa_calls(reset=True)
    with ferroflash.install():
        close(attend(q, k, v, is_causal=True), attend(q.double(), k.double(), v.double(), attn_mask=visible))
        assert ferroflash.sdpa_calls()["forward"] == 0
        if seqlen_q < seqlen_k:
            close(
                attend(q, k, v, attn_mask=causal_lower_right(seqlen_q, seqlen_k)),
                exact(q, k, v, causal=True)[0].detach(),
            )
            assert ferroflash.sdpa_calls()["forward"] == 1


@needs_gpu
def test_dropout_is_pytorchs():
    q, k, v = inputs(heads_k=4, seqlen_q=200, seqlen_k=200)
    ferroflash.sdpa_calls(reset=True)
    with ferroflash.install(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        gradients(o, (q, k, v))
    assert ferroflash.sdpa_calls() == {"forward": 0, "backward": 0, "passed_on": {"dropout_p > 0": 2}}
    assert o.isfinite().all()


@needs_gpu
def test_the_profiler_shows_our_kernels():
    q, k, v = inputs(heads_k=4, seqlen_q=200, seqlen_k=200)

    def kernels():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            gradients(o, (q, k, v))
            torch.cuda.synchronize()
        return {event.name for event in profile.events()}

    with ferroflash.install():
        ours = kernels()
    theirs = kernels()
    assert any("fwd" in name or "forward" in name for name in ours - theirs), ours
    assert not any("pytorch_flash" in name or "cudnn" in name for name in ours), ours
    assert any("pytorch_flash" in name or "cudnn" in name for name in theirs), theirs


@needs_gpu
def test_a_cuda_graph():
    q, k, v = (x.detach() for x in inputs(heads_k=4, seqlen_q=200, seqlen_k=200))
    attend = torch.nn.functional.scaled_dot_product_attention
    with ferroflash.install():
        attend(q, k, v, is_causal=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attend(q, k, v, is_causal=True)
        q.copy_(q.flip(0))
        graph.replay()
        assert torch.equal(o, attend(q, k, v, is_causal=True))
