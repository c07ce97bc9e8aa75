# SPDX-License-Identifier: Apache-2.0
"""Helpers that make results look like the inputs, for every array library. Imports no library but NumPy."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from quire._messages import shown
from quire.errors import ArgumentError

_ML_DTYPES = {
    "bf16": "bfloat16",
    "fp8_e4m3fn": "float8_e4m3fn",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e5m2fnuz": "float8_e5m2fnuz",
    "fp8_e8m0": "float8_e8m0fnu",
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


def is_cupy(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def _only_on_the_host(array: Any, what: str) -> None:
    """Libraries of immutable arrays have no buffer to write on a device."""
    device = getattr(array, "__dlpack_device__", None)
    if device is not None and int(device()[0]) not in (1, 3, 11):
        raise ArgumentError(f"{what}: {type(array).__module__} arrays cannot be written; pass a torch or CuPy array")


def _allocating_for(stream: Any, array: Any) -> Any:
    """Context in which a call gets memory for ``stream``. Libraries reuse memory freed on one stream without waiting, so memory of
    the current stream may still be in use when another stream writes to it."""
    if stream is None:
        return contextlib.nullcontext()
    if is_torch(array) and array.device.type != "cpu":
        cuda = sys.modules["torch"].cuda
        return cuda.stream(cuda.ExternalStream(stream_of(stream, array, array.device.index), device=array.device))
    if is_cupy(array):
        return sys.modules["cupy"].cuda.ExternalStream(stream_of(stream, array, array.device.id))
    return contextlib.nullcontext()


def empty_like(array: Any, stream: Any = None, last: int | None = None) -> Any:
    """A contiguous, uninitialised array of the same library, shape and dtype; NumPy for libraries other than torch and CuPy.

    last: another extent of the last axis.
    """
    shape = tuple(array.shape) if last is None else (*array.shape[:-1], last)
    if is_torch(array):
        torch = sys.modules["torch"]
        with _allocating_for(stream, array):
            return torch.empty(shape, dtype=array.dtype, device=array.device)
    if is_cupy(array):
        with _allocating_for(stream, array):
            return sys.modules["cupy"].empty(shape, dtype=array.dtype)
    _only_on_the_host(array, "output")
    if isinstance(array, np.ndarray):
        return np.empty(shape, dtype=array.dtype)
    return np.empty(shape, dtype=np.dtype(str(array.dtype)))


def index_array(values: Any, name: str, like: Any) -> Any:
    """A list or tuple of integers, or of lists of them, as an int64 array where ``like`` is."""
    try:
        array = np.array(values)
    except ValueError:
        lengths = [len(row) if hasattr(row, "__len__") else 0 for row in values]
        raise ArgumentError(f"{name}: rows of {min(lengths)} to {max(lengths)} entries; pad them to one length") from None
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind != "i":
        for index in np.ndindex(array.shape):
            value = array[index] if array.dtype == object else _item(values, index)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not -(2**63) <= int(value) < 2**63:
                place = "".join(f"[{i}]" for i in index)
                raise ArgumentError(f"{name}{place}: {value!r}, expected an integer of at most 64 bits")
    array = array.astype(np.int64)
    if is_torch(like) and like.device.type != "cpu":
        return sys.modules["torch"].from_numpy(array).to(like.device)
    return sys.modules["cupy"].asarray(array) if is_cupy(like) else array


def float_array(values: Any, name: str, like: Any) -> Any:
    """A list or tuple of numbers as an f32 array where ``like`` is."""
    for i, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ArgumentError(f"{name}[{i}]: {value!r}, expected a real number")
    array = np.array(values, dtype=np.float32)
    if is_torch(like) and like.device.type != "cpu":
        return sys.modules["torch"].from_numpy(array).to(like.device)
    return sys.modules["cupy"].asarray(array) if is_cupy(like) else array


def flag_array(values: Any, name: str, like: Any) -> Any:
    """A list or tuple of True and False as an array where ``like`` is."""
    for i, value in enumerate(values):
        if not isinstance(value, (bool, np.bool_)):
            raise ArgumentError(f"{name}[{i}]: {value!r}, expected True or False")
    array = np.array(values, dtype=np.bool_)
    if is_torch(like) and like.device.type != "cpu":
        return sys.modules["torch"].from_numpy(array).to(like.device)
    return sys.modules["cupy"].asarray(array) if is_cupy(like) else array


def _item(values: Any, index: tuple[int, ...]) -> Any:
    for i in index:
        values = values[i]
    return values


def empty_part_like(array: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised array of the library and dtype of ``array``, of another shape."""
    if is_torch(array):
        return sys.modules["torch"].empty(shape, dtype=array.dtype, device=array.device)
    if is_cupy(array):
        return sys.modules["cupy"].empty(shape, dtype=array.dtype)
    _only_on_the_host(array, "out")
    return np.empty(shape, dtype=array.dtype if isinstance(array, np.ndarray) else np.dtype(str(array.dtype)))


