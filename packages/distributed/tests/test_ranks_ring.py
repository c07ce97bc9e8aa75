# SPDX-License-Identifier: Apache-2.0
"""Prompts whose keys go round a ring of ranks: every key once, equal to fp64, bits that one process gives, and nothing else is read."""

import itertools
import re
import threading
import types

import numpy as np
import pytest
from dense import make_job
from sharded import on_ranks, without_errors

import quire
import quire_distributed
from quire_distributed import Group, ZigZag, prefill, prefill_plan
from quire_distributed import _ring
from quire_distributed._prefill_choice import PrefillWork, choose_prefill

LENGTHS = (1, 37, 0, 100, 16, 64)
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
SLOPES = np.array([0.5, -0.25, 0.125, 0.0625], np.float32)


def job_of(dtype="f32", lengths=LENGTHS, **more):
    return make_job(lengths, [0] * len(lengths), dtype=dtype, **more)


def rows_of(job, zigzag):
    prompts, positions = zigzag.rows
    return job.query_start_loc[prompts] + positions


def run(job, world, page=16, options=None, lengths=LENGTHS, **how):
    """The whole output, put together from the ranks' rows."""

    def body(group):
        z = ZigZag(group.rank, world, lengths, page)
        mine = rows_of(job, z)
        arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
        plan = prefill_plan(*arrays, options, zigzag=z, group=group, exchange="ring", **how)
        assert plan.exchange.kind == "ring"
        return mine, prefill(*arrays, options, group=group, plan=plan)

    out = np.zeros_like(job.q)
    seen = np.zeros(len(out), int)
    for mine, rows in without_errors(on_ranks(Group.local(world), body)):
        out[mine] = rows
        seen[mine] += 1
    assert (seen == 1).all()
    return out


# --- which keys ---


