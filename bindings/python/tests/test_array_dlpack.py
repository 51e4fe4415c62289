"""DLPack as ferroflash.attention speaks it: who holds which memory for how long, what is refused, and by which exception."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ferroflash
import numpy as np
import pytest
from array_cases import Legacy, Moved, Producer, Twice, bfloat16, normal, numbers, own
from ferroflash.array import Array

Q = normal(0, 2, 5, 4, 16)
K = normal(1, 2, 7, 2, 16)
USED = np.array([3, 7], np.int32)


NUMPY_2_1 = pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="[not run] numpy is older than 2.1")


def replaced(**changed):
    """The arguments of a call, some of them others."""
    arguments = {"q": Q, "k": K, "v": K} | changed
    return ferroflash.attention(**arguments)


def test_a_capsule_is_consumed_once():
    producers = [Producer(own(array)) for array in (Q, K, K)]
    o = ferroflash.attention(*producers)
    assert [producer.names() for producer in producers] == [["used_dltensor_versioned"]] * 3
    assert all(producer.options[0]["max_version"] >= (1, 0) for producer in producers)
    assert all("stream" not in producer.options[0] for producer in producers)
    np.testing.assert_array_equal(numbers(o), replaced())


def test_a_capsule_that_is_consumed_is_refused():
    once = Twice(K)
    for name in ("v", "k"):
        with pytest.raises(TypeError, match=rf"{name} cannot be exported by Twice.*consumed"):
            ferroflash.attention(Q, once, once)


def test_libraries_from_before_dlpack_1():
    producers = [Legacy(own(array)) for array in (Q, K, K)]
    o = ferroflash.attention(*producers)
    assert [producer.names() for producer in producers] == [["used_dltensor"]] * 3
    np.testing.assert_array_equal(numbers(o), replaced())


def test_pinned_memory_lies_on_the_host():
    o = ferroflash.attention(Producer(Q, device=(3, 0)), K, K)
    np.testing.assert_array_equal(numbers(o), replaced())


@NUMPY_2_1
def test_arrays_that_may_not_be_written():
    q, k = Q.copy(), K.copy()
    q.flags.writeable = k.flags.writeable = False
    np.testing.assert_array_equal(ferroflash.attention(q, k, k), replaced())


def test_arguments_are_let_go_of():
    q, k = Q.copy(), K.copy()
    used = np.array([5, 5], np.int32)
    before = [sys.getrefcount(array) for array in (q, k, used)]
    o, lse = ferroflash.attention(q, k, k, seqused_q=used, seqused_k=used, return_lse=True)
    ferroflash.attention_backward(o, q, k, k, o, lse, seqused_q=used, seqused_k=used)
    with pytest.raises(ValueError, match="v has the shape"):
        ferroflash.attention(q, k, q)
    gc.collect()
    assert [sys.getrefcount(array) for array in (q, k, used)] == before


def test_results_outlive_what_they_came_from():
    array = Array("float32", [2, 3])
    views = [np.asarray(array), np.from_dlpack(array)]
    del array
    gc.collect()
    views[0][...] = 7
    assert (views[1] == 7).all()


def resident_bytes():
    """What the process has of the machine's memory."""
    _, n_pages, *_ = Path("/proc/self/statm").read_text().split()
    return int(n_pages) * resource.getpagesize()


def grown_bytes(run, *, times):
    """How far the process grows from the first runs to the last."""
    for _ in range(3):
        run()
    before = resident_bytes()
    for _ in range(times):
        run()
    return resident_bytes() - before


@pytest.mark.skipif(sys.platform != "linux", reason="[not run] only Linux tells the memory of a process in /proc")
def test_memory_is_freed():
    q = normal(0, 1, 1, 1, 256)
    q = np.lib.stride_tricks.as_strided(q, (1, 8192, 1, 256), (0, 0, 0, 4))
    k = q[:, :1]
    # 8 MB for o in each call.
    assert grown_bytes(lambda: ferroflash.attention(q, k, k), times=40) < 80e6
    # The same for capsules that nobody consumes, for copies, and for results that nobody takes.
    array = Array("float32", [2_000_000])
    assert grown_bytes(lambda: array.__dlpack__(copy=True, max_version=(1, 0)), times=40) < 80e6
    assert grown_bytes(lambda: Array("float32", [2_000_000]).__dlpack__(), times=40) < 80e6


