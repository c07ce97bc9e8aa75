# SPDX-License-Identifier: Apache-2.0
"""Attention over a context that several ranks hold: right, the same bits on every rank, and no rank that waits for ever."""

import itertools
import time

import numpy as np
import pytest
from dense import FP8, UNIT, attention, make_job
from sharded import on_ranks, rank_batch, rank_cache, shard_of, without_errors

import quire
import quire_distributed
from quire_distributed import ContextShard, Group, HeadShard, attend, plan

LENGTHS = dict(query_lens=[1, 7, 0, 20, 1, 3], context_lens=[0, 30, 5, 0, 61, 2])  # requests of one token; of none on most ranks


def run(job, world, interleave, *, contiguous=False, options=None, groups=None, page=None, lse=False, cache={}, **how):
    """Outputs of all ranks."""
    groups = groups or Group.local(world)

    def body(group):
        shard = shard_of(group.rank, world, interleave, contiguous)
        kv, table = rank_cache(job, shard, page=page, **cache)
        more = dict(lse=np.empty(job.q.shape[:2], np.float32)) if lse else {}
        batch = rank_batch(job, table, **more)
        out = attend(batch, kv, options, group=group, shard=shard, **how)
        return (out, batch.lse) if lse else out

    return without_errors(on_ranks(groups, body))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("interleave, contiguous", [(1, False), (2, False), (8, False), (24, False), (20, True), (1, True)])
def test_equal_to_fp64_and_the_same_bits_on_every_rank(world, interleave, contiguous):
    job = make_job(**LENGTHS, dtype="bf16")
    outs = run(job, world, interleave, contiguous=contiguous)
    job.judge(outs[0])
    assert all(np.array_equal(out, outs[0]) for out in outs[1:])


OPTIONS = {
    "window": dict(sliding_window=9),
    "window of one": dict(sliding_window=1),
    "window of more": dict(sliding_window=2**40),
    "cap": dict(logits_soft_cap=5.0),
    "scale": dict(softmax_scale=0.5),
    "sinks": dict(sinks=np.array([0.5, -1.0, 3.0, 0.0], np.float32)),
    "all": dict(sliding_window=5, logits_soft_cap=3.0, sinks=np.array([0.5, -1.0, 3.0, 0.0], np.float32)),
    "alibi": dict(alibi_slopes=np.array([0.5, -0.25, 0.125, 0.0], np.float32)),
}
ORACLE = {"softmax_scale": "scale", "sliding_window": "window", "logits_soft_cap": "cap", "alibi_slopes": "slopes", "sinks": "sinks"}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("contiguous", [False, True])
def test_options_use_global_positions_and_count_sinks_once(name, contiguous):
    job = make_job(**LENGTHS, dtype="f16")
    options = quire.Options(**OPTIONS[name])
    if name == "alibi" and not contiguous:
        with pytest.raises(quire.UnsupportedError, match="alibi_slopes: .* shard contiguously"):
            run(job, 3, 2, options=options)
        return
    outs = run(job, 3, 20 if contiguous else 2, contiguous=contiguous, options=options)
    job.judge(outs[0], **{ORACLE[k]: v for k, v in OPTIONS[name].items()})
    assert all(np.array_equal(out, outs[0]) for out in outs[1:])


@pytest.mark.parametrize("kv", FP8)
def test_fp8_caches_and_layouts(kv):
    job = make_job(**LENGTHS, dtype="bf16", kv=kv, k_scale=0.5, v_scale=2.0)
    for layout in ("nhd", "hnd"):
        job.judge(run(job, 2, 3, cache=dict(layout=layout))[0])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_exchange_gives_the_same_bits(world, dtype):
    job = make_job(**LENGTHS, dtype=dtype)
    (whole, lse), *_ = run(job, world, 2, lse=True, exchange="all_gather")
    job.judge(whole)
    for out, other_lse in run(job, world, 2, lse=True, exchange="all_to_all"):
        assert np.array_equal(out, whole) and np.array_equal(other_lse, lse)
    for exchange in ("all_gather", "all_to_all"):
        parts = run(job, world, 2, exchange=exchange, heads="own")
        assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_partial_results_in_the_type_of_the_query_are_rounded_once_more(dtype):
    job = make_job(**LENGTHS, dtype=dtype)
    outs = run(job, 3, 2, partials="query")
    assert all(np.array_equal(out, outs[0]) for out in outs[1:])
    expected, tolerance = job.expected()
    # sum_k w_k |o_k| <= sum p |v|, and each o_k is rounded by at most a unit
    weights = [
        attention(job.q[a:b].astype(np.float64), k, v, len(k) - (b - a))[2]
        for a, b, k, v in zip(job.query_start_loc, job.query_start_loc[1:], job.dense_k, job.dense_v)
    ]
    job.judge(outs[0], expected=(expected, tolerance + UNIT[dtype] * np.concatenate(weights)))
    assert not np.array_equal(outs[0], run(job, 3, 2, partials="f32")[0])
    assert np.array_equal(run(job, 3, 2)[0], run(job, 3, 2, partials="f32")[0])  # "auto" on a CPU
    with pytest.raises(quire.ArgumentError, match='partials: .*expected "auto"'):
        run(job, 3, 2, partials="f16")


