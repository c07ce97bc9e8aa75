# SPDX-License-Identifier: Apache-2.0
"""K and V of types of their own, and caches of 4 bits, against dense fp64 attention over what is stored."""

import dense
import ml_dtypes
import numpy as np
import pytest
from gpus import needs_gpu, torch

import quire

PAGES, PAGE, HEADS, DIM, TOKENS = 6, 4, 2, 64, 13
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TABLE = np.array([[5, 0, 3, 2]], np.int32)
SLOTS = (TABLE[0, np.arange(TOKENS) // PAGE] * PAGE + np.arange(TOKENS) % PAGE).astype(np.int64)
BLOCKS = {"nvfp4": (16, ml_dtypes.float8_e4m3fn), "mxfp4": (32, ml_dtypes.float8_e8m0fnu)}


def rows(seed, heads, dtype=np.float32):
    data = np.random.default_rng(seed).standard_normal((TOKENS, heads, DIM))
    data *= 2.0 ** (np.arange(TOKENS) % 5)[:, None, None] * np.repeat([1, 0.25, 2, 0.5], DIM // 4)  # neighbours differ
    return data.astype(dtype)


def side(kind, as_bytes=False):
    """Codes and block scales, full of what must not be read."""
    if kind not in BLOCKS:
        dtype = np.dtype(getattr(ml_dtypes, kind) if kind.startswith(("float8", "bfloat")) else kind)
        return np.full((PAGES, PAGE, HEADS, DIM), 0x7F if dtype == np.int8 else np.nan, dtype), None
    size, scale = BLOCKS[kind]
    scales = np.full((PAGES, PAGE, HEADS, DIM // size), 0xFF, np.uint8)
    return np.full((PAGES, PAGE, HEADS, DIM // 2), 0x7F, np.uint8), scales if as_bytes else scales.view(scale)


def stored(kind, codes, blocks, scale=1.0):
    """Real values of the slots in use, from the definitions of the formats."""
    if kind not in BLOCKS:
        return codes.astype(np.float64).reshape(PAGES * PAGE, HEADS, DIM)[SLOTS] * scale
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(PAGES, PAGE, HEADS, DIM)
    values = E2M1[nibbles & 7] * np.where(nibbles & 8, -1, 1)
    factor = blocks.view(np.uint8) if kind == "mxfp4" else blocks.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    factor = 2.0 ** (factor.astype(np.float64) - 127) if kind == "mxfp4" else factor
    values = values * np.repeat(factor, DIM // factor.shape[-1], -1)
    return values.reshape(PAGES * PAGE, HEADS, DIM)[SLOTS] * scale


def close(query, out, k, v):
    exact, _, abs_pv, magnitude = dense.attention(query.astype(np.float64), k, v, 0)
    tolerance = 2.0**-24 * np.abs(exact) + 2.0**-24 * 64 * (1 + magnitude[..., None]) * abs_pv + 1e-30  # f32 flushes
    return np.all(np.abs(out.astype(np.float64) - exact) <= tolerance)


def batch_of(query):
    return quire.Batch(query=query, query_start_loc=[0, TOKENS], seq_lens=[TOKENS], block_table=TABLE)


@pytest.mark.parametrize("kinds", [("float8_e4m3fn", "bfloat16"), ("float32", "float8_e5m2"), ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"),
                                   ("float8_e4m3fn", "nvfp4"), ("mxfp4", "float16"), ("nvfp4", "mxfp4")])  # fmt: skip
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_append_and_attend(kinds, scaled, as_bytes):
    (k, k_blocks), (v, v_blocks) = (side(kind, as_bytes) for kind in kinds)
    names = [kinds[0], kinds[1]]
    k_scale, v_scale = (np.float32(0.75), np.float32(0.5)) if scaled else (None, None)
    cache = quire.KVCache(k, v, dtype=names[0], v_dtype=names[1], k_block_scale=k_blocks, v_block_scale=v_blocks,
                          k_scale=k_scale, v_scale=v_scale)  # fmt: skip
    key, value, query = rows(1, HEADS), rows(2, HEADS), rows(3, 2 * HEADS)
    quire.append(cache, key, value, SLOTS)
    batch = batch_of(query)
    assert quire.check(batch, cache, depth="contents").ok
    out = quire.attend(batch, cache)
    real = [stored(kind, codes, blocks, 1.0 if scale is None else float(scale))
            for kind, codes, blocks, scale in zip(kinds, (k, v), (k_blocks, v_blocks), (k_scale, v_scale), strict=True)]  # fmt: skip
    assert close(query, out, *real)
    for given, is_real, kind in zip((key, value), real, kinds, strict=True):  # stored rows are near the given ones
        step = {"nvfp4": 0.2, "mxfp4": 0.35, "bfloat16": 2**-8, "float16": 2**-10, "float32": 0}.get(kind, 0.13)
        assert np.abs(is_real - given).max() <= step * np.abs(given).max() + 1e-3
    assert quire.compare(out, None, quire.reference(batch, cache)).ok


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_block_scales_are_those_of_the_definition(kind):
    (k, k_blocks), (v, v_blocks) = side(kind), side(kind)
    key = rows(1, HEADS)
    quire.append(quire.KVCache(k, v, dtype=kind, k_block_scale=k_blocks, v_block_scale=v_blocks), key, key, SLOTS)
    size, scale = BLOCKS[kind]
    most = np.abs(key).reshape(TOKENS, HEADS, -1, size).max(-1)
    expected = (most / np.float32(6)).astype(scale) if kind == "nvfp4" else (2.0 ** (np.floor(np.log2(most.astype(np.float64))) - 2)).astype(scale)
    np.testing.assert_array_equal(k_blocks.reshape(PAGES * PAGE, HEADS, -1)[SLOTS].view(np.uint8), expected.view(np.uint8))


def test_torch_views_of_flashinfers_layout():
    """Both tensors of FlashInfer's kv_cache_sf in "HND" become views in Quire's order of axes."""
    torch = pytest.importorskip("torch")
    shape = (PAGES, HEADS, PAGE, DIM // 2)
    k, v = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
    sf = [torch.full((PAGES, HEADS, PAGE, DIM // 16), 0x7F, dtype=torch.uint8) for _ in "kv"]
    blocks = [t.view(torch.float8_e4m3fn).transpose(1, 2) for t in sf]
    cache = quire.KVCache(k, v, "hnd", dtype="nvfp4", k_block_scale=blocks[0], v_block_scale=blocks[1])
    assert (cache.dtype, cache.v_dtype, cache.head_dim, cache.v_head_dim) == ("nvfp4", "nvfp4", DIM, DIM)
    key, value, query = rows(1, HEADS), rows(2, HEADS), rows(3, 2 * HEADS)
    quire.append(cache, key, value, SLOTS)
    out = quire.attend(batch_of(query), cache)
    real = [stored("nvfp4", np.ascontiguousarray(codes.numpy().transpose(0, 2, 1, 3)),
                   np.ascontiguousarray(scales.numpy().transpose(0, 2, 1, 3))) for codes, scales in zip((k, v), sf, strict=True)]  # fmt: skip
    assert close(query, out, *real)


@needs_gpu
@pytest.mark.parametrize("kinds", [("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("float8_e4m3fn", "nvfp4"), ("mxfp4", "float16")])
def test_a_gpu_writes_the_same_bits_and_attends(kinds):
    (k, k_blocks), (v, v_blocks) = (side(kind, as_bytes=True) for kind in kinds)

    def on_gpu(array):  # codes as bytes: torch cannot import ml_dtypes
        return None if array is None else torch.from_numpy(array.view(np.uint8) if array.itemsize == 1 else array).cuda()

    names = {"dtype": kinds[0], "v_dtype": kinds[1]}
    there = [on_gpu(array) for array in (k, v, k_blocks, v_blocks)]
    cache = quire.KVCache(k, v, k_block_scale=k_blocks, v_block_scale=v_blocks, **names)
    gpu = quire.KVCache(there[0], there[1], k_block_scale=there[2], v_block_scale=there[3], **names)
    key, value, query = rows(1, HEADS), rows(2, HEADS), rows(3, 2 * HEADS)
    quire.append(cache, key, value, SLOTS)
    quire.append(gpu, on_gpu(key), on_gpu(value), on_gpu(SLOTS))
    for here, array in zip((k, v, k_blocks, v_blocks), there, strict=True):
        assert here is None or array.cpu().numpy().tobytes() == here.tobytes()
    lengths = {"query_start_loc": np.array([0, TOKENS]), "seq_lens": np.array([TOKENS]), "block_table": TABLE}
    batch = quire.Batch(query=on_gpu(query), **{name: on_gpu(array) for name, array in lengths.items()})
    assert quire.check(batch, gpu, depth="contents").ok
    out = quire.attend(batch, gpu).cpu().numpy()
    assert close(query, out, *(stored(kind, codes, blocks) for kind, codes, blocks in zip(kinds, (k, v), (k_blocks, v_blocks), strict=True)))


def test_rules_name_what_is_wrong():
    key = rows(1, HEADS)
    (k, k_blocks), (v, v_blocks) = side("nvfp4"), side("nvfp4")

    def append(**changes):
        given = {"k": k, "v": v, "dtype": "nvfp4", "k_block_scale": k_blocks, "v_block_scale": v_blocks, **changes}
        quire.append(quire.KVCache(given.pop("k"), given.pop("v"), **given), key, key, SLOTS)

    for changes, rule in (({"v_block_scale": None}, "Q-M52"), ({"k_block_scale": k_blocks[..., :2]}, "Q-M53"),
                          ({"v_block_scale": k_blocks}, "Q-S07"), ({"layout": "packed"}, "Q-M06")):  # fmt: skip
        with pytest.raises(quire.ContractError, match=rule):
            append(**changes)
    with pytest.raises(quire.ArgumentError, match="k_block_scale"):
        append(k_block_scale=k_blocks.view(ml_dtypes.float8_e5m2))
    with pytest.raises(quire.ArgumentError, match="given beside a cache of f16"):
        append(k=np.zeros((PAGES, PAGE, HEADS, DIM), np.float16), dtype=None, v_dtype="nvfp4")
    frozen = v_blocks.copy()
    frozen.flags.writeable = False
    with pytest.raises(quire.ArgumentError, match="v_block_scale: the array of scales is read-only"):
        append(v_block_scale=frozen)


def test_unlike_types_share_no_memory():
    bits = np.zeros((PAGES, PAGE, HEADS, DIM), np.uint8)
    cache = quire.KVCache(bits, bits, dtype="fp8_e4m3fn", v_dtype="fp8_e5m2")
    assert (cache.dtype, cache.v_dtype) == ("fp8_e4m3fn", "fp8_e5m2")
    with pytest.raises(quire.ContractError, match="Q-M21 cache.v: dtype fp8_e5m2, expected fp8_e4m3fn as cache.k, whose memory it shares"):
        quire.attend(batch_of(rows(3, 2 * HEADS)), cache)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_a_capture_keeps_codes_and_scales(tmp_path, kind):
    (k, k_blocks), (v, _) = side(kind), side("float32")
    cache = quire.KVCache(k, v, dtype=kind, v_dtype="f32", k_block_scale=k_blocks)
    key = rows(1, HEADS)
    quire.append(cache, key, key, SLOTS)
    batch = batch_of(rows(3, HEADS))
    quire.write_capture(tmp_path / "case.safetensors", batch, cache)
    case = quire.read_capture(tmp_path / "case.safetensors")
    assert (case.cache.dtype, case.cache.v_dtype) == (kind, "f32")
    np.testing.assert_array_equal(np.asarray(case.cache.k), k)
    np.testing.assert_array_equal(np.asarray(case.cache.k_block_scale).view(np.uint8), k_blocks.view(np.uint8))
    np.testing.assert_array_equal(quire.attend(case.batch, case.cache), quire.attend(batch, cache))


def test_problem_lines_have_two_types():
    case = quire.make_case("q=f32 kv=i8/mxfp4 heads=4:2 d=64 page=4 kscale=token reqs=3@20,1@9 seed=1")
    assert (case.cache.dtype, case.cache.v_dtype) == ("i8", "mxfp4")
    out = quire.attend(case.batch, case.cache)
    assert quire.compare(out, None, quire.reference(case.batch, case.cache)).ok
