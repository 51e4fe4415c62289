"""`ferroflash.attention` on arrays of a GPU. PyTorch lends the memory, as any library does that speaks DLPack."""

from __future__ import annotations

import gc

import ferroflash
import numpy as np
import pytest
from array_cases import Producer, normal
from ferroflash.array import Array
from reference import Problem, array64, assert_close

torch = pytest.importorskip("torch", reason="[not run] no torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="[not run] no CUDA device")

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

# batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim
SIZES = [(2, 128, 128, 4, 4, 64), (1, 113, 203, 6, 2, 128), (2, 70, 33, 4, 1, 96), (1, 1, 339, 8, 2, 256)]
MASKS = [{}, {"causal": True}, {"window": (17, 0)}, {"window": (5, 9), "softmax_scale": 0.3}]


def tensor(seed, *shape, dtype):
    """Normal numbers on the GPU."""
    return torch.from_numpy(normal(seed, *shape, dtype=dtype)).to("cuda", DTYPES[dtype])


def both(q, k, v, d_o, **options):
    """o, lse and the gradients, as tensors."""
    lent = [Producer(given) for given in (q, k, v)]
    o, lse = ferroflash.attention(*lent, return_lse=True, **options)
    assert isinstance(o, Array) and o.__dlpack_device__() == (2, q.get_device())
    gradients = ferroflash.attention_backward(Producer(d_o), *lent, o, lse, **options)
    for producer in lent:
        assert all(name.startswith("used_dltensor") for name in producer.names())
        assert all(asked["stream"] > 2 for asked in producer.options)
    return [torch.from_dlpack(result) for result in (o, lse, *gradients)]


def check(dtype, q, k, v, d_o, **options):
    on_host = {name: array64(value.held) for name, value in options.items() if name.startswith("seqused")}
    expected = Problem(q, k, v, dtype=dtype, **options | on_host)
    names = ("o", "lse", "d_q", "d_k", "d_v")
    for name, result, one in zip(names, both(q, k, v, d_o, **options), (*expected.forward(), *expected.backward(d_o))):
        assert_close(name, result, one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_and_gradients(sizes, mask, dtype):
    batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim = sizes
    q, d_o = (tensor(seed, batch, seqlen_q, heads_q, head_dim, dtype=dtype) for seed in (0, 3))
    k, v = (tensor(seed, batch, seqlen_k, heads_k, head_dim, dtype=dtype) for seed in (1, 2))
    check(dtype, q, k, v, d_o, **mask)


def test_strides():
    qkv = tensor(0, 2, 90, 3, 4, 64, dtype="float16")
    q, k, v = qkv.unbind(2)
    d_o = tensor(1, 2, 4, 90, 64, dtype="float16").transpose(1, 2)
    check("float16", q, k, v, d_o, causal=True)
    one_head = tensor(2, 2, 90, 1, 64, dtype="float16").expand(2, 90, 4, 64)
    check("float16", q, one_head, one_head, d_o, causal=True)


def test_lengths():
    q, d_o = (tensor(seed, 3, 150, 4, 64, dtype="bfloat16") for seed in (0, 1))
    k = tensor(2, 3, 200, 2, 64, dtype="bfloat16")
    used_q, used_k = (Producer(torch.tensor(used, dtype=torch.int32, device="cuda")) for used in ([150, 7, 0], [0, 200, 31]))
    check("bfloat16", q, k, k, d_o, causal=True, seqused_q=used_q, seqused_k=used_k)


@pytest.mark.parametrize("sizes", [(0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 3, 4, 0)], ids=str)
def test_nothing_in_a_dimension(sizes):
    batch, seqlen_q, seqlen_k, heads = sizes
    q, k = (tensor(0, batch, seqlen, heads, 64, dtype="float16") for seqlen in (seqlen_q, seqlen_k))
    check("float16", q, k, k, q)


def test_a_bias_of_float32_has_a_gradient():
    q, d_o = (normal(seed, 2, 70, 4, 60) for seed in (0, 3))
    k, v = (normal(seed, 2, 90, 2, 60) for seed in (1, 2))
    bias = normal(4, 4, 70, 90)
    score = ferroflash.Score(lambda s, at: s + at.tensor_f32("bias")[at.head, at.q, at.k])

    def gradients(place):
        *inputs, d, b = (place(x) for x in (q, k, v, d_o, bias))
        options = {"causal": True, "score": score, "score_inputs": {"bias": b}}
        o, lse = ferroflash.attention(*inputs, return_lse=True, **options)
        *of_inputs, read = ferroflash.attention_backward(d, *inputs, o, lse, d_score_inputs=["bias"], **options)
        return *of_inputs, read["bias"]

    on_gpu = gradients(lambda x: Producer(torch.from_numpy(x).cuda()))
    for result, exact in zip(on_gpu, gradients(lambda x: x), strict=True):
        # Products are of tf32 there, and of float32 here.
        error = np.abs(torch.from_dlpack(result).cpu().numpy() - np.asarray(exact))
        assert error.max() <= 2.0**-8 * max(np.abs(np.asarray(exact)).max(), 1.0)


def test_work_that_the_library_has_enqueued_is_waited_for():
    q = tensor(0, 1, 256, 4, 64, dtype="float16")
    late, stream = torch.full_like(q, float("nan")), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        late.copy_(q)
        o = ferroflash.attention(*[Producer(late)] * 3)
    needed = ferroflash.attention(*[Producer(q)] * 3)
    assert torch.equal(torch.from_dlpack(o), torch.from_dlpack(needed))


def test_equal_arguments_give_equal_bits():
    q = tensor(0, 2, 500, 4, 128, dtype="bfloat16")
    for first, second in zip(both(q, q, q, q, causal=True), both(q, q, q, q, causal=True)):
        assert torch.equal(first, second)


def test_memory_is_freed():
    q = tensor(0, 4, 4096, 8, 128, dtype="float16")

    def free_bytes():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    both(q, q, q, q)
    before = free_bytes()
    for _ in range(20):
        # 32 MB for each of o and three gradients.
        both(q, q, q, q)
    assert before - free_bytes() < 128e6


def test_what_is_refused():
    q = tensor(0, 1, 64, 2, 64, dtype="float16")
    lent = Producer(q)
    with pytest.raises(NotImplementedError, match="head_dim is 10; its kernels take multiples of 4"):
        ferroflash.attention(*[Producer(q[..., :10].float().contiguous())] * 3)
    with pytest.raises(NotImplementedError, match="head_dim is 12"):
        ferroflash.attention(*[Producer(q[..., :12].contiguous())] * 3)
    with pytest.raises(NotImplementedError, match="stride of 60 elements"):
        ferroflash.attention(*[Producer(tensor(0, 1, 64, 1, 60, dtype="float16")[..., :56])] * 3)
    with pytest.raises(ValueError, match="q lies at .*, not a multiple of 16 bytes"):
        ferroflash.attention(*[Producer(tensor(0, 1, 64, 2, 72, dtype="float16")[..., 1:65])] * 3)
    with pytest.raises(TypeError, match="k lies on the host; needed: cuda:0, as q"):
        ferroflash.attention(lent, normal(0, 1, 64, 2, 64, dtype="float16"), lent)
    with pytest.raises(TypeError, match="seqused_k lies on the host; needed: cuda:0, as q"):
        ferroflash.attention(lent, lent, lent, seqused_k=np.array([3], np.int32))
    with pytest.raises(BufferError, match="copy is True"):
        ferroflash.attention(lent, lent, lent).__dlpack__(copy=True)


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library, reason=f"[not run] no {library}")
    numpy_like = module.numpy if library == "jax" else module
    if library == "jax" and module.default_backend() != "gpu":
        pytest.skip("[not run] JAX has no GPU")
    values = normal(0, 2, 100, 4, 64, dtype="float16")
    q = numpy_like.asarray(values)
    o, lse = ferroflash.attention(q, q, q, causal=True, return_lse=True)
    assert type(o) is type(q)
    expected = Problem(values, values, values, dtype="float16", causal=True)
    host = (lambda array: array.get()) if library == "cupy" else np.asarray
    for name, result, one in zip(("o", "lse"), (o, lse), expected.forward()):
        assert_close(name, host(result), one)
