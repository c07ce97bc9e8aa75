# SPDX-License-Identifier: Apache-2.0
"""Requests that are not causal, rows that stand elsewhere, shards of a context: against a dense softmax in float64."""

from __future__ import annotations

import numpy as np
import pytest

import quire
import quire_vllm.ops


def _batch(query_lens, seq_lens, seed=0, heads=4, kv_heads=2, dim=16, page=8, **more):
    """A batch over a cache whose every page is its own, and K and V of each request as [seq_len, kv_heads, dim]."""
    rng = np.random.default_rng(seed)
    pages_of = [-(-n // page) for n in seq_lens]
    num_pages = sum(pages_of) + 1
    k, v = rng.standard_normal((2, num_pages, page, kv_heads, dim), np.float32)
    order = rng.permutation(num_pages)
    table = np.full((len(seq_lens), max([1, *pages_of])), 2**30, np.int32)
    keys, values, at = [], [], 0
    for r, (n, used) in enumerate(zip(seq_lens, pages_of)):
        table[r, :used] = order[at : at + used]
        keys.append(k[table[r, :used]].reshape(-1, kv_heads, dim)[:n])
        values.append(v[table[r, :used]].reshape(-1, kv_heads, dim)[:n])
        at += used
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    query = rng.standard_normal((starts[-1], heads, dim), np.float32)
    lse = np.empty((starts[-1], heads), np.float32)
    batch = quire.Batch(
        query=query, query_start_loc=starts, seq_lens=np.array(seq_lens, np.int32), block_table=table, lse=lse, **more
    )
    return batch, quire.KVCache(k, v), keys, values


def _dense(query, keys, values, visible):
    """Softmax over the keys that ``visible`` [rows, keys] marks, in float64; 0 where there are none."""
    group = query.shape[1] // keys.shape[1]
    out, lse = np.zeros(query.shape), np.full(query.shape[:2], -np.inf)
    for h in range(query.shape[1]):
        scores = query[:, h].astype(np.float64) @ keys[:, h // group].astype(np.float64).T / np.sqrt(query.shape[2])
        weights = np.where(visible, np.exp(scores), 0)
        total = weights.sum(axis=1)
        some = total > 0
        out[some, h] = (weights[some] / total[some, None]) @ values[:, h // group].astype(np.float64)
        lse[some, h] = np.log(total[some])
    return out, lse


def _visible(q_begin, rows, key_begin, num_keys, causal, window=None, right=None):
    q, k = q_begin + np.arange(rows)[:, None], key_begin + np.arange(num_keys)[None, :]
    last = q if causal else np.inf if right is None else q + right
    return (k <= last) & (q - k < (np.inf if window is None else window))


def _expect(batch, out, r, expected):
    rows = slice(int(batch.query_start_loc[r]), int(batch.query_start_loc[r + 1]))
    np.testing.assert_allclose(out[rows], expected[0], atol=2e-5)
    np.testing.assert_allclose(batch.lse[rows], expected[1], atol=2e-5)


@pytest.mark.parametrize(("window", "right"), [(None, None), (5, 2), (None, 0), (3, None)])
def test_causal_by_request(window, right):
    query_lens, seq_lens, causal = [6, 9, 4, 3], [14, 9, 30, 0], [True, False, False, False]
    batch, cache, keys, values = _batch(query_lens, seq_lens, causal=causal)
    options = quire.Options(sliding_window=window, window_right=right)
    out = quire.attend(batch, cache, options)
    for r, flag in enumerate(causal):
        visible = _visible(seq_lens[r] - query_lens[r], query_lens[r], 0, seq_lens[r], flag, window, right)
        rows = slice(*batch.query_start_loc[r : r + 2])
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], visible))
    assert quire.compare(out, batch.lse, quire.reference(batch, cache, options)).ok


def test_one_flag_for_all():
    batch, cache, keys, values = _batch([7, 2], [7, 20])
    out = quire.attend(batch, cache, quire.Options(causal=False))
    for r in range(2):
        rows = slice(*batch.query_start_loc[r : r + 2])
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], np.ones((rows.stop - rows.start, len(keys[r])), bool)))


def test_positions_of_a_shard():
    begin, key_begin = np.array([40, 3]), np.array([16, 0], np.int64)
    batch, cache, keys, values = _batch([5, 12], [30, 9], q_begin=begin, key_begin=key_begin)
    out = quire.attend(batch, cache, quire.Options(sliding_window=20))
    for r in range(2):
        rows = slice(*batch.query_start_loc[r : r + 2])
        visible = _visible(begin[r], rows.stop - rows.start, key_begin[r], len(keys[r]), True, 20)
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], visible))


