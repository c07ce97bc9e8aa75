# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's fp8 rows of 656 bytes (vLLM's fp8_ds_mla), against dense attention in float64 over rows decoded here."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import quire
from quire import mla

PAGE_OF_DOCS = Path(__file__).parents[2] / "docs" / "guides" / "mla.md"
PAGES, PAGE, HEADS, TOKENS = 9, 8, 6, 43
TABLE = np.array([[5, 0, 7, 2, 8, 3]], np.int32)
SLOTS = (TABLE[0, np.arange(TOKENS) // PAGE] * PAGE + np.arange(TOKENS) % PAGE).astype(np.int64)
OPTIONS = quire.Options(softmax_scale=mla.softmax_scale(128, 64))
# A score is a sum of 576 products in f32: off by sqrt(576) * 2^-24 of the sum of magnitudes, which is 46 here. Values are 6 at most.
TOLERANCE = 24 * 2.0**-24 * 46 * 6


def drawn(seed, *shape, dtype=np.float32):
    data = np.random.default_rng(seed).standard_normal(shape)
    if shape[-1] == 512:
        data *= np.array([1.0, 4.0, 0.25, 2.0]).repeat(128)  # blocks differ
    return data.astype(dtype)


def poisoned():
    return np.full((PAGES, PAGE, mla.ROW_BYTES), 0xFF, np.uint8)  # NaN in each part of a row


def decoded(rows):
    """[slots, 576] in float64: codes times the scale of their block, then the RoPE part."""
    flat = rows.reshape(-1, mla.ROW_BYTES)
    codes = flat[:, :512].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    scales = np.ascontiguousarray(flat[:, 512:528]).view(np.float32).astype(np.float64)
    rope = np.ascontiguousarray(flat[:, 528:]).view(ml_dtypes.bfloat16).astype(np.float64)
    return np.concatenate([codes * scales.repeat(128, axis=1), rope], axis=1)


def dense(query, rows, slots):
    """Causal attention of the last rows over rows of `slots`."""
    keys = decoded(rows)[slots]
    first = len(slots) - len(query)
    out = np.empty((*query.shape[:2], 512))
    for i, q in enumerate(query.astype(np.float64)):
        scores = q @ keys[: first + i + 1].T * OPTIONS.softmax_scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[i] = weights / weights.sum(axis=1, keepdims=True) @ keys[: first + i + 1, :512]
    return out


def batch_of(query, tokens=TOKENS):
    return quire.Batch(query=query, query_start_loc=[0, len(query)], seq_lens=[tokens], block_table=TABLE)


@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_append_writes_what_vllm_writes(source):
    rows = poisoned()
    c_kv, k_rope = drawn(1, TOKENS, 512, dtype=source), drawn(2, TOKENS, 64, dtype=source)
    mla.append(rows, c_kv, k_rope, SLOTS, dtype=mla.ROWS)
    written = rows.reshape(-1, mla.ROW_BYTES)[SLOTS]
    wide = c_kv.astype(np.float32).reshape(TOKENS, 4, 128)
    scales = np.abs(wide).max(axis=2) / np.float32(448)
    np.testing.assert_array_equal(np.ascontiguousarray(written[:, 512:528]).view(np.float32), scales)
    codes = (wide / scales[..., None]).astype(ml_dtypes.float8_e4m3fn).reshape(TOKENS, 512)
    np.testing.assert_array_equal(written[:, :512], codes.view(np.uint8))
    np.testing.assert_array_equal(written[:, 528:], np.ascontiguousarray(k_rope.astype(ml_dtypes.bfloat16)).view(np.uint8))
    others = np.delete(rows.reshape(-1, mla.ROW_BYTES), SLOTS, axis=0)
    assert (others == 0xFF).all()


@pytest.mark.parametrize("rows_of_query", [1, 20])
def test_attend(rows_of_query):
    rows = poisoned()
    mla.append(rows, drawn(1, TOKENS, 512), drawn(2, TOKENS, 64), SLOTS, dtype=mla.ROWS)
    query = drawn(3, rows_of_query, HEADS, 576)
    cache = mla.cache(rows, 512, dtype=mla.ROWS)
    assert (cache.head_dim, cache.v_head_dim) == (576, 512)
    out = quire.attend(batch_of(query), cache, OPTIONS)
    np.testing.assert_allclose(out, dense(query, rows, SLOTS), atol=TOLERANCE)
    assert quire.compare(out, None, quire.reference(batch_of(query), cache, OPTIONS)).ok


def test_scales_that_are_powers_of_two_are_read_as_they_stand():
    """As FlashMLA's own quantiser writes them: rounded up, at least 2^-13."""
    rows = poisoned()
    flat = rows.reshape(-1, mla.ROW_BYTES)
    c_kv, k_rope = drawn(1, TOKENS, 4, 128), drawn(2, TOKENS, 64)
    scales = np.exp2(np.ceil(np.log2(np.maximum(np.abs(c_kv).max(axis=2) / 448, 1e-4)))).astype(np.float32)
    flat[SLOTS, :512] = (c_kv / scales[..., None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8).reshape(TOKENS, 512)
    flat[SLOTS, 512:528] = scales.view(np.uint8).reshape(TOKENS, 16)
    flat[SLOTS, 528:] = k_rope.astype(ml_dtypes.bfloat16).view(np.uint8).reshape(TOKENS, 128)
    query = drawn(3, 1, HEADS, 576)
    out = quire.attend(batch_of(query), mla.cache(rows, 512, dtype=mla.ROWS), OPTIONS)
    np.testing.assert_allclose(out, dense(query, rows, SLOTS), atol=TOLERANCE)


def test_lists_of_slots_are_flashmlas_sparse_decode():
    rows = poisoned()
    mla.append(rows, drawn(1, TOKENS, 512), drawn(2, TOKENS, 64), SLOTS, dtype=mla.ROWS)
    query = drawn(3, 1, HEADS, 576)
    chosen = SLOTS[np.random.default_rng(4).permutation(TOKENS)[:17]]
    lists = quire.sparse.key_lists(np.concatenate([chosen, [-1, -1]])[None].astype(np.int32))
    cache = mla.cache(rows, 512, dtype=mla.ROWS)
    step = quire.sparse.plan(batch_of(query), cache, OPTIONS, lists=lists)
    out = quire.sparse.attend(batch_of(query), cache, OPTIONS, lists=lists, plan=step)
    np.testing.assert_allclose(out, dense(query, rows, chosen), atol=TOLERANCE)


def test_torch_tensors_are_views():
    torch = pytest.importorskip("torch")
    rows = torch.full((PAGES, PAGE, mla.ROW_BYTES), 0xFF, dtype=torch.uint8)
    c_kv, k_rope = (torch.from_numpy(drawn(i, TOKENS, n)).to(torch.bfloat16) for i, n in ((1, 512), (2, 64)))
    mla.append(rows, c_kv, k_rope, torch.from_numpy(SLOTS), dtype=mla.ROWS)
    query = torch.from_numpy(drawn(3, 1, HEADS, 576)).to(torch.bfloat16)
    out = quire.attend(batch_of(query), mla.cache(rows, 512, dtype=mla.ROWS), OPTIONS)
    np.testing.assert_allclose(out.float().numpy(), dense(query.float().numpy(), rows.numpy(), SLOTS), atol=0.03)


def test_a_capture_holds_the_rows(tmp_path):
    rows = poisoned()
    mla.append(rows, drawn(1, TOKENS, 512), drawn(2, TOKENS, 64), SLOTS, dtype=mla.ROWS)
    query, cache = drawn(3, 2, HEADS, 576), mla.cache(rows, 512, dtype=mla.ROWS)
    out = quire.attend(batch_of(query), cache, OPTIONS)
    quire.write_capture(tmp_path / "rows.safetensors", batch_of(query), cache, OPTIONS, observed=out)
    case = quire.read_capture(tmp_path / "rows.safetensors")
    assert case.cache.head_dim == 576
    assert quire.compare(out, None, quire.reference(case.batch, case.cache, case.options)).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: {"latent": rows[:, :, :576]}, r"\[9, 8, 576\], expected \[num_pages, page_size, 656\]"),
        (lambda rows: {"rank": 448}, "rank: 448"),
        (lambda rows: {"scale": 0.5}, "rows hold their scales"),
        (lambda rows: {"latent": rows.astype(np.float32)}, "float32"),
    ],
)
def test_what_is_no_such_cache(change, said):
    given = {"latent": poisoned(), "rank": 512, "dtype": mla.ROWS}
    given.update(change(given["latent"]))
    with pytest.raises(quire.ArgumentError, match=said):
        mla.cache(given.pop("latent"), given.pop("rank"), **given)


