# SPDX-License-Identifier: Apache-2.0
"""quire_vllm.ops against the dense oracle: the matrix of vLLM's prefix-prefill test, on data that can see a fault.

The shape of the matrix (ops x sliding window x cache dtype x head size x queries per KV head, a mixed batch with one decode row,
and the ALiBi variant) follows vLLM's test_prefix_prefill.py; lengths and head counts are smaller, the data is N(0,1) instead of
+-1e-3, the fp8 cases hold quantised values instead of zeros, and every fault of FAULTS must be seen.
"""

import functools
import warnings

import ml_dtypes
import numpy as np
import pytest
from dense import FP8, make_job, packed

import quire
import quire_vllm.ops as ops
from quire_vllm.ops import _tensors

try:
    import torch
except ImportError:
    torch = None

LIBRARIES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(torch is None, reason="torch is not installed"))]
OPS = ["chunked_prefill_paged_decode", "context_attention_fwd"]
KV = {"auto": None, "fp8": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
RAW = {1: "uint8", 2: "int16", 4: "int32"}


class NumpyLibrary:
    name = "numpy"

    @staticmethod
    def array(a):
        return a

    cache = array

    @staticmethod
    def back(a, dtype=np.float16):
        return np.asarray(a)


class TorchLibrary:
    name = "torch"

    @staticmethod
    def array(a):
        if a.dtype in (np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_):
            return torch.from_numpy(a)
        assert a.dtype == ml_dtypes.bfloat16
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)

    @staticmethod
    def back(t, dtype=np.float16):
        raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()]
        return t.view(raw).numpy().view(dtype)


@pytest.fixture(params=LIBRARIES)
def lib(request):
    return NumpyLibrary if request.param == "numpy" else TorchLibrary


def raw(cache):
    """fp8 caches as vLLM keeps them: uint8."""
    return cache.view(np.uint8) if cache.itemsize == 1 else cache


def args_of(job, lib, op, kv, x=None, **changes):
    """The call of vLLM's test, by keyword for either op."""
    pk, pv = packed(job.k, job.v, x)
    longest = int(job.query_lens.max())
    new = dict(k_scale=np.array([job.k_scale], np.float32), v_scale=np.array([job.v_scale], np.float32), max_seq_len=1024)
    new = {name: lib.array(v) if isinstance(v, np.ndarray) else v for name, v in new.items()}
    tensors = [job.q, job.new_k, job.new_v, np.full_like(job.q, np.nan), raw(pk), raw(pv), job.block_table]
    q, k, v, out, k_cache, v_cache, table = (lib.array(t) for t in tensors)
    qsl, seq = lib.array(job.query_start_loc), lib.array(job.seq_lens)
    if op == "chunked_prefill_paged_decode":
        args = dict(query=q, key=k, value=v, output=out, kv_cache_dtype=kv, key_cache=k_cache, value_cache=v_cache, block_table=table,
                    query_start_loc=qsl, seq_lens=seq, max_query_len=longest, **new)  # fmt: skip
    else:
        args = dict(q=q, k=k, v=v, o=out, kv_cache_dtype=kv, k_cache=k_cache, v_cache=v_cache, b_loc=table, b_start_loc=qsl,
                    b_seq_len=seq, max_input_len=longest, **new)  # fmt: skip
    args.update(changes)
    return args, out


