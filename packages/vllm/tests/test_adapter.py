# SPDX-License-Identifier: Apache-2.0
"""Functions of any signature, recorded through an adapter; and what is said where one is missing."""

import sys
import types
import warnings

import numpy as np
import pytest
from dense import make_job
from test_vllm_shim import NumpyLibrary, TorchLibrary, torch

import quire

LIBRARIES = [NumpyLibrary, pytest.param(TorchLibrary, marks=pytest.mark.skipif(torch is None, reason="torch is not installed"))]
WINDOW = 8


def a_job():
    return make_job([9, 1, 5], [20, 33, 0], heads=8, kv_heads=2, dim=32, page=8)


class Step:
    """What somebody's engine passes around."""

    def __init__(self, job, lib=NumpyLibrary):
        self.starts, self.lens, self.table = (lib.array(a) for a in (job.query_start_loc, job.seq_lens, job.block_table))


def attend_returned(q, kv, step, window):
    """An attention of a signature that nobody knows; kv: (k, v)."""
    batch = quire.Batch(query=q, query_start_loc=step.starts, seq_lens=step.lens, block_table=step.table)
    return quire.attend(batch, quire.KVCache(*kv), quire.Options(sliding_window=window))


def attend_in_place(q, kv, step, window, out):
    out[:] = attend_returned(q, kv, step, window)


def as_objects(q, kv, step, window, out=None):
    batch = quire.Batch(query=q, query_start_loc=step.starts, seq_lens=step.lens, block_table=step.table, output=out)
    return batch, quire.KVCache(*kv), quire.Options(sliding_window=window)


def as_names(q, kv, step, window, out=None):
    return dict(query=q, k=kv[0], v=kv[1], query_start_loc=step.starts, seq_lens=step.lens, block_table=step.table,
                sliding_window=window, output=out)  # fmt: skip


def arguments(job, lib=NumpyLibrary):
    return lib.array(job.q), (lib.array(job.k), lib.array(job.v)), Step(job, lib), WINDOW