@pytest.mark.parametrize("kind", ["list", "bool", "uint8", "torch"])
def test_flags_may_be(kind):
    flags = {"list": [True, False], "bool": np.array([True, False]), "uint8": np.array([1, 0], np.uint8)}.get(kind)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        flags = torch.tensor([True, False])
    expected = None
    for given in (flags, np.array([1, 0], np.uint8)):
        batch, cache, *_ = _batch([5, 5], [9, 9], causal=given)
        out = np.asarray(quire.attend(batch, cache))
        expected = out if expected is None else expected
        np.testing.assert_array_equal(out, expected)


def test_wrong_flags_are_named():
    with pytest.raises(quire.ArgumentError, match=r"causal: False is one flag for all requests.*Options\(causal=False\)"):
        _batch([1], [1], causal=False)
    with pytest.raises(quire.ArgumentError, match=r"causal\[1\]: 1, expected True or False"):
        _batch([1, 1], [1, 1], causal=[True, 1])
    with pytest.raises(quire.ArgumentError, match="causal: dtype int64, expected bool or uint8"):
        _batch([1], [1], causal=np.array([1]))
    with pytest.raises(quire.ArgumentError, match="causal: 1 .*expected True or False"):
        quire.Options(causal=1)
    with pytest.raises(quire.ArgumentError, match=r"window_size=\(left, right\) is quire.Options\(sliding_window=left \+ 1"):
        quire.Options(window_size=(3, 0))


def test_rules_are_raised():
    batch, cache, *_ = _batch([5], [2])
    with pytest.raises(quire.ContractError, match="Q-T06"):
        quire.attend(batch, cache)
    batch, cache, *_ = _batch([5], [9], causal=np.array([7], np.uint8))
    with pytest.raises(quire.ContractError, match=r"Q-T18 causal\[0\]: 7"):
        quire.attend(batch, cache)
    batch, cache, *_ = _batch([5], [9])
    with pytest.raises(quire.ContractError, match="Q-M44"):
        quire.attend(batch, cache, quire.Options(window_right=3))


def test_a_capture_keeps_masks(tmp_path):
    batch, cache, *_ = _batch([5, 2], [9, 0], causal=[True, False], q_begin=[30, 4], key_begin=[24, 0])
    options = quire.Options(window_right=2)
    path = tmp_path / "masks.safetensors"
    quire.write_capture(path, batch, cache, options, np.asarray(quire.attend(batch, cache, options)))
    case = quire.read_capture(path)
    np.testing.assert_array_equal(case.batch.causal, [1, 0])
    np.testing.assert_array_equal(case.batch.q_begin, [30, 4])
    np.testing.assert_array_equal(case.batch.key_begin, [24, 0])
    assert case.options.causal and case.options.window_right == 2
    batch, cache, *_ = _batch([3], [9])
    quire.write_capture(path, batch, cache, quire.Options(causal=False), np.asarray(batch.query))
    assert quire.read_capture(path).options.causal is False


def test_a_target_is_asked_for_masks_only_if_it_says_so():
    lines = []

    class Target(quire.targets.Target):
        name = "recorder"

        def attend(self, batch, cache, options):
            lines.append((batch.causal is not None, options.causal, batch.q_begin is not None))
            return quire.attend(batch, cache, options)

    for masks in (False, True):
        lines.clear()
        Target.masks = masks
        quire.verify(Target(), matrices=["random"], random_cases=40, power=False, shrink=False)
        assert any(by_request or not causal or begin for by_request, causal, begin in lines) == masks


def _spans_of(spans, rows, keys, q_begin=0, key_begin=0):
    """[rows, keys]: both lie in one of the spans."""
    q, k = q_begin + np.arange(rows)[:, None], key_begin + np.arange(keys)[None, :]
    return np.any([(a <= q) & (q < b) & (a <= k) & (k < b) for a, b in spans], axis=0) if spans else np.zeros((rows, keys), bool)


@pytest.mark.parametrize("beyond", [False, True])
def test_spans_in_a_causal_prompt(beyond):
    query_lens, seq_lens, window = [30, 9], [40, 12], 6
    of = [[(3, 12), (20, 33)], [(0, 7)]]
    spans = np.array([[[3, 12], [20, 33]], [[0, 7], [0, 0]]], np.int32)
    batch, cache, keys, values = _batch(query_lens, seq_lens, spans=spans)
    options = quire.Options(sliding_window=window, spans_beyond_window=beyond)
    out = quire.attend(batch, cache, options)
    for r in range(2):
        rows = slice(*batch.query_start_loc[r : r + 2])
        begin = seq_lens[r] - query_lens[r]
        q, k = begin + np.arange(query_lens[r])[:, None], np.arange(seq_lens[r])[None, :]
        span = _spans_of(of[r], query_lens[r], seq_lens[r], begin)
        visible = (k <= q) & (q - k < window) | span & (beyond | (q - k < window))
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], visible))
    assert quire.compare(out, batch.lse, quire.reference(batch, cache, options)).ok