def positions_of(z, arrays, source):
    """For each request of a call, the positions whose keys it sees, in the block of ``source``."""
    holder = {}
    for (prompt, position), slot in zip(zip(*z.of_rank(source).rows), z.of_rank(source).slots):
        holder[int(slot)] = (int(prompt), int(position))
    for request, count in enumerate(arrays["seq_lens"]):
        slots = [int(arrays["block_table"][request, t // z.page_size]) * z.page_size + t % z.page_size for t in range(count)]
        yield [holder[slot] for slot in slots]  # KeyError: a slot that holds no key


def keys_of_rows(z):
    """(prompt, position) of each row of a rank -> the positions that its calls see, in order."""
    prompts, positions = (a.tolist() for a in z.rows)
    found = {row: [] for row in zip(prompts, positions)}
    rows = list(found)
    for source in range(z.world):
        where = "own" if source == z.rank else "earlier" if source < z.rank else "later"
        arrays = _ring.ring_arrays(z, where)
        starts = arrays["query_start_loc"]
        for request, keys in enumerate(positions_of(z, arrays, source)):
            mine = rows[starts[request] : starts[request + 1]]
            for i, row in enumerate(mine):
                seen = keys[: len(keys) - len(mine) + 1 + i] if where == "own" else keys
                assert all(prompt == row[0] for prompt, _ in seen)
                found[row] += [position for _, position in seen]
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("page", [1, 4])
def test_every_row_sees_every_earlier_key_once(world, page):
    for lengths in itertools.chain(((n,) for n in range(0, 45)), [(3, 0, 17, 40), (41, 1)]):
        for rank in range(world):
            for (_, position), keys in keys_of_rows(ZigZag(rank, world, lengths, page)).items():
                assert sorted(keys) == list(range(position + 1))


def test_a_fault_in_the_calls_is_found(monkeypatch):
    arrays = _ring.ring_arrays
    monkeypatch.setattr(_ring, "ring_arrays", lambda z, where: arrays(z, "later" if where == "earlier" else where))
    found = keys_of_rows(ZigZag(1, 2, (48,), 4))
    assert any(sorted(keys) != list(range(position + 1)) for (_, position), keys in found.items())


def test_steps_cost_the_same_on_every_rank():
    lengths = (64 * 16 * 8, 5 * 16 * 8)
    costs = set()
    for rank in range(4):
        for where in ("earlier",) * (rank > 0) + ("later",) * (rank < 3):
            arrays = _ring.ring_arrays(ZigZag(rank, 4, lengths), where)
            costs.add(int((np.diff(arrays["query_start_loc"]).astype(np.int64) * arrays["seq_lens"]).sum()))
    assert len(costs) == 1


# --- results ---


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("page", [1, 8, 16])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_equal_to_fp64(world, page, dtype):
    job = job_of(dtype)
    job.judge(run(job, world, page))


@pytest.mark.parametrize("lengths", [(5,), (0,), (16, 0), (3, 130), (64,)])
def test_ranks_without_rows(lengths):
    job = job_of("f32", lengths)
    job.judge(run(job, 4, 16, lengths=lengths))


@pytest.mark.parametrize("name, options, oracle", [("cap", dict(logits_soft_cap=5.0), dict(cap=5.0)), ("sinks", dict(sinks=SINKS), dict(sinks=SINKS)),
                                                   ("scale", dict(softmax_scale=0.3), dict(scale=0.3))])  # fmt: skip
def test_options(name, options, oracle):
    job = job_of()
    job.judge(run(job, 3, 8, quire.Options(**options)), **oracle)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    job = job_of("f32")

    def body(group):
        z = ZigZag(group.rank, 3, LENGTHS, 8)
        mine = rows_of(job, z)
        arrays = [torch.from_numpy(np.ascontiguousarray(a[mine])) for a in (job.q, job.new_k, job.new_v)]
        return mine, prefill(*arrays, group=group, zigzag=z, exchange="ring")

    out = np.zeros_like(job.q)
    for mine, rows in without_errors(on_ranks(Group.local(3), body)):
        out[mine] = rows.numpy()
    job.judge(out)


# --- bits ---


def chunk(job, z, prompt, i):
    """Tokens of chunk i of a prompt, in the whole batch."""
    size, length = z.chunk(prompt), z.lengths[prompt]
    return job.query_start_loc[prompt] + np.arange(min(i * size, length), min((i + 1) * size, length))


def plain_attention(job, rows, keys, causal, page, out_dtype):
    """(out, lse) of some rows over some keys in a cache of their own; behind the last key it holds NaN."""
    pages = max(-(-len(keys) // page), 1)
    k, v = (np.full((pages * page, *new.shape[1:]), np.nan).astype(new.dtype) for new in (job.new_k, job.new_v))
    k[: len(keys)], v[: len(keys)] = job.new_k[keys], job.new_v[keys]
    cache = quire.KVCache(k.reshape(pages, page, *k.shape[1:]), v.reshape(pages, page, *v.shape[1:]))
    q = job.q[rows]
    out, lse = np.full(q.shape, np.nan, out_dtype or q.dtype), np.full(q.shape[:2], np.nan, np.float32)
    batch = quire.Batch(query=q, output=out, lse=lse, query_start_loc=np.array([0, len(rows)], np.int32), seq_lens=np.array([len(keys)], np.int32),
                        block_table=np.arange(pages, dtype=np.int32)[None])  # fmt: skip
    options = quire.Options(causal=causal)
    quire.attend(batch, cache, options, plan=quire.plan(batch, cache, options, batch_invariant=True))
    return out, lse


def one_process(job, z, prompt, half, page, part_dtype):
    """One chunk of rows as the docstring of prefill_plan() says it: blocks r, r - 1, ..., r + 1, merged into f32 in that order."""
    last = 2 * z.world - 1
    rows = chunk(job, z, prompt, (z.rank, last - z.rank)[half])
    total = None
    for s in range(z.world):
        source = (z.rank - s) % z.world
        low, high = chunk(job, z, prompt, source), chunk(job, z, prompt, last - source)
        if s == 0:
            keys = low if half == 0 else np.concatenate([low, high])
        elif source < z.rank:
            keys = low
        else:
            keys = np.concatenate([low, high]) if half else low[:0]
        part = plain_attention(job, rows, keys, s == 0, page, part_dtype)
        if total is None:
            total = part
        else:
            out = np.empty(job.q[rows].shape, job.q.dtype if s + 1 == z.world else np.float32)
            total = quire.merge(*total, *part, out, np.empty(out.shape[:2], np.float32))
    return rows, total[0].astype(job.q.dtype)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype, partials", [("f32", "f32"), ("bf16", "f32"), ("bf16", "query"), ("f16", "query")])
def test_batch_invariant_plans_have_the_bits_of_the_blocks_in_ring_order(world, dtype, partials):
    page = 8
    job = job_of(dtype)
    out = run(job, world, page, batch_invariant=True, partials=partials)
    for rank in range(world):
        z = ZigZag(rank, world, LENGTHS, page)
        for prompt in range(len(LENGTHS)):
            for half in (0, 1):
                rows, expected = one_process(job, z, prompt, half, page, np.float32 if partials == "f32" and world > 1 else None)
                assert np.array_equal(out[rows].view(np.uint8), expected.view(np.uint8)), (rank, prompt, half)


def test_other_prompts_change_no_bit():
    many, alone = job_of("bf16"), job_of("bf16", (100,))
    first = many.query_start_loc[3]
    for whole, one in ((many.q, alone.q), (many.new_k, alone.new_k), (many.new_v, alone.new_v)):
        one[:] = whole[first : first + 100]
    of_many = run(many, 3, 8, batch_invariant=True)[first : first + 100]
    of_one = run(alone, 3, 8, lengths=(100,), batch_invariant=True)
    assert np.array_equal(of_many.view(np.uint16), of_one.view(np.uint16))


def test_what_must_not_be_read_may_hold_anything(monkeypatch):
    """Tails of chunks, and in a block that arrives from an earlier rank the chunk that no row of this rank may see."""
    job = job_of("f32")
    clean = run(job, 3, 8)
    pack, pages = _ring.packed_block, _ring.pages_of

    def with_bad_tails(key, value, rows, slots):
        block = pack(key, value, rows, slots)
        if slots is not None:
            tails = np.setdiff1d(np.arange(rows), slots)
            block[:, tails] = np.nan
        return block

    monkeypatch.setattr(_ring, "packed_block", with_bad_tails)
    assert np.array_equal(run(job, 3, 8), clean)

    class Poisoned(_ring.RingCalls):
        """Hides the later chunk of each prompt from calls over an earlier rank's block: attention gets a copy."""

        def of(self, source, rank):
            z = ZigZag(rank, 3, LENGTHS, 8)
            hidden = [first + i for p, first in enumerate(z.first_pages) for i in range(z.chunk(p) // 8)]
            bad.pages = hidden if source < rank else []
            return super().of(source, rank)

    bad = threading.local()

    def with_bad_pages(block, plan_pages, page_size):
        k, v = pages(block, plan_pages, page_size)
        if getattr(bad, "pages", None):
            k, v = k.copy(), v.copy()
            k[bad.pages], v[bad.pages] = np.nan, np.nan
        return k, v

    monkeypatch.setattr(_ring, "RingCalls", Poisoned)
    monkeypatch.setattr(_ring, "pages_of", with_bad_pages)
    assert np.array_equal(run(job, 3, 8), clean)


# --- choice and refusals ---


def work(length, world=4, q_heads=32, kv_heads=8):
    return PrefillWork(ZigZag(0, world, (length,), 16), q_heads, kv_heads, 128, 2, on_gpu=True)


def test_the_choice_gives_its_numbers():
    fast = types.SimpleNamespace(world=4, rank=0, latency=9e-6, bandwidth=240e9, name="nccl")
    slow = types.SimpleNamespace(world=4, rank=0, latency=50e-6, bandwidth=25e9, name="nccl")
    assert choose_prefill(work(1 << 16), slow, None, "auto", 4, False).kind == "ring"
    assert choose_prefill(work(1 << 10), slow, None, "auto", 4, False).kind == "gather"
    chosen = choose_prefill(work(1 << 16), fast, None, "auto", 4, False)
    assert "a gather takes" in str(chosen) and "MB of keys on every rank, a ring" in str(chosen) and "predicted on nccl" in str(chosen)
    assert choose_prefill(work(1 << 16), slow, None, "gather", 4, False).reason.startswith("as asked; ")
    assert choose_prefill(work(1 << 16), slow, None, "auto", 2, True).reason == "head_chunks is given, which a ring does not have"


REFUSED = {
    "window": (dict(sliding_window=9), r"Q-D07 sliding_window: 9, expected absent in a ring: it hides a part of another rank's block"),
    "slopes": (dict(alibi_slopes=SLOPES), r"Q-D07 alibi_slopes: given, expected absent in a ring"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_cut_a_block_gather_or_are_refused(name):
    options, message = REFUSED[name]
    options = quire.Options(**options)
    job = job_of()

    def body(group, exchange):
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(job, z)
        return prefill_plan(job.q[mine], job.new_k[mine], job.new_v[mine], options, zigzag=z, group=group, exchange=exchange)

    for error in on_ranks(Group.local(2, timeout=5), lambda group: body(group, "ring")):
        assert error.rule == "Q-D07" and re.match(message, str(error)), error
    for plan in without_errors(on_ranks(Group.local(2), lambda group: body(group, "auto"))):
        assert plan.exchange.kind == "gather" and plan.exchange.reason.startswith("not a ring: Q-D07")
        assert "gather: not a ring: Q-D07" in str(plan)


@pytest.mark.parametrize("exchange", ["auto", "gather", "ring"])
def test_options_that_are_not_causal_are_refused(exchange):
    job = job_of()
    z = ZigZag(0, 1, LENGTHS)
    with pytest.raises(quire.ContractError, match="Q-D07 causal: false, expected true"):
        prefill(job.q, job.new_k, job.new_v, quire.Options(causal=False), group=Group.local(1)[0], zigzag=z, exchange=exchange)


def test_arguments_that_contradict():
    job = job_of()
    how = dict(group=Group.local(1)[0], zigzag=ZigZag(0, 1, LENGTHS))
    with pytest.raises(quire.ArgumentError, match="exchange: 'star' is none of auto, gather, ring, copy"):
        prefill(job.q, job.new_k, job.new_v, exchange="star", **how)
    how["group"] = Group.local(1)[0]
    with pytest.raises(quire.ArgumentError, match='head_chunks: 2 with exchange="ring", expected None'):
        prefill(job.q, job.new_k, job.new_v, exchange="ring", head_chunks=2, **how)
    how["group"] = Group.local(1)[0]
    with pytest.raises(quire.ArgumentError, match='partials: .f64. .str., expected "auto", "f32" or "query"'):
        prefill_plan(job.q, job.new_k, job.new_v, exchange="ring", partials="f64", **how)


def test_ranks_that_choose_differently_are_heard():
    job = job_of()

    def body(group):
        z = ZigZag(group.rank, 2, LENGTHS)
        mine = rows_of(job, z)
        return prefill(job.q[mine], job.new_k[mine], job.new_v[mine], group=group, zigzag=z, exchange=("ring", "gather")[group.rank])

    for error in on_ranks(Group.local(2, timeout=5), body):
        assert error.rule == "Q-D05" and "exchange (digest)" in str(error)


def test_a_rank_that_stays_away_is_named():
    job = job_of()

    def body(group):
        z = ZigZag(group.rank, 3, LENGTHS)
        mine = rows_of(job, z)
        arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
        plan = prefill_plan(*arrays, zigzag=z, group=group, exchange="ring")
        return None if group.rank == 1 else prefill(*arrays, group=group, plan=plan)

    results = on_ranks(Group.local(3, timeout=1), body)
    for rank in (0, 2):
        assert isinstance(results[rank], quire_distributed.RankError) and results[rank].ranks == (1,), results[rank]
