"""Kernels in a folder: a process that finds them there waits for no compiler."""

from __future__ import annotations

import glob
import os
import site
import sysconfig
from typing import Any, Literal

from . import _native

# Where Python's packages have NVIDIA's assembler: its own wheels, of CUDA 13 and of earlier ones, and Triton, which comes with PyTorch.
_INSIDE = ("nvidia/cu*/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas", "triton/backends/nvidia/bin/ptxas")

Ptxas = str | os.PathLike[str] | Literal["auto"] | None


def keep_kernels_in(folder: str | os.PathLike[str], *, ptxas: Ptxas = "auto") -> None:
    """From now on every GPU of this process loads compiled kernels from `folder`, and stores there the kernels that it has to compile.

    `ptxas` is NVIDIA's assembler: a path, "auto" for the one on PATH, in /usr/local/cuda or in Python's packages (nvidia-cuda-nvcc, triton), or None. Without one
    the GPU's driver compiles, and most of flash3's kernels are not kept. Its errors fail no call: the driver compiles instead.
    """
    folder = _made(folder)
    _native.keep_kernels_in(folder, _program(ptxas))


def compile_kernels(
    *calls: str,
    folder: str | os.PathLike[str],
    compute_capability: tuple[int, int] | None = None,
    ptxas: Ptxas = "auto",
) -> list[dict[str, Any]]:
    """Compiles the kernels of `calls` into `folder`, on all cores, and returns for each its name, registers, seconds and origin.

    A call is a line of words, such as `"forward bf16 128 causal"`: the pass, the element type, head_dim (or head_dim/head_dim_v), then any
    of causal, window, prefix; packed, seqused; pages, e4m3, fp8, fp8-blocks, one-level, values-in-keys; block-mask, sinks, dropout;
    fastest, full; flash1, flash2, flash3, standard. It covers all sizes,
    unless batch=N, heads=N/N, seqlen=N, seqlen_k=N or page_size=N sets one.

    With `compute_capability`, such as (9, 0), no GPU is needed, but `ptxas` is. Without it, kernels are compiled for GPU 0, which keeps
    its kernels in `folder` from then on.
    """
    if not calls:
        raise ValueError('calls is empty; needed: one at least, as "forward bf16 128 causal"')
    return _native.compile_kernels(list(calls), _made(folder), _program(ptxas), compute_capability)


def _made(folder: str | os.PathLike[str]) -> str:
    os.makedirs(folder, exist_ok=True)
    return os.fspath(folder)


def _program(ptxas: Ptxas) -> str | None:
    if ptxas is None:
        return None
    if ptxas != "auto":
        return os.fspath(ptxas)
    # A name alone is looked up on PATH.
    found = _native.find_ptxas(["ptxas", "/usr/local/cuda/bin/ptxas"])
    found = found or _native.find_ptxas(_of_packages())
    return found and os.fspath(found)


def _of_packages() -> list[str]:
    paths = sysconfig.get_paths()
    folders = dict.fromkeys([paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()])
    programs = []
    for folder in folders:
        for inside in _INSIDE:
            programs += sorted(glob.glob(os.path.join(folder, inside)), reverse=True)
    return programs