def test_first_keys_stay_visible_behind_a_window_whose_pages_are_gone():
    query_lens, seq_lens, window, prefix = [1, 5], [200, 90], 9, [4, 20]
    batch, cache, keys, values = _batch(query_lens, seq_lens, prefix_lens=prefix)
    out = quire.attend(batch, cache, quire.Options(sliding_window=window))
    for r in range(2):
        rows, begin = slice(*batch.query_start_loc[r : r + 2]), seq_lens[r] - query_lens[r]
        q, k = begin + np.arange(query_lens[r])[:, None], np.arange(seq_lens[r])[None, :]
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], (k <= q) & ((q - k < window) | (k < prefix[r]))))
    expected = out.copy()
    page = cache.page_size
    for r in range(2):  # pages between prefix and window are freed
        gone = slice(-(-prefix[r] // page), (seq_lens[r] - query_lens[r] - window + 1) // page)
        assert gone.stop > gone.start
        batch.block_table[r, gone] = 2**30
    np.testing.assert_array_equal(quire.attend(batch, cache, quire.Options(sliding_window=window)), expected)


def test_chunks_count_positions_of_the_sequence():
    query_lens, seq_lens, key_begin, chunk = [12, 3], [40, 30], [5, 0], 16
    batch, cache, keys, values = _batch(query_lens, seq_lens, key_begin=key_begin)
    out = quire.attend(batch, cache, quire.Options(attention_chunk=chunk))
    for r in range(2):
        rows, begin = slice(*batch.query_start_loc[r : r + 2]), key_begin[r] + seq_lens[r] - query_lens[r]
        q, k = begin + np.arange(query_lens[r])[:, None], key_begin[r] + np.arange(seq_lens[r])[None, :]
        _expect(batch, out, r, _dense(batch.query[rows], keys[r], values[r], (k <= q) & (k // chunk == q // chunk)))


def test_a_tree_of_draft_tokens():
    parents = [-1, 0, 0, 1, -1, 4, 2]  # parents of the nodes, in the order of the rows
    tree = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            tree[node] |= tree[parent]
    query_lens, seq_lens = [len(parents), 2], [50, 20]
    bits = np.zeros((sum(query_lens), 1), np.uint8)
    bits[: len(parents)] = np.packbits(tree, axis=1, bitorder="little")
    batch, cache, keys, values = _batch(query_lens, seq_lens, tree_mask=bits, tree_lens=[len(parents), 0])
    out = quire.attend(batch, cache)
    context = np.ones((len(parents), 50 - len(parents)), bool)
    _expect(batch, out, 0, _dense(batch.query[: len(parents)], keys[0], values[0], np.hstack([context, tree])))
    _expect(batch, out, 1, _dense(batch.query[len(parents) :], keys[1], values[1], _visible(18, 2, 0, 20, True)))
    assert quire.compare(out, batch.lse, quire.reference(batch, cache)).ok
    bits[: len(parents)] = np.packbits(tree, axis=1)  # packbits begins with the highest bit, tree_mask with the lowest
    with pytest.raises(quire.ContractError, match="Q-V09"):
        quire.attend(batch, cache)


def test_skipped_decode_rows_leave_the_flags_of_the_others():
    """context_attention_fwd runs neighbours of skipped requests as batches of their own, each with its part of the flags."""
    rng = np.random.default_rng(3)
    starts, lens = np.array([0, 3, 4, 6, 9], np.int32), np.array([6, 7, 5, 4], np.int32)
    q, k, v = (rng.standard_normal((9, 1, 8)).astype(np.float32) for _ in range(3))
    k_cache, v_cache = rng.standard_normal((8, 1, 2, 4, 4)).astype(np.float32), rng.standard_normal((8, 1, 8, 4)).astype(np.float32)
    table = np.arange(8, dtype=np.int32).reshape(4, 2)
    flags = np.array([False, True, True, False])

    def rows(causal, skip):
        out = np.full_like(q, np.nan)
        quire_vllm.ops.context_attention_fwd(
            q, k, v, out, "auto", k_cache, v_cache, table, starts, lens, None, 3, None, None, sm_scale=0.3, causal=causal, skip_decode=skip
        )
        return out

    whole, some = rows(flags, False), rows(flags, True)
    assert np.isnan(some[3]).all()
    assert np.array_equal(np.delete(some, 3, 0), np.delete(whole, 3, 0))
    assert not np.allclose(whole[6:], rows(True, False)[6:])
