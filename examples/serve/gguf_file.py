# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF file that nobody vouches for.

Every count, length and offset is checked against the bytes that are really there before anything is read through it, so a
truncated or hostile file ends in one `GgufError` that names the file, the place, what was found and what was expected.
Knows the container only; what a model needs is in gguf_model.py.
"""

from __future__ import annotations

import dataclasses
import mmap
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_NESTING = 4
DEFAULT_ALIGNMENT = 32

# Value types of a metadata entry: struct format for the scalars, then the two of variable size.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
# The least number of bytes that one value of a type takes; what an array's count is checked against.
MIN_BYTES = {**{t: struct.calcsize(f) for t, f in SCALARS.items()}, STRING: 8, ARRAY: 12}


class GgufError(ValueError):
    """A GGUF file that cannot be trusted or used; the text names where, what was found and what was expected."""


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # row-major: the reverse of the file's dims
    type: GGMLQuantizationType
    begin: int  # absolute byte range in the file
    end: int


class _Cursor:
    """A read position that cannot leave the file."""

    def __init__(self, data: mmap.mmap | bytes, path: str):
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def fail(self, where: str, got, expected) -> GgufError:
        return GgufError(f"{self.path}: {where}: got {got}, expected {expected}")

    def take(self, count: int, where: str) -> bytes:
        if count > self.size - self.at:
            raise self.fail(
                f"{where} at byte {self.at}", f"{count} bytes to read", f"at most the {self.size - self.at} left in the file"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, fmt: str, where: str):
        return struct.unpack(fmt, self.take(struct.calcsize(fmt), where))[0]

    def count(self, where: str, min_bytes: int) -> int:
        """A u64 count of items of at least min_bytes each: what does not fit into the rest of the file is refused here."""
        n = self.number("<Q", where)
        if n > (self.size - self.at) // min_bytes:
            raise self.fail(
                where, n, f"at most {(self.size - self.at) // min_bytes}, which is what the rest of the file can hold"
            )
        return n

    def string(self, where: str) -> str:
        start = self.at
        raw = self.take(self.count(f"{where} length", 1), where)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.fail(f"{where} at byte {start}", f"{raw[:16]!r}", "UTF-8") from e


def _read_value(cur: _Cursor, type_id: int, where: str, nesting: int = 0):
    if type_id in SCALARS:
        return cur.number(SCALARS[type_id], where)
    if type_id == STRING:
        return cur.string(where)
    if type_id != ARRAY:
        raise cur.fail(f"{where} value type", type_id, "a GGUF type, 0 to 12")
    if nesting == MAX_NESTING:
        raise cur.fail(where, f"arrays nested {nesting + 1} deep", f"at most {MAX_NESTING}")
    item = cur.number("<I", f"{where} array type")
    if item not in MIN_BYTES:
        raise cur.fail(f"{where} array type", item, "a GGUF type, 0 to 12")
    n = cur.count(f"{where} array length", MIN_BYTES[item])
    if item in SCALARS:
        fmt = SCALARS[item]
        return list(struct.unpack(f"<{n}{fmt[1]}", cur.take(n * struct.calcsize(fmt), where)))
    return [_read_value(cur, item, f"{where}[{i}]", nesting + 1) for i in range(n)]


def _read_metadata(cur: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for i in range(count):
        key = cur.string(f"metadata[{i}] key")
        if key in metadata:
            raise cur.fail(f"metadata[{i}] key", f"{key!r} a second time", "every key once")
        metadata[key] = _read_value(cur, cur.number("<I", f"metadata {key!r} type"), f"metadata {key!r}")
    return metadata


def _read_tensor_info(cur: _Cursor, i: int) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
    name = cur.string(f"tensor[{i}] name")
    where = f"tensor {name!r}"
    n_dims = cur.number("<I", f"{where} dims")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cur.fail(f"{where} number of dims", n_dims, f"1 to {MAX_DIMS}")
    dims = [cur.number("<Q", f"{where} dim {d}") for d in range(n_dims)]
    type_id = cur.number("<I", f"{where} type")
    try:
        qtype = GGMLQuantizationType(type_id)
    except ValueError as e:
        raise cur.fail(f"{where} type", type_id, "a ggml tensor type") from e
    block, block_bytes = GGML_QUANT_SIZES[qtype]
    if dims[0] == 0 or dims[0] % block:
        raise cur.fail(f"{where} dim 0", dims[0], f"a positive multiple of {qtype.name}'s block of {block}")
    elements = 1
    for d, n in enumerate(dims):
        elements *= n
        if n == 0 or elements >= 1 << 63:
            raise cur.fail(f"{where} dim {d}", n, "a shape of 1 to 2^63 - 1 elements")
    return name, tuple(reversed(dims)), qtype, cur.number("<Q", f"{where} offset"), elements // block * block_bytes


def _place_tensors(cur: _Cursor, infos: list, alignment: int) -> dict[str, TensorInfo]:
    data_begin = (cur.at + alignment - 1) // alignment * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, qtype, offset, size in infos:
        if name in tensors:
            raise cur.fail(f"tensor {name!r}", "the name a second time", "every tensor once")
        if offset % alignment:
            raise cur.fail(f"tensor {name!r} offset", offset, f"a multiple of the alignment {alignment}")
        if data_begin + offset + size > cur.size:
            raise cur.fail(
                f"tensor {name!r}",
                f"bytes [{data_begin + offset}, {data_begin + offset + size})",
                f"an end inside the file's {cur.size} bytes",
            )
        tensors[name] = TensorInfo(name, shape, qtype, data_begin + offset, data_begin + offset + size)
    in_order = sorted(tensors.values(), key=lambda t: t.begin)
    for a, b in zip(in_order, in_order[1:]):
        if b.begin < a.end:
            raise cur.fail(
                f"tensor {b.name!r}", f"bytes [{b.begin}, {b.end})", f"a start at or after the end of {a.name!r}, {a.end}"
            )
    return tensors


class GgufFile:
    """Metadata as a dict, tensor places as `TensorInfo`, and `tensor(name)` to read one as f32."""

    def __init__(self, path: str | pathlib.Path):
        self.path = str(path)
        with open(path, "rb") as f:
            empty = f.seek(0, 2) == 0
            self._data = b"" if empty else mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        cur = _Cursor(self._data, self.path)
        magic = cur.take(4, "magic")
        if magic != MAGIC:
            raise cur.fail("magic at byte 0", repr(magic), repr(MAGIC))
        version = cur.number("<I", "version")
        if version not in VERSIONS:
            raise cur.fail("version at byte 4", version, f"one of {VERSIONS}")
        tensor_count = cur.count("tensor count", 8 + 4 + 8 + 4 + 8)
        metadata_count = cur.count("metadata count", 8 + 4 + 1)
        self.metadata = _read_metadata(cur, metadata_count)
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise cur.fail("metadata 'general.alignment'", repr(alignment), "a power of two, at most 2^20")
        infos = [_read_tensor_info(cur, i) for i in range(tensor_count)]
        self.tensors = _place_tensors(cur, infos, alignment)

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

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor as a writable, contiguous f32 array; its shape must be the one given and all its values finite."""
        if name not in self.tensors:
            raise self.fail(f"tensor {name!r}", "nothing", f"shape {shape}")
        info = self.tensors[name]
        if info.shape != shape:
            raise self.fail(f"tensor {name!r} shape", info.shape, shape)
        raw = np.frombuffer(self._data, np.uint8, info.end - info.begin, info.begin)
        try:
            values = dequantize(raw, info.type)
        except NotImplementedError as e:
            raise self.fail(f"tensor {name!r} type", info.type.name, "a type that the gguf package dequantises") from e
        values = np.array(values, np.float32).reshape(shape)
        if not np.isfinite(values).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise self.fail(f"tensor {name!r}{list(at)}", values[at], "a finite weight")
        return values