@pytest.mark.parametrize("lib", LIBRARIES, ids=lambda lib: lib.name)
@pytest.mark.parametrize("adapter", [as_objects, as_names])
@pytest.mark.parametrize("pages", ["all", "named"])
def test_a_returned_output(tmp_path, adapter, pages, lib):
    job = a_job()
    recorded = quire.record(tmp_path, when="always", adapter=adapter, pages=pages)(attend_returned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = recorded(*arguments(job, lib))
    job.judge(out, window=WINDOW)
    (path,) = recorded.recorder.paths
    case = quire.read_capture(path)
    assert case.options.sliding_window == WINDOW and "attend_returned" in path and case.notes["call"] == "1"
    assert (case.cache.num_pages < len(job.k)) == (pages == "named")
    np.testing.assert_array_equal(case.observed.view(np.uint16), lib.back(out).view(np.uint16))
    assert quire.diagnose(path).verdict == "right"


@pytest.mark.parametrize("adapter", [as_objects, as_names])
def test_an_output_that_is_written_in_place(tmp_path, adapter):
    job = a_job()
    out = np.full_like(job.q, 0.25)
    recorded = quire.record(tmp_path, when="always", adapter=adapter)(attend_in_place)
    recorded(*arguments(job), out=out)
    case = quire.read_capture(recorded.recorder.paths[0])
    assert (case.batch.output == 0.25).all()  # output holds what it held before the call
    np.testing.assert_array_equal(case.observed, out)
    job.judge(case.observed, window=WINDOW)


@pytest.mark.parametrize("adapter", [as_objects, as_names])
def test_a_wrong_call_is_noticed_and_named(tmp_path, adapter):
    job = a_job()

    @quire.record(tmp_path, adapter=adapter)
    def forgets_the_window(q, kv, step, window):
        return attend_returned(q, kv, step, None)

    with pytest.warns(quire.hooks.CaptureWarning, match=r"forgets_the_window: output\[token \d+, .*saved .*quire diagnose"):
        forgets_the_window(*arguments(job))
    found = quire.diagnose(forgets_the_window.recorder.paths[0])
    assert found.verdict == "cause found" and "window" in found.suspicions[0].text, found.text


def test_a_patched_function(tmp_path, monkeypatch):
    provider = types.ModuleType("quire_test_engine")
    provider.attend_returned = attend_returned
    monkeypatch.setitem(sys.modules, "quire_test_engine", provider)
    with quire.capture(tmp_path, when="always", op="quire_test_engine:attend_returned", adapter=as_objects) as recorder:
        provider.attend_returned(*arguments(a_job()))
    assert provider.attend_returned is attend_returned and len(recorder.paths) == 1
    assert quire.diagnose(recorder.paths[0])


def test_everything_that_a_batch_can_ask_for_arrives(tmp_path):
    """The batch of a Case names an output, and attend() returns another: the one that was returned is judged."""
    line = "q=bf16 kv=fp8_e4m3fn heads=4:2 d=32 page=16 layout=packed scale=0.2 kscale=tensor vscale=head alibi=1 cap=20 sinks=1"
    case = quire.make_case(line + " reqs=3@40,1@20")

    @quire.record(tmp_path, when="always", adapter=lambda c: (c.batch, c.cache, c.options))
    def mine(c):
        return quire.attend(c.batch, c.cache, c.options)

    mine(case)
    saved = quire.read_capture(mine.recorder.paths[0])
    assert (saved.cache.layout, saved.cache.dtype, saved.batch.dtype) == ("packed", "fp8_e4m3fn", "bf16")
    assert quire.diagnose(saved, profile="plain").verdict == "right"


@pytest.mark.parametrize("adapter, message", [
    (lambda *a: None, r"adapter: returned None, expected \(batch, cache\), \(batch, cache, options\) or a dict"),
    (lambda *a: (1, 2), r"adapter: returned batch 1 \(int\), expected a quire.Batch"),
    (lambda *a: (as_objects(*a)[0], 2), r"adapter: returned cache 2 \(int\), expected a quire.KVCache"),
    (lambda *a: (*as_objects(*a)[:2], 2), r"adapter: returned options 2 \(int\), expected a quire.Options"),
    (lambda *a: {**as_names(*a), "windw": 3}, r'adapter: unknown argument "windw"; did you mean sliding_window\?'),
    (lambda *a: {"query": a[0]}, "adapter: query_start_loc, seq_lens, block_table, k, v: missing"),
    (lambda q: q, "adapter: TypeError: .*positional"),
    (lambda *a: a[2].tables, "adapter: AttributeError: .*tables"),
])  # fmt: skip
def test_a_wrong_adapter_is_named_and_the_op_runs(tmp_path, adapter, message):
    job = a_job()
    recorded = quire.record(tmp_path, when="always", adapter=adapter)(attend_returned)
    with pytest.warns(quire.hooks.CaptureWarning, match="attend_returned: this call cannot be recorded: .*" + message):
        out = recorded(*arguments(job))
    job.judge(out, window=WINDOW)
    assert not recorded.recorder.paths


def test_an_output_that_nobody_names(tmp_path):
    job = a_job()
    out = np.full_like(job.q, np.nan)
    recorded = quire.record(tmp_path, when="always", adapter=lambda *a, out: as_objects(*a))(attend_in_place)
    with pytest.warns(quire.hooks.CaptureWarning, match="returned None, and the batch of the adapter names no output"):
        recorded(*arguments(job), out=out)
    assert not recorded.recorder.paths


HOW = r'adapter=.*\(batch, cache, options\).*quire\.write_capture\(path, batch, cache, options, observed=out\)'


def test_without_an_adapter_the_error_says_how(tmp_path):
    with pytest.raises(quire.ArgumentError, match=r'op "attend_returned" is none of .*' + HOW):
        quire.record(tmp_path)(attend_returned)
    with pytest.raises(quire.ArgumentError, match=r'op "attend_returned" is none of .*' + HOW):
        quire.capture(tmp_path, op=f"{__name__}:attend_returned")


def test_arguments_that_a_known_op_needs(tmp_path):
    """KeyError: 'k' said nothing."""
    recorded = quire.record(tmp_path, op="unified_attention")(lambda q, kv, step, window: 7)
    with pytest.warns(quire.hooks.CaptureWarning, match=r"the call has no .*softcap.*; it has not the signature of unified_attention: .*" + HOW):
        assert recorded(*arguments(a_job())) == 7

    @quire.record(tmp_path, op="flash_attn_varlen_func")
    def named(**kwargs):
        return 7

    with pytest.warns(quire.hooks.CaptureWarning, match=r"the call has no k, v, cu_seqlens_q; it has not the signature of flash.*" + HOW):
        assert named(q=a_job().q, kv=None) == 7


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(quire.ArgumentError, match=r'op "nomod:x": there is no module "nomod"'):
        quire.capture(tmp_path, op="nomod:x")
    with pytest.raises(quire.ArgumentError, match=r'op "nomod.deep:unified_attention": there is no module "nomod"'):
        quire.capture(tmp_path, op="nomod.deep:unified_attention")
    capture = quire.capture(tmp_path, op="quire.nomod:unified_attention")
    with pytest.raises(quire.ArgumentError, match=r'op "quire.nomod:unified_attention": there is no module "quire.nomod"'), capture:
        pass
    capture = quire.capture(tmp_path, op="quire_vllm.ops:mine", adapter=as_objects)
    with pytest.raises(quire.ArgumentError, match=r'op "quire_vllm.ops:mine": module "quire_vllm.ops" has no "mine"'), capture:
        pass


def test_a_module_that_needs_another(tmp_path, monkeypatch):
    (tmp_path / "quire_test_needy.py").write_text("import quire_test_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    capture = quire.capture(tmp_path, op="quire_test_needy:f", adapter=as_objects)
    with pytest.raises(quire.ArgumentError, match=r'op "quire_test_needy:f": module "quire_test_needy" cannot be imported: .*quire_test_absent'):
        with capture:
            pass


def test_an_adapter_and_a_known_op_exclude_each_other(tmp_path):
    with pytest.raises(quire.ArgumentError, match='adapter: needs op="module:function"'):
        quire.capture(tmp_path, adapter=as_objects)
    with pytest.raises(quire.ArgumentError, match="unified_attention.*adapter.*give one of them"):
        quire.capture(tmp_path, op=f"{__name__}:attend_returned=unified_attention", adapter=as_objects)
    with pytest.raises(quire.ArgumentError, match="unified_attention.*adapter.*give one of them"):
        quire.record(tmp_path, op="unified_attention", adapter=as_objects)
    with pytest.raises(quire.ArgumentError, match=r"adapter: 3 \(int\), expected a function"):
        quire.record(tmp_path, adapter=3)
