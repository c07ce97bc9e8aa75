# SPDX-License-Identifier: Apache-2.0
"""append(): new rows for the cache of a batch, and the bytes that they become, by a quantiser of its own.

The rules are those of include/quire/cache.hpp: f32 divisions, round to nearest even, scales of tokens, of blocks and of latent rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from elements import EIGHT_BITS, FOUR_BITS, LARGEST, decode, draw, encode, pair_up, values_of
from views import Arena, Form

if TYPE_CHECKING:
    from batches import Batch

F32 = np.float32
LEAST_SCALE = F32(2.0**-126)


class Rows:
    """Keys, values and their slots as bits: any type of rows, some NaN, some skipped."""

    def __init__(self, batch: Batch, dtype: str | None = None):
        random = np.random.default_rng([batch.seed, 99])
        s = batch.sides
        self.dtype = dtype or ("f32" if "f32" in (s.k, s.v) else str(random.choice(["f32", "f16", "bf16"])))
        count, slots = int(random.integers(0, 40)), batch.arrays["k"].shape[0] * s.page
        dims = (512, 64) if s.k == "fp8_ds_mla" else (s.dim, s.v_dim)
        factor = float(random.choice([1.0, 30.0, 0.01]))
        self.bits = [draw(random, self.dtype, (count, s.kv_heads, dim), factor) for dim in dims]
        for bits in self.bits:
            if count and random.random() < 0.2:
                bits[int(random.integers(0, count)), 0, : bits.shape[2] // 3] = 0
            if count and random.random() < 0.15:
                bits[int(random.integers(0, count)), 0, 0] = 0x7FC0 if self.dtype == "bf16" else np.nan
        chosen = random.permutation(slots)[:count]
        self.slots = np.full(count, -1, np.int64 if random.random() < 0.5 else np.int32)
        self.slots[: len(chosen)] = chosen
        self.slots[random.random(count) < 0.1] = -int(random.integers(1, 1 << 20))
        self.arena = Arena(Form(batch.given["views"], random))
        for name, bits in zip(("key", "value"), self.bits):
            self.arena.add(name, bits, self.dtype)
        self.arena.add("slots", self.slots, "i64" if self.slots.dtype == np.int64 else "i32")


def quotient(values: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (values / np.asarray(scale, F32)).astype(F32)


def largest_of(values: np.ndarray) -> np.ndarray:
    """max |x| of the last axis; NaN if one of it is not finite."""
    size = np.abs(values)
    return np.where(np.isfinite(size).all(axis=-1), size.max(axis=-1), F32(np.nan))


def row_scale(values: np.ndarray, dtype: str) -> np.ndarray:
    most = quotient(largest_of(values), LARGEST[dtype])
    return np.where(np.isnan(most), most, np.maximum(most, LEAST_SCALE)).astype(F32)


def in_blocks(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of two codes, and codes of block scales."""
    size = FOUR_BITS[dtype]
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // size, size)
    most = largest_of(blocks)
    if dtype == "nvfp4":
        codes = encode(quotient(most, 6), "fp8_e4m3fn")
        codes = np.where(np.isnan(most), 0x7F, codes).astype(np.uint8)
        scale = values_of("fp8_e4m3fn")[codes]
    else:
        exponent = np.where(np.isnan(most), 0, most).astype(F32).view(np.uint32) >> 23
        codes = np.where(np.isnan(most), 255, np.maximum(exponent.astype(np.int64) - 2, 0)).astype(np.uint8)
        scale = values_of("e8m0")[codes]
    usable = (scale > 0)[..., None]
    elements = encode(quotient(blocks, np.where(usable, scale[..., None], 1)), dtype)
    return pair_up(np.where(usable, elements, 0).astype(np.uint8).reshape(values.shape)), codes


def latent(key: np.ndarray, value: np.ndarray) -> np.ndarray:
    blocks = key.reshape(*key.shape[:-1], 4, 128)
    scales = row_scale(blocks, "fp8_e4m3fn")
    codes = encode(quotient(blocks, scales[..., None]), "fp8_e4m3fn").reshape(key.shape)
    return np.concatenate([codes, scales.view(np.uint8).reshape(*key.shape[:-1], 16), encode(value, "bf16").view(np.uint8).reshape(*value.shape[:-1], 128)], axis=-1)  # fmt: skip


def after(batch: Batch, rows: Rows) -> dict[str, np.ndarray]:
    """The arrays of the cache as append() leaves them, in the order of "nhd"."""
    s, found = batch.sides, {}
    written = rows.slots >= 0
    page, offset = rows.slots[written] // s.page, rows.slots[written] % s.page
    key, value = (decode(bits[written], rows.dtype).astype(F32) for bits in rows.bits)
    if s.k == "fp8_ds_mla":
        found["k"] = batch.arrays["k"].copy()
        found["k"][page, offset] = latent(key, value)
        return found
    for side, dtype, values in (("k", s.k, key), ("v", s.v, value)):
        codes, scale = batch.arrays[side].copy(), batch.arrays.get(f"{side}_scale")
        if scale is not None and scale.ndim == 3:
            new = row_scale(values, dtype)
            found[f"{side}_scale"] = scale.copy()
            found[f"{side}_scale"][page, offset] = new
            values = quotient(values, new[..., None])
        elif scale is not None:
            values = quotient(values, scale[..., None])
        if dtype in FOUR_BITS:
            stored, blocks = in_blocks(values, dtype)
            found[f"{side}_block_scale"] = batch.arrays[f"{side}_block_scale"].copy()
            found[f"{side}_block_scale"][page, offset] = blocks
        else:
            stored = encode(values, dtype)
        codes[page, offset] = stored
        found[side] = codes
    return found


def same_bits(observed: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    """bool: the same bits, or both NaN."""
    both_nan = np.zeros(observed.shape, bool)
    if dtype in ("f32", "f16", "bf16", *EIGHT_BITS[:4]):
        both_nan = np.isnan(decode(observed, dtype)) & np.isnan(decode(expected, dtype))
    unsigned = {4: np.uint32, 2: np.uint16, 1: np.uint8}[observed.dtype.itemsize]
    return (np.ascontiguousarray(observed).view(unsigned) == np.ascontiguousarray(expected).view(unsigned)) | both_nan