class TestExport:
    def test_a_capsule_of_the_version_that_is_asked_for(self):
        producer = Producer(Array("float16", [3]))
        for options in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0)}, {"max_version": (2, 0)}):
            producer.__dlpack__(**options)
        assert producer.names() == ["dltensor"] * 2 + ["dltensor_versioned"] * 2

    def test_shape_type_and_place(self):
        array = Array("float16", [2, 0, 3])
        assert (array.shape, array.dtype, array.__dlpack_device__()) == ((2, 0, 3), "float16", (1, 0))
        assert np.from_dlpack(array).shape == (2, 0, 3)
        assert np.from_dlpack(Array("float32", [])).shape == ()
        assert Array("float32", [5]).address % 64 == 0

    @NUMPY_2_1
    def test_a_copy_is_another_memory(self):
        array = Array("float32", [4])
        view, copy = np.from_dlpack(array), np.from_dlpack(array, copy=True)
        view[...] = 1
        assert (copy == 0).all()
        assert np.shares_memory(view, np.from_dlpack(array, copy=False))

    def test_what_is_refused(self):
        array = Array("float32", [4])
        with pytest.raises(ValueError, match="stream is 1; allowed for an array of the host: None"):
            array.__dlpack__(stream=1)
        with pytest.raises(AttributeError, match="numpy has no arrays like"):
            _ = Array("bfloat16", [4]).__array_interface__
        with pytest.raises(BufferError, match="cross-device"):
            array.__dlpack__(dl_device=(2, 0))
        with pytest.raises(TypeError, match="dtype is float64"):
            Array("float64", [4])
        with pytest.raises(ValueError, match="address space"):
            Array("float32", [2**40, 2**40])


