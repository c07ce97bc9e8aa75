# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: nothing copied, strides and dtypes kept, every refusal named, no dangling memory."""

import array
import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from dense import FLOATS, FP8, make_job

import quire


def batch_args(job, **changes):
    args = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    return {**args, **changes}


def run(job, cache=None, **changes):
    cache = cache or quire.KVCache(job.k, job.v)
    return quire.attend(quire.Batch(**batch_args(job, **changes)), cache)


@pytest.fixture
def job():
    return make_job([3, 1, 5], [10, 20, 0], dtype="f32")


class Dlpack:
    """A producer that NumPy and torch do not know; everything but DLPack is hidden."""

    def __init__(self, inner, device=(1, 0)):
        self.inner, self.device = inner, device

    shape = property(lambda self: self.inner.shape)
    dtype = property(lambda self: self.inner.dtype)

    def __dlpack__(self, **kwargs):
        return self.inner.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device


class Interface:
    def __init__(self, inner, **changes):
        self.inner = inner
        self.__array_interface__ = {**inner.__array_interface__, **changes}


# --- zero copies ------------------------------------------------------------------------------------------------------------------


def test_the_output_given_is_the_output_returned_and_written(job):
    output = np.full_like(job.q, np.nan)
    address = output.ctypes.data
    result = run(job, output=output)
    assert result is output and output.ctypes.data == address
    job.judge(output)


def test_bits_is_the_same_memory(job):
    for source in (job.q, job.q[::2, :, ::3], Dlpack(job.q), memoryview(job.q), Interface(job.q)):
        view, dtype = quire._quire.bits(source, "x")
        assert dtype == "f32"
        inner = np.asarray(getattr(source, "inner", source))
        assert view.__array_interface__["data"][0] == inner.__array_interface__["data"][0]
        assert view.shape == inner.shape
    assert quire._quire.bits(job.q[::2, :, ::3], "x")[0].strides == job.q[::2, :, ::3].strides


def test_inputs_are_seen_through_not_copied(job):
    """A batch made before the data changes computes with the changed data."""
    query = np.zeros_like(job.q)
    batch = quire.Batch(**batch_args(job, query=query))
    query[:] = job.q
    job.judge(quire.attend(batch, quire.KVCache(job.k, job.v)))


def test_arrays_come_back_as_given(job):
    batch = quire.Batch(**batch_args(job))
    assert batch.query is job.q and batch.block_table is job.block_table and batch.lse is None
    assert quire.KVCache(job.k, job.v).k is job.k


def test_output_is_allocated_like_the_query(job):
    assert isinstance(run(job), np.ndarray)
    half = make_job([2], [3], dtype="bf16")
    assert run(half).dtype == ml_dtypes.bfloat16


# --- strides ----------------------------------------------------------------------------------------------------------------------


def strided(a, step=2, fill=np.nan):
    """The same values with gaps between the elements."""
    wide = np.full(a.shape[:-1] + (a.shape[-1] * step,), fill).astype(a.dtype)
    wide[..., ::step] = a
    return wide[..., ::step]


def test_strides_of_every_tensor_are_honoured(job):
    wide_out = np.full(job.q.shape[:2] + (job.q.shape[2] * 2,), 7.0, np.float32)
    args = batch_args(
        job,
        query=strided(job.q),
        output=wide_out[..., ::2],
        query_start_loc=strided(job.query_start_loc, fill=-1),
        seq_lens=np.flip(np.flip(job.seq_lens).copy()),
        block_table=strided(job.block_table, 3, fill=-1),
    )
    interleaved = np.stack([job.k, job.v], axis=1)  # k and v in one allocation, page stride doubled
    cache = quire.KVCache(interleaved[:, 0], interleaved[:, 1])
    job.judge(quire.attend(quire.Batch(**args), cache))
    assert np.all(wide_out[..., 1::2] == 7.0), "the gaps between output elements were written"


def test_transposed_cache_is_the_other_layout(job):
    hnd_k, hnd_v = (np.ascontiguousarray(c.transpose(0, 2, 1, 3)) for c in (job.k, job.v))
    job.judge(run(job, quire.KVCache(hnd_k, hnd_v, "hnd")))
    job.judge(run(job, quire.KVCache(hnd_k.transpose(0, 2, 1, 3), hnd_v.transpose(0, 2, 1, 3), "nhd")))


def test_broken_strides_are_refused():
    records = np.zeros((4, 2), dtype=np.dtype([("a", "f4"), ("b", "i1")]))["a"]
    with pytest.raises(quire.ArgumentError, match="query: stride of .* bytes is no multiple"):
        quire.Batch(query=records, query_start_loc=records, seq_lens=records, block_table=records)


