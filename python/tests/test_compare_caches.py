# SPDX-License-Identifier: Apache-2.0
"""compare_caches(): captures, cases and caches with tables; views with any strides; public reports of caches after a transfer."""

import json

import numpy as np
import pytest

import quire
from quire.__main__ import main

LINE = "q=f32 heads=8:4 d=64 page=16 reqs=1@99,1@62,1@39"


@pytest.fixture
def source():
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 17, 16, 4, 64)).astype(np.float32)
    table = np.full((3, 7), -1)
    ids = rng.permutation(17)
    table[0, :7], table[1, :4], table[2, :3] = ids[:7], ids[7:11], ids[11:14]
    return k, v, table, np.array([100, 63, 40])


def compared(a, b, source, **heads):
    _, _, table, lengths = source
    return quire.compare_caches((quire.KVCache(*a), table, lengths), (quire.KVCache(*b), table, lengths), **heads)


def test_virtual_page_ids_sent_as_physical_ones(source):
    k, v, _, _ = source
    p = np.random.default_rng(5).permutation(17)
    result = compared((k, v), (k[p], v[p]), source)
    assert not result and any("whole pages stand in another order" in line for line in result.summary)
    assert all(len(line) <= 80 for line in str(result).splitlines())
    assert json.loads(result.json)["counts"] == result.counts and sum(result.counts.values()) == result.rows == 203 * 8


@pytest.mark.parametrize("ranks", [1, 2])
def test_heads_cut_by_bytes_of_a_page(source, ranks):
    """TP 1 to TP 2 without cutting heads: asked of the whole source, and of what the rank should have had."""
    k, v, _, _ = source
    half = [np.ascontiguousarray(side.reshape(17, -1)[:, : 16 * 2 * 64]).reshape(17, 16, 2, 64) for side in (k, v)]
    expected = (k, v) if ranks == 1 else (np.ascontiguousarray(k[:, :, :2]), np.ascontiguousarray(v[:, :, :2]))
    assert "tokens 0-7 of 4 heads read as 16 tokens of 2" in " ".join(compared(expected, half, source).summary)


def test_two_kv_heads_have_one_shape_in_both_orders(source):
    """With page_size 2 and 2 KV heads, or 16 and 16, nhd and hnd have the same shape: only contents tell."""
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 9, 16, 16, 64)).astype(np.float32)
    tables = np.arange(6).reshape(2, 3), np.array([48, 33])
    transposed = quire.KVCache(*(np.ascontiguousarray(side.transpose(0, 2, 1, 3)) for side in (k, v)))
    result = quire.compare_caches((quire.KVCache(k, v), *tables), (transposed, *tables))
    assert "hnd read as nhd" in " ".join(result.summary)
    right = quire.KVCache(*(np.ascontiguousarray(side.transpose(0, 2, 1, 3)) for side in (k, v)), layout="hnd")
    assert quire.compare_caches((quire.KVCache(k, v), *tables), (right, *tables))


def test_k_and_v_axis_taken_for_the_axis_of_heads():
    """[2, pages, size, heads, dim] written as [heads, pages, size, 2, dim]: with 2 heads the shapes are equal."""
    both = np.random.default_rng(2).standard_normal((2, 5, 16, 2, 64)).astype(np.float32)
    mixed = np.ascontiguousarray(both.transpose(3, 1, 2, 0, 4))
    tables = np.array([[0, 1, 2]]), np.array([48])
    text = str(quire.compare_caches((quire.KVCache(*both), *tables), (quire.KVCache(*mixed), *tables)))
    assert "request 0, head 1, K: in V, head 0" in text and "request 0, head 0, V: in K, head 1" in text


def test_strides_and_layouts_do_not_matter(source):
    k, v, _, _ = source
    both = np.stack([k, v], axis=1)
    assert compared((k, v), (both[:, 0], both[:, 1]), source)
    assert compared((k, v), (np.pad(k, ((0, 0),) * 3 + ((0, 5),))[..., :64], v[::-1][::-1]), source)


def test_captures_cases_and_batches(tmp_path, capfd):
    case, other = quire.make_case(LINE), quire.make_case(LINE + " layout=hnd")
    path = tmp_path / "case.safetensors"
    quire.write_capture(path, case)
    for a, b in ((case, other), (path, other), (str(path), (other.batch, other.cache))):
        assert quire.compare_caches(a, b).same
    assert main(["compare-caches", str(path), LINE + " layout=hnd"]) == 0
    assert "same     all 1624 rows are identical" in capfd.readouterr().out
    assert main(["compare-caches", str(path), LINE + " seed=7"]) == 1
    assert main(["compare-caches", str(path), LINE + " kv=f16"]) in (0, 2)
    capfd.readouterr()
    assert main(["compare-caches", str(path), str(tmp_path / "none.safetensors")]) == 3


def test_heads_of_a_rank(source):
    k, v, _, _ = source
    rank = tuple(np.ascontiguousarray(side[:, :, 2:]) for side in (k, v))
    assert compared(rank, (k, v), source, heads_of_a=[2, 3])
    assert "heads 0-1 are in heads 2-3 of B" in " ".join(compared(rank, (k, v), source).summary)


def test_wrong_calls_say_what_is_wrong(source):
    k, v, table, lengths = source
    cache = quire.KVCache(k, v)
    for a, text in (
        ((cache, table), r"a: a tuple of 2, expected \(batch, cache\), \(cache, block_table, lengths\)"),
        ((cache, table, lengths + 100), r"a.lengths\[0\]: 200 outside \[0, 112\], the positions of 7 pages of 16"),
        ((cache, table[0], lengths), "a.block_table: "),
    ):
        with pytest.raises(quire.ArgumentError, match=text):
            quire.compare_caches(a, (cache, table, lengths))
    with pytest.raises(quire.ArgumentError, match="b.heads: 3 numbers, expected one for each of 4 KV heads"):
        quire.compare_caches((cache, table, lengths), (cache, table, lengths), heads_of_b=[0, 1, 2])
