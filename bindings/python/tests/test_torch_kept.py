"""What is kept between the passes of a call, and from one call to the next: tensors that come back otherwise than they were saved, numbers that
are tensors; memory that begins anywhere; rows that nobody writes."""

from __future__ import annotations

import gc
import weakref

import pytest
from torch_cases import DEVICES, integers, options, random

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash import flash_attn_func, flash_attn_varlen_func  # noqa: E402
from ferroflash._append import Append, Rotary, append, rotate  # noqa: E402
from ferroflash._torch import attention  # noqa: E402
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402


def strided(device, dtype=torch.float32, grad=True):
    """q, k and v, heads before rows in memory."""
    tensors = [random(2, heads, 24, 16, device=device, dtype=dtype, seed=at, grad=False) for at, heads in enumerate((4, 2, 2))]
    return [x.transpose(1, 2).requires_grad_(grad) for x in tensors]


def elsewhere(x):
    """A tensor like it, with other strides where it has more than one dimension."""
    backwards = range(x.dim() - 1, -1, -1)
    return x.permute(*backwards).contiguous().permute(*backwards) if x.dim() > 1 else x.clone()


# ---- between forward and backward ----


# The first moves what lies on a GPU, and leaves what lies on the host as it is.
CONTEXTS = pytest.mark.parametrize(
    "context", [save_on_cpu, lambda: saved_tensors_hooks(torch.clone, elsewhere)], ids=["save_on_cpu", "hooks"]
)


@pytest.mark.parametrize("device", DEVICES)
@CONTEXTS
@pytest.mark.parametrize("packed", [False, True])
def test_saved_tensors_may_come_back_with_other_strides(device, context, packed):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    given = {}
    tensors = strided(device, dtype)
    if packed:
        tensors = [x[0].detach().requires_grad_() for x in tensors]
        cu_seqlens = integers(device, 0, 10, 24)
        given = dict(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=14, max_seqlen_k=14)
    sinks = random(4, device=device)

    def gradients():
        o, lse = attention(*tensors, causal=True, sinks=sinks, **given)
        return torch.autograd.grad((o * o).sum() + lse.sum(), [*tensors, sinks])

    expected = gradients()
    with context():
        ours = gradients()
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@CONTEXTS
def test_saved_tensors_of_plain_calls_may_come_back_with_other_strides(device, context):
    tensors = strided(device, torch.float32 if device == "cpu" else torch.bfloat16)
    expected = torch.autograd.grad(flash_attn_func(*tensors).square().sum(), tensors)
    with context():
        o = flash_attn_func(*tensors)
    for a, b in zip(torch.autograd.grad(o.square().sum(), tensors), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("unpack", "error"),
    [(lambda x: x.half(), TypeError), (lambda x: x[..., :3], ValueError), (lambda x: x[:1] if x.dim() == 3 else x, ValueError)],
)
@pytest.mark.parametrize("both", [False, True])
def test_saved_tensors_that_come_back_as_others_are_refused(unpack, error, both):
    """Of o alone the node is native, and what it says is a RuntimeError of the same text."""
    tensors = strided("cpu")
    with saved_tensors_hooks(lambda x: x, unpack):
        result = flash_attn_func(*tensors, return_attn_probs=both)
    o = result[0] if both else result
    with pytest.raises(error if both else (error, RuntimeError), match="needed|allowed"):
        o.sum().backward()


def test_a_backward_operator_looks_at_all_that_it_is_given():
    q, k, v = strided("cpu", grad=False)
    o, lse = attention(q, k, v)

    def backward(d_o=o, d_lse=None, o=o, lse=lse):
        return torch.ops.ferroflash.backward.default(d_o, d_lse, q, k, v, o, lse, *options(scale=0.25), [])

    backward()
    for word, wrong in (
        ("d_o has the shape", dict(d_o=o[:1])),
        ("o has the shape", dict(o=o[:, :3])),
        ("lse has the shape", dict(lse=lse[..., :3])),
        ("d_lse has the shape", dict(d_lse=lse[:1])),
        ("lse is torch.float64", dict(lse=lse.double())),
        ("d_o is torch.float16", dict(d_o=o.half())),
    ):
        with pytest.raises((ValueError, TypeError), match=word):
            backward(**wrong)


# ---- from one call to the next ----


def test_a_scale_in_a_tensor_is_read_at_every_call():
    tensors = strided("cpu", grad=False)
    scale = torch.tensor(0.25)
    for value in (0.25, 1.0, 0.01):
        scale.fill_(value)
        assert torch.equal(flash_attn_func(*tensors, softmax_scale=scale), flash_attn_func(*tensors, softmax_scale=scale.item()))