def in_library_of(query: Any, output: np.ndarray) -> Any:
    """A new output as an array of the query's library, if that is neither NumPy, torch nor CuPy. Nobody else holds its memory."""
    namespace = getattr(query, "__array_namespace__", None)
    if isinstance(query, np.ndarray) or is_torch(query) or is_cupy(query) or namespace is None:
        return output
    return namespace().asarray(output)


def empty_f32_like(array: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised f32 array of the library of ``array``."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32, device=array.device)
    if is_cupy(array):
        return sys.modules["cupy"].empty(shape, dtype=np.float32)
    _only_on_the_host(array, "lse")
    return np.empty(shape, dtype=np.float32)


def empty_bytes_like(array: Any, count: int, stream: Any = None) -> Any:
    """``count`` bytes on the device of ``array``, from its library's allocator."""
    if is_torch(array):
        torch = sys.modules["torch"]
        if stream is None:
            return torch.empty(count, dtype=torch.uint8, device=array.device)
        with _allocating_for(stream, array):
            return torch.empty(count, dtype=torch.uint8, device=array.device)
    if is_cupy(array):
        with _allocating_for(stream, array):
            return sys.modules["cupy"].empty(count, dtype=np.uint8)
    raise ArgumentError(f"workspace: None, but {type(array).__module__} arrays cannot be written; pass a torch or CuPy array")


def full_f32_like(array: Any, value: float) -> Any:
    """[1] f32 on the device of ``array``."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.full((1,), float(value), dtype=torch.float32, device=array.device)
    if is_cupy(array):
        return sys.modules["cupy"].full((1,), value, dtype=np.float32)
    raise ArgumentError("scale: a number, but the cache is on a device; pass an f32 array there")


@functools.cache
def _current_torch_stream() -> Callable[[int], int]:
    """The number of torch's current stream of a GPU; without an object for it where torch offers that, as Triton asks."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw if raw is not None else lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream)


def stream_of(stream: Any, array: Any, ordinal: int) -> int:
    """A stream as a number: the one given, or the current one of the library of ``array``; else the default stream."""
    if stream is None and is_torch(array):
        return _current_torch_stream()(ordinal)
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
        if stream is not None and hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if stream is not None:
        raise ArgumentError(f"stream: a {type(stream).__name__}, expected a number or a stream of torch or CuPy")
    if is_cupy(array):
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(ordinal).cuda_stream)
    return 0


def as_bytes(array: Any) -> Any:
    """Views memory as uint8; for the workspace, whose element type does not matter."""
    if hasattr(array, "__dlpack_device__") and not isinstance(array, np.ndarray) and not is_torch(array) and not is_cupy(array):
        return array  # on a device, perhaps: taken as it is, if its elements are bytes
    if not hasattr(array, "shape") and not hasattr(array, "__array_interface__") and not isinstance(array, (bytearray, memoryview)):
        raise ArgumentError(f"workspace: {shown(array)}, expected memory: an array")
    try:
        if is_torch(array):
            return array.view(sys.modules["torch"].uint8)
        return (array if is_cupy(array) else np.asarray(array)).view(np.uint8)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"workspace: {shown(array)} cannot be seen as bytes: {error}") from None


def from_interface(array: Any, name: str) -> np.ndarray:
    """What an ``__array_interface__`` describes, viewed."""
    try:
        view = np.asarray(array)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{name}: NumPy cannot read its __array_interface__: {error}") from None
    if view.dtype == object:
        raise ArgumentError(f"{name}: its __array_interface__ describes no numbers")
    return view
