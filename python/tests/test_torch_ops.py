# SPDX-License-Identifier: Apache-2.0
"""quire.torch: operators that torch.compile, torch.export and opcheck take. CPU here; test_graphs.py has a GPU's."""

import numpy as np
import pytest
from dense import make_job

import quire

torch = pytest.importorskip("torch", minversion="2.4")
ops = pytest.importorskip("quire.torch")


def tensors(job):
    return [torch.from_numpy(a.copy()) for a in (job.q, job.k, job.v, job.query_start_loc, job.seq_lens, job.block_table)]


def job_of(**kind):
    return make_job([7, 1, 20, 1], [30, 41, 0, 9], seed=3, **kind)


def test_eager_is_right_and_writes_what_it_is_given():
    job = job_of()
    q, k, v, starts, lens, table = tensors(job)
    lse = torch.full(q.shape[:2], torch.nan)
    out = ops.attend(q, k, v, starts, lens, table, lse=lse)
    job.judge(out.numpy())
    assert lse.isfinite().all()
    mine = torch.full_like(q, torch.nan)
    assert ops.attend(q, k, v, starts, lens, table, output=mine, max_query_len=20) is mine and torch.equal(mine, out)
    capped = ops.attend(q, k, v, starts, lens, table, softmax_scale=0.3, sliding_window=9, logits_soft_cap=2.0)
    job.judge(capped.numpy(), scale=0.3, window=9, cap=2.0)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_opcheck_of_attend(layout):
    q, k, v, starts, lens, table = tensors(job_of())
    if layout == "hnd":
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    output, lse, sinks = torch.empty_like(q), torch.empty(q.shape[:2]), torch.randn(4)
    for more in ({}, {"lse": lse, "sinks": sinks, "sliding_window": 5, "max_query_len": 20}):
        torch.library.opcheck(torch.ops.quire.attend.default, (q, output, k, v, starts, lens, table), {**more, "layout": layout})


@pytest.mark.parametrize("causal", [False, (True, False, False)])
def test_requests_that_are_not_causal(causal):
    job = job_of(dtype="f32")
    q, k, v, starts, lens, table = tensors(job)
    flags = causal if causal is False else torch.tensor(causal[:1] * (len(lens) - 2) + causal[1:])
    out = ops.attend(q, k, v, starts, lens, table, causal=flags, window_right=7)
    job.judge(out.numpy(), causal=np.asarray(flags), right=7)
    workspace = ops.prepare(q, k, v, starts, lens, table, causal=flags, window_right=7)
    layer = ops.attend(q, k, v, starts, lens, table, causal=flags, window_right=7, workspace=workspace, prepared=True)
    assert torch.equal(layer, out)
    begins = torch.full_like(lens, 3)
    where = {"q_begin": lens - starts.diff().to(lens.dtype) + 3, "key_begin": begins}  # positions that say the same masks
    assert torch.equal(ops.attend(q, k, v, starts, lens, table, causal=flags, window_right=7, **where), out)
    assert torch.equal(ops.attend(q, k, v, starts, lens, table, causal=None), ops.attend(q, k, v, starts, lens, table))
    with pytest.raises(quire.ArgumentError, match="causal: 'no', expected a bool"):
        ops.attend(q, k, v, starts, lens, table, causal="no")
    named = {"causal": False} if flags is False else {"causal_per_request": flags}
    torch.library.opcheck(
        torch.ops.quire.attend.default, (q, torch.empty_like(q), k, v, starts, lens, table), {**named, **where, "window_right": 7}
    )


def test_a_prepared_step_is_the_same_call_on_a_cpu():
    job = job_of()
    q, k, v, starts, lens, table = tensors(job)
    expected = ops.attend(q, k, v, starts, lens, table, sliding_window=9)
    workspace = ops.prepare(q, k, v, starts, lens, table, sliding_window=9)
    for _ in range(2):
        out = ops.attend(q, k, v, starts, lens, table, sliding_window=9, workspace=workspace, prepared=True)
        assert torch.equal(out, expected)
    assert ops.prepare(q, k, v, starts, lens, table, output=out, workspace=workspace, sliding_window=9) is workspace
    with pytest.raises(quire.ArgumentError, match="workspace: None"):
        ops.attend(q, k, v, starts, lens, table, prepared=True)
    table[0, 0] = -1
    with pytest.raises(quire.ContractError, match="Q-T03"):
        ops.prepare(q, k, v, starts, lens, table, workspace=workspace)


def test_opcheck_of_prepare():
    q, k, v, starts, lens, table = tensors(job_of())
    output = torch.empty_like(q)
    arguments = (q, output, k, v, starts, lens, table)
    workspace = torch.empty(ops.workspace_bytes(*arguments), dtype=torch.uint8)
    torch.library.opcheck(torch.ops.quire.prepare.default, arguments, {"workspace": workspace})
    torch.library.opcheck(torch.ops.quire.attend.default, arguments, {"workspace": workspace, "prepared": True})


def test_a_compiled_step_prepares_and_attends():
    job = job_of(dtype="f32")
    q, k, v, starts, lens, table = tensors(job)
    expected = ops.attend(q, k, v, starts, lens, table)
    workspace = torch.empty(ops.workspace_bytes(q, torch.empty_like(q), k, v, starts, lens, table), dtype=torch.uint8)

    def layers(q, k, v, starts, lens, table, workspace):
        ops.prepare(q, k, v, starts, lens, table, workspace=workspace)
        return [ops.attend(q, k, v, starts, lens, table, workspace=workspace, prepared=True) for _ in range(2)]

    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(out, expected) for out in compiled(q, k, v, starts, lens, table, workspace))


