# SPDX-License-Identifier: Apache-2.0
"""Every call of the package beside the array handling: check, plan, explain, append, merge, ledger, pool, threads, errors."""

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from dense import DTYPES, attention, make_job

import quire

LINE = "q=bf16 kv=bf16 heads=8:2 d=64 page=16 reqs=2x33@40,3x1@200 lse=1 seed=4"


@pytest.fixture
def job():
    return make_job([3, 1, 5], [10, 20, 0], dtype="f32")


def batch_of(job, **changes):
    args = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    return quire.Batch(**{**args, **changes})


# --- check --------------------------------------------------------------------------------------------------------------------------


def test_findings_list_everything_and_raise(job):
    table, lens = job.block_table.copy(), job.seq_lens.copy()
    table[0, 0] = 913
    table[1, 1] = -2
    findings = quire.check(batch_of(job, block_table=table), quire.KVCache(job.k, job.v))
    assert not findings.ok and len(findings) == findings.total == 2
    first = findings[0]
    assert first.tensor == "block_table" and first.index == (0, 0) and "913" in first.value and first.rule.startswith("Q-T")
    assert first.message == str(first) and first.message.startswith(f"{first.rule} block_table[0][0]: ")
    assert [f.index for f in findings] == [(0, 0), (1, 1)] and findings[-1].index == (1, 1)
    with pytest.raises(IndexError):
        findings[2]
    with pytest.raises(quire.ContractError) as caught:
        findings.raise_if_any()
    assert caught.value.rule == first.rule and str(caught.value).startswith(first.message)
    assert str(findings).count("\n") == 1
    lens[2] = 4  # query_len 5
    assert quire.check(batch_of(job, seq_lens=lens), quire.KVCache(job.k, job.v)).total >= 1


def test_no_findings(job):
    findings = quire.check(batch_of(job), quire.KVCache(job.k, job.v))
    assert findings.ok and len(findings) == 0 and list(findings) == [] and str(findings) == "no findings"
    findings.raise_if_any()


def test_depths(job):
    table = job.block_table.copy()
    table[0, 0] = 913
    cache = quire.KVCache(job.k, job.v)
    broken_table = batch_of(job, block_table=table)
    assert quire.check(broken_table, cache, depth="metadata").ok
    assert not quire.check(broken_table, cache, depth="tables").ok
    query = job.q.copy()
    query[4, 2, 7] = np.nan
    broken_content = batch_of(job, query=query)
    assert quire.check(broken_content, cache, depth="tables").ok
    found = quire.check(broken_content, cache, depth="contents")
    assert found.total == 1 and found[0].index == (4, 2, 7)
    with pytest.raises(quire.ArgumentError, match='depth: "deep" is none of metadata, tables, contents'):
        quire.check(broken_content, cache, depth="deep")


def test_rules_are_listed():
    rules = quire.rules()
    assert {rule.depth for rule in rules} == {"metadata", "tables", "contents"}
    assert len({rule.id for rule in rules}) == len(rules) > 40
    assert all(rule.statement and rule.why and rule.example for rule in rules)


# --- plan and explain -----------------------------------------------------------------------------------------------------------------


def test_kernels_say_whether_they_run_here():
    here = {kernel.name: kernel.runs_here for kernel in quire.info.kernels()}
    assert here["cpu_generic"] and not (here["cpu_neon"] and here["cpu_avx2"])
    case = quire.make_case(LINE)
    assert here[quire.plan(case.batch, case.cache, case.options).kernel]
    if not quire.info.gpu_devices():
        assert not any(runs for name, runs in here.items() if name.startswith(("cuda_", "hip_")))


def test_plan_is_a_value():
    case = quire.make_case(LINE)
    plan = quire.plan(case.batch, case.cache, case.options)
    again = quire.plan(case.batch, case.cache, case.options)
    assert plan == again and plan != "plan" and str(plan).startswith(plan.kernel)
    assert plan.kernel in [kernel.name for kernel in quire.info.kernels()]
    assert plan.workspace_bytes > 0 and plan.tile_q > 0 and plan.tile_kv > 0 and plan.num_items > 0
    assert plan.device.name == quire.info.host_device().name
    assert "heads=8:2" in plan.problem


