# SPDX-License-Identifier: Apache-2.0
"""Prompts whose keys are gathered in zig-zag order: equal to fp64, equal bits to one process. test_distributed_ring.py has the ring."""

import time

import numpy as np
import pytest
from dense import make_job
from sharded import on_ranks, without_errors

import quire
import quire_distributed
from quire_distributed import Group, ZigZag, prefill, prefill_plan

LENGTHS = (1, 37, 0, 100, 16, 64)
OPTIONS = {
    "plain": {},
    "window": dict(sliding_window=9),
    "cap": dict(logits_soft_cap=5.0),
    "sinks": dict(sinks=np.array([0.5, -1.0, 3.0, 0.0], np.float32)),
    "alibi": dict(alibi_slopes=np.array([0.5, -0.25, 0.125, 0.0625], np.float32)),
}
ORACLE = {"sliding_window": "window", "logits_soft_cap": "cap", "alibi_slopes": "slopes", "sinks": "sinks"}


def rows_of(job, zigzag):
    """Tokens of the whole batch that a rank holds."""
    prompts, positions = zigzag.rows
    return job.query_start_loc[prompts] + positions


def run(job, world, page=16, options=None, exchange="gather", **how):
    """The whole output, put together from the ranks' rows."""

    def body(group):
        z = ZigZag(group.rank, world, LENGTHS, page)
        mine = rows_of(job, z)
        arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
        return mine, prefill(*arrays, options, group=group, zigzag=z, exchange=exchange, **how)

    out = np.zeros_like(job.q)
    seen = np.zeros(len(out), int)
    for mine, rows in without_errors(on_ranks(Group.local(world), body)):
        out[mine] = rows
        seen[mine] += 1
    assert (seen == 1).all()
    return out


def job_of(dtype="f32", **more):
    return make_job(LENGTHS, [0] * len(LENGTHS), dtype=dtype, **more)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("page", [1, 8, 16])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_equal_to_fp64(world, page, dtype):
    job = job_of(dtype)
    job.judge(run(job, world, page))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    job = job_of()
    job.judge(run(job, 3, 8, quire.Options(**OPTIONS[name]), head_chunks=2), **{ORACLE[k]: v for k, v in OPTIONS[name].items()})


