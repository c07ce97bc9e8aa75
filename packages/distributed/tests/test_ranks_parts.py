# SPDX-License-Identifier: Apache-2.0
"""A context in more parts than ranks: the same bits for every number of ranks that divides the parts."""

import numpy as np
import pytest
from dense import make_job
from sharded import on_ranks, rank_batch, rank_cache, without_errors

import quire
from quire_distributed import ContextShard, Group, _attend, attend, plan
from quire_distributed._parts import shards_of_rank, table_of

LENGTHS = dict(query_lens=[1, 7, 0, 20, 1, 3], context_lens=[0, 30, 5, 0, 161, 2])
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)


def run(job, world, parts, interleave=8, options=None, lse=True, heads="all", **how):
    """(outputs, lses) of all ranks."""

    def body(group):
        shard = ContextShard(group.rank, world, interleave)
        kv, table = rank_cache(job, shard)
        batch = rank_batch(job, table, **(dict(lse=np.empty(job.q.shape[:2], np.float32)) if lse else {}))
        step = plan(batch, kv, options, group=group, shard=shard, batch_invariant=True, parts=parts, heads=heads, **how)
        assert (f"{parts // world} of {parts} parts" in str(step)) == (parts > world)
        first = attend(batch, kv, options, group=group, plan=step)
        assert np.array_equal(first, attend(batch, kv, options, group=group, plan=step))
        return first, batch.lse

    return without_errors(on_ranks(Group.local(world), body))


@pytest.mark.parametrize("dtype, partials", [("f32", "f32"), ("bf16", "f32"), ("bf16", "query")])
@pytest.mark.parametrize("interleave", [8, 24])
def test_every_number_of_ranks_gives_the_same_bits(dtype, partials, interleave):
    job = make_job(**LENGTHS, dtype=dtype)
    one, one_lse = run(job, 1, 12, interleave, partials=partials)[0]
    if partials == "f32":
        job.judge(one)
    for world in (2, 3, 4, 6, 12):
        for out, lse in run(job, world, 12, interleave, partials=partials):
            assert np.array_equal(out, one) and np.array_equal(lse, one_lse), world


def test_other_parts_are_other_bits():
    """What the guarantee excludes: other boundaries. A test that could not fail would pass here, too."""
    job = make_job(**LENGTHS, dtype="f32")
    assert not np.array_equal(run(job, 2, 4)[0][0], run(job, 2, 6)[0][0])
    assert not np.array_equal(run(job, 2, 4)[0][0], run(job, 2, 4, 16)[0][0])


@pytest.mark.parametrize("options, oracle", [(dict(sinks=SINKS), dict(sinks=SINKS)), (dict(sliding_window=9), dict(window=9)),
                                             (dict(logits_soft_cap=5.0), dict(cap=5.0))])  # fmt: skip
def test_options(options, oracle):
    job = make_job(**LENGTHS, dtype="f16")
    options = quire.Options(**options)
    one = run(job, 1, 4, options=options)[0][0]
    job.judge(one, **oracle)
    for world in (2, 4):
        assert np.array_equal(run(job, world, 4, options=options)[0][0], one)


def test_what_else_is_in_the_batch_changes_no_bit():
    job = make_job(**LENGTHS, dtype="bf16")
    alone = make_job([1], [161], dtype="bf16")
    row = job.query_start_loc[4]
    alone.q[:] = job.q[row : row + 1]
    for name in ("k", "v"):
        source, target = getattr(job, name), getattr(alone, name)
        pages = -(-162 // source.shape[1])
        target[alone.block_table[0, :pages]] = source[job.block_table[4, :pages]]
    assert np.array_equal(run(job, 2, 4)[0][0][row], run(alone, 4, 4)[0][0][0])


@pytest.mark.parametrize("world", [1, 2])
def test_a_rank_plans_each_of_its_parts_once(monkeypatch, world):
    planned = []
    right = _attend._quire.plan
    monkeypatch.setattr(_attend._quire, "plan", lambda *args, **how: planned.append(how) or right(*args, **how))
    run(make_job(**LENGTHS, dtype="f32"), world, 4)
    assert len(planned) == 4


def test_own_heads():
    job = make_job(**LENGTHS, dtype="f32")
    whole = run(job, 2, 4)[0][0]
    own = [out for out, _ in run(job, 2, 4, heads="own", lse=False)]
    assert np.array_equal(np.concatenate(own, axis=1), whole)


def test_every_page_is_in_one_part():
    for world, parts, pages in [(1, 4, 1), (2, 4, 2), (3, 12, 1), (4, 4, 3)]:
        for length in (0, 1, 16 * 40, 16 * 41 - 3):
            for rank in range(world):
                whole = ContextShard(rank, world, 16 * pages)
                columns = -(-whole.local_length(length) // 16)
                table = np.arange(columns)[None]
                seen = []
                for part in shards_of_rank(whole, parts):
                    mine = table_of(part, whole, table, 16)[0]
                    for index in range(part.local_length(length)):
                        position = part.global_position(index)
                        local = int(mine[index // 16]) * 16 + index % 16
                        assert whole.global_position(local) == position
                        seen.append(local)
                assert sorted(seen) == list(range(whole.local_length(length)))


@pytest.mark.parametrize(
    "how, text",
    [
        (dict(parts=3), "parts: 3 .*expected a multiple of 2 ranks"),
        (dict(parts=4, interleave=4), "Q-D04 interleave: 4, expected a multiple of page_size = 8"),
        (dict(parts=4, exchange="all_to_all"), 'parts: 4 with exchange "all_to_all", expected interleaved shards'),
    ],
)
def test_refusals(how, text):
    with pytest.raises(quire.Error, match=text):
        run(make_job(**LENGTHS, dtype="f32"), 2, how.pop("parts"), how.pop("interleave", 8), **how)


def test_ranks_that_disagree():
    job = make_job(**LENGTHS, dtype="f32")

    def body(group):
        shard = ContextShard(group.rank, 2, 8)
        kv, table = rank_cache(job, shard)
        return plan(rank_batch(job, table), kv, group=group, shard=shard, exchange="all_gather", parts=(4, 8)[group.rank])

    for error in on_ranks(Group.local(2, timeout=5), body):
        assert str(error) == "Q-D05 parts: 8 on rank 1, expected 4 as on rank 0"
