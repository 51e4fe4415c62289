"""What stands in sys.modules for FlashAttention's packages while its tests run: ferroflash's functions under their names.

Helpers that are only Python (`flash_attn.bert_padding`, `flash_attn.cute.testing`, `padding`, `test_util`) are the
checkout's own. What a test file imports and no selected case calls raises when it is called.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

FILES = {
    "fa2": "tests/test_flash_attn.py",
    "fa3": "hopper/test_flash_attn.py",
    "fa4-varlen": "tests/cute/test_flash_attn_varlen.py",
    "fa4": "tests/cute/test_flash_attn.py",
}
"""The suites, and their files in a checkout of flash-attention."""


def install(suite: str, checkout: Path, original: bool) -> None:
    """Puts the modules in place that the file of a suite imports; `original` leaves FlashAttention's own there."""
    if suite == "fa3":
        # Where `padding` and `test_util` are.
        sys.path.insert(0, str(checkout / "hopper"))
    if original:
        return
    if suite == "fa2":
        from ferroflash import flash_attn_interface as fa2

        package = _module("flash_attn", fa2, checkout / "flash_attn")
        package.flash_attn_interface = _module("flash_attn.flash_attn_interface", fa2)
        package.flash_attn_interface.USE_TRITON_ROCM = False
        package.flash_attn_interface._get_block_size_n = _absent("_get_block_size_n")
    elif suite == "fa3":
        from ferroflash import fa3

        _module("flash_attn", None, checkout / "flash_attn")
        _module("flash_attn_interface", fa3)
    else:
        from ferroflash import fa4

        package = _module("flash_attn", None, checkout / "flash_attn")
        package.cute = _module("flash_attn.cute", fa4, checkout / "flash_attn" / "cute")
        package.cute.interface = _module("flash_attn.cute.interface", fa4)
        for private in ("_flash_attn_fwd", "_flash_attn_bwd", "_flash_attn_bwd_sparse_mla"):
            setattr(package.cute.interface, private, _absent(private))
        package.cute.cache_utils = _module("flash_attn.cute.cache_utils", None)
        package.cute.cache_utils.JITCache = _absent("JITCache")


def _module(name: str, functions: types.ModuleType | None, folder: Path | None = None) -> types.ModuleType:
    """A module in sys.modules with the public functions of another; with a folder, a package of the modules in it."""
    module = types.ModuleType(name, "Stands for FlashAttention's module in the exam.")
    if folder is not None:
        module.__path__ = [str(folder)]
    if functions is not None:
        for public in functions.__all__:
            setattr(module, public, getattr(functions, public))
    sys.modules[name] = module
    return module


def _absent(name: str) -> Callable[..., NoReturn]:
    def absent(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"{name} is private to FlashAttention, and a selected case calls it")

    return absent
