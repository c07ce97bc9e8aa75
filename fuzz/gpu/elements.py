# SPDX-License-Identifier: Apache-2.0
"""Element types in NumPy, from their definitions: bits to fp64, f32 to bits, and pools of N(0,1) as bits.

Bits are float32 (f32), float16 (f16), uint16 (bf16) or uint8 (all others). Sources: OCP OFP8 rev. 1.0 (e4m3fn, e5m2), Noune et al.
2022, arXiv:2206.02915 (fnuz), OCP Microscaling Formats v1.0 (e2m1, e8m0). Nothing here calls quire.
"""

from __future__ import annotations

import functools

import numpy as np

FP8 = {"fp8_e4m3fn": (3, 7, False), "fp8_e4m3fnuz": (3, 8, True), "fp8_e5m2": (2, 15, False), "fp8_e5m2fnuz": (2, 16, True)}
FOUR_BITS = {"nvfp4": 16, "mxfp4": 32}  # elements of a block
EIGHT_BITS = (*FP8, "i8")
BITS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "i64": np.int64}
LARGEST = {"fp8_e4m3fn": 448.0, "fp8_e4m3fnuz": 240.0, "fp8_e5m2": 57344.0, "fp8_e5m2fnuz": 57344.0, "i8": 127.0}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
POOL = 1 << 20  # values of N(0,1) that a process draws once; tensors are slices of them


def bits_type(dtype: str) -> type:
    return BITS.get(dtype, np.uint8)


@functools.lru_cache(None)
def values_of(dtype: str) -> np.ndarray:
    """The values of all 256 codes; of 4 bits [256, 2], the low code first."""
    code = np.arange(256)
    if dtype in FOUR_BITS:
        e2m1 = np.concatenate([E2M1, -E2M1])
        return np.stack([e2m1[code & 15], e2m1[code >> 4]], -1)
    if dtype == "i8":
        return code.astype(np.uint8).view(np.int8).astype(np.float64)
    if dtype == "e8m0":
        return np.where(code == 255, np.nan, 2.0 ** (code - 127.0))
    mantissa_bits, bias, fnuz = FP8[dtype]
    magnitude = code & 127
    exponent, mantissa = magnitude >> mantissa_bits, magnitude % (1 << mantissa_bits)
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if fnuz:
        value = np.where(code == 128, np.nan, value)
    elif mantissa_bits == 3:
        value = np.where(magnitude == 127, np.nan, value)
    else:
        value = np.where(magnitude == 124, np.inf, np.where(magnitude > 124, np.nan, value))
    return np.where(code >= 128, -value, value)


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """fp64; of 4 bits the last axis becomes twice as long."""
    if dtype in ("f32", "f16"):
        return bits.astype(np.float64)
    if dtype == "bf16":
        with np.errstate(invalid="ignore"):  # signalling NaN
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    values = values_of(dtype)[bits]
    return values.reshape(*bits.shape[:-1], 2 * bits.shape[-1]) if dtype in FOUR_BITS else values


def nearest(magnitude: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The place of the nearest value of an ascending table, ties to the even place, the last place for all beyond."""
    middles = (table[:-1] + table[1:]) / 2
    low, high = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    return np.where(low % 2 == 0, low, high)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Bits of f32 values, rounded to nearest even. 8 bits and 4 bits saturate; 4 bits give one code a value, not yet two in a byte."""
    values = np.asarray(values, np.float32)
    if dtype == "f32":
        return values
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    if dtype == "i8":
        return np.rint(np.clip(np.where(np.isnan(values), 0, values), -127, 127)).astype(np.int8).view(np.uint8)
    magnitude, sign, wrong = np.abs(values).astype(np.float64), np.signbit(values), np.isnan(values)
    if dtype in FOUR_BITS:
        return np.where(wrong, 0, nearest(magnitude, E2M1) | sign * 8).astype(np.uint8)
    _, _, fnuz = FP8[dtype]
    table = values_of(dtype)[:128]
    code = nearest(np.where(wrong, 0, magnitude), table[np.isfinite(table)])
    signed = np.where((code == 0) & fnuz, 0, code | sign * 128)
    return np.where(wrong, 128 if fnuz else sign * 128 | 127, signed).astype(np.uint8)


def pair_up(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits as bytes of two."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def not_a_number(dtype: str) -> int | float:
    """The bits that a kernel must not read: NaN where the type has one, else its largest code."""
    return {"f32": np.nan, "f16": np.nan, "bf16": 0x7FC0, "fp8_e4m3fn": 0x7F, "fp8_e4m3fnuz": 0x80, "fp8_e5m2": 0x7E, "fp8_e5m2fnuz": 0x80,
            "i8": 0x80, "nvfp4": 0x77, "mxfp4": 0x77, "fp8_ds_mla": 0xFF}[dtype]  # fmt: skip


@functools.lru_cache(None)
def normal_pool(dtype: str, factor: float) -> np.ndarray:
    normal = np.random.default_rng(20261128).standard_normal(POOL, np.float32) * np.float32(factor)
    if dtype == "f64":
        return normal.astype(np.float64)
    return pair_up(encode(normal, dtype)) if dtype in FOUR_BITS else encode(normal, dtype)


def draw(random: np.random.Generator, dtype: str, shape: tuple[int, ...], factor: float = 1.0) -> np.ndarray:
    """N(0,1) times a factor as bits: a slice of the pool, repeated where it is too short."""
    pool, count = normal_pool(dtype, factor), int(np.prod(shape, dtype=np.int64))
    start = int(random.integers(0, max(1, len(pool) - count)))
    found = pool[start : start + count]
    return np.array(found if len(found) == count else np.resize(pool, count)).reshape(shape)
