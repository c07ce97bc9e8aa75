# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU: what is said where there is none, and the same answers as the CPU where there is one."""

import numpy as np
import pytest
from gpus import needs_gpu, torch

import quire

LINE = "q=f16 kv=f16 heads=8:2 d=64 page=16 reqs=37@5,3x1@100,1x0@7 window=40 lse=1 seed=3"


class OnDevice:
    """What a library of a machine with a GPU hands over; the memory is the host's, and must not be touched."""

    def __init__(self, array, ordinal=0):
        self.array, self.ordinal = array, ordinal
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack_device__(self):
        return (2, self.ordinal)

    def __dlpack__(self, **_):
        return self.array.__dlpack__()


def parts():
    return {
        "query": np.zeros((2, 2, 8), np.float32),
        "output": np.zeros((2, 2, 8), np.float32),
        "query_start_loc": np.array([0, 2], np.int32),
        "seq_lens": np.array([2], np.int32),
        "block_table": np.zeros((1, 1), np.int32),
    }


def cache():
    return quire.KVCache(np.zeros((2, 4, 1, 8), np.float32), np.zeros((2, 4, 1, 8), np.float32))


def test_an_array_on_a_gpu_is_refused_by_name_or_by_rule():
    arrays = parts()
    arrays["query"] = OnDevice(arrays["query"])
    if not quire.info.has_backend("cuda"):
        with pytest.raises(quire.UnsupportedError, match="query: lives on cuda:0, (but this build has the CPU|where this build does not)"):
            quire.Batch(**arrays)
        return
    batch = quire.Batch(**arrays)
    with pytest.raises(quire.ContractError, match="Q-M07 query: cuda memory, expected cpu memory"):
        quire.plan(batch, cache())
    with pytest.raises(quire.ContractError, match="Q-M07"):
        quire.attend(batch, cache(), workspace=np.zeros(64, np.uint8))


@pytest.mark.skipif(not quire.info.has_backend("cuda"), reason="the build has no CUDA kernels")
def test_arrays_of_two_gpus_are_refused():
    arrays = {name: OnDevice(array) for name, array in parts().items()}
    arrays["seq_lens"].ordinal = 1
    with pytest.raises(quire.ArgumentError, match="seq_lens: lives on GPU 1, but query on GPU 0"):
        quire.Batch(**arrays)


def test_gpus_are_listed_and_backends_known():
    assert quire.info.has_backend("cpu")
    for device in quire.info.gpu_devices():
        assert device.backend in ("cuda", "hip") and quire.info.has_backend(device.backend)
        assert device.ordinal >= 0 and device.product and (device.sm >= 50) == (device.backend == "cuda")
    with pytest.raises(quire.ArgumentError, match='backend: "tpu" is none of cpu, cuda, hip'):
        quire.info.has_backend("tpu")


def test_attend_status_of_a_cpu_plan_has_nothing_to_add():
    case = quire.make_case("q=f32 kv=f32 heads=2:1 d=8 page=4 reqs=3@2 seed=1")
    plan = quire.plan(case.batch, case.cache, case.options)
    quire.attend(case.batch, case.cache, case.options, plan)
    assert quire.attend_status(case.batch, case.cache, case.options, plan, None) is None
    assert plan.assumptions == []


def on_gpu(array):
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def gpu_call(case, **more):
    b = case.batch
    batch = quire.Batch(
        **more,
        query=on_gpu(b.query),
        query_start_loc=on_gpu(b.query_start_loc),
        seq_lens=on_gpu(b.seq_lens),
        block_table=on_gpu(b.block_table),
        lse=torch.empty(b.lse.shape, dtype=torch.float32, device="cuda"),
    )
    return batch, quire.KVCache(on_gpu(case.cache.k), on_gpu(case.cache.v), case.cache.layout)


@needs_gpu
def test_torch_tensors_on_a_gpu_agree_with_the_cpu():
    case = quire.make_case(LINE)
    expected = quire.attend(case.batch, case.cache, case.options)
    batch, there = gpu_call(case)
    rows = {}
    out = quire.attend(batch, there, case.options, rows=rows)
    assert out.device.type == "cuda" and sum(rows.values()) == out.shape[0] * out.shape[1]
    np.testing.assert_allclose(out.cpu().numpy().astype(np.float32), np.asarray(expected, np.float32), atol=4e-3, rtol=4e-3)
    np.testing.assert_allclose(batch.lse.cpu().numpy(), np.asarray(case.batch.lse), atol=1e-3, rtol=1e-3)