def test_opcheck_of_append_and_merge():
    job = job_of()
    _, k, v, *_ = tensors(job)
    new_k, new_v, slots = (torch.from_numpy(a.copy()) for a in (job.new_k, job.new_v, job.slots))
    torch.library.opcheck(torch.ops.quire.append.default, (k.nan_to_num(), v.nan_to_num(), new_k, new_v, slots))
    a, la, b, lb = torch.randn(5, 3, 8), torch.randn(5, 3), torch.randn(5, 3, 8), torch.randn(5, 3)
    torch.library.opcheck(torch.ops.quire.merge.default, (a, la, b, lb))


def step(q, k, v, new_k, new_v, slots, starts, lens, table):
    """A layer as a model has it: norms around, new rows appended, two partial results merged."""
    q = q * 2.0
    ops.append(k, v, new_k, new_v, slots)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    out = ops.attend(q, k, v, starts, lens, table, lse=lse, softmax_scale=0.1)
    merged, _ = ops.merge(out, lse, out, lse)
    return out + 1.0, merged


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_has_no_break_and_the_same_bits(backend):
    job = job_of(dtype="f32")
    q, k, v, starts, lens, table = tensors(job)
    new = [torch.from_numpy(a.copy()) for a in (job.new_k, job.new_v, job.slots)]
    k[:], v[:] = k.nan_to_num(), v.nan_to_num()
    erased = k.clone(), v.clone()
    for cache in erased:
        cache.view(-1, *cache.shape[2:])[new[2]] = 0
    expected = step(q, k.clone(), v.clone(), *new, starts, lens, table)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for _ in range(2):
        caches = [cache.clone() for cache in erased]
        found = compiled(q, *caches, *new, starts, lens, table)
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
        assert torch.equal(caches[0], k) and torch.equal(caches[1], v)


def test_an_exported_program_runs():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, starts, lens, table):
            return ops.attend(q, k, v, starts, lens, table, sliding_window=11)

    job = job_of()
    arguments = tuple(tensors(job))
    program = torch.export.export(Layer(), arguments)
    assert "quire.attend" in str(program.graph)
    job.judge(program.module()(*arguments).numpy(), window=11)


def test_a_fake_call_refuses_an_output_of_another_kind_and_a_real_one_names_the_rule():
    q, k, v, starts, lens, table = tensors(job_of())
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (q, k, v, starts, lens, table)]
        with pytest.raises(quire.ArgumentError, match="output: torch.float32"):
            torch.ops.quire.attend(fakes[0], torch.empty(q.shape), *fakes[1:])
        assert ops.attend(*fakes).shape == q.shape
    table[0, 0] = -7
    with pytest.raises(quire.ContractError, match="Q-T03"):
        ops.attend(q, k, v, starts, lens, table)


def test_gradients_are_refused_not_dropped():
    q, *rest = tensors(job_of())
    with pytest.raises(quire.ArgumentError, match="requires grad"):
        ops.attend(q.float().requires_grad_(), rest[0].float(), rest[1].float(), *rest[2:])
    with torch.no_grad():
        ops.attend(q.float().requires_grad_(), rest[0].float(), rest[1].float(), *rest[2:])


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "fp8_e4m3fn", "fp8_e5m2"])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "packed"])
def test_a_case_as_tensors_has_the_same_bits_and_memory(kv, layout):
    query = "bf16" if kv.startswith("fp8") else kv
    case = quire.make_case(f"q={query} kv={kv} heads=4:2 d=64 page=16 layout={layout} reqs=3@20,1@9 seed=1")
    q, k, v = (ops.as_tensor(x) for x in (case.batch.query, case.cache.k, case.cache.v))
    loc, lens, table = (ops.as_tensor(x) for x in (case.batch.query_start_loc, case.batch.seq_lens, case.batch.block_table))
    assert str(k.dtype) == "torch." + np.asarray(case.cache.k).dtype.name
    assert k.data_ptr() == quire.KVCache(k, v, layout).k.data_ptr() == np.asarray(case.cache.k).__array_interface__["data"][0]
    out = quire.attend(quire.Batch(query=q, query_start_loc=loc, seq_lens=lens, block_table=table), quire.KVCache(k, v, layout), case.options)
    expected = quire.attend(case.batch, case.cache, case.options)
    assert torch.equal(out, ops.as_tensor(expected))
    assert ops.as_tensor(out) is out


@pytest.mark.parametrize("kv", ["fp8_ds_mla heads=4:1 d=576 dv=512 latent=1", "nvfp4 heads=4:2 d=64", "mxfp4 heads=4:2 d=64"])
def test_rows_whose_bytes_are_no_elements(kv):
    case = quire.make_case(f"q=f32 kv={kv} page=16 reqs=3x1@200,50@7 seed=3")
    b, c = case.batch, case.cache
    raw = lambda array: torch.from_numpy(np.asarray(array).view(np.uint8))  # noqa: E731
    blocks = {name: raw(getattr(c, name)) for name in ("k_block_scale", "v_block_scale") if getattr(c, name) is not None}
    index = [torch.from_numpy(np.asarray(a)) for a in (b.query_start_loc, b.seq_lens, b.block_table)]
    call = torch.from_numpy(b.query), raw(c.k), raw(c.v), *index
    out = ops.attend(*call, cache_dtype=c.dtype, **blocks)
    assert np.array_equal(out.numpy(), quire.attend(b, c))
    place = ops.prepare(*call, cache_dtype=c.dtype, **blocks)
    assert torch.equal(ops.attend(*call, cache_dtype=c.dtype, workspace=place, prepared=True, **blocks), out)