# --- dtypes -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kv", [None, *FP8])
def test_every_dtype_is_computed_right(dtype, kv):
    job = make_job([4, 1], [9, 30], dtype=dtype, kv=kv, k_scale=0.5 if kv else 1.0, v_scale=0.25 if kv else 1.0)
    cache = quire.KVCache(job.k, job.v, k_scale=job.k_scale, v_scale=job.v_scale)
    assert cache.dtype == (kv or dtype)
    job.judge(run(job, cache))


@pytest.mark.parametrize("kv", FP8)
def test_raw_bytes_with_a_dtype_name(kv):
    job = make_job([4, 1], [9, 30], dtype="bf16", kv=kv)
    typed = run(job).view(np.uint16).copy()
    raw = quire.KVCache(job.k.view(np.uint8), job.v.view(np.uint8), dtype=kv)
    assert raw.dtype == kv
    assert np.array_equal(run(job, raw).view(np.uint16), typed)


def test_raw_uint16_query_with_a_dtype_name():
    job = make_job([4, 1], [9, 30], dtype="bf16")
    typed = run(job).view(np.uint16).copy()
    out = run(job, query=job.q.view(np.uint16), dtype="bf16")
    assert out.dtype == np.uint16 and np.array_equal(out, typed)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_index_tensors_are_read_as_what_they_are(job, index):
    names = ("query_start_loc", "seq_lens", "block_table")
    job.judge(run(job, **{name: getattr(job, name).astype(index) for name in names}))


def test_scales_as_number_scalar_and_vector():
    job = make_job([4, 1], [9, 30], dtype="f32", kv="fp8_e4m3fn", k_scale=0.5, v_scale=0.25)
    for half in (0.5, np.float32(0.5), np.float64(0.5), np.array(0.5, np.float32), np.array([0.5, 0.5], np.float32)):
        job.judge(run(job, quire.KVCache(job.k, job.v, k_scale=half, v_scale=half / 2)))
    with pytest.raises(quire.ArgumentError, match="k_scale: dtype float64, expected float32"):
        quire.KVCache(job.k, job.v, k_scale=np.array([0.5]))
    with pytest.raises(quire.ContractError, match="k_scale.*nan"):
        run(job, quire.KVCache(job.k, job.v, k_scale=float("nan")))


def test_per_head_scales():
    job = make_job([4, 1], [9, 30], dtype="f32", kv="fp8_e4m3fn")
    scale = np.array([0.5, 2.0], np.float32)
    for r in range(2):
        job.dense_k[r] = job.dense_k[r] * scale[None, :, None]
    job.judge(run(job, quire.KVCache(job.k, job.v, k_scale=scale)))


@pytest.mark.parametrize("way_in", [lambda a: a, Dlpack, Interface, memoryview])
def test_every_way_in(job, way_in):
    cache = quire.KVCache(way_in(job.k), way_in(job.v))
    out = run(job, cache, query=way_in(job.q), output=np.empty_like(job.q), seq_lens=way_in(job.seq_lens))
    job.judge(out)


def test_other_libraries_get_their_own_arrays_back(job):
    class Library:
        @staticmethod
        def asarray(a):
            return Dlpack(a)

    class Foreign(Dlpack):
        def __array_namespace__(self):
            return Library

    batch, cache = quire.Batch(**batch_args(job, query=Foreign(job.q))), quire.KVCache(job.k, job.v)
    out = quire.attend(batch, cache)
    assert type(out) is Dlpack
    job.judge(out.inner)
    again = quire.attend(batch, cache)
    assert batch.output is None and not np.shares_memory(out.inner, again.inner)
    mine = np.empty_like(job.q)
    assert run(job, query=Foreign(job.q), output=mine) is mine


def test_jax():
    jax = pytest.importorskip("jax")
    job = make_job([4, 1], [9, 30], dtype="bf16", kv="fp8_e4m3fn")
    q, k, v = (jax.numpy.asarray(a) for a in (job.q, job.k, job.v))
    out = run(job, quire.KVCache(k, v), query=q, seq_lens=jax.numpy.asarray(job.seq_lens))
    assert isinstance(out, jax.Array) and out.dtype == jax.numpy.bfloat16
    job.judge(np.asarray(out))
    with pytest.raises(quire.ArgumentError, match="k: the array is read-only"):
        quire.append(quire.KVCache(k, v), job.new_k, job.new_v, job.slots)
    with pytest.raises(quire.ArgumentError, match="output: the array is read-only"):
        quire.Batch(**batch_args(job, output=q))


