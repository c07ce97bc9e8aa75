# SPDX-License-Identifier: Apache-2.0
"""Ledgers with digests: what changed behind the ledger's back is found, in every type and layout; moves are followed."""

import numpy as np
import pytest

import quire

ml_dtypes = pytest.importorskip("ml_dtypes")


def rows(n, heads=2, dims=64, seed=0):
    return np.random.default_rng(seed).standard_normal((2, n, heads, dims)).astype(np.float32)


def nhd(n, size, heads, dims, dtype):
    return tuple(np.zeros((n, size, heads, dims), dtype) for _ in range(2))


def interleaved(n, size, heads, dims, dtype):
    both = np.zeros((n, 2, size, heads, dims), dtype)
    return both[:, 0], both[:, 1]


def hnd(n, size, heads, dims, dtype):
    return tuple(np.zeros((n, heads, size, dims + 3), dtype)[..., :dims] for _ in range(2))


def packed(n, size, heads, dims, dtype):
    x = 16 // np.dtype(dtype).itemsize
    return np.zeros((n, heads, dims // x, size, x), dtype), np.zeros((n, heads, dims, size), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("make,layout", [(nhd, "nhd"), (interleaved, "nhd"), (hnd, "hnd"), (packed, "packed")])
@pytest.mark.parametrize("size,heads", [(4, 1), (16, 2)])
def test_every_byte_behind_the_ledger_is_found(dtype, make, layout, size, heads):
    n = 14
    k, v = make(9, size, heads, 64, dtype)
    cache, ledger = quire.KVCache(k, v, layout=layout), quire.SlotLedger(9, size, digests=True)
    slots = np.arange(2 * size, 2 * size + n)
    ids = np.ones(n, int)
    quire.append(cache, *rows(n, heads), slots, ledger=ledger, request_ids=ids, positions=np.arange(n))
    pages = -(-n // size)
    batch = quire.Batch(query=rows(1, 2 * heads)[0], query_start_loc=[0, 1], seq_lens=[n], block_table=[2 + np.arange(pages)], request_ids=[1])
    assert quire.check(batch, cache, ledger=ledger).ok
    for name, side in (("K", k), ("V", v)):
        page, offset = 2 + 11 // size, 11 % size
        at = {"nhd": (page, offset, -1, -1), "hnd": (page, -1, offset, -1)}.get(layout, (page, -1, -1, offset, -1)[: side.ndim])
        before = side[at]
        side[at] = -before
        found = quire.check(batch, cache, ledger=ledger)
        assert [f.rule for f in found] == ["Q-L07"]
        assert f"position 11 from page {page} offset {offset}, which was written by request 1 for position 11 in step 0, {name} changed" in str(found)
        assert quire.check(batch, cache, depth="tables", ledger=ledger).ok
        side[at] = before


def moved(ledger, **tags):
    """Positions 0 to 13 of request 1 in slots 40 to 53; slot 52 was accepted as position 11, and belongs in slot 51."""
    k, v = np.zeros((2, 64, 4, 2, 64), np.float32)
    cache = quire.KVCache(k, v)
    quire.append(cache, *rows(14), np.arange(40, 54), ledger=ledger, request_ids=np.ones(14, int), positions=np.arange(14))
    ledger.begin_step(3)
    ledger.move(np.array([52], np.int32), np.array([51], np.int64), **tags)
    batch = quire.Batch(query=rows(1, 8)[0], query_start_loc=[0, 1], seq_lens=[12], block_table=[[10, 11, 12]], request_ids=[1])
    return k.reshape(-1, 2, 64), v.reshape(-1, 2, 64), batch, cache


def test_a_move_that_takes_slots_for_pages_is_found():
    ledger = quire.SlotLedger(64, 4, digests=True)
    k, v, batch, cache = moved(ledger, positions=[11])
    cache.k[51], cache.v[51] = cache.k[52], cache.v[52]  # page 52 to page 51
    assert str(quire.check(batch, cache, ledger=ledger)) == (
        "Q-L07 block_table[0][2]: request 1 reads position 11 from page 12 offset 3, which was moved from slot 52 in step 3, "
        "K and V differ, expected the bytes of that write"
    )
    k[51], v[51] = k[52], v[52]
    assert quire.check(batch, cache, ledger=ledger).ok


def test_a_move_keeps_writer_and_position_unless_told():
    ledger = quire.SlotLedger(64, 4)
    _, _, batch, cache = moved(ledger)
    assert (ledger.entry(51).request, ledger.entry(51).position, ledger.entry(51).step) == (1, 12, 3)
    assert [f.rule for f in quire.check(batch, cache, ledger=ledger)] == ["Q-L03"]
    moved(ledger, positions=[11], request_ids=[7])
    assert (ledger.entry(51).request, ledger.entry(51).position) == (7, 11)
    assert not ledger.has_digests


def test_moves_and_digests_that_cannot_be_say_so():
    ledger = quire.SlotLedger(4, 4)
    with pytest.raises(quire.ArgumentError, match=r"move: to\[1\]: slot 16 outside \[0, 16\)"):
        ledger.move([0, 1], [2, 16])
    with pytest.raises(quire.ArgumentError, match="positions: 1 entries, expected 2 as dst"):
        ledger.move([0, 1], [2, 3], positions=[5])
    with pytest.raises(quire.ArgumentError, match="without digests"):
        ledger.remember(quire.KVCache(*np.zeros((2, 4, 4, 2, 64), np.float32)), [0])
    with pytest.raises(quire.ContractError, match="Q-L05"):
        quire.SlotLedger(4, 4, digests=True).remember(quire.KVCache(*np.zeros((2, 5, 4, 2, 64), np.float32)), [0])


def test_writers_other_than_append_say_what_they_wrote():
    k, v = rows(64)
    k, v = k.reshape(16, 4, 2, 64), v.reshape(16, 4, 2, 64)
    cache, ledger = quire.KVCache(k, v), quire.SlotLedger(16, 4, digests=True)
    for slot in range(8, 12):
        ledger.record(slot, request=0, position=slot - 8)
    ledger.remember(cache, np.arange(8, 12))
    batch = quire.Batch(query=rows(1, 8)[0], query_start_loc=[0, 1], seq_lens=[4], block_table=[[2]])
    assert quire.check(batch, cache, ledger=ledger).ok
    k[2] = 0  # a page that was zeroed, or came back from the host too late
    assert "request 0 reads positions 0 to 3 from page 2 offsets 0 to 3" in str(quire.check(batch, cache, ledger=ledger))


def test_a_table_of_slots_is_one_line_with_a_hint():
    n, size = 150, 16
    cache, ledger = quire.KVCache(*np.zeros((2, 200, size, 2, 64), np.float32)), quire.SlotLedger(200, size)
    slots = np.arange(16, 16 + n)
    quire.append(cache, *rows(n), slots, ledger=ledger, request_ids=np.full(n, 3), positions=np.arange(n))
    batch = quire.Batch(query=rows(1, 8)[0], query_start_loc=[0, 1], seq_lens=[n], block_table=slots[None], causal=np.zeros(1, np.uint8), request_ids=[3])
    assert str(quire.check(batch, cache, ledger=ledger)) == (
        "Q-L01 block_table[0][0]: request 3 reads positions 0 to 149 from page 16 offset 0 to page 25 offset 5, which were never written, "
        "expected written slots (entry j of this row is the slot of position j: the table holds slots, pages are expected)"
    )
