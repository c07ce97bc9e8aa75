# SPDX-License-Identifier: Apache-2.0
"""quire.capture and quire.record: what they write, what they notice, what they leave alone, and what they cost."""

import time
import types
import warnings

import numpy as np
import pytest
from dense import make_job, packed
from test_vllm_shim import NumpyLibrary, TorchLibrary, args_of, torch

import quire
import quire_vllm.ops as ops
from quire import _calls
from quire_vllm.ops import chunked_prefill_paged_decode

LIBRARIES = [NumpyLibrary, pytest.param(TorchLibrary, marks=pytest.mark.skipif(torch is None, reason="torch is not installed"))]


@pytest.fixture(params=LIBRARIES, ids=lambda lib: lib.name)
def lib(request):
    return request.param


def a_job(**changes):
    settings = dict(heads=8, kv_heads=2, dim=32, page=8, new_from="mixed")
    return make_job([9, 1, 5], [20, 33, 0], **{**settings, **changes})


def call(job, lib, op="chunked_prefill_paged_decode", **changes):
    return args_of(job, lib, op, "auto", **changes)


def good(job, lib=NumpyLibrary, **changes):
    args, out = call(job, lib, **changes)
    ops.chunked_prefill_paged_decode(**args)
    return out


def faulty(fault):
    """The op with its output damaged afterwards."""

    def chunked_prefill_paged_decode(*args, **kwargs):
        ops.chunked_prefill_paged_decode(*args, **kwargs)
        fault(kwargs["output"])

    return chunked_prefill_paged_decode


def set_row(token, value):
    def fault(output):
        output[token] = value

    return fault


def test_always_records_every_call_as_it_was(tmp_path, lib):
    job = a_job()
    job.query_start_loc = job.query_start_loc.astype(np.int64)
    with quire.capture(tmp_path, when="always") as recorder:
        out = good(job, lib)
        good(job, lib)
    assert recorder.calls == 2 and len(recorder.paths) == 2 and recorder.mismatches == 0
    case = quire.read_capture(recorder.paths[0])
    assert case.batch.query_start_loc.dtype == np.int64 and case.batch.seq_lens.dtype == np.int32
    assert case.cache.layout == "packed" and case.notes["call"] == "1"
    assert np.isnan(case.batch.output.astype(np.float32)).all()  # output holds what it held before the call
    np.testing.assert_array_equal(case.observed.view(np.uint16), lib.back(out).view(np.uint16))
    assert quire.compare(case.observed, None, quire.reference(case.batch, case.cache, case.options)).ok


def test_every_nth_call_up_to_a_limit(tmp_path):
    with quire.capture(tmp_path, when=3) as recorder:
        for _ in range(7):
            good(a_job())
    assert [quire.read_capture(p).notes["call"] for p in recorder.paths] == ["1", "4", "7"]
    with quire.capture(tmp_path / "b.safetensors", when="always", limit=2) as recorder:
        for _ in range(7):
            good(a_job())
    assert [p.rsplit("/", 1)[1] for p in recorder.paths] == ["b.safetensors", "b-2.safetensors"] and recorder.calls == 2


def test_right_calls_are_not_recorded(tmp_path, lib):
    with warnings.catch_warnings(), quire.capture(tmp_path) as recorder:
        warnings.simplefilter("error")
        for _ in range(5):
            good(a_job(), lib)
    assert recorder.calls == 5 and recorder.checked_rows >= 5 and not recorder.paths and not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", [set_row(9, np.nan), set_row(9, 0.7), set_row(slice(None), 0.0)], ids=["nan", "decode row", "zeros"])