def test_buffer_of_the_standard_library(job):
    job.judge(run(job, seq_lens=array.array("i", job.seq_lens.tolist())))


# --- refusals, each with the tensor's name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value, error, text",
    [
        ("query", [[1.0]], quire.ArgumentError, r"query: expected an array .*, got list"),
        ("query", None, quire.ArgumentError, r"query: is None"),
        ("query", np.zeros((2, 2, 2)), quire.ArgumentError, r"query: dtype float64, expected float32, float16 or bfloat16; convert it: query.astype"),
        ("query", np.zeros((2, 2, 2), ">f4"), quire.ArgumentError, r"query: dtype float32 is not in native byte order"),
        ("query", np.zeros((1,) * 6, np.float32), quire.ArgumentError, r"query: rank 6, at most 5"),
        ("query", np.ma.masked_array(np.zeros((2, 2, 2), np.float32)), quire.ArgumentError, r"query: masked arrays"),
        ("query", Interface(np.zeros(2, np.float32), typestr=">f4"), quire.ArgumentError, r"query: .* native byte order"),
        ("seq_lens", np.zeros(3, np.uint32), quire.ArgumentError, r"seq_lens: dtype uint32, expected int32 or int64; convert it"),
        ("seq_lens", np.zeros(3, np.uint8), quire.ArgumentError, r"seq_lens: dtype uint8, expected int32 or int64; convert it"),
        ("block_table", "table", quire.ArgumentError, r"block_table: expected an array .*, got str"),
        ("key", np.zeros(3, complex), quire.ArgumentError, r"key: dtype complex128, expected float32, float16 or bfloat16$"),
        ("block_table", Dlpack(np.zeros((2, 2), np.int32), (4, 1)), quire.UnsupportedError, r"block_table: lives on opencl:1, "),
        ("value", Dlpack(np.zeros((2, 2, 2), np.float32), (8, 3)), quire.UnsupportedError, r"value: lives on metal:3"),
    ],
)
def test_refused_arrays(job, name, value, error, text):
    with pytest.raises(error, match=text):
        quire.Batch(**batch_args(job, **{name: value}))


def test_cuda_array_interface_is_device_memory(job):
    class Cuda:
        __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "version": 3}

    with pytest.raises(quire.UnsupportedError, match="k: lives on a CUDA device"):
        quire.KVCache(Cuda(), job.v)


def test_contradicting_dtype_names(job):
    with pytest.raises(quire.ArgumentError, match=r'k: the array is float32 but dtype="f16" was given'):
        quire.KVCache(job.k, job.v, dtype="f16")
    with pytest.raises(quire.ArgumentError, match=r"dtype: 'fp8' is none of f32, f16, bf16, fp8_e4m3fn"):
        quire.KVCache(job.k.view(np.uint8), job.v, dtype="fp8")
    with pytest.raises(quire.ArgumentError, match=r'k: dtype uint8 cannot hold the bits of dtype="bf16"'):
        quire.KVCache(job.k.view(np.uint8), job.v, dtype="bf16")
    typed = job.k.astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(quire.ArgumentError, match=r'k: the array is float8_e4m3fn but dtype="fp8_e4m3fnuz" was given'):
        quire.KVCache(typed, typed, dtype="fp8_e4m3fnuz")
    with pytest.raises(quire.ArgumentError, match=r'layout: "nhwc" is none of nhd, hnd, packed'):
        quire.KVCache(job.k, job.v, "nhwc")


