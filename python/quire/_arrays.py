"""What the bindings need from the array libraries: results that look like the inputs. Imports none of them but NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_ML_DTYPES = {
    "bf16": "bfloat16",
    "fp8_e4m3fn": "float8_e4m3fn",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e5m2fnuz": "float8_e5m2fnuz",
}


def typed_view(bits: np.ndarray, dtype: str) -> np.ndarray:
    """``bits`` (uint8 or uint16) as the ml_dtypes type of the Quire dtype; unchanged if ml_dtypes is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return bits
    return bits.view(getattr(ml_dtypes, _ML_DTYPES[dtype]))


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def empty_like(array: Any) -> Any:
    """A contiguous, uninitialised array of the same library, shape and dtype; NumPy for libraries other than torch."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(array.shape, dtype=array.dtype, device=array.device)
    if isinstance(array, np.ndarray):
        return np.empty(array.shape, dtype=array.dtype)
    return np.empty(tuple(array.shape), dtype=np.dtype(str(array.dtype)))


def in_library_of(query: Any, output: np.ndarray) -> Any:
    """The output as an array of the query's library, if that is neither NumPy nor torch. A copy, because such libraries (JAX) take
    their arrays to be immutable, while the batch's own buffer is written again by the next call."""
    namespace = getattr(query, "__array_namespace__", None)
    if isinstance(query, np.ndarray) or is_torch(query) or namespace is None:
        return output
    return namespace().asarray(output, copy=True)


def empty_f32_like(array: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised f32 array of the library of ``array``."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32, device=array.device)
    return np.empty(shape, dtype=np.float32)


def as_bytes(array: Any) -> Any:
    """The same memory as uint8; for the workspace, whose element type does not matter."""
    if is_torch(array):
        return array.view(sys.modules["torch"].uint8)
    return np.asarray(array).view(np.uint8)