def test_the_first_wrong_call_is_recorded(tmp_path, lib, fault):
    job = a_job()
    args, out = call(job, lib)
    recorded = quire.record(tmp_path)(faulty(fault))
    with pytest.warns(quire.hooks.CaptureWarning, match=r"output\[token \d+, head \d+, dim \d+\].*saved .*quire diagnose"):
        recorded(**args)
    recorded(**args)
    recorder = recorded.recorder
    assert recorder.mismatches == 1 and len(recorder.paths) == 1 and recorder.calls == 1  # enough was seen
    case = quire.read_capture(recorder.paths[0])
    assert "finding" in case.notes
    np.testing.assert_array_equal(case.observed.view(np.uint16), lib.back(out).view(np.uint16))


def test_one_unwritten_row_of_many_is_noticed(tmp_path):
    """Row 5336 of the notes: one row of the batch still holds what the output held before."""
    job = make_job([700, 1, 640], [5, 40, 9], heads=4, kv_heads=4, dim=16, page=16, new_from="mixed")

    def chunked_prefill_paged_decode(**kwargs):
        before = kwargs["output"][700].copy()
        ops.chunked_prefill_paged_decode(**kwargs)
        kwargs["output"][700] = before

    recorded = quire.record(tmp_path)(chunked_prefill_paged_decode)
    args, out = call(job, NumpyLibrary)
    out[:] = 0.25
    with pytest.warns(quire.hooks.CaptureWarning, match=r"output\[token 700"):
        recorded(**args)
    case = quire.read_capture(recorded.recorder.paths[0])
    assert (case.batch.output[700] == 0.25).all() and (case.observed[700] == 0.25).all()


def test_repeated_calls_look_at_other_heads(tmp_path):
    """A fault in one of eight KV heads is seen by the eighth call or so, not only by luck in the first."""
    job = a_job(heads=8, kv_heads=8)

    def fault(output):
        output[:, 5] = 0

    recorded = quire.record(tmp_path, budget_ms=0.01)(faulty(fault))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", quire.hooks.CaptureWarning)
        for _ in range(60):
            recorded(**call(job, NumpyLibrary)[0])
    assert recorded.recorder.mismatches == 1


def test_exceptions_pass_and_are_recorded(tmp_path):
    @quire.record(tmp_path)
    def chunked_prefill_paged_decode(**kwargs):
        raise ValueError("no kernel for this")

    with pytest.warns(quire.hooks.CaptureWarning, match="no kernel for this"), pytest.raises(ValueError, match="no kernel for this"):
        chunked_prefill_paged_decode(**call(a_job(), NumpyLibrary)[0])
    case = quire.read_capture(chunked_prefill_paged_decode.recorder.paths[0])
    assert case.notes["raised"] == "ValueError: no kernel for this" and case.observed is None


def test_a_broken_call_is_a_finding(tmp_path):
    job = a_job()
    job.block_table[0, 0] = 99999

    @quire.record(tmp_path, op="chunked_prefill_paged_decode")
    def op(**kwargs):
        return "untouched"

    with pytest.warns(quire.hooks.CaptureWarning, match="breaks the contract: Q-T"):
        assert op(**call(job, NumpyLibrary)[0]) == "untouched"


def test_what_cannot_be_recorded_warns_once_and_runs(tmp_path):
    @quire.record(tmp_path, op="unified_attention")
    def op(**kwargs):
        return 7

    arguments = {**unified_args(a_job()), "use_alibi_sqrt": True}
    with pytest.warns(quire.hooks.CaptureWarning, match="cannot be recorded: .*use_alibi_sqrt"):
        assert op(**arguments) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(**arguments) == 7


def test_a_file_that_cannot_be_written_warns(tmp_path):
    (tmp_path / "taken").write_text("a file where a folder is needed")
    job = a_job()
    with quire.capture(tmp_path / "taken" / "x.safetensors", when="always") as recorder:
        with pytest.warns(quire.hooks.CaptureWarning, match="cannot be recorded"):
            out = good(job)
    job.judge(out)
    assert not recorder.paths


