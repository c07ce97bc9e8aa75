# SPDX-License-Identifier: Apache-2.0
"""A job of dense.py spread over ranks: each rank's cache holds its keys and NaN elsewhere."""

import threading

import numpy as np

import quire
from quire_distributed import ContextShard


def rank_cache(job, shard, *, page=None, layout="nhd", fill=np.nan, next_too=False):
    """(KVCache, block_table) of one rank, in pages of its own, in shuffled order. next_too: behind its last key of a request it holds the
    next one, too, which is another rank's."""
    page = page or job.k.shape[1]
    heads, dim = job.k.shape[2:]
    rng = np.random.default_rng(shard.rank + 17)
    lengths = shard.local_length(job.seq_lens.astype(np.int64))
    pages = -(-(lengths + next_too) // page)
    order = rng.permutation(int(pages.sum()) + 2)
    table = np.full((len(lengths), int(pages.max(initial=0)) + 1), 2**31 - 1, np.int32)  # huge past the end
    with np.errstate(invalid="ignore"):
        k = np.full((len(order), page, heads, dim), fill).astype(job.k.dtype)
        v = np.full((len(order), page, heads, dim), fill).astype(job.v.dtype)
    first = 0
    for r, count in enumerate(pages):
        table[r, :count] = order[first : first + count]
        first += count
        positions = np.arange(job.seq_lens[r], dtype=np.int64)
        slots = shard.slots(positions, np.full(len(positions), r), table.astype(np.int64), page)
        behind = int(shard.global_position(lengths[r] - 1)) + 1 if lengths[r] else len(positions)
        if next_too and behind < len(positions):
            slots[behind] = table[r, lengths[r] // page] * page + lengths[r] % page
        source_page = job.block_table[r].astype(np.int64)[positions // job.k.shape[1]]
        source = source_page * job.k.shape[1] + positions % job.k.shape[1]
        mine = slots >= 0
        for target, origin in ((k, job.k), (v, job.v)):
            target.reshape(-1, heads, dim)[slots[mine]] = origin.reshape(-1, heads, dim)[source[mine]]
    if layout == "hnd":
        k, v = (np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in (k, v))
    return quire.KVCache(k, v, layout, job.k_scale, job.v_scale), table


def rank_batch(job, table, **more):
    return quire.Batch(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=table, **more)


def shard_of(rank, world, run, contiguous=False):
    return ContextShard.contiguous(rank, world, run) if contiguous else ContextShard(rank, world, run)


def on_ranks(groups, body):
    """body(group) on a thread for each rank; the results by rank, exceptions among them."""
    results = [None] * len(groups)

    def run(group):
        try:
            results[group.rank] = body(group)
        except BaseException as error:  # noqa: BLE001 - they are what the tests look at
            results[group.rank] = error

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def without_errors(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
