# SPDX-License-Identifier: Apache-2.0
"""torch CPU tensors: the same memory, every dtype, torch in and torch out. Skipped if torch is not installed."""

import gc

import numpy as np
import pytest
from dense import DTYPES, FLOATS, FP8, make_job

import quire

torch = pytest.importorskip("torch")

TORCH = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_e5m2fnuz": torch.float8_e5m2fnuz,
}
RAW = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16), 4: (np.int32, torch.int32)}


def to_torch(a, dtype):
    raw = RAW[a.itemsize]
    return torch.from_numpy(a.view(raw[0]).copy()).view(TORCH[dtype])


def to_numpy(t, dtype):
    return t.view(RAW[t.element_size()][1]).numpy().view(DTYPES[dtype])


def batch_of(job, **changes):
    args = dict(
        query=to_torch(job.q, job.dtype),
        query_start_loc=torch.from_numpy(job.query_start_loc),
        seq_lens=torch.from_numpy(job.seq_lens),
        block_table=torch.from_numpy(job.block_table),
    )
    return quire.Batch(**{**args, **changes})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kv", [None, *FP8])
def test_every_dtype_torch_in_torch_out(dtype, kv):
    job = make_job([4, 1], [9, 30], dtype=dtype, kv=kv, k_scale=0.5 if kv else 1.0)
    scale = torch.tensor([job.k_scale])
    cache = quire.KVCache(to_torch(job.k, job.kv), to_torch(job.v, job.kv), k_scale=scale)
    out = quire.attend(batch_of(job), cache)
    assert isinstance(out, torch.Tensor) and out.dtype == TORCH[dtype]
    job.judge(to_numpy(out, dtype))


@pytest.mark.parametrize("kv", FP8)
def test_uint8_cache_with_a_dtype_name(kv):
    job = make_job([4, 1], [9, 30], dtype="f16", kv=kv)
    k, v = to_torch(job.k, kv).view(torch.uint8), to_torch(job.v, kv).view(torch.uint8)
    with pytest.raises(quire.ArgumentError, match="k: dtype uint8"):
        quire.KVCache(k, v)
    job.judge(to_numpy(quire.attend(batch_of(job), quire.KVCache(k, v, dtype=kv)), "f16"))


def test_memory_is_shared_both_ways():
    job = make_job([4, 1], [9, 30], dtype="f32")
    out = torch.full(job.q.shape, float("nan"))
    address = out.data_ptr()
    k, v = torch.zeros(job.k.shape), torch.zeros(job.k.shape)
    cache, batch = quire.KVCache(k, v), batch_of(job, output=out)
    k.copy_(to_torch(job.k, "f32"))
    v.copy_(to_torch(job.v, "f32"))
    assert quire.attend(batch, cache) is out and out.data_ptr() == address
    job.judge(out.numpy())
    view, dtype = quire._quire.bits(k[:, ::2, :, 1:], "k")
    assert dtype == "f32" and view.ctypes.data == k[:, ::2, :, 1:].data_ptr()
    assert view.strides == tuple(4 * s for s in k[:, ::2, :, 1:].stride())


def test_append_writes_torch_memory():
    job = make_job([4, 1], [9, 30], dtype="bf16", kv="fp8_e4m3fn", new_from="cache")
    k, v = to_torch(job.k, job.kv), to_torch(job.v, job.kv)
    rows = k.view(torch.uint8).view(-1, 2, 32)
    rows[torch.from_numpy(job.slots)] = 0x7F  # NaN: must be overwritten
    quire.append(quire.KVCache(k, v), to_torch(job.new_k, "bf16"), to_torch(job.new_v, "bf16"), torch.from_numpy(job.slots))
    assert np.array_equal(to_numpy(k, job.kv).view(np.uint8), job.k.view(np.uint8))


def test_merge_returns_torch():
    a, la = torch.randn(3, 2, 8), torch.randn(3, 2)
    out, lse = quire.merge(a, la, a, la)
    assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor)
    torch.testing.assert_close(out, a, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, la + np.log(2.0), rtol=1e-6, atol=1e-6)


def test_empty_batch_has_no_memory():
    job = make_job([2], [3], dtype="f32")
    empty = torch.empty((0, 4, 32))
    batch = quire.Batch(query=empty, query_start_loc=torch.zeros(1, dtype=torch.int32), seq_lens=torch.empty(0, dtype=torch.int32),
                        block_table=torch.empty((0, 4), dtype=torch.int32))  # fmt: skip
    assert quire.attend(batch, quire.KVCache(job.k, job.v)).shape == (0, 4, 32)


def test_tensors_stay_alive():
    job = make_job([4, 1], [9, 30], dtype="f32")
    batch, cache = batch_of(job), quire.KVCache(to_torch(job.k, "f32"), to_torch(job.v, "f32"))
    gc.collect()
    junk = [torch.full(job.k.shape, float("nan")) for _ in range(32)]
    job.judge(quire.attend(batch, cache).numpy())
    del junk


def test_refusals():
    job = make_job([4, 1], [9, 30], dtype="f32")
    with pytest.raises(quire.UnsupportedError, match="query: lives on meta"):
        batch_of(job, query=torch.empty(5, 4, 32, device="meta"))
    with pytest.raises(quire.ArgumentError, match="query: requires grad"):
        batch_of(job, query=torch.zeros(5, 4, 32, requires_grad=True))
    with torch.no_grad():
        batch_of(job, query=torch.zeros(5, 4, 32, requires_grad=True))
    with pytest.raises(quire.ArgumentError, match="query: torch layout is torch.sparse_coo"):
        batch_of(job, query=torch.zeros(5, 4, 32).to_sparse())
    with pytest.raises(quire.ArgumentError, match="query: torch's lazy negation"):
        batch_of(job, query=torch.zeros(5, 4, 32, dtype=torch.complex64).conj().imag)
    with pytest.raises(quire.ArgumentError, match="seq_lens: dtype float64"):
        batch_of(job, seq_lens=torch.zeros(2, dtype=torch.float64))


def test_a_resized_storage_is_noticed():
    job = make_job([4, 1], [9, 30], dtype="f32")
    query = to_torch(job.q, "f32").clone()
    batch = batch_of(job, query=query)
    query.resize_(1 << 20)
    with pytest.raises(quire.ArgumentError, match="query: the tensor's storage moved"):
        quire.attend(batch, quire.KVCache(job.k, job.v))


def test_a_subclass_is_read_as_the_plain_tensor_is():
    """torch's C functions read the plain class alone; the others come in by their attributes."""
    job = make_job([5], [9], seed=3)

    def of(tensor):
        return torch.nn.Parameter(tensor, requires_grad=False)

    q, k, v = (torch.from_numpy(a) for a in (job.q, job.k, job.v))
    batches = [batch_of(job, query=q), batch_of(job, query=of(q))]
    caches = [quire.KVCache(k, v), quire.KVCache(of(k), of(v))]
    outs = [quire.attend(b, c) for b, c in zip(batches, caches)]
    assert torch.equal(*(torch.as_tensor(out) for out in outs))
    job.judge(np.asarray(outs[1].detach()))