def test_lengths_in_tensors_are_read_at_every_call():
    q, k, v = (x[0] for x in strided("cpu", grad=False))
    longest = torch.tensor(24)
    flash_attn_varlen_func(q, k, v, *[integers("cpu", 0, 24)] * 2, longest, longest)
    longest.fill_(12)
    with pytest.raises(ValueError, match="24"):
        flash_attn_varlen_func(q, k, v, *[integers("cpu", 0, 24)] * 2, longest, longest)
    halves = integers("cpu", 0, 12, 24)
    expected = flash_attn_varlen_func(q, k, v, halves, halves, 12, 12)
    assert torch.equal(flash_attn_varlen_func(q, k, v, halves, halves, longest, longest), expected)


def test_no_tensor_of_a_call_is_kept():
    tensors = [*strided("cpu", grad=False), torch.tensor(0.3), torch.tensor(3.0), torch.tensor(1)]
    *qkv, scale, cap, splits = tensors
    flash_attn_func(*qkv, softmax_scale=scale, softcap=cap)
    attention(*qkv, softmax_scale=scale, num_splits=splits)
    alive = [weakref.ref(x) for x in tensors]
    del tensors, qkv, scale, cap, splits
    gc.collect()
    assert [x() for x in alive] == [None] * 6


@pytest.mark.parametrize("argument", ["softmax_scale", "softcap", "dropout_p"])
def test_numbers_have_no_gradients(argument):
    with pytest.raises(NotImplementedError, match=f"{argument}.*gradient"):
        flash_attn_func(*strided("cpu"), **{argument: torch.tensor(0.3, requires_grad=True)})


@pytest.mark.parametrize(
    "wrong", [{"softmax_scale": "0.5"}, {"softmax_scale": torch.ones(2)}, {"num_splits": 1.0}, {"window": (torch.ones(2), None)}]
)
def test_what_is_no_number_is_refused_by_name(wrong):
    with pytest.raises(TypeError, match=[*wrong][0]):
        attention(*strided("cpu", grad=False), **wrong)


# ---- memory ----


def unaligned(x):
    """The same elements, one byte behind where one may begin."""
    memory = bytearray(x.numel() * x.element_size() + 1)
    copy = torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)
    assert copy.data_ptr() % x.element_size() != 0
    return copy.copy_(x.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_the_host_may_begin_anywhere(dtype):
    tensors = [x.contiguous() for x in strided("cpu", dtype, grad=False)]
    d_o = random(*tensors[0].shape, dtype=dtype, grad=False)

    def run(place):
        leaves = [place(x).requires_grad_() for x in tensors]
        with saved_tensors_hooks(lambda x: x, lambda x: place(x)):
            o = flash_attn_func(*leaves, causal=True)
        return o.detach(), *torch.autograd.grad(o, leaves, place(d_o))

    for a, b in zip(run(unaligned), run(torch.clone), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "given"),
    [("seqused_k", integers("cpu", 3, 24)), ("sinks", torch.ones(4)), ("score_inputs", torch.ones(4))],
)
def test_vectors_that_begin_between_elements_are_refused_by_name(name, given):
    from ferroflash import Score

    options = {name: unaligned(given)}
    if name == "score_inputs":
        options = {"score": Score(lambda s, at: s + at.tensor_f32("bias")[at.head]), name: {"bias": unaligned(given)}}
    with pytest.raises(ValueError, match=f"{'bias' if name == 'score_inputs' else name} lies at 0x.*, not a multiple of 4 bytes"):
        attention(*strided("cpu", grad=False), **options)


@pytest.mark.parametrize("device", DEVICES)
def test_turned_rows_of_no_sequence_are_0(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    table = torch.ones(32, 8, device=device)
    rotary, at = Rotary(table, table, True), integers(device, 2, 0)
    cu_seqlens = integers(device, 0, 3, 5)
    q, k = (random(9, heads, 16, device=device, dtype=dtype, grad=False) for heads in (4, 2))
    caches = [torch.zeros(2, 24, 2, 16, device=device, dtype=dtype) for _ in range(2)]
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        _, rotated = append(Append(k, k, *caches, at, q, rotary, cu_seqlens_new=cu_seqlens))
        alone = rotate(q, rotary, at, cu_seqlens)
    finally:
        torch.use_deterministic_algorithms(False)
    assert rotated[:5].abs().sum() > 0 and rotated[5:].abs().max() == 0
    assert torch.equal(rotated, alone)


def test_both_caches_are_copied_back():
    """A cache whose last stride is 2 is appended to in a copy."""
    before = [random(2, 10, 2, 32, seed=seed, grad=False)[..., ::2] for seed in (1, 2)]
    caches = [torch.empty(2, 10, 2, 32)[..., ::2].copy_(x) for x in before]
    new = [random(2, 3, 2, 16, seed=seed, grad=False) for seed in (3, 4)]
    append(Append(*new, *caches, integers("cpu", 4, 7)))
    for cache, old, rows in zip(caches, before, new, strict=True):
        expected = old.clone()
        expected[0, 4:7], expected[1, 7:10] = rows
        assert torch.equal(cache, expected)