@pytest.mark.parametrize("kernel", [kernel.name for kernel in quire.info.kernels()])
def test_forced_kernels_agree(kernel):
    case = quire.make_case(LINE)
    try:
        plan = quire.plan(case.batch, case.cache, case.options, kernel=kernel)
    except quire.UnsupportedError as refused:
        assert kernel in str(refused)
        pytest.skip(str(refused))
    rows = {}
    out = quire.attend(case.batch, case.cache, case.options, plan, rows=rows)
    assert set(rows) == {kernel}
    assert quire.compare(out, case.batch.lse, quire.reference(case.batch, case.cache, case.options)).ok


def test_an_unknown_kernel_is_refused():
    case = quire.make_case(LINE)
    with pytest.raises(quire.Error, match="cpu_magic"):
        quire.plan(case.batch, case.cache, case.options, kernel="cpu_magic")


def test_a_plan_of_another_batch_is_refused():
    case, other = quire.make_case(LINE), quire.make_case(LINE.replace("@200", "@201"))
    plan = quire.plan(other.batch, other.cache, other.options)
    before = np.asarray(case.batch.output).view(np.uint16).copy()
    with pytest.raises(quire.Error):
        quire.attend(case.batch, case.cache, case.options, plan)
    assert np.array_equal(np.asarray(case.batch.output).view(np.uint16), before)


