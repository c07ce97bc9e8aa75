# SPDX-License-Identifier: Apache-2.0
"""Bound calls: one plan, other addresses for each layer; every promise of attend() holds for each of them."""

import gc

import numpy as np
import pytest
from dense import FP8, make_job, packed

import quire
from quire import _quire


def batch_of(job, **changes):
    arrays = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    return quire.Batch(**{**arrays, **changes})


def layers(count, **kind):
    """Jobs of the same lengths and tables, with data of their own."""
    jobs = [make_job([7, 1, 20, 1], [30, 41, 0, 9], seed=11, **kind)]
    for i in range(1, count):
        job = make_job([7, 1, 20, 1], [30, 41, 0, 9], seed=11, spread=1.0 + i / 4, **kind)
        job.q = np.roll(job.q, i, axis=2).copy()
        jobs.append(job)
    return jobs


@pytest.mark.parametrize("kv", [None, *FP8])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "packed"])
def test_each_layer_is_right_and_has_the_bits_of_attend(kv, layout):
    def cache_of(job):
        if layout == "packed":
            return packed(job.k, job.v)
        return (job.k, job.v) if layout == "nhd" else tuple(np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in (job.k, job.v))

    def view(job):
        return quire.KVCache(*cache_of(job), layout, job.k_scale, job.v_scale)

    jobs = layers(3, kv=kv, k_scale=0.5 if kv else 1.0)
    batch = batch_of(jobs[0])
    plan = quire.plan(batch, view(jobs[0]))
    call = quire.bind(batch, view(jobs[0]), plan=plan)
    assert call.plan == plan
    for job in jobs:
        out = np.full(job.q.shape, np.nan, job.q.dtype)
        assert call(job.q, *cache_of(job), out) is out
        job.judge(out)
        assert np.array_equal(out, quire.attend(batch_of(job), view(job), plan=plan))


def test_a_prepared_step_is_the_same_call_on_a_cpu():
    jobs = layers(3)
    call = quire.bind(batch_of(jobs[0]), quire.KVCache(jobs[0].k, jobs[0].v))
    with pytest.raises(quire.ArgumentError, match="prepared: True, but prepare\\(\\) of this BoundCall was never called"):
        call(prepared=True)
    assert call.prepare() is None
    for job in jobs:
        out = np.full(job.q.shape, np.nan, job.q.dtype)
        call(job.q, job.k, job.v, out, prepared=True)
        job.judge(out)
        assert np.array_equal(out, call(job.q, job.k, job.v))
    jobs[0].block_table[0, 0] = -1
    with pytest.raises(quire.ContractError, match="Q-T03"):
        call.prepare()


def test_what_is_not_given_is_that_of_bind_and_a_new_output_is_new():
    (job,) = layers(1)
    lse = np.empty(job.q.shape[:2], np.float32)
    call = quire.bind(batch_of(job, lse=lse), quire.KVCache(job.k, job.v))
    first, second = call(), call()
    assert first is not second and not np.shares_memory(first, second)
    job.judge(first)
    assert np.array_equal(first, second) and np.isfinite(lse).all()
    other = np.empty_like(lse)
    call(lse=other)
    assert np.array_equal(lse, other)
    mine = np.empty_like(job.q)
    given = quire.bind(batch_of(job, output=mine), quire.KVCache(job.k, job.v))
    assert given() is mine


def test_another_shape_stride_dtype_or_kind_of_memory_is_named():
    (job,) = layers(1)
    call = quire.bind(batch_of(job), quire.KVCache(job.k, job.v))
    out = np.full(job.q.shape, np.nan, job.q.dtype)
    wrong = {
        "query": job.q[:-1],
        "cache.k": job.k[:-1],
        "cache.v": np.asfortranarray(job.v),
        "output": np.full(job.q.shape, np.nan, np.float32),
        "key": job.new_k,
        "sinks": np.zeros(4, np.float32),
    }
    for name, array in wrong.items():
        arguments = {"query": job.q, "output": out, name.removeprefix("cache."): array}
        with pytest.raises(quire.ArgumentError, match=f"bound call: {name} is .*bind again|{name}: the array is"):
            call(**arguments)
    assert np.isnan(out).all()


def test_addresses_are_looked_at_anew():
    (job,) = layers(1)
    call = quire.bind(batch_of(job), quire.KVCache(job.k, job.v))
    with pytest.raises(quire.ContractError, match="Q-M16 output: shares memory with query"):
        call(job.q, output=job.q)
    raw = np.full(job.q.nbytes + 1, 0xFF, np.uint8)
    odd = raw[1:].view(job.q.dtype).reshape(job.q.shape)
    with pytest.raises(quire.ContractError, match="Q-M05 output: address"):
        call(job.q, output=odd)
    assert (raw == 0xFF).all()
    locked = np.empty_like(job.q)
    locked.flags.writeable = False
    with pytest.raises(quire.ArgumentError, match="output: the array is read-only"):
        call(output=locked)


def test_lengths_and_tables_that_changed_are_looked_at_anew():
    (job,) = layers(1)
    call = quire.bind(batch_of(job), quire.KVCache(job.k, job.v))
    out = np.full(job.q.shape, np.nan, job.q.dtype)
    page = job.block_table[1, 0]
    job.block_table[1, 0] = job.k.shape[0]
    with pytest.raises(quire.ContractError, match=r"Q-T03 block_table\[1\]\[0\]"):
        call(output=out)
    job.block_table[1, 0] = page
    job.seq_lens[1] += 1
    with pytest.raises(quire.ArgumentError, match="the plan was made for another batch"):
        call(output=out)
    assert np.isnan(out).all()