def test_outputs_that_overwrite_an_input(tmp_path):
    """out = query: the capture holds the query as it was before the call."""
    job = a_job()

    @quire.record(tmp_path, when="always")
    def chunked_prefill_paged_decode(**kwargs):
        other = np.empty_like(kwargs["query"])
        ops.chunked_prefill_paged_decode(**{**kwargs, "output": other})
        kwargs["output"][:] = other

    args, _ = call(job, NumpyLibrary)
    args["query"] = args["query"].copy()
    args["output"] = args["query"]
    chunked_prefill_paged_decode(**args)
    case = quire.read_capture(chunked_prefill_paged_decode.recorder.paths[0])
    np.testing.assert_array_equal(case.batch.query, job.q)
    job.judge(case.observed)


# --- every op ---


def context_args(job):
    return call(job, NumpyLibrary, "context_attention_fwd")[0]


def unified_args(job):
    return dict(q=job.q, k=job.k, v=job.v, out=np.full_like(job.q, np.nan), cu_seqlens_q=job.query_start_loc, max_seqlen_q=9,
                seqused_k=job.seq_lens, max_seqlen_k=40, softmax_scale=0.2, causal=True, window_size=(15, 0),
                block_table=job.block_table, softcap=20.0, q_descale=None, k_descale=None, v_descale=None,
                sinks=np.linspace(-1, 1, 8).astype(np.float32))  # fmt: skip


def decode_args(job, **more):
    k, v = packed(job.k, job.v)
    return dict(out=np.full_like(job.q, np.nan), query=job.q, key_cache=k, value_cache=v, num_kv_heads=2, scale=0.2,
                block_tables=job.block_table, seq_lens=job.seq_lens, block_size=8, max_seq_len=40,
                alibi_slopes=np.linspace(0.1, 0.5, 8).astype(np.float32), kv_cache_dtype="auto", k_scale=None, v_scale=None, **more)  # fmt: skip


SPLITS = dict(exp_sum=None, max_logits=None, tmp_out=None)
CALLS = {
    "context_attention_fwd": lambda: context_args(a_job(new_from="rows")),
    "unified_attention": lambda: unified_args(a_job()),
    "paged_attention_v1": lambda: decode_args(make_job([1, 1, 1], [20, 33, 0], heads=8, kv_heads=2)),
    "paged_attention_v2": lambda: decode_args(make_job([1, 1, 1], [20, 33, 0], heads=8, kv_heads=2), **SPLITS),
    "paged_attention_rocm": lambda: decode_args(a_job(), **SPLITS, query_start_loc=a_job().query_start_loc),
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("when", ["always", "mismatch"])
def test_every_op(tmp_path, op, when):
    arguments = CALLS[op]()
    with warnings.catch_warnings(), quire.capture(tmp_path, when=when) as recorder:
        warnings.simplefilter("error")
        getattr(ops, op)(**arguments)
    assert recorder.calls == 1 and recorder.mismatches == 0
    if when == "mismatch":
        assert recorder.checked_rows >= 1 and not recorder.paths
        return
    case = quire.read_capture(recorder.paths[0])
    assert quire.compare(case.observed, None, quire.reference(case.batch, case.cache, case.options)).ok


def test_rows_that_the_op_does_not_answer_are_left_out(tmp_path):
    with quire.capture(tmp_path, when="always") as recorder:
        ops.paged_attention_rocm(**CALLS["paged_attention_rocm"]())
    assert quire.read_capture(recorder.paths[0]).batch.query.shape[0] == 1


def test_skip_decode(tmp_path):
    arguments = {**CALLS["context_attention_fwd"](), "skip_decode": True}
    with warnings.catch_warnings(), quire.capture(tmp_path, when="mismatch") as recorder:
        warnings.simplefilter("error")
        ops.context_attention_fwd(**arguments)
    assert recorder.checked_rows >= 1


@pytest.mark.parametrize("dense", [False, True], ids=["paged", "dense"])
def test_flash_attn_varlen_func(tmp_path, dense):
    """FlashAttention's function returns its output."""
    job = a_job()
    keys = [np.concatenate(part).astype(np.float16) for part in (job.dense_k, job.dense_v)] if dense else [job.k, job.v]

    @quire.record(tmp_path, when="always")
    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                               causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, block_table=None):  # fmt: skip
        batch = quire.Batch(query=q, query_start_loc=cu_seqlens_q, seq_lens=job.seq_lens, block_table=job.block_table)
        return quire.attend(batch, quire.KVCache(job.k, job.v), quire.Options(sliding_window=window_size[0] + 1))

    starts = np.concatenate(([0], np.cumsum(job.seq_lens))).astype(np.int32)
    out = flash_attn_varlen_func(job.q, *keys, job.query_start_loc, starts, 9, 40, causal=True, window_size=(7, 0),
                                 block_table=None if dense else job.block_table)  # fmt: skip
    job.judge(out, window=8)
    case = quire.read_capture(flash_attn_varlen_func.recorder.paths[0])
    assert case.options.sliding_window == 8
    assert quire.compare(case.observed, None, quire.reference(case.batch, case.cache, case.options)).ok