def test_chunks_of_heads_give_the_same_bits():
    job = job_of("f16")
    whole = run(job, 2)
    assert np.array_equal(run(job, 2, head_chunks=2), whole)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_chunks_that_fill_their_pages(dtype):
    lengths = (64, 32, 192)
    job = make_job(lengths, [0, 0, 0], dtype=dtype)

    def body(group):
        z = ZigZag(group.rank, 2, lengths, 8)
        mine = rows_of(job, z)
        arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
        plan = prefill_plan(*arrays, zigzag=z, group=group, exchange="gather")
        assert plan.slots is None
        return mine, prefill(*arrays, group=group, plan=plan)

    out = np.zeros_like(job.q)
    for mine, rows in without_errors(on_ranks(Group.local(2), body)):
        out[mine] = rows
    job.judge(out)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_batch_invariant_plans_have_the_bits_of_one_process(dtype):
    job = job_of(dtype)

    def body(group):
        z = ZigZag(group.rank, 3, LENGTHS, 8)
        mine = rows_of(job, z)
        arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
        plan = prefill_plan(*arrays, zigzag=z, group=group, exchange="gather", batch_invariant=True, head_chunks=2)
        return mine, prefill(*arrays, group=group, plan=plan)

    batch = quire.Batch(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    cache = quire.KVCache(job.k, job.v)
    whole = quire.attend(batch, cache, plan=quire.plan(batch, cache, batch_invariant=True))
    for mine, rows in without_errors(on_ranks(Group.local(3), body)):
        assert np.array_equal(rows, whole[mine])


def test_rows_of_the_later_chunk_come_first():
    """A GPU draws items in the order of the rows: a call that ends with its heaviest items leaves multiprocessors without work."""
    for rank in range(3):
        prompts, positions = ZigZag(rank, 3, (96, 96), 16).rows
        assert positions[prompts == 1].tolist() == [*range(16 * (5 - rank), 16 * (6 - rank)), *range(16 * rank, 16 * (rank + 1))]


# --- keys that are copied (on GPUs by copy engines; here by threads) ---


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype, chunks", [("f32", 1), ("bf16", 2)])
def test_copies_give_the_bits_of_a_gather(world, dtype, chunks):
    job = job_of(dtype)
    copied = run(job, world, 8, exchange="copy", head_chunks=chunks)
    job.judge(copied)
    assert np.array_equal(copied, run(job, world, 8, head_chunks=chunks))


def copied_layers(jobs, group, late):
    """Rows of three layers by one plan; rank ``late`` begins each of them after the others."""
    z = ZigZag(group.rank, 2, LENGTHS, 8)
    mine = rows_of(jobs[0], z)
    layers = [(job.q[mine], job.new_k[mine], job.new_v[mine]) for job in jobs]
    step = prefill_plan(*layers[0], zigzag=z, group=group, exchange="copy")
    assert "copy: as asked" in str(step)
    for memory in step.shared.ranks[group.rank].reshape(-1, *step.shared.ranks[0].shape[-2:]):
        memory[...] = np.nan
    outs = []
    for layer in layers:
        time.sleep(0.05 * (group.rank == late))
        outs.append(prefill(*layer, group=group, plan=step))
    return mine, outs


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("barriers", [True, False])
def test_copies_wait_for_every_rank(late, barriers):
    jobs = [job_of("bf16", seed=3, spread=1 + layer) for layer in range(3)]

    def body(group):
        if not barriers:  # the planted fault: nobody waits before layers
            gather = group.all_gather
            group.all_gather = lambda sent, received: None if sent.shape == (4,) else gather(sent, received)
        return copied_layers(jobs, group, late)

    ranks = without_errors(on_ranks(Group.local(2), body))
    right = []
    for i, job in enumerate(jobs):
        whole = np.zeros_like(job.q)
        for mine, outs in ranks:
            whole[mine] = outs[i]
        right.append(np.array_equal(whole.view(np.uint16), run(job, 2, 8).view(np.uint16)))
    assert all(right) == barriers


class WithoutShare:
    """A transport of ranks that cannot address each other's memory."""

    def __init__(self, transport):
        self._transport = transport

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def no_share(self, like):
        return "the tensors are in host memory"


def test_copies_are_refused_where_ranks_share_no_memory():
    job = job_of()

    def body(group):
        group._transport = WithoutShare(group._transport)
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(job, z)
        return prefill_plan(job.q[mine], job.new_k[mine], job.new_v[mine], zigzag=z, group=group, exchange="copy")

    for error in on_ranks(Group.local(2, timeout=5), body):
        assert isinstance(error, quire.UnsupportedError)
        assert str(error) == (
            'exchange: "copy" copies between GPUs of one host, whose ranks exchange by NCCL, but the tensors are in host memory'
        )


def test_memory_that_is_not_the_other_ranks_is_noticed():
    def body(group):
        group._transport.offered = lambda mine: ([mine] * group.world, None)  # the planted fault: every rank maps its own
        return group.share(np.zeros(1, np.float32), (2, 3))

    for rank, error in enumerate(on_ranks(Group.local(2, timeout=5), body)):
        assert f"the memory of ranks 0 to 1 begins with [{rank}, {rank}], expected their numbers" in str(error)


def test_the_work_of_all_ranks_is_equal():
    lengths = (64 * 16 * 8, 5 * 16 * 8)
    pairs = []
    for rank in range(4):
        _, positions = ZigZag(rank, 4, lengths).rows
        pairs.append(int((positions + 1).sum()))
    assert max(pairs) - min(pairs) == 0
    assert pairs[0] * 4 == sum(n * (n + 1) // 2 for n in lengths)


def test_positions_are_dealt_once():
    for world in (1, 2, 3, 5):
        for length in (0, 1, 15, 16, 17, 200):
            held = [ZigZag(rank, world, (length, 3), 4) for rank in range(world)]
            rows = np.concatenate([np.stack(z.rows, axis=1) for z in held])
            assert sorted(map(tuple, rows)) == [(0, p) for p in range(length)] + [(1, p) for p in range(3)]
            for z in held:
                assert len(set(z.slots)) == len(z.slots) == len(z.rows[0]) == z.num_rows and (z.slots < z.num_pages * 4).all()


def test_one_plan_serves_every_layer():
    jobs = [job_of("bf16", seed=3, spread=1 + layer) for layer in range(3)]

    def body(group):
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(jobs[0], z)
        arrays = [(job.q[mine], job.new_k[mine], job.new_v[mine]) for job in jobs]
        step = prefill_plan(*arrays[0], zigzag=z, group=group, exchange="gather")
        assert "in zig-zag order" in str(step)
        return [prefill(*layer, group=group, plan=step) for layer in arrays]

    outs = without_errors(on_ranks(Group.local(2), body))
    for layer, job in enumerate(jobs):
        whole = np.zeros_like(job.q)
        for rank in range(2):
            whole[rows_of(job, ZigZag(rank, 2, LENGTHS))] = outs[rank][layer]
        job.judge(whole)


def test_ranks_that_disagree_or_are_refused():
    job = job_of()

    def disagree(group):
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(job, z)
        options = quire.Options(sliding_window=9) if group.rank else None
        return prefill(job.q[mine], job.new_k[mine], job.new_v[mine], options, group=group, zigzag=z)

    for error in on_ranks(Group.local(2, timeout=5), disagree):
        assert error.rule == "Q-D05" and "options (digest)" in str(error)

    def short(group):
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(job, z)[group.rank :]
        return prefill(job.q[mine], job.new_k[mine], job.new_v[mine], group=group, zigzag=z)

    first, second = on_ranks(Group.local(2, timeout=5), short)
    assert isinstance(second, quire.ArgumentError) and "the rows of this rank (ZigZag.rows)" in str(second)
    assert isinstance(first, quire_distributed.RankError) and "rank 1 failed: ArgumentError: query" in str(first)
    with pytest.raises(quire.ArgumentError, match="rank 2 of 2, expected 0 <= rank < world"):
        ZigZag(2, 2, LENGTHS)