def matrix_job(op, dim, per_kv, kv, **changes):
    rng = np.random.default_rng(0)
    query_lens = [*rng.integers(16, 60, 4), 1]
    context_lens = rng.integers(16, 100, 5)
    settings = dict(heads=8, kv_heads=8 // per_kv, dim=dim, page=32, dtype="f16")
    settings.update(new_from="mixed" if op.startswith("chunked") else "rows", seed=dim + per_kv)
    changes.setdefault("kv", changes.pop("kv_dtype", KV[kv]))
    if KV[kv]:
        settings.update(k_scale=0.03125, v_scale=0.0625)
    return make_job(query_lens, context_lens, **{**settings, **changes})


@functools.lru_cache(maxsize=None)
def matrix_case(op, dim, per_kv, kv, window):
    """One job and its answer for both libraries; nobody writes to it."""
    job = matrix_job(op, dim, per_kv, kv)
    return job, job.expected(window=window or None)


@pytest.mark.parametrize("per_kv", [1, 4, 8])
@pytest.mark.parametrize("dim", [24, 128])
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("window", [0, 16, 2048])
@pytest.mark.parametrize("op", OPS)
def test_contexted_kv_attention(lib, op, window, kv, dim, per_kv):
    if lib.name == "torch" and window == 2048:
        pytest.skip("the NumPy half of the matrix covers it")
    job, expected = matrix_case(op, dim, per_kv, kv, window)
    x = 8 if kv != "auto" else None  # upstream packs fp8 with 8, where 16 would be right
    args, out = args_of(job, lib, op, kv, x=x, sliding_window=window)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        getattr(ops, op)(**args)
    job.judge(lib.back(out), expected=expected)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("dim", [24, 128])
@pytest.mark.parametrize("op", OPS)
def test_contexted_kv_attention_alibi(lib, op, dim, kv):
    job = matrix_job(op, dim, 4, kv)
    slopes = (2.0 ** -np.arange(1, 9)).astype(np.float32)
    slopes[3] = -slopes[3]  # vLLM's prefill kernel masks every key of a negative slope
    args, out = args_of(job, lib, op, kv, x=8, alibi_slopes=lib.array(slopes), sliding_window=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        getattr(ops, op)(**args)
    job.judge(lib.back(out), slopes=slopes, window=40)


@pytest.mark.parametrize("op", OPS)
def test_the_notes_own_small_data(lib, op):
    """|x| <= 1e-3 and atol 1e-4, once, as the notes had it. The derived tolerance is 100 times tighter and is held as well."""
    job = matrix_job(op, 128, 1, "auto", scale_of_data=1e-3)
    args, out = args_of(job, lib, op, "auto")
    getattr(ops, op)(**args)
    expected, _ = job.expected()
    assert np.abs(lib.back(out).astype(float) - expected).max() <= 1e-4
    job.judge(lib.back(out))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_other_query_types(lib, dtype):
    job = matrix_job(OPS[0], 64, 4, "auto", dtype=dtype)
    args, out = args_of(job, lib, OPS[0], "auto")
    ops.chunked_prefill_paged_decode(**args)
    job.judge(lib.back(out, job.q.dtype))


FAULTS = {
    "scale from the number of heads": dict(sm_scale=8**-0.5),
    "k and v scale swapped": "scales",
    "window off by one": dict(sliding_window=15),
    "window ignored": dict(sliding_window=0),
    "decode row's own slot missing": "slot",
    "e4m3fn read as e4m3fnuz": "flavour",
    "K pages rotated": "pages",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_seen(fault, monkeypatch):
    job = matrix_job(OPS[0], 128, 4, "fp8")
    args, out = args_of(job, NumpyLibrary, OPS[0], "fp8", sliding_window=16)
    ops.chunked_prefill_paged_decode(**args)
    job.judge(out, window=16)
    change = FAULTS[fault]
    if isinstance(change, dict):
        args.update(change)
    elif change == "scales":
        args.update(k_scale=args["v_scale"], v_scale=args["k_scale"])
    elif change == "flavour":
        monkeypatch.setattr(ops, "fp8_flavour", "fnuz")
    elif change == "pages":
        args["key_cache"] = np.roll(args["key_cache"], 1, axis=0)
    elif change == "slot":
        page, offset = divmod(int(job.slots[-1]), 32)
        args["key_cache"][page, :, :, offset, :] = 0
        args["value_cache"][page, :, :, offset] = 0
    ops.chunked_prefill_paged_decode(**args)
    with pytest.raises(AssertionError, match="elements wrong"):
        job.judge(out, window=16)


# --- details of the chunked and the prefill op ------------------------------------------------------------------------------------------


def test_cache_contents_by_row():
    """Decode rows read everything from the cache; prefill rows must not read their new tokens there."""
    job = matrix_job(OPS[0], 128, 4, "auto")
    args, out = args_of(job, NumpyLibrary, OPS[0], "auto")
    prefill = job.slots[:-1]
    args["key_cache"][prefill // 32, :, :, prefill % 32, :] = np.nan
    args["value_cache"][prefill // 32, :, :, prefill % 32] = np.nan
    args["key"][-1] = np.nan
    args["value"][-1] = np.nan
    ops.chunked_prefill_paged_decode(**args)
    job.judge(out)
    everything, everything_out = args_of(job, NumpyLibrary, OPS[0], "auto", key=None, value=None)
    ops.chunked_prefill_paged_decode(**everything)
    job.judge(everything_out)


def test_skip_decode_leaves_decode_rows_alone(lib):
    job = make_job([1, 5, 1, 1, 9, 0, 2], [7, 8, 3, 40, 0, 4, 2], page=32, new_from="rows")
    args, out = args_of(job, lib, OPS[1], "auto", skip_decode=True)
    ops.context_attention_fwd(**args)
    decode = np.repeat(job.query_lens == 1, job.query_lens)
    result = lib.back(out)
    assert np.isnan(result[decode]).all()
    job.judge(result, rows=~decode)


def test_query_len_zero_writes_nothing(lib):
    job = make_job([0, 4, 0, 1, 0], [7, 8, 0, 40, 3], page=32, new_from="mixed")
    args, out = args_of(job, lib, OPS[0], "auto")
    ops.chunked_prefill_paged_decode(**args)
    job.judge(lib.back(out))


@pytest.mark.parametrize("op, name", [(OPS[0], "max_query_len"), (OPS[1], "max_input_len")])
def test_a_maximum_that_is_too_small_raises_before_any_write(op, name):
    job = matrix_job(op, 24, 1, "auto")
    args, out = args_of(job, NumpyLibrary, op, "auto", **{name: int(job.query_lens.max()) - 1})
    with pytest.raises(quire.ArgumentError, match=f"{name}: .* vLLM would leave rows unwritten"):
        getattr(ops, op)(**args)
    assert np.isnan(out).all()
    args, out = args_of(job, NumpyLibrary, op, "auto", max_seq_len=1)
    getattr(ops, op)(**args)
    job.judge(out)


@pytest.mark.parametrize("window", [None, 0, -1])
def test_window_off(window):
    job = matrix_job(OPS[0], 24, 1, "auto")
    args, out = args_of(job, NumpyLibrary, OPS[0], "auto", sliding_window=window)
    ops.chunked_prefill_paged_decode(**args)
    job.judge(out)


def test_sinks_and_window_one(lib):
    job = matrix_job(OPS[0], 24, 4, "auto")
    sinks = np.linspace(-2, 2, 8).astype(np.float16)
    args, out = args_of(job, lib, OPS[0], "auto", sinks=lib.array(sinks), sliding_window=1)
    ops.chunked_prefill_paged_decode(**args)
    job.judge(lib.back(out), sinks=sinks.astype(float), window=1)


def test_int64_indices_are_read_as_int64(lib):
    job = matrix_job(OPS[0], 24, 1, "auto")
    names = ("query_start_loc", "seq_lens", "block_table")
    wide = {name: lib.array(getattr(job, name).astype(np.int64)) for name in names}
    args, out = args_of(job, lib, OPS[0], "auto", **wide)
    ops.chunked_prefill_paged_decode(**args)
    job.judge(lib.back(out))


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(output_scale=np.ones(1, np.float32)), quire.ContractError, "Q-M39 output_scale: given beside output of"),
        (dict(is_block_table_ptr=True), quire.UnsupportedError, "is_block_table_ptr: not supported"),
        (dict(kv_cache_dtype="fp8"), quire.ArgumentError, 'key_cache: the tensor is f16, but kv_cache_dtype="fp8"'),
        (dict(kv_cache_dtype="int4"), quire.ArgumentError, 'kv_cache_dtype: "int4" is none of auto, fp8'),
        (dict(kv_cache_dtype="bfloat16"), quire.ArgumentError, 'key_cache: the array is float16 but dtype="bf16"'),
        (dict(seq_lens=np.array([3, 3, 3, 3, 3], np.int32)), quire.ContractError, r"seq_lens\[0\]"),
        (dict(query_start_loc=np.zeros(5, np.int32)), quire.ContractError, "seq_lens"),
    ],
)
def test_refusals(change, error, text):
    job = matrix_job(OPS[0], 24, 1, "auto")
    args, out = args_of(job, NumpyLibrary, OPS[0], "auto", **change)
    with pytest.raises(error, match=text):
        ops.chunked_prefill_paged_decode(**args)
    assert np.isnan(out).all()


@pytest.mark.parametrize("flavour", ["fn", "fnuz"])
@pytest.mark.parametrize("typed", [False, True])
def test_fp8_flavours(monkeypatch, flavour, typed):
    job = matrix_job(OPS[0], 32, 1, "fp8", kv_dtype="fp8_e4m3" + flavour)
    args, out = args_of(job, NumpyLibrary, OPS[0], "fp8_e4m3")
    if typed:
        args["key_cache"], args["value_cache"] = (args[n].view(job.k.dtype) for n in ("key_cache", "value_cache"))
    else:
        monkeypatch.setattr(ops, "fp8_flavour", flavour)
    ops.chunked_prefill_paged_decode(**args)
    job.judge(out)
    if typed:
        with pytest.raises(quire.ArgumentError, match='but kv_cache_dtype="fp8_e5m2"'):
            ops.chunked_prefill_paged_decode(**{**args, "kv_cache_dtype": "fp8_e5m2"})
    with pytest.raises(quire.ArgumentError, match="uint8 with kv_cache_dtype"):
        ops.chunked_prefill_paged_decode(**{**args, "kv_cache_dtype": "auto", "key_cache": raw(args["key_cache"])})


def test_an_unusual_x_is_copied_with_one_warning(monkeypatch):
    monkeypatch.setattr(_tensors, "_warned", set())
    job = matrix_job(OPS[0], 24, 1, "fp8")
    args, _ = args_of(job, NumpyLibrary, OPS[0], "fp8", x=8)
    with pytest.warns(RuntimeWarning, match="packed with x = 8 where 16 is expected for fp8_e4m3fn"):
        ops.chunked_prefill_paged_decode(**args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.chunked_prefill_paged_decode(**args)


# --- decode ops -----------------------------------------------------------------------------------------------------------------------


def decode_args(job, lib, kv="auto", **changes):
    pk, pv = packed(job.k, job.v)
    args = dict(
        query=lib.array(job.q), key_cache=lib.array(raw(pk)), value_cache=lib.array(raw(pv)), num_kv_heads=job.k.shape[2],
        scale=job.q.shape[2] ** -0.5, block_tables=lib.array(job.block_table), seq_lens=lib.array(job.seq_lens), block_size=32,
        max_seq_len=int(job.seq_lens.max()), alibi_slopes=None, kv_cache_dtype=kv, k_scale=job.k_scale, v_scale=job.v_scale,
    )  # fmt: skip
    args.update(changes)
    return args


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_paged_attention(lib, version, kv):
    job = make_job([1] * 5, [0, 31, 32, 200, 77], page=32, kv=KV[kv], k_scale=0.5 if kv != "auto" else 1.0)
    slopes = np.array([0.5, -0.25, 0.125, 0.1], np.float32)
    args = decode_args(job, lib, kv, alibi_slopes=lib.array(slopes))
    out = lib.array(np.full_like(job.q, np.nan))
    if version == 1:
        ops.paged_attention_v1(out, **args)
    else:
        ops.paged_attention_v2(out, None, None, None, **args)
    job.judge(lib.back(out), slopes=slopes)


def test_paged_attention_of_empty_sequences_is_zero(lib):
    job = make_job([1] * 5, [3, 31, 32, 20, 7], page=32)
    empty = np.array([True, False, True, True, False])
    seq = np.where(empty, 0, job.seq_lens).astype(np.int32)
    out = lib.array(np.full_like(job.q, np.nan))
    ops.paged_attention_v1(out, **decode_args(job, lib, seq_lens=lib.array(seq)))
    result = lib.back(out)
    assert not result[empty].any()
    job.judge(result, rows=~empty)


def test_paged_attention_rocm_writes_rows_of_one(lib):
    job = make_job([1, 3, 1, 0, 1], [3, 31, 32, 20, 7], page=32)
    out = lib.array(np.full_like(job.q, np.nan))
    ops.paged_attention_rocm(out, None, None, None, query_start_loc=lib.array(job.query_start_loc), **decode_args(job, lib))
    single = np.repeat(job.query_lens == 1, job.query_lens)
    result = lib.back(out)
    assert np.isnan(result[~single]).all()
    job.judge(result, rows=single)


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(max_seq_len=200), quire.ArgumentError, "max_seq_len: 200, but the batch has 201"),
        (dict(block_size=16), quire.ArgumentError, "block_size: 16, but the cache has 32"),
        (dict(num_kv_heads=4), quire.ArgumentError, "num_kv_heads: 4, but the cache has 2"),
        (dict(blocksparse_vert_stride=8), quire.UnsupportedError, "blocksparse_vert_stride: not supported"),
        (dict(seq_lens=np.ones(4, np.int32)), quire.ArgumentError, "query: 5 rows for 4 seq_lens"),
        (dict(seq_lens=np.array([1, 2, -3, 4, 5], np.int32)), quire.ArgumentError, r"seq_lens\[2\]: -3 is negative"),
    ],
)
def test_paged_attention_refusals(change, error, text):
    job = make_job([1] * 5, [0, 31, 32, 200, 77], page=32)
    out = np.full_like(job.q, np.nan)
    with pytest.raises(error, match=text):
        ops.paged_attention_v1(out, **decode_args(job, NumpyLibrary, **change))
    assert np.isnan(out).all()