def test_a_broken_batch_cannot_be_bound_and_a_small_workspace_is_refused():
    (job,) = layers(1)
    batch, cache = batch_of(job), quire.KVCache(job.k, job.v)
    plan = quire.plan(batch, cache)
    with pytest.raises(quire.ArgumentError, match="workspace has 64 bytes"):
        quire.bind(batch, cache, plan=plan, workspace=np.zeros(64, np.uint8))()
    with pytest.raises(quire.ArgumentError, match="wait: 3 .int., expected True, False or None"):
        quire.bind(batch, cache)(wait=3)
    job.block_table[0, 0] = -1
    with pytest.raises(quire.ContractError, match="Q-T03"):
        quire.bind(batch, cache, plan=plan)


def test_what_was_bound_stays_alive():
    jobs = layers(2)
    call = quire.bind(
        batch_of(jobs[0], query=jobs[0].q.copy(), query_start_loc=jobs[0].query_start_loc.copy(), block_table=jobs[0].block_table.copy()),
        quire.KVCache(jobs[0].k.copy(), jobs[0].v.copy()),
    )
    gc.collect()
    junk = [np.full(jobs[0].k.shape, np.nan) for _ in range(32)]
    jobs[0].judge(call())
    del junk


def test_a_bound_torch_storage_that_moved_is_noticed():
    torch = pytest.importorskip("torch")
    (job,) = layers(1)
    lens = torch.from_numpy(job.seq_lens).clone()
    call = quire.bind(batch_of(job, seq_lens=lens), quire.KVCache(job.k, job.v))
    job.judge(call())
    lens.resize_(1 << 16)
    with pytest.raises(quire.ArgumentError, match="seq_lens: the tensor's storage moved"):
        call()


def test_a_bound_workspace_that_moved_is_noticed():
    torch = pytest.importorskip("torch")
    (job,) = layers(1)
    batch, cache = batch_of(job), quire.KVCache(job.k, job.v)
    plan = quire.plan(batch, cache)
    workspace = torch.empty(plan.workspace_bytes + 64, dtype=torch.uint8)
    call = quire.bind(batch, cache, plan=plan, workspace=workspace)
    job.judge(call())
    workspace.resize_(64 * plan.workspace_bytes + 2**20)
    with pytest.raises(quire.ArgumentError, match="workspace: the tensor's storage moved"):
        call()


def test_synchronize_has_nothing_to_say_where_no_gpu_was_used():
    assert quire.synchronize() is None


FORMS = ["f32", "f16", "bf16", "fp8_e4m3fn kscale=head vscale=tensor", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz", "i8 kscale=head vscale=head",
         "i8 kscale=token vscale=token", "fp8_e4m3fn kscale=token vscale=token", "nvfp4", "mxfp4", "nvfp4 kscale=head vscale=head", "f16/nvfp4",
         "mxfp4/i8 vscale=token", "fp8_e4m3fn/f32", "fp8_ds_mla heads=4:1 d=576 dv=512 latent=1"]  # fmt: skip


def case_of(kv):
    sizes = "" if "heads=" in kv else "heads=4:2 d=64"
    return quire.make_case(f"q=f32 kv={kv} {sizes} page=16 reqs=3x1@200,50@7 seed=3")


@pytest.mark.parametrize("kv", FORMS)
def test_every_type_of_cache_has_the_bits_of_attend_in_each_layer(kv):
    first, second = case_of(kv), case_of(kv)  # the second layer has its own memory, and its own rows
    second.batch.query[...] = second.batch.query[::-1].copy()
    names = ("k_scale", "v_scale", "k_block_scale", "v_block_scale")
    scales = {name: array for name in names if (array := getattr(second.cache, name)) is not None}
    call = quire.bind(first.batch, first.cache, first.options)
    call.prepare()
    for prepared in (False, True):
        assert np.array_equal(call(prepared=prepared), quire.attend(first.batch, first.cache, first.options))
        out = call(second.batch.query, second.cache.k, second.cache.v, prepared=prepared, **scales)
        assert np.array_equal(out, quire.attend(second.batch, second.cache, second.options)) and np.isfinite(out).all()


def test_block_scales_of_another_shape_or_over_the_output_are_named():
    case = case_of("nvfp4")
    call = quire.bind(case.batch, case.cache)
    for name in ("k_block_scale", "v_block_scale"):
        scales = getattr(case.cache, name)
        with pytest.raises(quire.ArgumentError, match=f"bound call: {name} is .* bound as .*bind again"):
            call(**{name: scales[:-1]})
        memory = np.zeros(max(scales.nbytes, case.batch.query.nbytes), np.uint8)
        out = memory[: case.batch.query.nbytes].view(np.float32).reshape(case.batch.query.shape)
        with pytest.raises(quire.ContractError, match=f"output.*{name}|{name}.*output"):
            call(output=out, **{name: memory[: scales.nbytes].view(scales.dtype).reshape(scales.shape)})
        assert not memory.any()


@pytest.mark.parametrize("kv", ["nvfp4", "mxfp4", "fp8_ds_mla heads=4:1 d=576 dv=512 latent=1"])
def test_calls_of_arrays_take_block_scales_and_know_the_head_dim_of_v(kv):
    case = case_of(kv)
    b, c = case.batch, case.cache
    scales = {name: getattr(c, name) for name in ("k_block_scale", "v_block_scale")}
    arrays = {name: getattr(b, name) for name in ("query", "query_start_loc", "seq_lens", "block_table")}
    caches = {name: np.asarray(getattr(c, name)).view(np.uint8) for name in ("k", "v")}
    out = _quire.attend_arrays({**arrays, **caches, **scales, "cache_dtype": c.dtype})
    assert np.array_equal(out, quire.attend(b, c))
