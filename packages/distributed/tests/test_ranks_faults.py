# SPDX-License-Identifier: Apache-2.0
"""Faults that sharded attention has shipped elsewhere, planted one at a time: the hazards of this layer notice every one.

The suite below is what test_distributed.py checks, on fewer shapes: equal to fp64, the same bits on every rank and for every exchange.
"""

import contextlib
import dataclasses
import functools

import numpy as np
import pytest
from dense import make_job
from sharded import on_ranks, rank_batch, rank_cache, shard_of, without_errors

import quire
from quire import _quire
from quire_distributed import Group, attend
from quire_distributed import _attend as layer
from quire_distributed._exchange import Layout

SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
SLOPES = np.array([0.5, -0.25, 0.125, 0.0], np.float32)
LENGTHS = dict(query_lens=[1, 7, 1, 20, 5], context_lens=[0, 30, 61, 0, 2])

#: name: (world, tokens of a run, contiguous, options of quire, options of the oracle, exchange, heads)
HAZARDS = {
    "UnevenShards": (3, 2, False, {}, {}, "all_gather", "all"),
    "EmptyShards": (4, 24, False, {}, {}, "all_gather", "all"),
    "RequestOnOneRank": (2, 64, True, {}, {}, "all_gather", "all"),
    "ContiguousSpans": (3, 20, True, {}, {}, "all_gather", "all"),
    "GlobalWindow": (3, 2, False, dict(sliding_window=9), dict(window=9), "all_gather", "all"),
    "GlobalWindowContiguous": (3, 20, True, dict(sliding_window=9), dict(window=9), "all_gather", "all"),
    "GlobalSlopes": (3, 20, True, dict(alibi_slopes=SLOPES), dict(slopes=SLOPES), "all_gather", "all"),
    "OneSink": (3, 2, False, dict(sinks=SINKS), dict(sinks=SINKS), "all_gather", "all"),
    "HeadsSwapped": (2, 8, False, {}, {}, "all_to_all", "all"),
    "OwnHeads": (4, 1, False, {}, {}, "all_to_all", "own"),
    "OwnHeadsGathered": (4, 1, False, {}, {}, "all_gather", "own"),
}


def run_hazard(name, cache_of=rank_cache):
    world, run, contiguous, options, oracle, exchange, heads = HAZARDS[name]
    job = make_job(**LENGTHS, dtype="f32")

    def body(group):
        shard = shard_of(group.rank, world, run, contiguous)
        kv, table = cache_of(job, shard)
        kw = dict(exchange=exchange, heads=heads)
        return attend(rank_batch(job, table), kv, quire.Options(**options), group=group, shard=shard, **kw)

    outs = without_errors(on_ranks(Group.local(world, timeout=20), body))
    if heads == "own":
        outs = [np.concatenate(outs, axis=1)]
    job.judge(outs[0], **oracle)
    assert all(np.array_equal(out, outs[0]) for out in outs[1:]), "ranks differ in bits"


def suite(cache_of=rank_cache):
    """Names of the hazards that notice something."""
    noticed = []
    for name in HAZARDS:
        try:
            run_hazard(name, cache_of)
        except (AssertionError, quire.Error):
            noticed.append(name)
    return noticed


# ---- faults: context managers that plant one ----


@contextlib.contextmanager
def replaced(owner, name, make):
    """owner.name = make(what it was)."""
    before = owner.__dict__[name]
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Core:
    """The compiled core with one function replaced."""

    def __init__(self, **functions):
        self.__dict__.update(functions)

    def __getattr__(self, name):
        return getattr(_quire, name)


def core(**functions):
    return replaced(layer, "_quire", lambda _: _Core(**functions))


def merged(change):
    """merge_many sees change(outs, lses)."""
    return core(merge_many=lambda outs, lses, *a, **k: _quire.merge_many(*map(np.ascontiguousarray, change(outs, lses)), *a, **k))


def partial(change):
    """change(batch) after the rank's own attention."""

    def attend_changed(batch, *a, **k):
        _quire.attend(batch, *a, **k)
        change(batch)

    return core(attend=attend_changed)


def lengths(change):
    return replaced(layer, "local_lengths", lambda real: lambda shard, *a: change(shard, real(shard, *a)))


def base_two(batch):
    batch.lse[:] = batch.lse / np.float32(np.log(2))


def sixteen_bits(batch):
    batch.output[:] = batch.output.astype(np.float16)


def empty_is(value):
    def change(batch):
        batch.lse[np.isneginf(batch.lse)] = value

    return partial(change)


def mean_of(outs, lses):
    return outs, np.where(np.isneginf(lses), lses, 0)


def rotated_rows(batch):
    batch.output[:] = np.roll(batch.output, 1, axis=0)