# --- unified attention ----------------------------------------------------------------------------------------------------------------


def unified_args(job, lib, **changes):
    args = dict(
        q=lib.array(job.q), k=lib.array(raw(job.k)), v=lib.array(raw(job.v)), cu_seqlens_q=lib.array(job.query_start_loc),
        max_seqlen_q=int(job.query_lens.max()), seqused_k=lib.array(job.seq_lens), max_seqlen_k=int(job.seq_lens.max()),
        softmax_scale=job.q.shape[2] ** -0.5, causal=True, window_size=(-1, -1), block_table=lib.array(job.block_table), softcap=0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    args.update(changes)
    return args


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("fp8", [False, True])
def test_unified_attention(lib, window, cap, fp8):
    job = make_job([1, 5, 29], [132, 18, 46], page=16, dtype="bf16", kv="fp8_e4m3fn" if fp8 else None, k_scale=0.5 if fp8 else 1.0)
    out = lib.array(np.full(job.q.shape, np.nan).astype(job.q.dtype))
    descale = lib.array(np.full((3, 2), job.k_scale, np.float32))
    args = unified_args(job, lib, softcap=cap or 0, k_descale=descale, window_size=(window - 1, 0) if window else (-1, -1))
    ops.unified_attention(out=out, **args)
    job.judge(lib.back(out, job.q.dtype), window=window, cap=cap)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("causal", [False, [True, False, False, True]])
def test_unified_attention_of_requests_that_are_not_causal(lib, window, causal):
    """vLLM's window of such a request hides keys on both sides."""
    job = make_job([1, 5, 29, 33], [132, 18, 46, 12], page=16, dtype="bf16")
    out = lib.array(np.full(job.q.shape, np.nan).astype(job.q.dtype))
    flags = causal if causal is False else lib.array(np.array(causal))
    args = unified_args(job, lib, causal=flags, window_size=(window - 1, 0) if window else (-1, -1))
    ops.unified_attention(out=out, **args)
    job.judge(lib.back(out, job.q.dtype), window=window, causal=causal, right=None if window is None else window - 1)
    if causal is not False:  # vLLM reads other integers, too
        again = lib.array(np.full(job.q.shape, np.nan).astype(job.q.dtype))
        ops.unified_attention(out=again, **{**args, "causal": lib.array(np.array(causal, np.int32) * 5)})
        assert np.array_equal(lib.back(again, job.q.dtype), lib.back(out, job.q.dtype))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("window", [None, 24])
def test_packed_ops_of_rows_that_are_not_causal(lib, op, window):
    """vLLM's window of such rows hides older keys alone."""
    job = matrix_job(op, 64, 4, "auto")
    args, out = args_of(job, lib, op, "auto", causal=False, sliding_window=window)
    getattr(ops, op)(**args)
    job.judge(lib.back(out), window=window, causal=False)


def test_unified_attention_refusals():
    job = make_job([1, 5], [13, 18], page=16, kv="fp8_e4m3fn")
    out = np.full_like(job.q, np.nan)
    slopes = np.zeros(4, np.float32)
    uneven = np.array([[1, 1], [1, 2]], np.float32)
    for change, error, text in (
        (dict(qq_bias=slopes), quire.UnsupportedError, "qq_bias"),
        (dict(k_descale=uneven), quire.UnsupportedError, "k_descale: shape .* with different values"),
        (dict(alibi_slopes=slopes, sinks=slopes), quire.UnsupportedError, "alibi_slopes with sinks"),
        (dict(max_seqlen_k=22), quire.ArgumentError, "max_seqlen_k: 22, but the batch has 23"),
        (dict(causal=[True, False]), quire.ArgumentError, "causal: list, expected a bool, or a tensor"),
        (dict(causal=np.array([0.5, 1])), quire.ArgumentError, "causal: float64, expected a bool"),
        (dict(causal=False, window_size=(3, 2)), quire.UnsupportedError, r"window_size: \(3, 2\): .* equal sides"),
    ):
        with pytest.raises(error, match=text):
            ops.unified_attention(out=out, **unified_args(job, NumpyLibrary, **change))
    assert np.isnan(out).all()


# --- cache writes ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [None, *FP8])
@pytest.mark.parametrize("x", ["right", 8])
def test_reshape_and_cache(lib, monkeypatch, kv, x):
    job = make_job([7, 1, 4], [9, 3, 0], heads=80, kv_heads=80, dim=24 if x == 8 else 32, page=8, kv=kv, k_scale=0.5 if kv else 1.0)
    x = 16 // job.k.itemsize if x == "right" else x
    monkeypatch.setattr(ops, "fp8_flavour", "fnuz" if kv == "fp8_e4m3fnuz" else "fn")
    name = {None: "auto", "fp8_e4m3fn": "fp8", "fp8_e4m3fnuz": "fp8_e4m3"}.get(kv, "fp8_e5m2")
    expected_k, expected_v = packed(job.k, job.v, x)
    pages, offsets = job.slots // 8, job.slots % 8
    k, v = expected_k.copy(), expected_v.copy()
    k[pages, :, :, offsets, :], v[pages, :, :, offsets] = 0, 0
    before_k = k.copy()
    slots = np.concatenate([job.slots, [-1]])
    key, value = (np.concatenate([a, a[:3]]) for a in (job.new_k, job.new_v))  # longer than slot_mapping: graph padding
    keep_typed = kv == "fp8_e5m2fnuz" and lib.name == "numpy"
    if kv == "fp8_e5m2fnuz" and not keep_typed:
        pytest.skip("vLLM has no name for e5m2fnuz; only a typed tensor carries it")
    arrays = [lib.array(a) for a in (key, value, k if keep_typed else raw(k), v if keep_typed else raw(v), slots)]
    ops.reshape_and_cache(*arrays, name, job.k_scale, 1.0)
    assert not np.array_equal(raw(k), raw(before_k))
    bits = np.dtype(f"u{k.itemsize}")
    assert np.array_equal(k.view(bits), expected_k.view(bits)) and np.array_equal(v.view(bits), expected_v.view(bits))


def test_reshape_and_cache_refuses_bad_slots(lib):
    for x in (None, 8):
        job = make_job([7], [9], page=8, kv="fp8_e4m3fn")
        k, v = packed(job.k, job.v, x)
        before = raw(k).copy()
        slots = job.slots.copy()
        slots[3] = 10**9
        with pytest.raises(quire.Error, match="slot_mapping.*1000000000"):
            ops.reshape_and_cache(*(lib.array(a) for a in (job.new_k, job.new_v, raw(k), raw(v), slots)), "fp8", 1.0, 1.0)
        assert np.array_equal(raw(k), before)


@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("per_head", [False, True])
def test_reshape_and_cache_flash(lib, order, per_head):
    job = make_job([7, 1], [9, 3], page=8, dtype="bf16", kv="fp8_e4m3fn")
    scale = np.array([0.5, 2.0], np.float32) if per_head else np.array([0.25], np.float32)
    k, v = job.k.copy(), job.v.copy()
    if order == "hnd":  # hnd has the same logical shape, with heads before tokens in memory
        k, v = (np.ascontiguousarray(c.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for c in (k, v))
    expected = job.k.copy()
    expected.reshape(-1, 2, 32)[job.slots] = (job.new_k.astype(np.float32) / scale.reshape(-1, 1)).astype(job.k.dtype)
    arrays = [lib.array(a) for a in (job.new_k, job.new_v, raw(k), raw(v), job.slots, scale, scale)]
    ops.reshape_and_cache_flash(*arrays[:5], "fp8", *arrays[5:])
    assert np.array_equal(np.ascontiguousarray(k).view(np.uint8), expected.view(np.uint8))


# --- merge ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("with_context", [None, 7, 0])
def test_merge_attn_states(lib, dtype, with_context):
    from dense import DTYPES, UNIT

    rng = np.random.default_rng(1)
    tokens, heads, dim = 13, 5, 32
    a, b = (rng.standard_normal((tokens, heads, dim)).astype(DTYPES[dtype]) for _ in range(2))
    lse_a, lse_b = (rng.standard_normal((heads, tokens)).astype(np.float32) for _ in range(2))
    lse_a[0, 2], lse_b[1, 3], lse_b[2, 4] = np.inf, -np.inf, np.inf
    a[2, 0], b[3, 1], b[4, 2] = 1e4, 1e4, 1e4  # whatever stands on an empty side must not matter
    out, lse = np.full_like(a, np.nan), np.full_like(lse_a, np.nan)
    ops.merge_attn_states(*(lib.array(x) for x in (out, a, lse_a, b, lse_b, lse)), prefill_tokens_with_context=with_context)
    clean_a, clean_b = (np.where(np.isposinf(x), -np.inf, x).astype(float) for x in (lse_a, lse_b))
    n = tokens if with_context is None else with_context
    expected_lse = np.logaddexp(clean_a, clean_b)
    wa, wb = (np.exp(x - expected_lse).T[:, :, None] for x in (clean_a, clean_b))
    expected = wa * a.astype(float) + wb * b.astype(float)
    expected[n:], expected_lse[:, n:] = b[n:].astype(float), lse_b[:, n:]
    tolerance = (1.01 * UNIT[dtype] + 2.0**-20) * (wa * np.abs(a.astype(float)) + wb * np.abs(b.astype(float))) + 1e-30
    tolerance[n:] = 0
    assert np.all(np.abs(out.astype(float) - expected) <= tolerance)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-6, atol=1e-6)


def test_merge_attn_states_without_output_lse():
    a, lse = np.ones((2, 3, 4), np.float32), np.zeros((3, 2), np.float32)
    out = np.empty_like(a)
    ops.merge_attn_states(out, a, lse, 3 * a, lse)
    assert np.allclose(out, 2.0)
    with pytest.raises(quire.ArgumentError, match="prefix_lse: f32"):
        ops.merge_attn_states(out, a, lse[0], a, lse)
    with pytest.raises(quire.ContractError, match="Q-G07 output_scale: given beside out of f32"):
        ops.merge_attn_states(out, a, lse, a, lse, output_scale=np.ones(1, np.float32))
