"""Calls in forked children on the CPU: the parent's threads are not there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="[not run] only Linux forks by default")

PREPARE = """
import multiprocessing, os, threading
import numpy as np
import ferroflash

q = np.random.default_rng(0).standard_normal((1, 300, 4, 32), np.float32)

def call(_=None):
    o, lse = ferroflash.attention(q, q, q, return_lse=True)
    return [o, *ferroflash.attention_backward(np.ones_like(o), q, q, q, o, lse)]
"""


def run(program: str) -> None:
    """In a process of its own, so that a child that waits for ever ends the test, and not the tests."""
    program = textwrap.dedent(PREPARE) + textwrap.dedent(program)
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=240)


def test_children_and_grandchildren_of_a_process_that_has_called():
    """Each calls from three threads at once, which make one pool."""
    run("""
    fork = multiprocessing.get_context("fork")

    def alike():
        return all(np.array_equal(a, b) for a, b in zip(call(), expected))

    def generation(n):
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(alike())) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert seen == [True] * 3
        if n > 1:
            child = fork.Process(target=generation, args=(n - 1,))
            child.start()
            child.join()
            assert child.exitcode == 0 and alike()

    expected = call()
    generation(3)
    """)


def test_children_of_a_process_that_has_only_asked_what_there_is():
    run("""
    ferroflash.info()
    ferroflash._native.Problem("float32", [1, 20, 4, 64], [1, 20, 2, 64]).explain()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(call, range(4))
    assert all(np.array_equal(a, b) for other in results for a, b in zip(other, call()))
    """)


def test_workers_of_a_data_loader():
    pytest.importorskip("torch", reason="[not run] no torch")
    run("""
    import torch
    from ferroflash import flash_attn_func, flash_attn_with_kvcache

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, at):
            x = torch.from_numpy(q) + at
            table = torch.ones(400, 8)
            cache = torch.zeros(1, 400, 4, 32)
            new = flash_attn_with_kvcache(x, cache, cache.clone(), x, x, table, table, cache_seqlens=9, causal=True)
            return flash_attn_func(x, x, x) + new

    expected = [Rows()[at] for at in range(len(Rows()))]
    loaded = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert all(torch.equal(a, b) for a, b in zip(loaded, expected, strict=True))
    """)
