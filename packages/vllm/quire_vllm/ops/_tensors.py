# SPDX-License-Identifier: Apache-2.0
"""Tensors of any library: where they are, which dtype they have, their values on the host."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import is_torch
from quire._inputs import on_device
from quire._messages import FLOATING_DTYPES
from quire.errors import ArgumentError

_warned: set[str] = set()


def warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def beside(values: Any, like: Any) -> Any:
    """NumPy ``values`` where ``like`` is."""
    if not on_device(like) or not isinstance(values, np.ndarray):
        return values
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(values)).to(like.device)


def is_raw(array: Any) -> bool:
    return str(getattr(array, "dtype", "")).removeprefix("torch.") in ("uint8", "int8")


def dtype_of(array: Any, name: str) -> str:
    if not on_device(array):
        return _quire.bits(array, name)[1]
    spelled = str(array.dtype).removeprefix("torch.")
    if spelled not in FLOATING_DTYPES:
        raise ArgumentError(f"{name}: dtype {spelled} is none of {', '.join(FLOATING_DTYPES)}")
    return FLOATING_DTYPES[spelled]


def view(array: Any, name: str, dtype: str | None) -> tuple[Any, str]:
    """The cache as NumPy bits, or on a device as it is; and the Quire dtype to read it as."""
    if not on_device(array):
        return _quire.bits(array, name, dtype)
    return array, dtype if is_raw(array) and dtype is not None else dtype_of(array, name)


def permuted(array: Any, *order: int) -> Any:
    return array.permute(*order) if is_torch(array) else array.transpose(*order)


def number(value: Any) -> float | None:
    """A number of any library as Python's."""
    return None if value is None else float(value)


def flags(causal: Any) -> Any:
    """vLLM's ``causal``: one flag, or a tensor of one a request. vLLM keeps flags as int32, too, where 0 is false."""
    if isinstance(causal, (bool, int, np.bool_)):
        return bool(causal)
    dtype = str(getattr(causal, "dtype", type(causal).__name__)).removeprefix("torch.")
    if dtype in ("bool", "uint8"):
        return causal
    if dtype in ("int32", "int64"):
        return causal != 0
    raise ArgumentError(f"causal: {dtype}, expected a bool, or a tensor of one flag a request (bool, uint8, int32 or int64)")