@needs_gpu
def test_a_broken_table_is_found_by_the_device_and_no_row_is_written():
    case = quire.make_case(LINE)
    batch, there = gpu_call(case, output=torch.full_like(on_gpu(case.batch.query), 7))
    plan = quire.plan(batch, there, case.options)
    assert any("query_len <=" in text for text in plan.assumptions)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    batch.block_table[0, 0] = -5
    quire.attend(batch, there, case.options, plan, workspace)
    with pytest.raises(quire.ContractError, match=r"Q-T03 block_table\[0\]\[0\]: page -5"):
        quire.attend_status(batch, there, case.options, plan, workspace)
    assert bool((batch.output == 7).all())


@needs_gpu
def test_a_freed_workspace_is_no_earlier_call_of_a_new_one():
    """Torch gives its memory to others, which write to it, and then to the next workspace."""
    case = quire.make_case(LINE)
    batch, there = gpu_call(case, output=torch.empty_like(on_gpu(case.batch.query)))
    plan = quire.plan(batch, there, case.options)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    quire.attend(batch, there, case.options, plan, workspace)
    workspace[:4] = 0xA5
    address = workspace.data_ptr()
    del workspace
    again = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() == address
    del again
    quire.attend(batch, there, case.options, plan)


@needs_gpu
def test_a_captured_graph_replays_with_other_lengths():
    case = quire.make_case("q=f16 kv=f16 heads=4:2 d=64 page=16 reqs=8x1@90 seed=5")
    b = case.batch
    batch = quire.Batch(
        query=on_gpu(b.query), query_start_loc=on_gpu(b.query_start_loc), seq_lens=on_gpu(b.seq_lens), block_table=on_gpu(b.block_table)
    )
    there = quire.KVCache(on_gpu(case.cache.k), on_gpu(case.cache.v), case.cache.layout)
    plan = quire.plan(batch, there)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    quire.attend(batch, there, plan=plan, workspace=workspace)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = quire.attend(batch, there, plan=plan, workspace=workspace)
    batch.seq_lens.sub_(30)
    graph.replay()
    torch.cuda.synchronize()
    again = quire.attend(batch, there, plan=plan, workspace=workspace)
    quire.attend_status(batch, there, None, plan, workspace)
    assert again.data_ptr() != out.data_ptr() and bool((out == again).all())


@needs_gpu
def test_every_call_on_a_gpu_returns_a_new_tensor_there():
    case = quire.make_case(LINE)
    batch, there = gpu_call(case)
    first = quire.attend(batch, there, case.options)
    kept = first.clone()
    second = quire.attend(batch, quire.KVCache(there.k, -there.v, there.layout), case.options)
    assert first.device == batch.query.device and batch.output is None
    assert bool((first == kept).all()) and bool((second == -kept).all())
    mine = torch.empty_like(batch.query)
    given, _ = gpu_call(case, output=mine)
    assert quire.attend(given, there, case.options) is mine and bool((mine == kept).all())


@needs_gpu
def test_a_result_on_another_stream_takes_memory_of_that_stream():
    case = quire.make_case(LINE)
    batch, there = gpu_call(case)
    expected = quire.attend(batch, there, case.options)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for stream in (side, side.cuda_stream):
        freed = torch.empty_like(batch.query)  # a block of the current stream, which the next call on another one must not get
        address = freed.data_ptr()
        del freed
        out = quire.attend(batch, there, case.options, stream=stream)
        side.synchronize()
        assert out.data_ptr() != address and bool((out == expected).all())


@needs_gpu
def test_contents_on_a_gpu_have_the_findings_of_the_host():
    case = quire.make_case(LINE)  # NaN wherever nothing may be read
    batch, there = gpu_call(case)
    assert quire.check(batch, there, case.options, depth="contents").ok
    for name in ("query", "k", "v"):
        case = quire.make_case(LINE)
        array = case.batch.query if name == "query" else getattr(case.cache, name)
        finite = np.argwhere(np.isfinite(array))
        array[tuple(finite[len(finite) // 2])] = np.nan
        batch, there = gpu_call(case)
        host = quire.check(case.batch, case.cache, case.options, depth="contents")
        device = quire.check(batch, there, case.options, depth="contents")
        assert not host.ok and str(device) == str(host), name
