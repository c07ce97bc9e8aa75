# SPDX-License-Identifier: Apache-2.0
"""The slot ledger over ranks: every key that a rank holds was written for its position in the whole request."""

import numpy as np
import pytest
from dense import make_job
from sharded import rank_batch, shard_of

import quire

LENGTHS = dict(query_lens=[1, 7, 0, 20, 1], context_lens=[40, 30, 5, 0, 2])
IDS = np.array([70, 71, 72, 73, 74])
PAGE = 4


class Rank:
    """A rank's cache, table and ledger, filled by append."""

    def __init__(self, job, shard, slots_of=None, leave_out=None, ids=IDS):
        self.job, self.shard = job, shard
        lengths = np.asarray(job.seq_lens, np.int64)
        positions = np.concatenate([np.arange(n) for n in lengths])
        requests = np.repeat(np.arange(len(lengths)), lengths)
        pages = -(-shard.local_length(lengths) // PAGE)
        order = np.random.default_rng(shard.rank).permutation(int(pages.sum()) + 3)
        self.table = np.full((len(lengths), int(pages.max(initial=0)) + 1), 2**31 - 1, np.int64)
        for r, first in enumerate(np.cumsum([0, *pages[:-1]])):
            self.table[r, : pages[r]] = order[first : first + pages[r]]
        shape = (len(order), PAGE, 2, 16)
        self.cache = quire.KVCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        self.ledger = quire.SlotLedger(len(order), PAGE)
        slots = shard.slots(positions, requests, self.table, PAGE) if slots_of is None else slots_of(positions, requests, self)
        if leave_out is not None:
            slots[(requests == leave_out[0]) & (positions == leave_out[1])] = -1
        rows = np.ones((len(positions), 2, 16), np.float32)
        quire.append(self.cache, rows, rows, slots, ledger=self.ledger, request_ids=ids[requests], positions=positions)

    def found(self, options=None):
        return self.shard.check_ledger(rank_batch(self.job, self.table, request_ids=IDS), self.cache, self.ledger, options)


def job_of():
    return make_job(**LENGTHS, heads=4, kv_heads=2, dim=16, dtype="f32")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("run, contiguous", [(1, False), (3, False), (4, False), (16, True)])
@pytest.mark.parametrize("window", [None, 5])
def test_every_key_of_every_rank_is_known(world, run, contiguous, window):
    job = job_of()
    ranks = [Rank(job, shard_of(k, world, run, contiguous)) for k in range(world)]
    options = None if window is None else quire.Options(sliding_window=window)
    for rank in ranks:
        found = rank.found(options)
        assert found.ok, str(found)
    assert sum(rank.ledger.slots_written for rank in ranks) == int(job.seq_lens.sum())  # every token on one rank
    hidden = [0 if window is None else max(int(s) - q + 1 - window, 0) for s, q in zip(job.seq_lens, LENGTHS["query_lens"])]
    visible = sum(int(s) - h for s, h, q in zip(job.seq_lens, hidden, LENGTHS["query_lens"]) if q > 0)
    assert sum(rank.ledger.slots_read for rank in ranks) == visible  # once, on one rank


def messages(rank, options=None):
    return [str(f) for f in rank.found(options)]


def test_a_token_that_was_not_appended():
    rank = Rank(job_of(), shard_of(1, 2, 3), leave_out=(1, 22))
    (text,) = messages(rank)
    page = rank.table[1, rank.shard.local_index(22) // PAGE]
    assert text.startswith(f"Q-L01 block_table[1][{rank.shard.local_index(22) // PAGE}]: request 71 reads position 22 from page {page} offset ")
    assert "which was never written" in text


def test_slots_of_another_interleave():
    """The fault of an engine whose slots are dealt by 1 and whose attention reads runs of 3: positions differ, and are global ones."""

    def dealt_by_one(positions, requests, rank):
        dealt = shard_of(1, 2, 1)
        held = dealt.local_index(positions) < rank.shard.local_length(rank.job.seq_lens.astype(np.int64))[requests]  # pages end there
        slots = dealt.slots(positions[held], requests[held], rank.table, PAGE)
        all_slots = np.full(len(positions), -1)
        all_slots[held] = slots
        return all_slots

    found = messages(Rank(job_of(), shard_of(1, 2, 3), slots_of=dealt_by_one))
    assert any("Q-L03" in text and "reads position 3 " in text and "for position 1 " in text for text in found), found


def test_slots_of_another_request_and_recycled_pages():
    job = job_of()
    swapped = Rank(job, shard_of(0, 2, 4), ids=IDS[[0, 1, 2, 4, 3]])
    assert any("Q-L02" in text and "request 73 reads positions 0 to 3" in text and "request 74" in text for text in messages(swapped))
    shared = Rank(job, shard_of(0, 2, 4))
    assert shared.found().ok
    shared.ledger.recycle(int(shared.table[3, 1]))
    assert messages(shared) and all("Q-L04" in text and "recycled since" in text for text in messages(shared))
    # A window hides the pages before it.
    hidden = Rank(job, shard_of(0, 2, 4))
    hidden.ledger.recycle(int(hidden.table[0, 0]))
    assert not hidden.found().ok and hidden.found(quire.Options(sliding_window=5)).ok


def test_a_ledger_of_another_cache_and_a_bad_shard():
    rank = Rank(job_of(), shard_of(0, 2, 4))
    other = quire.SlotLedger(3, PAGE)
    found = rank.shard.check_ledger(rank_batch(rank.job, rank.table), rank.cache, other)
    assert found[0].rule == "Q-L05"
