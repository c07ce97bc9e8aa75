# SPDX-License-Identifier: Apache-2.0
"""Whose memory a result is: attend() returns a new array on every call, or the output that the caller gave."""

import gc
import weakref

import numpy as np
import pytest
from dense import make_job

import quire

LINE = "q=f32 heads=8:2 d=64 page=16 reqs=2x33@40,3x1@200 lse=1 seed=4"


def arrays_of(job, **changes):
    args = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    return {**args, **changes}


@pytest.fixture
def job():
    return make_job([3, 1, 5], [10, 20, 0], dtype="f32")


def zeros(batch, cache):
    """A kernel that does nothing right: whatever the batch has for an output becomes zeros."""
    if batch.output is None:
        return np.zeros_like(batch.query)
    batch.output[...] = 0
    return batch.output


@pytest.mark.parametrize("source", ["case", "arrays"])
def test_a_kernel_that_returns_zeros_differs_from_attend(job, source):
    case = quire.make_case(LINE)
    batch, cache = (case.batch, case.cache) if source == "case" else (quire.Batch(**arrays_of(job)), quire.KVCache(job.k, job.v))
    ref = quire.attend(batch, cache)
    out = zeros(batch, cache)
    assert not np.allclose(out, ref)
    assert quire.compare(ref, None, quire.reference(batch, cache)).ok


def test_every_call_returns_a_new_array(job):
    batch, cache = quire.Batch(**arrays_of(job)), quire.KVCache(job.k, job.v)
    plans = [quire.plan(batch, cache, batch_invariant=invariant) for invariant in (False, True)]
    first, second = (quire.attend(batch, cache, plan=plan) for plan in plans)
    assert first is not second and not np.shares_memory(first, second)


def test_two_caches_give_two_results(job):
    batch = quire.Batch(**arrays_of(job))
    first = quire.attend(batch, quire.KVCache(job.k, job.v))
    kept = first.copy()
    second = quire.attend(batch, quire.KVCache(job.k, -job.v))
    assert np.array_equal(first, kept) and np.array_equal(second, -kept)


def test_output_stays_the_callers_own(job):
    cache = quire.KVCache(job.k, job.v)
    without = quire.Batch(**arrays_of(job))
    quire.attend(without, cache)
    assert without.output is None and "output" not in repr(without)
    mine = np.full_like(job.q, np.nan)
    batch = quire.Batch(**arrays_of(job, output=mine))
    assert quire.attend(batch, cache) is mine and batch.output is mine and np.isfinite(mine).all()


def test_a_cases_own_output_is_left_to_kernels_that_write_in_place():
    case = quire.make_case(LINE)
    out = quire.attend(case.batch, case.cache)
    assert not np.shares_memory(out, case.batch.output) and np.isnan(case.batch.output).all()


def test_nothing_keeps_a_result_alive(job):
    batch, cache = quire.Batch(**arrays_of(job)), quire.KVCache(job.k, job.v)
    out = quire.attend(batch, cache)
    gone = weakref.ref(out)
    del out
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_case_of_16_bits_returns_its_type(dtype):
    case = quire.make_case(LINE.replace("f32", dtype))
    out = quire.attend(case.batch, case.cache)
    assert out.dtype == case.batch.query.dtype and quire.compare(out, None, quire.reference(case.batch, case.cache)).ok


def test_every_other_call_takes_a_batch_without_output(job, tmp_path):
    batch, cache = quire.Batch(**arrays_of(job)), quire.KVCache(job.k, job.v)
    assert quire.check(batch, cache).ok
    assert quire.explain(batch, cache=cache).chosen == quire.plan(batch, cache).kernel
    out = quire.attend(batch, cache)
    assert quire.compare(out, None, quire.reference(batch, cache)).ok
    path = tmp_path / "a.safetensors"
    quire.write_capture(path, batch, cache, observed=out)
    read = quire.read_capture(path)
    assert np.array_equal(read.observed, out) and np.isnan(read.batch.output).all(), "no bytes that nobody wrote"


def test_rows_that_a_faulty_kernel_leaves_are_what_they_were():
    fault = "decode_rows_not_written"
    case = quire.make_case(LINE)
    b = case.batch
    b.output[...] = 0.25
    out = quire.attend_with_fault(b, case.cache, fault)
    assert not np.shares_memory(out, b.output) and (b.output == 0.25).all()
    assert (out[-1] == 0.25).all() and np.isfinite(out).all(), "the rows that the kernel leaves hold what the case's output held"
    bare = quire.Batch(query=b.query, query_start_loc=b.query_start_loc, seq_lens=b.seq_lens, block_table=b.block_table)
    assert np.isnan(quire.attend_with_fault(bare, case.cache, fault)[-1]).all(), "without one they are NaN"
    mine = np.full_like(b.query, 7)
    given = quire.Batch(output=mine, query=b.query, query_start_loc=b.query_start_loc, seq_lens=b.seq_lens, block_table=b.block_table)
    assert quire.attend_with_fault(given, case.cache, fault) is mine and (mine[-1] == 7).all()


def test_torch_gets_a_new_tensor_where_the_query_is(job):
    torch = pytest.importorskip("torch")
    batch = quire.Batch(**{name: torch.from_numpy(array) for name, array in arrays_of(job).items()})
    cache = quire.KVCache(torch.from_numpy(job.k), torch.from_numpy(job.v))
    first, second = quire.attend(batch, cache), quire.attend(batch, cache)
    assert first.device == batch.query.device and first.data_ptr() != second.data_ptr() and batch.output is None
    assert torch.equal(first, second)
    mine = torch.empty_like(batch.query)
    given = {name: torch.from_numpy(array) for name, array in arrays_of(job).items()}
    assert quire.attend(quire.Batch(**given, output=mine), cache) is mine and torch.equal(mine, first)


def test_memory_for_a_stream_is_asked_for_on_that_stream(monkeypatch):
    """A pretended torch: what was freed on another stream may still be in use there."""
    from types import SimpleNamespace

    from quire import _arrays

    class Streams(list):
        def stream(self, stream):
            self.append(stream)
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.append("left")

        @staticmethod
        def ExternalStream(number, device):
            return number, device.index

    streams = Streams()
    made = []
    torch = SimpleNamespace(cuda=streams, uint8="u8", empty=lambda *a, **k: made.append(list(streams)))
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    monkeypatch.setattr(_arrays, "is_torch", lambda array: True)
    query = SimpleNamespace(shape=(1, 2, 3), dtype="f16", device=SimpleNamespace(type="cuda", index=1))
    _arrays.empty_like(query, SimpleNamespace(cuda_stream=77))
    _arrays.empty_bytes_like(query, 64, 78)
    _arrays.empty_like(query)
    assert made == [[(77, 1)], [(77, 1), "left", (78, 1)], [(77, 1), "left", (78, 1), "left"]]
