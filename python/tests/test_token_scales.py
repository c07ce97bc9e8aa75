# SPDX-License-Identifier: Apache-2.0
"""Caches of 8 bits whose tokens have scales of their own, against dense fp64 attention over what is stored."""

import dense
import ml_dtypes
import numpy as np
import pytest

import quire

PAGES, PAGE, HEADS, DIM, TOKENS = 6, 4, 2, 16, 13
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


def rows(seed, heads, dtype=np.float32):
    data = np.random.default_rng(seed).standard_normal((TOKENS, heads, DIM))
    data *= 2.0 ** (np.arange(TOKENS) % 5)[:, None, None]  # neighbours differ
    return data.astype(dtype)


def arrays(kv):
    """Codes beside each other and scales apart, full of what must not be read."""
    dtype = np.dtype(getattr(ml_dtypes, kv) if kv.startswith("float8") else kv)
    codes = [np.full((PAGES, PAGE, HEADS, DIM), 0x7F, np.uint8).view(dtype) for _ in range(2)]
    return *codes, *(np.full((PAGES, PAGE, HEADS), np.nan, np.float32) for _ in range(2))


def inside_of_pages():
    """vLLM's int8_per_token_head: [K codes, K scale, V codes, V scale] of a token and KV head, in bytes."""
    pages = np.full((PAGES, PAGE, HEADS, 2 * (DIM + 4)), 0x7F, np.int8)
    k, v = pages[..., :DIM], pages[..., DIM + 4 : 2 * DIM + 4]
    words = pages.view(np.float32)
    return k, v, words[..., DIM // 4], words[..., DIM // 2 + 1]


def stored(codes, scales, slots):
    flat = codes.astype(np.float64) * scales.astype(np.float64)[..., None]
    return flat.reshape(PAGES * PAGE, HEADS, DIM)[slots]


@pytest.mark.parametrize("kv", ["int8", "float8_e4m3fn", "inside"])
@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_append_and_attend(kv, source):
    k, v, k_scale, v_scale = inside_of_pages() if kv == "inside" else arrays(kv)
    cache = quire.KVCache(k, v, k_scale=k_scale, v_scale=v_scale)
    key, value, query = rows(1, HEADS, source), rows(2, HEADS, source), rows(3, 2 * HEADS, source)
    slots = np.random.default_rng(4).permutation(PAGES * PAGE)[:16].reshape(-1)
    table = np.array([[5, 0, 3, 2]], np.int32)
    slots = (table[0, np.arange(TOKENS) // PAGE] * PAGE + np.arange(TOKENS) % PAGE).astype(np.int64)
    quire.append(cache, key, value, slots)

    largest = LARGEST.get(kv, 127.0)
    for given, codes, scales in ((key, k, k_scale), (value, v, v_scale)):
        wide = given.astype(np.float32)
        expected = np.maximum(np.abs(wide).max(axis=2) / np.float32(largest), np.float32(2.0**-126))
        np.testing.assert_array_equal(scales.reshape(PAGES * PAGE, HEADS)[slots], expected)
        codes_of_rows = (wide / expected[..., None]).astype(codes.dtype) if kv.startswith("float8") else np.rint(wide / expected[..., None])
        np.testing.assert_array_equal(codes.reshape(PAGES * PAGE, HEADS, DIM)[slots].astype(np.float32), codes_of_rows.astype(np.float32))

    batch = quire.Batch(query=query, query_start_loc=[0, TOKENS], seq_lens=[TOKENS], block_table=table)
    assert quire.check(batch, cache, depth="contents").ok
    out = quire.attend(batch, cache)
    k_real, v_real = (stored(*side, slots) for side in ((k, k_scale), (v, v_scale)))
    exact, _, abs_pv, magnitude = dense.attention(query.astype(np.float64), k_real, v_real, 0)
    unit = {4: 2.0**-24, 2: 2.0**-11 if source is np.float16 else 2.0**-8}[np.dtype(source).itemsize]
    tolerance = unit * np.abs(exact) + 2.0**-24 * 64 * (1 + magnitude[..., None]) * abs_pv
    assert np.all(np.abs(out.astype(np.float64) - exact) <= tolerance)


def test_rules_name_what_is_wrong():
    k, v, k_scale, v_scale = arrays("int8")
    key = rows(1, HEADS)
    for scales, rule in (((None, v_scale), "Q-M50"), ((k_scale[:, :3], v_scale), "Q-M36"), ((k_scale, k_scale), "Q-S07")):
        with pytest.raises(quire.ContractError, match=rule):
            quire.append(quire.KVCache(k, v, k_scale=scales[0], v_scale=scales[1]), key, key, np.arange(TOKENS))
    half = k.astype(np.float16)
    with pytest.raises(quire.ContractError, match="Q-M51"):
        quire.append(quire.KVCache(half, half.copy(), k_scale=k_scale), key, key, np.arange(TOKENS))


def test_scales_must_be_written_somewhere():
    k, v, k_scale, v_scale = arrays("int8")
    key = rows(1, HEADS)
    with pytest.raises(quire.ArgumentError, match="k_scale"):
        quire.KVCache(k, v, k_scale=k_scale.tolist(), v_scale=v_scale)  # append() could not write into lists
    v_scale.flags.writeable = False
    with pytest.raises(quire.ArgumentError, match="v_scale: the array of scales is read-only"):
        quire.append(quire.KVCache(k, v, k_scale=k_scale, v_scale=v_scale), key, key, np.arange(TOKENS))


def test_int8_is_raw_bits_where_a_type_is_named():
    bits = np.zeros((1, 4, 1, 16), np.int8)
    assert quire.KVCache(bits, bits.copy(), dtype="fp8_e4m3fn").dtype == "fp8_e4m3fn"
    assert quire.KVCache(bits, bits.copy()).dtype == "i8"
    assert quire.KVCache(bits.view(np.uint8), bits.view(np.uint8).copy(), dtype="i8").dtype == "i8"


def test_a_capture_keeps_codes_and_scales(tmp_path):
    k, v, k_scale, v_scale = arrays("int8")
    cache = quire.KVCache(k, v, k_scale=k_scale, v_scale=v_scale)
    key = rows(1, HEADS)
    quire.append(cache, key, key, np.arange(TOKENS))
    batch = quire.Batch(query=rows(3, HEADS), query_start_loc=[0, TOKENS], seq_lens=[TOKENS], block_table=[[0, 1, 2, 3]])
    quire.write_capture(tmp_path / "case.safetensors", batch, cache)
    case = quire.read_capture(tmp_path / "case.safetensors")
    np.testing.assert_array_equal(np.asarray(case.cache.k), k)
    np.testing.assert_array_equal(np.asarray(case.cache.k_scale)[:3], k_scale[:3])