@pytest.mark.parametrize("how", [{}, {"exchange": "all_to_all"}, {"heads": "own"}, {"partials": "query"}])
def test_v_may_have_a_head_dim_of_its_own(how):
    job, world, dims = make_job(**LENGTHS, dtype="f16"), 2, 20

    def body(group):
        shard = shard_of(group.rank, world, 2, False)
        cache, table = rank_cache(job, shard)
        return attend(rank_batch(job, table), quire.KVCache(cache.k, cache.v[..., :dims]), group=group, shard=shard, **how)

    outs = without_errors(on_ranks(Group.local(world), body))
    whole = quire.Batch(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    if "heads" in how:
        outs = [np.concatenate(outs, axis=1)]
    for out in outs:
        assert out.shape == (*job.q.shape[:2], dims)
        if how.get("partials") != "query":  # rounded once more
            assert quire.compare(out, None, quire.reference(whole, quire.KVCache(job.k, job.v[..., :dims]))).ok
        np.testing.assert_allclose(out.astype(np.float32), run(job, world, 2)[0][..., :dims].astype(np.float32), atol=2**-9)


def test_bits_do_not_depend_on_who_arrives_first():
    job = make_job(**LENGTHS, dtype="f32")
    first = run(job, 3, 1)[0]
    for slow in range(3):
        groups = Group.local(3)
        for group in groups:
            gather = group.all_gather
            if group.rank == slow:
                group.all_gather = lambda *a, gather=gather: (time.sleep(0.05), gather(*a))[1]
        for out in run(job, 3, 1, groups=groups):
            assert np.array_equal(out, first)


def test_the_lse_is_that_of_one_process():
    job = make_job(**LENGTHS, dtype="f32")
    lse = np.empty(job.q.shape[:2], np.float32)
    quire.attend(rank_batch(job, job.block_table, lse=lse), quire.KVCache(job.k, job.v))
    for _, merged in run(job, 4, 3, lse=True):
        assert np.allclose(merged, lse, rtol=2e-6, atol=2e-6)


def test_one_plan_serves_every_layer():
    jobs = [make_job(**LENGTHS, dtype="f16", seed=5, spread=1 + layer) for layer in range(3)]

    def body(group):
        shard = shard_of(group.rank, 2, 4)
        sharded = [rank_cache(job, shard) for job in jobs]
        step = plan(rank_batch(jobs[0], sharded[0][1]), sharded[0][0], group=group, shard=shard)
        assert "rank 0 of 2" in str(step) or "rank 1 of 2" in str(step)
        return [attend(rank_batch(job, table), kv, group=group, plan=step) for job, (kv, table) in zip(jobs, sharded)]

    for outs in without_errors(on_ranks(Group.local(2), body)):
        for job, out in zip(jobs, outs):
            job.judge(out)


@pytest.mark.parametrize("world, heads, kv_heads", [(2, 8, 2), (4, 8, 2), (3, 6, 3), (4, 4, 1)])
def test_heads_need_no_exchange(world, heads, kv_heads):
    job = make_job(**LENGTHS, heads=heads, kv_heads=kv_heads, dtype="bf16")
    out = np.empty_like(job.q)
    for rank in range(world):
        mine = HeadShard(rank, world, heads, kv_heads)
        kv = quire.KVCache(job.k[:, :, mine.kv_heads], job.v[:, :, mine.kv_heads])
        batch = quire.Batch(query=job.q[:, mine.q_heads], output=out[:, mine.q_heads], query_start_loc=job.query_start_loc,
                            seq_lens=job.seq_lens, block_table=job.block_table)  # fmt: skip
        quire.attend(batch, kv)
    job.judge(out)


def test_keys_arrive_by_append():
    """Slots of the shard, appended step by step on every rank, are what attention reads."""
    job = make_job([5, 1], [0, 0], dtype="f32", page=4)
    positions = np.array([0, 1, 2, 3, 4, 0])
    requests = np.array([0, 0, 0, 0, 0, 1])

    def body(group):
        shard = ContextShard(group.rank, 2, interleave=2)
        k, v = (np.full((6, 4, 2, 32), np.nan, np.float32) for _ in range(2))
        table = np.array([[4, 1], [2, 3]], np.int64)
        slots = shard.slots(positions, requests, table, 4)
        kv = quire.KVCache(k, v)
        quire.append(kv, job.new_k, job.new_v, slots)
        assert shard.check_slots(slots, positions).ok
        return attend(rank_batch(job, table), kv, group=group, shard=shard)

    for out in without_errors(on_ranks(Group.local(2), body)):
        job.judge(out)


def test_the_choice_of_exchange_has_a_reason():
    job = make_job(**LENGTHS, dtype="f16")

    def chosen(world, **how):
        def body(group):
            shard = shard_of(group.rank, world, 2)
            kv, table = rank_cache(job, shard)
            return plan(rank_batch(job, table), kv, group=group, shard=shard, **how).exchange

        return without_errors(on_ranks(Group.local(world), body))[0]

    assert str(chosen(2)).startswith("all_gather: all_gather receives ")
    assert "us predicted on local" in str(chosen(2))
    assert chosen(4, heads="own").kind == "all_to_all"
    assert str(chosen(3)) == "all_gather: 4 query heads do not divide among 3 ranks"
    assert "as asked" in str(chosen(2, exchange="all_to_all"))
    with pytest.raises(quire.ArgumentError, match="4 query heads on 3 ranks: own heads and all_to_all need a multiple"):
        chosen(3, heads="own")


# ---- ranks that disagree, fail or do not come ----


def disagreeing(change, world=2):
    """Exceptions of all ranks; change(rank) is what rank's call differs in."""
    job = make_job([1, 2], [20, 9], dtype="f16")

    def body(group):
        different = change(group.rank)
        shard = shard_of(group.rank, world, different.pop("interleave", 1))
        kv, table = rank_cache(different.pop("job", job), shard, page=different.pop("page", None))
        batch = rank_batch(job, table) if "batch" not in different else different.pop("batch")(table)
        return attend(batch, kv, different.pop("options", None), group=group, shard=shard, **different)

    return on_ranks(Group.local(world, timeout=5), body)


LATER = make_job([1, 2], [21, 9], dtype="f16")
DISAGREEMENTS = {
    "page_size": (dict(page=16), r"Q-D05 page_size: 16 on rank 1, expected 8 as on rank 0"),
    "interleave": (dict(interleave=2), r"Q-D05 interleave: 2 on rank 1, expected 1 as on rank 0"),
    "lengths": (dict(batch=lambda table: rank_batch(LATER, table)), r"Q-D05 seq_lens \(digest\): \d+ on rank 1, expected \d+"),
    "window": (dict(options=quire.Options(sliding_window=7)), r"Q-D05 sliding_window: 7 on rank 1, expected -1 as on rank 0"),
    "exchange": (dict(exchange="all_to_all"), r"Q-D05 exchange \(digest\): "),
    "heads": (dict(heads="own", exchange="all_gather"), r"Q-D05 heads \(digest\): "),
    "dtype of the cache": (dict(job=make_job([1, 2], [20, 9], dtype="f16", kv="fp8_e4m3fn")), r"Q-D05 cache dtype \(digest\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_all_raise_the_same(name):
    change, text = DISAGREEMENTS[name]
    base = dict(exchange="all_gather") if name in ("exchange", "heads") else {}
    errors = disagreeing(lambda rank: {**base, **change} if rank == 1 else dict(base))
    for error in errors:
        assert isinstance(error, quire.ContractError) and error.rule == "Q-D05", error
    assert str(errors[0]) == str(errors[1])
    with pytest.raises(quire.ContractError, match=text):
        raise errors[0]


def test_queries_are_compared_if_asked():
    job = make_job([1, 2], [20, 9], dtype="f16")
    other = make_job([1, 2], [20, 9], dtype="f16")
    other.q = other.q + np.float16(0.25)
    for check in (True, "contents"):
        change = lambda rank: dict(check=check, batch=lambda table: rank_batch(other if rank else job, table))  # noqa: B023, E731
        errors = [isinstance(result, quire.ContractError) for result in disagreeing(change)]
        assert errors == [check == "contents"] * 2


def test_a_rank_whose_batch_is_refused_makes_all_raise():
    broken = lambda table: rank_batch(make_job([1, 2], [20, 9], dtype="f16"), np.full_like(table, 10**6))  # noqa: E731
    started = time.monotonic()
    first, second, third = disagreeing(lambda rank: dict(batch=broken) if rank == 1 else {}, world=3)
    assert time.monotonic() - started < 4
    assert isinstance(second, quire.ContractError) and second.rule == "Q-T03"
    for error in (first, third):
        assert isinstance(error, quire_distributed.RankError)
        assert str(error).startswith("rank 1 failed: ContractError: Q-T03 block_table") and error.ranks == (1,)


def test_a_rank_that_throws_between_exchanges_is_named_at_once():
    def body(group):
        if group.rank == 2:
            with group.guard():
                raise MemoryError("no pages left")
        group.all_gather(np.zeros(4), np.zeros((3, 4)))

    started = time.monotonic()
    errors = on_ranks(Group.local(3, timeout=60), body)
    assert time.monotonic() - started < 10
    assert [type(e) for e in errors] == [quire_distributed.RankError, quire_distributed.RankError, MemoryError]
    assert str(errors[0]) == str(errors[1]) == "rank 2 failed: MemoryError: no pages left"


def test_ranks_that_do_not_come_are_named_by_all_that_wait():
    def body(group):
        if group.rank not in (1, 3):
            group.all_gather(np.zeros(4), np.zeros((4, 4)))

    errors = on_ranks(Group.local(4, timeout=0.3), body)
    for rank in (0, 2):
        assert str(errors[rank]) == "all_gather: rank 1, rank 3 did not come within 0.3 s"
        assert errors[rank].ranks == (1, 3)


def test_a_broken_group_stays_broken():
    groups = Group.local(2, timeout=0.2)
    assert isinstance(on_ranks(groups, lambda g: g.rank or g.all_gather(np.zeros(1), np.zeros((2, 1))))[0], quire_distributed.RankError)
    with pytest.raises(quire_distributed.RankError, match="rank 1 did not come"):
        groups[0].all_gather(np.zeros(1), np.zeros((2, 1)))


def test_a_failure_while_others_compute():
    """Without a check, a rank that fails in its own attention is named by those that wait for its part."""
    job = make_job([1, 2], [20, 9], dtype="f16")

    def body(group):
        shard = shard_of(group.rank, 2, 1)
        kv, table = rank_cache(job, shard)
        step = plan(rank_batch(job, table), kv, group=group, shard=shard)
        if group.rank == 1:
            kv = quire.KVCache(job.k[:, :4], job.v[:, :4])  # another page size than the plan's
        return attend(rank_batch(job, table), kv, group=group, plan=step)

    first, second = on_ranks(Group.local(2, timeout=60), body)
    assert isinstance(second, quire.Error) and not isinstance(second, quire_distributed.RankError)
    assert isinstance(first, quire_distributed.RankError) and str(first) == f"rank 1 failed: {type(second).__name__}: {second}"


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g, b, kv: attend(b, kv, group=g), "argument shard is missing"),
        (lambda g, b, kv: attend(b, kv, group=g, shard=ContextShard(0, 2)), "shard: rank 0 of 2, expected rank 0 of 1 as the group"),
        (lambda g, b, kv: attend(b, kv, group=g, shard=ContextShard(0, 1), exchang="auto"), "did you mean exchange"),
        (lambda g, b, kv: attend(b, kv, group=g, shard=ContextShard(0, 1), exchange="ring"), "exchange: 'ring' is none of"),
        (lambda g, b, kv: attend(b, kv, group=g, shard=ContextShard(0, 1), heads="mine"), "heads: 'mine' is none of all, own"),
        (lambda g, b, kv: plan(b, kv, group=g, shard=ContextShard(0, 1), check="deep"), "check: 'deep'"),
        (lambda g, b, kv: Group.local(0), r"world: 0 \(int\), expected an integer >= 1"),
        (lambda g, b, kv: Group.local(1, timeout=-1), r"timeout: -1 \(int\), expected finite seconds > 0"),
        (lambda g, b, kv: g.all_to_all(np.zeros((2, 1)), np.zeros((2, 1))), "all_to_all: sent: 2 parts, expected 1"),
        (lambda g, b, kv: g.all_gather(np.zeros(2), np.zeros((2, 2))), r"received: float64 \[2, 2\], expected float64 \[1, 2\]"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong(call, text):
    job = make_job([1], [5], dtype="f16")
    (group,) = Group.local(1, timeout=1)
    with pytest.raises(quire.ArgumentError, match=text):
        call(group, rank_batch(job, job.block_table), quire.KVCache(job.k, job.v))


def test_keys_that_are_in_no_cache_are_refused():
    job = make_job([1], [5], dtype="f16")
    (group,) = Group.local(1)
    batch = rank_batch(job, job.block_table, key=job.new_k, value=job.new_v, cached_lens=[5])
    with pytest.raises(quire.UnsupportedError, match="key: given; .* append first"):
        attend(batch, quire.KVCache(job.k, job.v), group=group, shard=ContextShard(0, 1))


def test_torch_and_mpi_say_what_is_missing(monkeypatch):
    import builtins

    real = builtins.__import__
    absent = lambda name, *a, **k: (_ for _ in ()).throw(ImportError(f"No module named {name!r}")) if name.split(".")[0] in ("torch", "mpi4py") else real(name, *a, **k)  # noqa: E501, E731
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(quire.UnsupportedError, match="Group.from_torch: torch is not installed"):
        Group.from_torch()
    with pytest.raises(quire.UnsupportedError, match="Group.from_mpi: mpi4py is not usable"):
        Group.from_mpi()


def test_properties_of_groups():
    groups = Group.local(3)
    assert [repr(g) for g in groups][1] == "<quire_distributed.Group rank 1 of 3, local>"
    assert all(g.latency > 0 and g.bandwidth > 0 for g in groups)
    received = [np.zeros((3, 2), np.int64) for _ in groups]
    without_errors(on_ranks(groups, lambda g: g.all_gather(np.array([g.rank, 7]), received[g.rank])))
    assert all(r.tolist() == [[0, 7], [1, 7], [2, 7]] for r in received)
    swapped = [np.zeros((3, 1), np.int64) for _ in groups]
    sent = [np.array([[10 * k + j] for j in range(3)]) for k in range(3)]
    without_errors(on_ranks(groups, lambda g: g.all_to_all(sent[g.rank], swapped[g.rank])))
    assert all(swapped[k][j, 0] == 10 * j + k for k, j in itertools.product(range(3), range(3)))


def test_a_plan_of_other_lengths_is_refused():
    job = make_job(**LENGTHS, dtype="f32")
    (group,) = Group.local(1)
    shard = ContextShard(0, 1)
    kv, table = rank_cache(job, shard)
    batch = rank_batch(job, table)
    step = plan(batch, kv, group=group, shard=shard)
    lens = np.array(job.seq_lens)
    lens[3] += 1
    other = quire.Batch(query=job.q, query_start_loc=job.query_start_loc, seq_lens=lens, block_table=table)
    with pytest.raises(quire.ArgumentError, match=r"plan: made for seq_lens\[3\] = 20, but the batch has 21"):
        attend(other, kv, group=group, plan=step)
    for beside in (dict(shard=shard), dict(heads="own"), dict(check=False)):
        with pytest.raises(quire.ArgumentError, match="given beside plan"):
            attend(batch, kv, group=group, plan=step, **beside)
    wrong = rank_batch(job, table, output=np.empty(job.q.shape, np.float16))
    with pytest.raises(quire.ArgumentError, match="Q-M12 output: float16, expected float32"):
        attend(wrong, kv, group=group, shard=shard)