def test_workspace(job):
    batch, cache = batch_of(job), quire.KVCache(job.k, job.v)
    plan = quire.plan(batch, cache)
    room = np.zeros(plan.workspace_bytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    job.judge(quire.attend(batch, cache, plan=plan, workspace=room[start:]))
    if plan.workspace_bytes > 0:
        with pytest.raises(quire.Error, match="workspace"):
            quire.attend(batch, cache, plan=plan, workspace=room[start : start + 8])
    with pytest.raises(quire.ArgumentError, match="workspace: the array is not contiguous"):
        quire.attend(batch, cache, plan=plan, workspace=np.zeros(4096, np.uint8)[::2])
    with pytest.raises(quire.ArgumentError, match="workspace: the array is read-only"):
        quire.attend(batch, cache, plan=plan, workspace=np.frombuffer(bytes(1 << 20), np.uint8))


def test_a_workspace_that_shares_memory_with_an_array_is_refused(job):
    cache = quire.KVCache(job.k, job.v)
    plan = quire.plan(batch_of(job), cache)
    room = np.zeros(plan.workspace_bytes + job.q.nbytes + 128, np.uint8)
    room = room[-room.ctypes.data % 64 :][: plan.workspace_bytes + job.q.nbytes]
    inside = room[64 : 64 + job.q.nbytes].view(job.q.dtype).reshape(job.q.shape)
    inside[:] = job.q
    before = room.copy()
    for name, batch in {"output": batch_of(job, output=inside), "query": batch_of(job, query=inside)}.items():
        with pytest.raises(quire.ContractError, match=f"Q-M37 workspace: shares memory with {name}") as caught:
            quire.attend(batch, cache, plan=plan, workspace=room[: plan.workspace_bytes])
        assert caught.value.rule == "Q-M37"
        assert np.array_equal(room, before)
    beside = room[-job.q.nbytes :].view(job.q.dtype).reshape(job.q.shape)
    job.judge(quire.attend(batch_of(job, output=beside), cache, plan=plan, workspace=room[: plan.workspace_bytes]))


def test_a_length_beyond_the_table_under_a_window_is_a_finding():
    k, v = np.zeros((2, 8, 16, 2, 64), np.float32)
    for seq_len in (1000, 40_000_000, 2**31 - 1):
        batch = quire.Batch(query=np.zeros((1, 4, 64), np.float32), query_start_loc=np.array([0, 1]), seq_lens=np.array([seq_len]),
                            block_table=np.array([[3, 4]]), slot_mapping=np.array([5]))  # fmt: skip
        with pytest.raises(quire.ContractError, match="Q-T10 block_table"):
            quire.attend(batch, quire.KVCache(k, v), quire.Options(sliding_window=8))


def test_no_row_on_a_cpu_rounds_its_weights():
    case = quire.make_case("q=bf16 heads=4:2 d=64 page=16 reqs=40@9,1@70")
    for exact in (False, True):
        plan = quire.plan(case.batch, case.cache, case.options, exact_weights=exact)
        assert not plan.rounds_weights(40) and not plan.rounds_weights(1)


def test_batch_invariant_bits():
    line = "q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=1x1@3000,{} seed=4"
    small, large = quire.make_case(line.format("1x2@5")), quire.make_case(line.format("9x17@300"))
    large_q, small_q = np.asarray(large.batch.query), np.asarray(small.batch.query)
    outs = []
    for case, rows in ((small, slice(0, 1)), (large, slice(0, 1))):
        plan = quire.plan(case.batch, case.cache, case.options, batch_invariant=True)
        assert plan.batch_invariant
        outs.append(np.array(quire.attend(case.batch, case.cache, case.options, plan)[rows]).view(np.uint16))
    if np.array_equal(large_q[:1].view(np.uint16), small_q[:1].view(np.uint16)):
        assert np.array_equal(outs[0], outs[1])


def test_explain():
    explanation = quire.explain(LINE)
    assert explanation.chosen and str(explanation) == explanation.text and explanation.plan_line.startswith(explanation.chosen)
    for refusal in quire.explain(LINE, device="scalar").refusals:
        assert refusal.kernel and refusal.reason and str(refusal) == f"{refusal.kernel}: {refusal.reason}"
    assert quire.explain(LINE, device="scalar").chosen == "cpu_generic"
    case = quire.make_case(LINE)
    plan = quire.plan(case.batch, case.cache)
    for source in (case, plan, quire.parse_problem_line(LINE)):
        assert quire.explain(source).problem == explanation.problem
    assert quire.explain(case.batch, cache=case.cache, options=case.options).problem == explanation.problem
    with pytest.raises(quire.ArgumentError, match="cache: explaining a Batch needs its cache="):
        quire.explain(case.batch)
    with pytest.raises(quire.ArgumentError, match="problem: expected a problem line"):
        quire.explain(3)
    with pytest.raises(quire.Error, match="sm12"):
        quire.explain(LINE, device="sm12")


def test_problem_lines():
    line = quire.parse_problem_line(LINE)
    assert quire.parse_problem_line(str(line)).num_tokens == line.num_tokens == 69 and line.seed == 4
    with pytest.raises(quire.errors.ParseError, match="q=") as caught:
        quire.parse_problem_line("q=f12")
    assert caught.value.code == "parse_error" and isinstance(caught.value, ValueError)


# --- options --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(scale=0.3),
        dict(window=1),
        dict(window=7),
        dict(cap=2.0),
        dict(slopes=np.array([0.5, -0.25, 0.0, 0.1], np.float32)),
        dict(sinks=np.array([0.0, 3.0, -5.0, 9.0], np.float32), window=4, cap=5.0),
    ],
)
def test_every_option_against_the_dense_oracle(options):
    job = make_job([3, 1, 5, 0, 17], [10, 20, 0, 9, 40], dtype="f32", seed=3)
    lse = np.zeros(job.q.shape[:2], np.float32)
    names = dict(scale="softmax_scale", window="sliding_window", cap="logits_soft_cap", slopes="alibi_slopes", sinks="sinks")
    quire_options = quire.Options(**{names[name]: value for name, value in options.items()})
    batch, cache = batch_of(job, lse=lse), quire.KVCache(job.k, job.v)
    out = quire.attend(batch, cache, quire_options)
    job.judge(out, **options)
    expected_lse = np.concatenate(
        [
            attention(job.q[a:b].astype(float), k, v, len(k) - (b - a), **options)[1]
            for a, b, k, v in zip(job.query_start_loc, job.query_start_loc[1:], job.dense_k, job.dense_v)
        ]
    )
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-6, atol=2e-5)
    reference = quire.reference(batch, cache, quire_options)
    np.testing.assert_allclose(reference.out, job.expected(**options)[0], rtol=1e-6, atol=1e-6)
    assert quire.compare(out, lse, reference).ok
    for name, value in options.items():
        assert np.all(getattr(quire_options, names[name]) == np.float32(value))