# --- what is patched ---


def test_patching_reaches_names_that_were_imported_and_is_undone(tmp_path, monkeypatch):
    import sys

    provider, user = types.ModuleType("quire_test_provider"), types.ModuleType("quire_test_user")

    def my_decode(*args, **kwargs):
        ops.chunked_prefill_paged_decode(*args, **kwargs)

    provider.my_decode = user.my_decode = my_decode
    monkeypatch.setitem(sys.modules, "quire_test_provider", provider)
    monkeypatch.setitem(sys.modules, "quire_test_user", user)
    place = "quire_test_provider:my_decode=chunked_prefill_paged_decode"
    with quire.capture(tmp_path, when="always", op=place) as recorder:
        assert provider.my_decode is user.my_decode is not my_decode
        user.my_decode(**call(a_job(), NumpyLibrary)[0])
    assert provider.my_decode is user.my_decode is my_decode
    assert recorder.calls == 1 and len(recorder.paths) == 1
    with pytest.raises(RuntimeError), quire.capture(tmp_path, op=place):
        raise RuntimeError
    assert provider.my_decode is my_decode


def test_an_op_inside_a_recorded_op_is_not_recorded_again(tmp_path):
    @quire.record(tmp_path / "outer", when="always")
    def chunked_prefill_paged_decode(**kwargs):
        ops.chunked_prefill_paged_decode(**kwargs)

    with quire.capture(tmp_path / "inner", when="always") as inner:
        chunked_prefill_paged_decode(**call(a_job(), NumpyLibrary)[0])
    assert inner.calls == 0 and chunked_prefill_paged_decode.recorder.calls == 1


def test_as_a_decorator(tmp_path):
    @quire.capture(tmp_path, when="always")
    def a_test():
        good(a_job())

    a_test()
    assert len(list(tmp_path.iterdir())) == 1
    good(a_job())
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
def test_contexts_that_overlap_end_in_any_order(tmp_path, order):
    """Whichever context ends, the newest that is left records. At the end all functions are the original ones, also where they were imported."""
    originals = [ops.chunked_prefill_paged_decode, call_by_name.__globals__["chunked_prefill_paged_decode"]]
    contexts = [quire.capture(tmp_path / str(i), when="always") for i in range(3)]
    recorders = [context.__enter__() for context in contexts]
    left = [0, 1, 2]
    for ended in order:
        before = [recorder.calls for recorder in recorders]
        good(a_job())
        assert [recorder.calls - calls for recorder, calls in zip(recorders, before)] == [int(i == left[-1]) for i in range(3)]
        contexts[ended].__exit__(None, None, None)
        left.remove(ended)
    assert [ops.chunked_prefill_paged_decode, call_by_name.__globals__["chunked_prefill_paged_decode"]] == originals
    before = [recorder.calls for recorder in recorders]
    good(a_job())
    assert [recorder.calls for recorder in recorders] == before


