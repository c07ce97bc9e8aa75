# SPDX-License-Identifier: Apache-2.0
"""Tensors as views of one piece of memory, with strides of every kind. A batch reaches a device in one copy.

An Arena collects arrays; build() lays them out in poisoned bytes; place() is the one step to a device; view() makes the array of a
library of each. The bytes between the elements of a view belong to nobody: nothing may write them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from elements import bits_type

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

ML_NAMES = {"bf16": "bfloat16", "fp8_e4m3fn": "float8_e4m3fn", "fp8_e4m3fnuz": "float8_e4m3fnuz", "fp8_e5m2": "float8_e5m2",
            "fp8_e5m2fnuz": "float8_e5m2fnuz"}  # fmt: skip
TORCH_NAMES = {**ML_NAMES, "f32": "float32", "f16": "float16", "i32": "int32", "i64": "int64", "i8": "int8"}
ALIGNMENT = 256


@dataclasses.dataclass
class View:
    """Strides and offset in elements; `reversed_axis` walks backwards, where the library can."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    reversed_axis: int = -1


@dataclasses.dataclass
class Form:
    """How far the views of a batch may stray: 0 contiguous and aligned, 1 gaps and odd addresses, 2 any order and step of axes."""

    level: int
    random: np.random.Generator

    def strides(self, shape: tuple[int, ...], keep_last: bool, gaps: bool = True) -> tuple[int, ...]:
        order, gap_rate = list(range(len(shape))), 0.3 if self.level and gaps else 0.0
        step = 1
        if self.level == 2:
            free = order[:-1] if keep_last else order
            order = [*map(int, self.random.permutation(free)), *order[len(free) :]]
            step = 1 if keep_last else int(self.random.choice([1, 1, 1, 2, 3]))
        strides = [0] * len(shape)
        for axis in reversed(order):
            strides[axis] = step
            gap = int(self.random.integers(1, 9)) if self.random.random() < gap_rate else 0
            step = step * max(1, shape[axis]) + gap
        return tuple(strides)


class Arena:
    def __init__(self, form: Form):
        self.form, self.size, self.views, self.values = form, 0, {}, {}

    def add(self, name: str, values: np.ndarray, dtype: str, keep_last: bool = False, align: int = 1) -> None:
        """`align`: rows of that many bytes begin at multiples of it."""
        strides = self.form.strides(values.shape, keep_last)
        if align > 1:
            strides = tuple(s if axis == values.ndim - 1 else -(-s // align) * align for axis, s in enumerate(strides))
            strides = nest(values.shape, strides)
        odd = int(self.form.random.integers(0, 8)) if self.form.level and align == 1 else 0
        turned = int(self.form.random.integers(0, values.ndim)) if self.form.level == 2 and values.ndim and self.form.random.random() < 0.1 else -1
        turned = -1 if keep_last and turned == values.ndim - 1 else turned
        self.put(name, values, View(dtype, values.shape, strides, odd, turned))

    def add_pair(self, names: tuple[str, str], values: tuple[np.ndarray, np.ndarray], dtype: str, axis: int, keep_last: bool = False) -> None:
        """Two arrays of one shape in turns along an axis: [pages, 2, ..] and the like, as vLLM keeps K and V. Without gaps: Q-S07 does not
        see that such views are apart where a gap makes a stride no multiple of another one."""
        shape = list(values[0].shape)
        shape.insert(axis, 2)
        strides = list(self.form.strides(tuple(shape), keep_last, gaps=False))
        between = strides.pop(axis)
        first = View(dtype, values[0].shape, tuple(strides), 0)
        self.put(names[0], values[0], first)
        self.views[names[1]] = dataclasses.replace(first, offset=first.offset + between)
        self.values[names[1]] = values[1]
        self.size += between * values[0].dtype.itemsize

    def put(self, name: str, values: np.ndarray, view: View) -> None:
        size = values.dtype.itemsize
        start = -(-self.size // ALIGNMENT) * ALIGNMENT
        view.offset += start // size
        reach = sum((n - 1) * s for n, s in zip(view.shape, view.strides)) if values.size else 0
        self.views[name], self.values[name] = view, values
        self.size = (view.offset + reach + 1) * size

    def share(self, name: str, other: str, shape: tuple[int, ...]) -> None:
        """A view of another one's first elements, as V of MLA's K."""
        of = self.views[other]
        of.reversed_axis = -1
        self.views[name] = dataclasses.replace(of, shape=shape)

    def bytes(self) -> int:
        return -(-max(1, self.size) // ALIGNMENT) * ALIGNMENT + ALIGNMENT

    def build(self, poison: int, backwards: bool) -> np.ndarray:
        """`backwards`: axes that are reversed are so; else they are stored forwards."""
        memory = np.full(self.bytes(), poison, np.uint8)
        for name, values in self.values.items():
            in_bits(memory, self.views[name], backwards)[...] = values
        return memory


def nest(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The same order of axes with strides that still nest after some were rounded up."""
    found, least = list(strides), 1
    for axis in sorted(range(len(shape)), key=lambda a: strides[a]):
        found[axis] = -(-max(strides[axis], least) // strides[axis]) * strides[axis]
        least = found[axis] * max(1, shape[axis])
    return tuple(found)


def in_bits(memory: np.ndarray, view: View, backwards: bool) -> np.ndarray:
    """The elements as bits, in host memory."""
    kind = np.dtype(bits_type(view.dtype))
    strides = tuple(s * kind.itemsize for s in view.strides)
    array = np.ndarray(view.shape, kind, buffer=memory, offset=view.offset * kind.itemsize if np.prod(view.shape) else 0, strides=strides)
    return np.flip(array, view.reversed_axis) if backwards and view.reversed_axis >= 0 else array


class Numpy:
    """Host memory without torch. Types beyond NumPy's need ml_dtypes."""

    name, backwards = "cpu", True

    def place(self, memory: np.ndarray) -> np.ndarray:
        return memory.copy()

    def view(self, memory: np.ndarray, view: View) -> np.ndarray:
        array = in_bits(memory, view, True)
        if view.dtype == "i8":
            return array.view(np.int8)
        return array.view(getattr(ml_dtypes, ML_NAMES[view.dtype])) if view.dtype in ML_NAMES else array

    def filled(self, size: int, byte: int) -> np.ndarray:
        return np.full(size, byte, np.uint8)

    def back(self, memories: list[np.ndarray]) -> list[np.ndarray]:
        return [memory.copy() for memory in memories]


class Torch:
    """Memory of torch, on a GPU or on the host. torch has no negative strides."""

    backwards = False

    def __init__(self, where: str):
        import torch

        self.torch, self.name = torch, where

    def place(self, memory: np.ndarray) -> Any:
        return self.torch.from_numpy(memory.copy()).to(self.name)

    def view(self, memory: Any, view: View) -> Any:
        kind = getattr(self.torch, TORCH_NAMES.get(view.dtype, "uint8"))
        return self.torch.as_strided(memory.view(kind), view.shape, view.strides, view.offset if np.prod(view.shape) else 0)

    def filled(self, size: int, byte: int) -> Any:
        return self.torch.full((size,), byte, dtype=self.torch.uint8, device=self.name)

    def back(self, memories: list[Any]) -> list[np.ndarray]:
        """Copies in host memory, of pieces of one size: one transfer, and one wait."""
        return list(self.torch.cat(memories).cpu().numpy().reshape(len(memories), -1)) if memories else []


def library(backend: str) -> Numpy | Torch:
    return Torch(backend) if backend != "cpu" else Numpy() if ml_dtypes is not None else Torch("cpu")
