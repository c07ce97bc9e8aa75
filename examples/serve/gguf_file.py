# SPDX-License-Identifier: Apache-2.0
"""A GGUF file, read by the `gguf` package: metadata as Python values, tensors as f32 arrays, one error for all that is wrong.

The package takes a file's counts at their word, so a file from a stranger may cost time and memory. SmolLM2's file is compared with its
sha256 (gguf_model.py). Keys, shapes and weights are checked here; the keys that a model needs are in gguf_model.py.
"""

from __future__ import annotations

import pathlib

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class GgufError(ValueError):
    """A GGUF file that cannot be used; the text names where, what was found and what was expected."""


class _Reader(GGUFReader):
    """Slices of a plain array are made in a third of the time that np.memmap's take, and a vocabulary is 250,000 slices."""

    @property
    def data(self) -> np.ndarray:
        return self._plain

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._plain = np.asarray(mapped)


class GgufFile:
    """Metadata as a dict, tensors by name, and `tensor(name, shape)` to read one as f32."""

    def __init__(self, path: str | pathlib.Path):
        self.path = str(path)
        try:
            reader = _Reader(path)
            self.metadata = {name: field.contents() for name, field in reader.fields.items()}
        except Exception as e:  # the package has no error of its own: damage ends in IndexError, KeyError, ValueError, ...
            raise GgufError(f"{self.path}: got {type(e).__name__} ({e}) from the gguf package, expected a GGUF file") from e
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def fail(self, where: str, got, expected) -> GgufError:
        return GgufError(f"{self.path}: {where}: got {got}, expected {expected}")

    def key(self, key: str, kind: type, low=None, high=None):
        """A metadata value of the wanted kind inside [low, high], or a GgufError."""
        if key not in self.metadata:
            raise self.fail(f"metadata {key!r}", "nothing", f"a {kind.__name__}")
        value = self.metadata[key]
        if type(value) is not kind:
            raise self.fail(f"metadata {key!r}", f"{type(value).__name__} {str(value)[:40]!r}", f"a {kind.__name__}")
        if low is not None and not low <= value <= high:  # a NaN compares false and is refused too
            raise self.fail(f"metadata {key!r}", value, f"{low} to {high}")
        return value

    def strings(self, key: str) -> list[str]:
        """A metadata value that is a list of strings, or a GgufError."""
        values = self.key(key, list)
        if not values or not all(type(v) is str for v in values):
            kind = type(values[0]).__name__ if values else "nothing"
            raise self.fail(f"metadata {key!r}", f"{len(values)} values of {kind}", "strings")
        return values

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor as a writable, contiguous f32 array; its shape must be the one given and all its values finite."""
        if name not in self.tensors:
            raise self.fail(f"tensor {name!r}", "nothing", f"shape {shape}")
        info = self.tensors[name]
        found = tuple(int(n) for n in reversed(info.shape))  # a file has the fastest dimension first
        if found != shape:
            raise self.fail(f"tensor {name!r} shape", found, shape)
        try:
            values = dequantize(info.data, info.tensor_type)
        except NotImplementedError as e:
            raise self.fail(f"tensor {name!r} type", info.tensor_type.name, "a type that the gguf package dequantises") from e
        values = np.array(values, np.float32).reshape(shape)
        if not np.isfinite(values).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise self.fail(f"tensor {name!r}{list(at)}", values[at], "a finite weight")
        return values
