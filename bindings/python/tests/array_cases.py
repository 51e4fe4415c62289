"""Arrays to call ferroflash.attention with: of every type, layout and library, and producers that keep a record."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from ferroflash.array import Array


def normal(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    """Normal numbers, in float32 or float16; of bfloat16 those that it holds, in float32."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return _rounded(values) if dtype == "bfloat16" else values.astype(dtype)


def _rounded(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def bfloat16(values: np.ndarray) -> Array:
    """An array of bfloat16, for which numpy has no type, of numbers that it holds."""
    array = Array("bfloat16", list(values.shape))
    bits = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ctypes.memmove(array.address, bits.ctypes.data, bits.nbytes)
    return array


def own(values: np.ndarray) -> Array:
    """An array of ours that holds these numbers."""
    array = Array(values.dtype.name, list(values.shape))
    np.asarray(array)[...] = values
    return array


def handed(values: np.ndarray, dtype: str) -> Any:
    """The array to call with."""
    return bfloat16(values) if dtype == "bfloat16" else values


def numbers(array: Any) -> np.ndarray:
    """What a result holds; of bfloat16 in float32."""
    if not isinstance(array, Array):
        return np.asarray(array)
    if array.dtype != "bfloat16":
        return np.asarray(array)
    n_elems = int(np.prod(array.shape, dtype=np.int64))
    bits = np.frombuffer(ctypes.string_at(array.address, 2 * n_elems), np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(array.shape)


def as_bhsd(values: np.ndarray) -> np.ndarray:
    """The same array, with its heads outside its rows in memory."""
    return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def with_gaps(values: np.ndarray) -> np.ndarray:
    """The same array inside a larger one, from an odd element on; what lies around it is no number."""
    batch, seqlen, heads, head_dim = values.shape
    around = np.full((batch + 1, seqlen + 2, heads + 1, head_dim + 3), np.nan, values.dtype)
    inside = around[:batch, 1 : seqlen + 1, :heads, 1 : head_dim + 1]
    inside[...] = values
    return inside


def expanded(values: np.ndarray) -> np.ndarray:
    """The first head as every head: a stride of 0."""
    batch, row, _, column = values.strides
    return np.lib.stride_tricks.as_strided(values, strides=(batch, row, 0, column))


LAYOUTS = {"bshd": np.ascontiguousarray, "bhsd": as_bhsd, "gaps": with_gaps, "expanded": expanded}


class Producer:
    """Another library's array: forwards to one that it holds, and keeps the capsules that it gave."""

    def __init__(self, held: Any, *, device: tuple[int, int] | None = None) -> None:
        self.held, self.device = held, device
        self.capsules: list[Any] = []
        self.options: list[dict[str, Any]] = []

    def __dlpack__(self, **options: Any) -> Any:
        self.options.append(options)
        self.capsules.append(self.held.__dlpack__(**options))
        return self.capsules[-1]

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.held.__dlpack_device__() if self.device is None else self.device

    def names(self) -> list[str]:
        """Of the capsules: `used_...` after one has been consumed."""
        name = ctypes.pythonapi.PyCapsule_GetName
        name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        return [name(capsule).decode() for capsule in self.capsules]


class Legacy(Producer):
    """An array of a library from before DLPack 1.0."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return super().__dlpack__(stream=stream)


class Twice(Producer):
    """Gives one capsule again and again."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsules[0] if self.capsules else super().__dlpack__(**options)


class Moved(Producer):
    """Says that it lies on the host, and that its memory is CUDA's."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        capsule = super().__dlpack__(stream=stream)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # Behind the pointer to the elements.
        kind = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(kind).value = 2
        return capsule
