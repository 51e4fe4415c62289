"""Exact attention for NVIDIA GPUs, with kernels written in Rust; on all cores of the processor elsewhere.

`import ferroflash` needs neither PyTorch nor CUDA. Modules that need PyTorch are imported at their first use:

- `flash_attn_func` and the other functions of flash-attn 2.8, from `ferroflash.flash_attn_interface`;
- `ferroflash.fa3` and `ferroflash.fa4`, the functions of FlashAttention-3 and -4;
- `ferroflash.fp8`, attention in 8 bits with gradients;
- `install()`, which makes ferroflash the provider of `scaled_dot_product_attention`;
- `ferroflash.transformers.register()`, for models of Hugging Face.

`attention` takes arrays of numpy, JAX or CuPy, and custom scores and masks, `Score` and `Mask`; `dropout_mask` returns which weights
dropout keeps. `flash_mla_with_kvcache`, FlashMLA's function, takes such arrays as well as PyTorch tensors.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._native import __version__, dropout_mask, info

# The module of each name that is imported when it is first asked for.
_LAZY = {
    "Array": "array",
    "Mask": "expression",
    "Score": "expression",
    "attention": "array",
    "attention_backward": "array",
    "compile_kernels": "kernels",
    "explain": "_torch",
    "flash_attn_func": "flash_attn_interface",
    "flash_attn_kvpacked_func": "flash_attn_interface",
    "flash_attn_qkvpacked_func": "flash_attn_interface",
    "flash_attn_varlen_func": "flash_attn_interface",
    "flash_attn_varlen_kvpacked_func": "flash_attn_interface",
    "flash_attn_varlen_qkvpacked_func": "flash_attn_interface",
    "flash_attn_with_kvcache": "flash_attn_interface",
    "flash_mla_with_kvcache": "flash_mla",
    "get_mla_metadata": "flash_mla",
    "install": "sdpa",
    "keep_kernels_in": "kernels",
    "sdpa_calls": "sdpa",
    "uninstall": "sdpa",
}

_MODULES = ("array", "expression", "fa3", "fa4", "flash_attn_interface", "flash_mla", "fp8", "kernels", "sdpa", "transformers")

__all__ = [
    "__version__",
    "dropout_mask",
    "info",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LAZY, *_MODULES])
