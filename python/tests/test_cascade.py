# SPDX-License-Identifier: Apache-2.0
"""quire.cascade on CPUs: equal to fp64 and to plain attention, what is said of a step, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from gpus import needs_gpu, torch

import quire

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "shared_prefixes.md"

LINE = "q=bf16 heads=8:2 d=32 page=8 reqs=8x1@180,3x5@90 share=4,4x3,2x1 lse=1"


def attended(line, **settings):
    case = quire.make_case(line)
    step = quire.cascade.plan(case.batch, case.cache, case.options, **settings)
    out = quire.cascade.attend(case.batch, case.cache, case.options, plan=step)
    reference = quire.reference(case.batch, case.cache, case.options)
    return step, out, quire.compare(out, None, reference), case


@pytest.mark.parametrize("line", [LINE, "q=f32 heads=4 d=16 page=4 reqs=4x1@30 share=5 sinks=1 cap=4", "q=f16 heads=4:1 d=16 page=4 reqs=6x3@40/40 share=9"])
def test_equals_the_reference(line):
    step, _, compared, _ = attended(line, always=True)
    assert step.shares
    assert compared.ok, compared.text


def test_says_what_is_shared_and_why():
    step, _, _, _ = attended(LINE, always=True)
    assert step.runs[0] == [(0, 11, 0, 4)]
    assert (0, 4, 4, 7) in step.runs[1]
    assert len(step.kernels) == len(step.runs) + 1
    assert "level 0   requests 0 to 10 share pages 0 to 3: 32 keys" in str(step)
    assert "own keys" in str(step)
    plain, _, compared, _ = attended("q=f32 heads=4 d=16 page=4 reqs=4x1@30")
    assert not plain.shares and plain.runs == [] and compared.ok
    assert "nothing is shared" in plain.reason and "nothing is shared" in repr(plain)


def test_nothing_shared_is_plain_attention_bit_for_bit():
    step, out, _, case = attended("q=f32 heads=4 d=16 page=4 reqs=4x1@30,2x9@12")
    assert not step.shares
    assert np.array_equal(np.asarray(out), np.asarray(quire.attend(case.batch, case.cache, case.options)))


def test_named_runs():
    line = "q=f32 heads=4 d=16 page=4 reqs=4x1@30 share=5"
    step, _, compared, case = attended(line, runs=[(0, 4, 0, 3), (1, 3, 3, 5)], batch_invariant=True)
    assert step.runs == [[(0, 4, 0, 3)], [(1, 3, 3, 5)]] and step.pages == [3, 5, 5, 3] and compared.ok
    with pytest.raises(quire.ContractError, match="Q-P02"):
        quire.cascade.plan(case.batch, case.cache, runs=[(0, 4, 1, 3)])
    with pytest.raises(quire.ContractError, match="Q-P03"):
        quire.cascade.plan(case.batch, case.cache, runs=[(0, 4, 0, 6)])
    with pytest.raises(quire.ArgumentError, match=r"runs\[0\]: expected \(req_begin"):
        quire.cascade.plan(case.batch, case.cache, runs=[(0, 4)])
    with pytest.raises(quire.ArgumentError, match="partials"):
        quire.cascade.plan(case.batch, case.cache, partials="f99")


def test_a_step_of_several_layers_in_one_workspace():
    case = quire.make_case(LINE)
    step = quire.cascade.plan(case.batch, case.cache, case.options, always=True)
    room = np.empty(step.workspace_bytes + 64, np.uint8)
    room = room[-room.ctypes.data % 64 :]
    quire.cascade.prepare(case.batch, case.cache, case.options, plan=step, workspace=room)
    first = np.array(quire.cascade.attend(case.batch, case.cache, case.options, plan=step, workspace=room, prepared=True))
    again = np.array(quire.cascade.attend(case.batch, case.cache, case.options, plan=step, workspace=room))
    assert np.array_equal(first.view(np.uint16), again.view(np.uint16))


def test_another_batch_is_refused():
    case, other = quire.make_case(LINE), quire.make_case(LINE + " seed=2")
    step = quire.cascade.plan(case.batch, case.cache, case.options, always=True)
    with pytest.raises(quire.ArgumentError, match="lengths or tables are others"):
        quire.cascade.attend(other.batch, other.cache, other.options, plan=step)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    page, prefix, own = 16, 4, 2
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(64, page, 2, 32, generator=generator) for _ in range(2))
    shared = torch.arange(prefix, dtype=torch.int32).expand(6, prefix)
    table = torch.cat([shared, torch.arange(10, 10 + 6 * own, dtype=torch.int32).reshape(6, own)], 1)
    lens = torch.full((6,), (prefix + own) * page - 3, dtype=torch.int32)
    query = torch.randn(6, 8, 32, generator=generator)
    batch = quire.Batch(query=query, query_start_loc=torch.arange(7, dtype=torch.int32), seq_lens=lens, block_table=table)
    cache = quire.KVCache(k, v, "nhd")
    step = quire.cascade.plan(batch, cache, always=True)
    assert step.runs == [[(0, 6, 0, prefix)]]
    out = quire.cascade.attend(batch, cache, plan=step)
    assert isinstance(out, torch.Tensor)
    assert torch.allclose(out, quire.attend(batch, cache), atol=1e-5)


def test_the_guides_example_runs_and_prints_what_the_guide_shows(capsys):
    text = PAGE.read_text()
    (source,) = re.findall(r"test_cascade.py -->\n```python\n(.*?)```", text, re.DOTALL)
    exec(compile(source, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] in text and printed[1] in text


@needs_gpu
@pytest.mark.parametrize("line", ["q=f16 heads=8:2 d=64 page=16 reqs=8x1@180,3x5@90 share=4,4x3,2x1", "q=f16 heads=16:2 d=128 page=16 reqs=40x1@600,1@5,60x1@700 share=32"])
def test_on_a_gpu(line):
    case = quire.make_case(line + " lse=1")
    expected = quire.attend(case.batch, case.cache, case.options)

    def there(array):
        return torch.from_numpy(np.ascontiguousarray(array)).cuda()

    b = case.batch
    lse = torch.empty(b.lse.shape, dtype=torch.float32, device="cuda")
    batch = quire.Batch(
        query=there(b.query), query_start_loc=there(b.query_start_loc), seq_lens=there(b.seq_lens), block_table=there(b.block_table), lse=lse
    )
    cache = quire.KVCache(there(case.cache.k), there(case.cache.v), "nhd")
    for partials in (None, "f32"):
        step = quire.cascade.plan(batch, cache, always=True, partials=partials)
        assert step.shares and (partials is not None or "cuda_generic" not in step.kernels or quire.info.gpu_devices()[0].sm != 90)
        out = quire.cascade.attend(batch, cache, plan=step)
        np.testing.assert_allclose(out.cpu().numpy().astype(np.float32), np.asarray(expected, np.float32), atol=4e-3, rtol=4e-3)
        np.testing.assert_allclose(lse.cpu().numpy(), np.asarray(b.lse), atol=1e-3, rtol=1e-3)
        room = torch.empty(step.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
        quire.cascade.prepare(batch, cache, plan=step, workspace=room)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = quire.cascade.attend(batch, cache, plan=step, workspace=room, prepared=True)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(again, out)
