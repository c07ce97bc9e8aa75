# SPDX-License-Identifier: Apache-2.0
"""Inputs of one recorded call as objects, and index tensors of any library as numbers."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from quire import _quire
from quire.errors import ArgumentError


def on_device(array: Any) -> bool:
    """Whether it is a tensor of torch outside host memory."""
    return not getattr(array, "is_cpu", True)


def numbers(array: Any, name: str) -> np.ndarray:
    """Index tensors and scales as NumPy; those on a device are copied, which waits for it."""
    if on_device(array) and sys.modules["torch"].cuda.is_current_stream_capturing():
        raise ArgumentError(f"{name}: this op reads its values on the host, which would wait; the stream is being captured in a graph")
    return _quire.bits(array.cpu() if on_device(array) else array, name)[0]


def f32_vector(array: Any, name: str) -> Any:
    """ALiBi slopes or sinks as f32; other float types only if every value survives."""
    if array is None:
        return None
    dtype = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if dtype not in ("float16", "bfloat16", "float64"):
        return array
    if on_device(array):
        return array.float()
    wide = array.float().numpy() if hasattr(array, "float") else np.asarray(array).astype(np.float32)
    if dtype == "float64" and not np.array_equal(wide.astype(np.float64), np.asarray(array)):
        raise ArgumentError(f"{name}: float64 values that float32 cannot hold")
    return wide


class Lengths(NamedTuple):
    """The index tensors as NumPy, with what follows from them; ``sound`` if the derived lengths mean anything."""

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    query_lens: np.ndarray
    sound: bool


def lengths_of(query_start_loc: Any, seq_lens: Any) -> Lengths:
    qsl = numbers(query_start_loc, "query_start_loc")
    seq = numbers(seq_lens, "seq_lens")
    if qsl.ndim != 1 or seq.ndim != 1 or qsl.size != seq.size + 1 or qsl.dtype.kind != "i" or seq.dtype.kind != "i":
        return Lengths(qsl, seq, np.zeros(0, np.int64), False)
    query_lens = np.diff(qsl.astype(np.int64))
    return Lengths(qsl, seq, query_lens, bool(np.all((query_lens >= 0) & (query_lens <= seq))))


class Inputs(NamedTuple):
    """Inputs of a call as objects, for quire.hooks."""

    batch: _quire.Batch
    cache: _quire.KVCache
    options: _quire.Options
    lengths: Lengths
    answered: np.ndarray | None = None
    """Requests whose rows the op writes; None = all."""