@pytest.mark.parametrize(
    "change, rule, text",
    [
        (lambda j: dict(query=j.q[:, :, :-1], output=None), "Q-M22", r"cache\.k: head_dim 32, expected 31 as query"),
        (lambda j: dict(query=j.q[0], output=None), "Q-M09", r"query: shape \[4, 32\]"),
        (lambda j: dict(output=np.empty(j.q.shape, np.float16)), "Q-M12", r"output: dtype f16, expected f32 as query"),
        (lambda j: dict(output=np.empty((5, 4, 32), np.float32)), "Q-M11", r"output: shape \[5, 4, 32\], expected \[9, 4, 32\]"),
        (lambda j: dict(output=j.q), "Q-M16", r"output: shares memory with query"),
        (lambda j: dict(seq_lens=j.seq_lens[:2]), "Q-M29", r"seq_lens: shape \[2\], expected \[3\]"),
        (lambda j: dict(seq_lens=j.seq_lens.astype(np.float32)), "Q-M27", r"seq_lens: dtype f32, expected i32 or i64"),
        (lambda j: dict(query=j.q[:, :3], output=None), "Q-M23", r"num_q_heads 3, expected a multiple of num_kv_heads 2"),
    ],
)
def test_wrong_metadata_is_a_contract_error_before_any_write(job, change, rule, text):
    args = batch_args(job, output=np.full_like(job.q, 7.0))
    args.update(change(job))
    batch = quire.Batch(**args)
    with pytest.raises(quire.ContractError, match=text) as caught:
        quire.attend(batch, quire.KVCache(job.k, job.v))
    assert caught.value.rule == rule and caught.value.code == "contract_violation" and str(caught.value).startswith(rule)
    assert isinstance(caught.value, (quire.Error, ValueError))
    if args["output"] is not None and args["output"] is not job.q and args["output"].dtype == np.float32:
        assert np.all((args["output"] == 7.0) | (args["output"].shape[0] == 5))


def test_read_only_inputs_are_fine_and_read_only_outputs_are_not(job):
    for a in (job.q, job.k, job.v, job.query_start_loc, job.seq_lens, job.block_table):
        a.flags.writeable = False
    job.judge(run(job))
    frozen = np.zeros_like(job.q)
    frozen.flags.writeable = False
    with pytest.raises(quire.ArgumentError, match="output: the array is read-only"):
        quire.Batch(**batch_args(job, output=frozen))
    with pytest.raises(quire.ArgumentError, match="lse: the array is read-only"):
        quire.Batch(**batch_args(job, lse=frozen[:, :, 0]))
    with pytest.raises(quire.ArgumentError, match="k: the array is read-only"):
        quire.append(quire.KVCache(job.k, job.v), job.new_k, job.new_v, job.slots)
    with pytest.raises(quire.ArgumentError, match="output: the array is read-only"):
        quire.Batch(**batch_args(job, output=memoryview(bytes(job.q.tobytes())).cast("f", job.q.shape)))


# --- lifetime ---------------------------------------------------------------------------------------------------------------------


def test_objects_keep_their_arrays_alive(job):
    expected = run(job).copy()
    args = {name: value.copy() for name, value in batch_args(job).items()}
    k, v = job.k.copy(), job.v.copy()
    watch = [weakref.ref(a) for a in (*args.values(), k, v)]
    batch, cache = quire.Batch(**args), quire.KVCache(k, v)
    del args, k, v
    gc.collect()
    assert all(ref() is not None for ref in watch)
    junk = [np.full_like(job.q, np.nan) for _ in range(32)]
    assert np.array_equal(quire.attend(batch, cache), expected)
    del batch, cache, junk
    gc.collect()
    assert all(ref() is None for ref in watch), "arrays leak"


def test_dlpack_and_buffer_sources_stay_alive(job):
    expected = run(job).copy()
    k, v = job.k.copy(), job.v.copy()
    watch = [weakref.ref(k), weakref.ref(v)]
    cache = quire.KVCache(Dlpack(k), memoryview(v))
    del k, v
    gc.collect()
    assert np.array_equal(run(job, cache), expected)
    del cache
    gc.collect()
    assert all(ref() is None for ref in watch), "arrays leak"


def test_views_of_a_case_outlive_its_name():
    case = quire.make_case("q=f32 kv=fp8_e5m2 heads=4:2 d=16 page=4 reqs=3@9 seed=5 lse=1")
    batch, k = case.batch, case.cache.k
    query, before = batch.query, np.array(batch.query)
    del case, batch
    gc.collect()
    junk = [np.full(query.shape, np.nan, np.float32) for _ in range(32)]
    assert np.array_equal(query, before) and k.dtype == ml_dtypes.float8_e5m2
    del junk


def test_reference_views_outlive_the_reference(job):
    reference = quire.reference(quire.Batch(**batch_args(job)), quire.KVCache(job.k, job.v))
    out = reference.out
    before = out.copy()
    assert out.dtype == np.float64 and not out.flags.writeable
    del reference
    gc.collect()
    assert np.array_equal(out, before)
    job.judge(out.astype(np.float32))


def test_no_reference_leaks_from_errors(job):
    watch = weakref.ref(q := job.q.copy())
    for _ in range(3):
        with pytest.raises(quire.ArgumentError):
            quire.Batch(**batch_args(job, query=q, seq_lens="1"))
    count = sys.getrefcount(q)
    assert count <= 3, count
    del q
    gc.collect()
    assert watch() is None