def call_by_name(*args, **kwargs):
    return chunked_prefill_paged_decode(*args, **kwargs)


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(quire.ArgumentError, match="when: 'sometimes'"):
        quire.capture(tmp_path, when="sometimes")
    with pytest.raises(quire.ArgumentError, match="when: 0"):
        quire.capture(tmp_path, when=0)
    with pytest.raises(quire.ArgumentError, match='op "nonsense" is none of flash_attn_varlen_func, chunked_prefill_paged_decode'):
        quire.capture(tmp_path, op="quire_vllm.ops:nonsense")
    with pytest.raises(quire.ArgumentError, match="pages"):
        quire.capture(tmp_path, pages="some")
    with pytest.raises(quire.ArgumentError, match="budget_ms"):
        quire.capture(tmp_path, budget_ms=0)
    with pytest.raises(quire.ArgumentError, match="budget_ms: nan, expected a finite number"):
        quire.capture(tmp_path, budget_ms=float("nan"))


def test_only_named_pages(tmp_path, lib):
    """The cache is cut to the pages that the table names; the answer is the same."""
    job = a_job()
    with quire.capture(tmp_path, when="always", pages="named") as recorder:
        good(job, lib)
    case = quire.read_capture(recorder.paths[0])
    used = int((-(-job.seq_lens // 8)).sum())
    assert case.cache.num_pages == used < job.k.shape[0] and f"{used} of {job.k.shape[0]}" in case.notes["pages"]
    expected = quire.reference(case.batch, case.cache, case.options)
    assert quire.compare(case.observed, None, expected).ok


# --- cost ---


def timed(function, repeats):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def test_the_cost_of_a_watched_call_is_bounded(tmp_path):
    """Best of several: at most the budget, plus a copy of the output, plus 1 ms for reading the call."""
    job = make_job([300, 1, 200, 64], [500, 900, 100, 0], heads=8, kv_heads=2, dim=64, page=16, new_from="mixed")
    args, _ = call(job, NumpyLibrary)
    plain = timed(lambda: ops.chunked_prefill_paged_decode(**args), 5)
    with quire.capture(tmp_path, budget_ms=2.0) as recorder:
        watched = timed(lambda: ops.chunked_prefill_paged_decode(**args), 12)
    assert recorder.calls == 12 and recorder.checked_rows >= 12 and not recorder.paths
    assert watched - plain < 0.2 * plain + 4e-3, (plain, watched)
    assert recorder.seconds / 12 < 0.05


def test_a_small_call_costs_little(tmp_path):
    job = a_job()
    args, _ = call(job, NumpyLibrary)
    with quire.capture(tmp_path, budget_ms=0.2) as recorder:
        timed(lambda: ops.chunked_prefill_paged_decode(**args), 50)
    assert recorder.seconds / 50 < 5e-3


def test_known_ops_have_functions_of_their_names():
    assert {name: op.function for name, op in _calls.OPS.items()} == {
        name: f"quire_vllm.ops:{name}" if hasattr(ops, name) else "" for name in _calls.OPS}  # fmt: skip
    assert [name for name, op in _calls.OPS.items() if not op.function] == ["flash_attn_varlen_func"]


def test_without_this_package_a_function_has_to_be_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_calls, "OPS", {"flash_attn_varlen_func": _calls.OPS["flash_attn_varlen_func"]})
    with pytest.raises(quire.ArgumentError, match="op: say which function, .* import quire_vllm.ops adds"):
        quire.capture(tmp_path)
    with pytest.raises(quire.ArgumentError, match=r"is none of flash_attn_varlen_func; .*import quire_vllm.ops adds vLLM's"):
        quire.capture(tmp_path, op="quire_vllm.ops:unified_attention")