class TestRefused:
    @pytest.mark.parametrize("name", ["q", "k", "v", "seqused_q", "seqused_k"])
    @pytest.mark.parametrize("wrong", [[1, 2], "array", 3, object()], ids=lambda wrong: type(wrong).__name__)
    def test_what_is_no_array(self, name, wrong):
        with pytest.raises(TypeError, match=f"{name} is {type(wrong).__name__}; allowed: an array with __dlpack__"):
            replaced(**{name: wrong})

    @pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "bool", "complex64"])
    def test_a_type(self, dtype):
        with pytest.raises(TypeError, match=f"q is {dtype}; allowed: float32, float16, bfloat16"):
            replaced(q=Q.astype(dtype))
        with pytest.raises(TypeError, match=f"v is {dtype}; needed: float32, as q"):
            replaced(v=K.astype(dtype))

    def test_types_that_differ(self):
        with pytest.raises(TypeError, match="k is bfloat16; needed: float32, as q"):
            replaced(k=bfloat16(K))
        with pytest.raises(TypeError, match="seqused_k is int64; needed: int32"):
            replaced(seqused_k=USED.astype(np.int64))

    def test_what_a_library_does_not_export(self):
        with pytest.raises(TypeError, match="q cannot be exported by ndarray"):
            replaced(q=Q.astype(object))
        with pytest.raises(TypeError, match="q cannot be exported by ndarray"):
            replaced(q=Q.astype(">f4"))

    def test_devices(self):
        with pytest.raises(TypeError, match="q lies on a device of DLPack's kind 8; allowed: the host"):
            replaced(q=Producer(Q, device=(8, 0)))
        with pytest.raises(TypeError, match="v lies on cuda:1; needed: the host, as q"):
            replaced(v=Producer(K, device=(2, 1)))
        with pytest.raises(RuntimeError):
            replaced(q=Producer(Q, device=(2, 77)))

    def test_a_capsule_that_says_another_device(self):
        with pytest.raises(TypeError, match=r"k lies on the host by its __dlpack_device__, on \(2, 0\) by its __dlpack__"):
            replaced(k=Moved(own(K)))

    @pytest.mark.parametrize(
        ("name", "shape", "needed"),
        [
            ("q", (2, 5, 64), r"\[batch, seqlen_q, heads_q, head_dim\]"),
            ("k", (3, 7, 2, 16), r"\[2, seqlen_k, heads_k, 16\]"),
            ("k", (2, 7, 2, 8), r"\[2, seqlen_k, heads_k, 16\]"),
            ("v", (2, 7, 1, 16), r"\[2, 7, 2, 16\]"),
            ("v", (2, 7, 2, 16, 1), r"\[2, 7, 2, 16\]"),
        ],
    )
    def test_shapes(self, name, shape, needed):
        with pytest.raises(ValueError, match=rf"{name} has the shape .*; needed: {needed}"):
            replaced(**{name: normal(0, *shape)})

    def test_sizes(self):
        with pytest.raises(ValueError, match="heads_q is 4, heads_k is 3"):
            replaced(k=normal(0, 2, 7, 3, 16), v=normal(0, 2, 7, 3, 16))
        with pytest.raises(ValueError, match="head_dim is 577; allowed: 1 to 576"):
            ferroflash.attention(*[normal(0, 1, 2, 1, 577)] * 3)
        with pytest.raises(ValueError, match="head_dim is 0"):
            ferroflash.attention(*[normal(0, 1, 2, 1, 0)] * 3)

    def test_strides(self):
        wide = normal(0, 2, 7, 2, 32)
        with pytest.raises(ValueError, match=r"k has the strides .*; allowed: 1 in the last dimension"):
            replaced(k=wide[..., ::2])
        with pytest.raises(ValueError, match="v has the strides .* 0 or more"):
            replaced(v=K[:, ::-1])
        repeated = np.lib.stride_tricks.as_strided(wide, K.shape, (*wide.strides[:-1], 0))
        with pytest.raises(ValueError, match=r"k has the strides .*; allowed: 1 in the last dimension"):
            replaced(k=repeated)
        # Of a dimension with one entry no stride counts.
        q, k = Q[:, ::-5], K[:, ::-7]
        np.testing.assert_array_equal(ferroflash.attention(q, k, k), ferroflash.attention(q.copy(), k.copy(), k.copy()))
        one_column = normal(0, 2, 7, 2, 4)[..., ::4]
        np.testing.assert_array_equal(
            ferroflash.attention(one_column, one_column, one_column),
            ferroflash.attention(*[np.ascontiguousarray(one_column)] * 3),
        )

    def test_addresses_between_two_elements(self):
        raw = np.zeros(Q.nbytes + 2, np.uint8)
        with pytest.raises(ValueError, match="q lies at .*; needed: a multiple of 4 bytes"):
            replaced(q=raw[2:].view(np.float32).reshape(Q.shape))

    def test_lengths(self):
        with pytest.raises(ValueError, match=r"seqused_q has the shape \[3\]; needed: \[2\]"):
            replaced(seqused_q=np.zeros(3, np.int32))
        with pytest.raises(ValueError, match=r"seqused_k has the strides \[2\]; needed: those of a contiguous array"):
            replaced(seqused_k=np.zeros(4, np.int32)[::2])
        with pytest.raises(ValueError, match="seqused_k, sequence 1: 8; allowed: 0 to 7"):
            replaced(seqused_k=USED + 1)
        with pytest.raises(ValueError, match="seqused_q, sequence 0: -1"):
            replaced(seqused_q=np.array([-1, 2], np.int32))

    def test_numbers(self):
        for wrong in (0, -1.0, float("nan"), float("inf"), 1e300):
            with pytest.raises(ValueError, match="softmax_scale is"):
                replaced(softmax_scale=wrong)
        with pytest.raises(TypeError, match="softmax_scale is '1'; allowed: a number, or None"):
            replaced(softmax_scale="1")
        with pytest.raises(ValueError, match=r"window\[0\] is -1; allowed: 0 or more, or None"):
            replaced(window=(-1, 0))
        with pytest.raises(TypeError, match=r"window\[1\] is 1\.5; allowed: an int, or None"):
            replaced(window=(None, 1.5))
        with pytest.raises(TypeError, match="window is 3; allowed: a pair"):
            replaced(window=3)
        np.testing.assert_array_equal(replaced(window=(2**100, np.int64(7))), replaced(window=(None, 7)))

    def test_what_the_backward_pass_reads(self):
        o, lse = replaced(return_lse=True)
        right = {"d_o": o, "q": Q, "k": K, "v": K, "o": o, "lse": lse}
        for name, wrong, error, text in (
            ("d_o", o[:1], ValueError, r"d_o has the shape \[1, 5, 4, 16\]; needed: \[2, 5, 4, 16\]"),
            ("d_o", o.astype(np.float16), TypeError, "d_o is float16; needed: float32, as q"),
            ("o", np.asfortranarray(o), ValueError, "o has the strides .*; needed: those of a contiguous array"),
            ("o", None, TypeError, "o is NoneType; allowed: an array with __dlpack__"),
            ("lse", lse[:, :2], ValueError, r"lse has the shape \[2, 2, 5\]; needed: \[2, 4, 5\]"),
            ("lse", lse.astype(np.float16), TypeError, "lse is float16; needed: float32"),
            ("d_lse", lse.transpose(0, 2, 1), ValueError, r"d_lse has the shape \[2, 5, 4\]; needed: \[2, 4, 5\]"),
        ):
            with pytest.raises(error, match=f"^{text}"):
                ferroflash.attention_backward(**(right | {name: wrong}))


class TestThreads:
    def test_calls_at_once(self):
        arrays = [(normal(seed, 1, 70, 4, 32), normal(seed + 100, 1, 90, 2, 32)) for seed in range(16)]

        def run(pair):
            q, k = pair
            o, lse = ferroflash.attention(q, k, k, causal=True, return_lse=True)
            return o, *ferroflash.attention_backward(o, q, k, k, o, lse, causal=True)

        with ThreadPoolExecutor(8) as pool:
            at_once = list(pool.map(run, arrays * 8))
        for index, results in enumerate(at_once):
            for result, alone in zip(results, run(arrays[index % 16])):
                np.testing.assert_array_equal(result, alone)

    def test_other_threads_go_on(self):
        q = normal(0, 1, 6000, 2, 64)
        call = threading.Thread(target=lambda: ferroflash.attention(q, q, q))
        steps, start = 0, time.perf_counter()
        call.start()
        while call.is_alive():
            steps += 1
            time.sleep(0.001)
        took = time.perf_counter() - start
        assert steps > 5, f"{steps} steps of another thread in a call of {took} s"