def test_options_out_of_range(job):
    for bad in (dict(softmax_scale=0.0), dict(sliding_window=0), dict(logits_soft_cap=-1.0), dict(sinks=np.zeros(3, np.float32))):
        with pytest.raises(quire.ContractError, match=next(iter(bad))):
            quire.attend(batch_of(job), quire.KVCache(job.k, job.v), quire.Options(**bad))


@pytest.mark.parametrize("new_from", ["rows", "mixed"])
def test_cached_lens(new_from):
    job = make_job([3, 1, 5], [10, 20, 0], dtype="f16", kv="fp8_e4m3fn", new_from=new_from)
    cached = job.seq_lens - job.query_lens
    if new_from == "mixed":
        cached = np.where(job.query_lens == 1, job.seq_lens, cached)
    k, v = job.k.copy(), job.v.copy()
    read_new = np.repeat(cached < job.seq_lens, job.query_lens)
    for cache in (k, v):
        cache.reshape(-1, 2, 32)[job.slots[read_new]] = np.nan
    batch = batch_of(job, cached_lens=cached, key=job.new_k, value=job.new_v)
    job.judge(quire.attend(batch, quire.KVCache(k, v)))


# --- append and merge -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [None, "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "packed"])
def test_append_writes_what_ml_dtypes_would(kv, layout):
    job = make_job([7, 1], [9, 3], dtype="f32", kv=kv, spread=3.0)
    shape = job.k.shape
    axes = {"nhd": (0, 1, 2, 3), "hnd": (0, 2, 1, 3)}.get(layout)
    dtype = DTYPES[job.kv]
    if layout == "packed":
        x = 16 // dtype(0).itemsize
        k = np.zeros((shape[0], shape[2], shape[3] // x, shape[1], x), dtype)
        v = np.zeros((shape[0], shape[2], shape[3], shape[1]), dtype)
    else:
        k, v = (
            np.ascontiguousarray(np.zeros(shape, dtype).transpose(axes)),
            np.ascontiguousarray(np.zeros(shape, dtype).transpose(axes)),
        )
    slots = job.slots.copy()
    slots[2] = -1
    scale = 0.5 if kv else None
    quire.append(quire.KVCache(k, v, layout, k_scale=scale), job.new_k, job.new_v, slots)
    if layout == "packed":
        read_k, read_v = k.transpose(0, 3, 1, 2, 4).reshape(shape), v.transpose(0, 3, 1, 2)
    else:
        read_k, read_v = (k, v) if layout == "nhd" else (k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))
    expected_k, expected_v = np.zeros(shape, dtype), np.zeros(shape, dtype)
    keep = slots >= 0
    expected_k.reshape(-1, *shape[2:])[slots[keep]] = (job.new_k[keep] / np.float32(scale or 1)).astype(dtype)
    expected_v.reshape(-1, *shape[2:])[slots[keep]] = job.new_v[keep].astype(dtype)
    raw = np.dtype(f"u{k.itemsize}")
    assert np.array_equal(np.ascontiguousarray(read_k).view(raw), expected_k.view(raw))
    assert np.array_equal(np.ascontiguousarray(read_v).view(raw), expected_v.view(raw))


def test_append_refuses_before_the_first_write(job):
    k, v = np.zeros_like(job.k), np.zeros_like(job.v)
    cache = quire.KVCache(k, v)
    for index, slot, text in ((3, 10**6, "1000000"), (5, int(job.slots[0]), "slot_mapping")):
        slots = job.slots.copy()
        slots[index] = slot
        with pytest.raises(quire.ContractError, match=text):
            quire.append(cache, job.new_k, job.new_v, slots)
        assert not k.any() and not v.any()
    with pytest.raises(quire.ContractError, match="key"):
        quire.append(cache, job.new_k[:, :1], job.new_v, job.slots)


def test_ledger_end_to_end(job):
    k, v = np.zeros_like(job.k), np.zeros_like(job.v)
    cache, ledger = quire.KVCache(k, v), quire.SlotLedger(job.k.shape[0], 8)
    ids = np.array([70, 71, 72])
    batch = batch_of(job, request_ids=ids)
    found = quire.check(batch, cache, ledger=ledger)
    assert found.total == 3 and found[0].rule == "Q-L01"  # a finding for each request: one run of positions
    for r, (n, table) in enumerate(zip(job.seq_lens, job.block_table)):
        positions = np.arange(n)
        slots = table[positions // 8].astype(np.int64) * 8 + positions % 8
        rows = np.zeros((n, 2, 32), np.float32)
        ledger.begin_step(r)
        quire.append(cache, rows, rows, slots, ledger=ledger, request_ids=np.full(n, ids[r]), positions=positions)
    assert quire.check(batch, cache, ledger=ledger).ok
    assert ledger.slots_written == int(job.seq_lens.sum()) and ledger.slots_read > 0
    entry = ledger.entry(int(job.slots[3]))
    assert (entry.request, entry.position, entry.step, entry.recycled) == (71, 20, 1, False)
    foreign = quire.check(batch_of(job, request_ids=np.array([70, 99, 72])), cache, ledger=ledger)
    assert [f.rule for f in foreign] == ["Q-L02"] and "request 99 reads positions 0 to 20" in foreign[0].message
    for page in job.block_table[1, :3]:
        ledger.share(int(page), 99)
    assert quire.check(batch_of(job, request_ids=np.array([70, 99, 72])), cache, ledger=ledger).ok
    ledger.recycle(int(job.block_table[2, 0]))
    stale = quire.check(batch, cache, ledger=ledger)
    assert [f.rule for f in stale] == ["Q-L04"] and "reads positions 0 to 4" in stale[0].message
    with pytest.raises(quire.ArgumentError, match="needs request_ids and positions"):
        quire.append(cache, job.new_k, job.new_v, job.slots, ledger=ledger)
    tags = dict(request_ids=np.full(9, 70), positions=np.arange(9))
    before, written = k.copy(), ledger.slots_written
    with pytest.raises(quire.ArgumentError, match="request_ids, positions: given, but no ledger"):
        quire.append(cache, job.new_k, job.new_v, job.slots, **tags)
    for name in tags:
        wrong = {**tags, name: np.where(np.arange(9) == 4, -1, tags[name])}
        with pytest.raises(quire.ContractError, match=r"Q-L06 tags\[4\]: (request|position) -1, expected at least 0"):
            quire.append(cache, job.new_k, job.new_v, job.slots, ledger=ledger, **wrong)
    with pytest.raises(quire.ContractError, match="Q-L05 ledger"):
        quire.append(cache, job.new_k, job.new_v, job.slots, ledger=quire.SlotLedger(job.k.shape[0] + 1, 8), **tags)
    with pytest.raises(quire.ContractError, match="Q-S06 value: dtype f32, expected f16 as key"):
        quire.append(cache, job.new_k.astype(np.float16), job.new_v, job.slots)
    assert np.array_equal(k, before) and ledger.slots_written == written
    with pytest.raises(quire.ArgumentError, match="slot: -1 is outside the ledger"):
        ledger.entry(-1)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_merge_is_attention_over_both_halves(dtype):
    rng = np.random.default_rng(7)
    q, k, v = rng.standard_normal((6, 4, 16)), rng.standard_normal((26, 4, 16)), rng.standard_normal((26, 4, 16))
    whole, lse, *_ = attention(q, k, v, 20)
    a, lse_a, *_ = attention(q, k[:20], v[:20], 20)
    parts = [attention(q[i : i + 1], k[20 : 21 + i], v[20 : 21 + i], i) for i in range(6)]
    b, lse_b = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    out, merged = quire.merge(*(x.astype(t) for x, t in ((a, DTYPES[dtype]), (lse_a, "f4"), (b, DTYPES[dtype]), (lse_b, "f4"))))
    assert out.dtype == DTYPES[dtype] and merged.dtype == np.float32
    u = {"f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype]
    np.testing.assert_allclose(out.astype(float), whole, atol=2 * u * np.abs(v).max(), rtol=0)
    np.testing.assert_allclose(merged, lse, rtol=1e-6, atol=1e-5)


def test_merge_is_exact_on_empty_sides_and_in_place():
    rng = np.random.default_rng(8)
    a, lse_a = rng.standard_normal((3, 2, 8)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    garbage, nothing = np.full_like(a, 1e30), np.full_like(lse_a, -np.inf)
    for args in ((a, lse_a, garbage, nothing), (garbage, nothing, a, lse_a)):
        out, lse = quire.merge(*args)
        assert np.array_equal(out, a) and np.array_equal(lse, lse_a)
    out, lse = quire.merge(garbage, nothing, garbage, nothing)
    assert not out.any() and np.all(lse == -np.inf)
    target = a.copy()
    result, _ = quire.merge(target, lse_a, garbage, nothing, out=target)
    assert result is target and np.array_equal(target, a)
    with pytest.raises(quire.ContractError, match="lse_b"):
        quire.merge(a, lse_a, a, np.full_like(lse_a, np.inf))
    with pytest.raises(quire.ContractError):
        quire.merge(a, lse_a, a[:2], lse_a[:2])
    with pytest.raises(quire.ArgumentError, match="out: the array is read-only"):
        frozen = a.copy()
        frozen.flags.writeable = False
        quire.merge(a, lse_a, a, lse_a, out=frozen)


# --- page pool ------------------------------------------------------------------------------------------------------------------------


def test_page_pool():
    ledgers = [quire.SlotLedger(8, 4) for _ in range(2)]
    pool = quire.PagePool(8, page_size=4, ledgers=ledgers)
    tokens = np.arange(10, dtype=np.int32)
    assert pool.add(1, tokens) == 0
    pool.reserve(1, 10)
    table = pool.block_table(1)
    assert table.dtype == np.int32 and len(table) == 3 and len(set(table.tolist())) == 3
    table[:] = -1
    assert pool.block_table(1)[0] >= 0, "block_table is a copy"
    slots = pool.slots(1, 3, 6)
    assert slots.dtype == np.int64 and slots.tolist() == [pool.slot(1, i) for i in (3, 4, 5)]
    assert pool.slot(1, 4) == pool.block_table(1)[1] * 4
    pool.commit(1, 10)
    assert pool.add(2, [*range(9), 99]) == 8, "two full pages are shared"
    pool.reserve(2, 10)
    assert pool.block_table(2)[:2].tolist() == pool.block_table(1)[:2].tolist()
    assert all(ledger.shared_with(int(pool.block_table(1)[0]), 2) for ledger in ledgers)
    assert pool.stats.pages_shared == 2 and pool.stats.prefix_hit_tokens == 8 and pool.stats.pages_in_use == 4
    pool.add(3, list(range(100, 140)))
    with pytest.raises(quire.errors.OutOfPagesError) as caught:
        pool.reserve(3, 40)
    assert caught.value.code == "out_of_pages"
    for call, text in (
        (lambda: pool.slot(9, 0), "PagePool::slot request 9: unknown"),
        (lambda: pool.slots(9, 0, 0), "request 9: unknown"),
        (lambda: pool.block_table(9), "PagePool::block_table request 9: unknown"),
        (lambda: pool.slots(1, 5, 13), r"request 1: position 12 has no page, expected one in \[0, 12\)"),
        (lambda: pool.slot(1, -1), "request 1: position -1 has no page"),
    ):
        with pytest.raises(quire.ArgumentError, match=text):
            call()
    pool.push_token(1, 10)
    assert pool.victim() == 2
    pool.preempt(2)
    assert pool.resume(2) == 8
    for request in (1, 2, 3):
        pool.release(request)
    assert pool.stats.pages_in_use == 0 and pool.victim() is None
    with pytest.raises(quire.ArgumentError):
        pool.release(1)
    with pytest.raises(quire.Error):
        quire.PagePool(8, page_size=0)


# --- captures -------------------------------------------------------------------------------------------------------------------------


def test_capture_errors(tmp_path):
    with pytest.raises(quire.errors.FileError) as caught:
        quire.read_capture(tmp_path / "none.safetensors")
    assert isinstance(caught.value, OSError) and caught.value.code == "io_error"
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 64)
    with pytest.raises(quire.errors.ParseError):
        quire.read_capture(broken)


def test_capture_of_python_arrays(tmp_path):
    job = make_job([3, 1], [10, 20], dtype="f16", kv="fp8_e5m2", k_scale=0.5)
    cache = quire.KVCache(job.k, job.v, k_scale=0.5)
    options = quire.Options(sliding_window=9)
    quire.write_capture(str(tmp_path / "a.safetensors"), batch_of(job), cache, options, observed=job.q)
    case = quire.read_capture(tmp_path / "a.safetensors")
    assert case.options.sliding_window == 9 and case.cache.dtype == "fp8_e5m2"
    assert np.array_equal(case.observed, job.q) and float(case.cache.k_scale) == 0.5
    job.judge(quire.attend(case.batch, case.cache, case.options), window=9)


# --- threads --------------------------------------------------------------------------------------------------------------------------


def test_the_gil_is_released():
    """While one thread attends, another runs Python."""
    case = quire.make_case("q=f32 kv=f32 heads=16:4 d=128 page=16 reqs=1x300@1500 seed=2")
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    quire.reference(case.batch, case.cache, case.options)
    end = time.perf_counter()
    done.set()
    thread.join()
    inside = sum(start < t < end for t in ticks)
    assert inside >= 3, f"{inside} ticks in {end - start:.3f} s"


def test_concurrent_calls_agree():
    case = quire.make_case(LINE)
    expected = np.array(quire.attend(case.batch, case.cache, case.options)).view(np.uint16)
    b, results = case.batch, []

    def work():
        for _ in range(5):
            mine = quire.Batch(query=b.query, query_start_loc=b.query_start_loc, seq_lens=b.seq_lens, block_table=b.block_table)
            results.append(np.array_equal(np.asarray(quire.attend(mine, case.cache, case.options)).view(np.uint16), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 15 and all(results)


def test_num_threads_never_changes_bits():
    case = quire.make_case(LINE)
    expected = np.array(quire.attend(case.batch, case.cache, case.options)).view(np.uint16)
    try:
        for n in (1, 3):
            quire.set_num_threads(n)
            assert quire.get_num_threads() == n
            assert quire.plan(case.batch, case.cache, case.options).num_threads == n
            assert np.array_equal(np.asarray(quire.attend(case.batch, case.cache, case.options)).view(np.uint16), expected)
    finally:
        quire.set_num_threads(0)
    for wrong in (-1, 10**6, 2**31 - 1):
        with pytest.raises(quire.ArgumentError, match=rf"num_threads: {wrong} outside \[0, 4096\]"):
            quire.set_num_threads(wrong)
        with pytest.raises(quire.ArgumentError, match=rf"num_threads: {wrong} outside"):
            quire.plan(case.batch, case.cache, case.options, num_threads=wrong)
    with pytest.raises(quire.ArgumentError, match="max_seq_len: -1, expected at least 0"):
        quire.plan(case.batch, case.cache, case.options, max_seq_len=-1)


def test_set_num_threads_while_others_attend():
    """A call without a plan plans for the threads that will run it."""
    case = quire.make_case(LINE)
    errors, done = [], threading.Event()

    def attend():
        while not done.is_set() and not errors:
            try:
                quire.attend(case.batch, case.cache, case.options)
            except quire.Error as error:
                errors.append(str(error))

    threads = [threading.Thread(target=attend) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not errors:
            for n in (1, 17, 3):
                quire.set_num_threads(n)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        quire.set_num_threads(0)
    assert errors == []


FORK = """
import os, sys
import numpy as np
import quire

case = quire.make_case(sys.argv[1])
expected = np.array(quire.attend(case.batch, case.cache, case.options)).view(np.uint16)
child = os.fork()
again = np.asarray(quire.attend(case.batch, case.cache, case.options)).view(np.uint16)
if child == 0:
    os._exit(0 if np.array_equal(again, expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_its_own_threads():
    """In a process of its own, because other libraries' threads do not survive a fork either."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, LINE], timeout=60)
    assert done.returncode == 0


def owning_pool(dtype="bf16", **more):
    return quire.PagePool(8, 16, num_layers=2, num_kv_heads=2, head_dim=24, dtype=dtype, **more)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "fp8_e4m3fn"])
def test_pool_owns_caches(dtype):
    pool = owning_pool(dtype)
    cache = pool.cache(1)
    assert cache.layout == "hnd" and cache.k.shape == (8, 2, 16, 24) and cache.v.shape == (8, 2, 16, 24)
    itemsize = cache.k.dtype.itemsize
    assert cache.v.ctypes.data - cache.k.ctypes.data == 16 * 24 * itemsize, "V of a head follows its K"
    assert cache.k.strides == (2 * 2 * 16 * 24 * itemsize, 2 * 16 * 24 * itemsize, 24 * itemsize, itemsize)
    assert pool.cache(0).k.ctypes.data % pool.memory.alignment == 0
    bits = cache.k.view(f"u{itemsize}")
    assert not bits.any() and bits.flags.writeable
    bits[3, 1, 5, 7] = 1
    assert pool.cache(1).k.view(f"u{itemsize}")[3, 1, 5, 7] == 1, "the same memory on every call"
    assert not pool.cache(0).k.view(f"u{itemsize}").any()


def test_pool_cache_outlives_the_pool():
    pool = owning_pool("f32")
    k = pool.cache(0).k
    del pool
    gc.collect()
    k[...] = 3.0
    assert k.sum() == 3.0 * k.size


def test_pool_cache_is_attended_to():
    rng = np.random.default_rng(5)
    pool = owning_pool("f32")
    pool.add(7, np.arange(40))
    pool.reserve(7, 40)
    k, v = rng.standard_normal((2, 40, 2, 24), dtype=np.float32)
    cache = pool.cache(0)
    quire.append(cache, k, v, pool.slots(7, 0, 40))
    query = rng.standard_normal((3, 4, 24), dtype=np.float32)
    table = pool.block_table(7)

    def batch():
        return quire.Batch(
            query=query, query_start_loc=np.array([0, 3]), seq_lens=np.array([40]), block_table=np.array(table[None])
        )

    out = quire.attend(batch(), cache)
    assert quire.compare(out, None, quire.reference(batch(), cache)).ok
    user = np.zeros((2, 8, 16, 2, 24), np.float32)
    for position in range(40):
        user[0, table[position // 16], position % 16] = k[position]
        user[1, table[position // 16], position % 16] = v[position]
    same = quire.attend(batch(), quire.KVCache(user[0], user[1], layout="nhd"))
    np.testing.assert_array_equal(out, same)


def test_pool_memory_report():
    memory = owning_pool().memory
    assert memory.bytes == 2 * (2 << 20) and memory.alignment == 2 << 20
    assert -1 <= memory.huge_page_bytes <= memory.bytes and "PoolMemory bytes=" in repr(memory)
    assert quire.PagePool(8).memory.bytes == 0


def test_pool_refuses_caches_that_mean_nothing():
    with pytest.raises(ValueError, match=r"cache.head_dim: 0"):
        quire.PagePool(8, num_layers=1, num_kv_heads=2)
    with pytest.raises(ValueError, match="dtype: 'float' is none of f32, f16"):
        owning_pool("float")
    with pytest.raises(ValueError, match=r"layer: 2 outside \[0, 2\)"):
        owning_pool().cache(2)