def on_one_rank(change, rank=1):
    """The fault on one rank alone: ranks are threads, and the shard of the call says which one."""
    @contextlib.contextmanager
    def plant():
        import threading

        who = threading.local()

        def prepare(real_plan):
            def planned(options, shard):
                who.rank = shard.rank
                return real_plan(options, shard)

            return planned

        def attend_changed(batch, *a, **k):
            _quire.attend(batch, *a, **k)
            if who.rank == rank:
                change(batch)

        with replaced(layer, "_own_options", prepare), core(attend=attend_changed):
            yield

    return plant()


def double_counted():
    """Contiguous ranks read the first key of the next rank, too. garbage_cache() holds it."""
    return lengths(lambda shard, n: dataclasses.replace(n, seq_lens=n.seq_lens + (n.seq_lens == shard.span)) if shard.span else n)


def garbage_cache(job, shard):
    """Slots that hold no key hold finite garbage, and the next rank's key: what is read by mistake is not NaN."""
    return rank_cache(job, shard, fill=0.5, next_too=True)


FAULTS = {
    "lse_in_base_2": lambda: partial(base_two),
    "lse_in_base_2_on_one_rank": lambda: on_one_rank(base_two),
    "key_at_a_shard_border_counted_twice": double_counted,
    "last_key_of_each_rank_missing": lambda: lengths(
        lambda shard, n: dataclasses.replace(n, seq_lens=np.maximum(n.seq_lens - (shard.rank == 1), 0))
    ),
    "last_rank_left_out": lambda: merged(lambda outs, lses: (outs[:-1], lses[:-1])),
    "first_rank_left_out": lambda: merged(lambda outs, lses: (outs[1:], lses[1:])),
    "a_rank_merged_twice": lambda: merged(lambda outs, lses: (outs[[0, *range(len(outs))]], lses[[0, *range(len(lses))]])),
    "lse_of_the_next_rank": lambda: merged(lambda outs, lses: (outs, np.roll(lses, 1, axis=0))),
    "mean_instead_of_weights": lambda: merged(mean_of),
    "lse_of_the_next_head": lambda: merged(lambda outs, lses: (outs, np.roll(lses, 1, axis=2))),
    "heads_joined_with_a_wrong_offset": lambda: replaced(layer, "join_heads", lambda real: lambda parts, out: real(np.roll(parts, 1, axis=0), out)),
    "own_heads_off_by_one_rank": lambda: replaced(
        Layout, "views", lambda real: lambda self, b, t=None: tuple(np.roll(v, 1, axis=2) if b.ndim == 3 else v for v in real(self, b, t))
    ),
    "sink_on_every_rank": lambda: replaced(layer, "_own_options", lambda _: lambda options, shard: options),
    "sink_on_no_rank": lambda: replaced(
        layer, "_own_options", lambda real: lambda options, shard: real(options, dataclasses.replace(shard, rank=min(1, shard.world - 1)))
    ),
    "empty_shard_has_lse_0": lambda: empty_is(0.0),
    "empty_shard_has_lse_plus_inf": lambda: empty_is(np.inf),
    "empty_shard_has_lse_nan": lambda: empty_is(np.nan),
    "window_in_local_positions": lambda: lengths(lambda shard, n: n if n.key_begin is not None else dataclasses.replace(n, q_begin=None)),
    "keys_begin_at_0_on_every_rank": lambda: lengths(lambda shard, n: dataclasses.replace(n, key_begin=None)),
    "rows_at_the_end_of_the_local_keys": lambda: lengths(
        lambda shard, n: n if n.key_begin is None else dataclasses.replace(n, q_begin=None)
    ),
    "later_keys_of_an_own_run_visible": lambda: lengths(lambda shard, n: dataclasses.replace(n, causal=np.zeros_like(n.causal))),
    "partial_results_in_16_bits": lambda: partial(sixteen_bits),
    "rows_of_a_partial_result_shifted": lambda: partial(rotated_rows),
    "stale_receive_buffer": lambda: replaced(Group, "all_gather", lambda real: lambda self, sent, received: received.fill(0.25)),
}  # fmt: skip


def merged_in_order_of_arrival():
    """Every rank begins with its own part: right, but not the same bits everywhere."""
    import threading

    who = threading.local()

    def own_options(real):
        def planned(options, shard):
            who.rank = shard.rank
            return real(options, shard)

        return planned

    @contextlib.contextmanager
    def plant():
        change = lambda outs, lses: (np.roll(outs, who.rank, axis=0), np.roll(lses, who.rank, axis=0))  # noqa: E731
        with replaced(layer, "_own_options", own_options), merged(change):
            yield

    return plant()


FAULTS["merged_in_order_of_arrival"] = merged_in_order_of_arrival


def test_nothing_is_noticed_where_nothing_is_wrong():
    assert suite() == [] and suite(garbage_cache) == []


@functools.cache
def noticed_by(fault):
    with FAULTS[fault]():
        return tuple(suite(garbage_cache))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_noticed(fault):
    assert noticed_by(fault), f"{fault}: no hazard notices it"


def test_every_hazard_notices_some_fault():
    assert {name for fault in FAULTS for name in noticed_by(fault)} == set(HAZARDS)