def test_rules():
    rows = poisoned()
    mla.append(rows, drawn(1, TOKENS, 512), drawn(2, TOKENS, 64), SLOTS, dtype=mla.ROWS)
    query = drawn(3, 1, HEADS, 576)
    with pytest.raises(quire.ContractError, match="Q-R04"):
        mla.append(rows, drawn(1, TOKENS, 576), drawn(2, TOKENS, 64), SLOTS, dtype=mla.ROWS)
    with pytest.raises(quire.ContractError, match="Q-R02"):
        aside = np.zeros(PAGES * PAGE * mla.ROW_BYTES + 8, np.uint8)[8:].reshape(rows.shape)
        quire.attend(batch_of(query), mla.cache(aside, 512, dtype=mla.ROWS), OPTIONS)
    with pytest.raises(quire.ContractError, match="Q-R03"):
        four = rows[:, :, None, :]
        quire.attend(batch_of(query), quire.KVCache(four, four, k_scale=0.5, dtype=mla.ROWS), OPTIONS)
    rows.reshape(-1, mla.ROW_BYTES)[SLOTS[7], 516:520] = 0
    findings = quire.check(batch_of(query), mla.cache(rows, 512, dtype=mla.ROWS), OPTIONS, depth="contents")
    assert [f.rule for f in findings] == ["Q-R05"]


def test_the_program_of_the_page(capsys):
    (source, printed) = re.findall(r"test_latent_rows.py -->\n```python\n(.*?)```\n\n```text\n(.*?)```", PAGE_OF_DOCS.read_text(), re.DOTALL)[0]
    exec(source, {})
    assert capsys.readouterr().out == printed
