# SPDX-License-Identifier: Apache-2.0
"""quire.verify on Python's callables: what passes, what is found, what is refused, and what callbacks may do."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import quire
from quire import targets
from quire._supports import from_words

LINE = "q=f16 heads=4:2 d=16 page=8 reqs=9@20,1@30 lse=1 seed=1"


def verify(target, *lines, **options):
    return quire.verify(target, matrices=[], lines=lines or [LINE], **{"power": False, "shrink": False, **options})


def parts_of(batch):
    names = ("query", "query_start_loc", "seq_lens", "block_table", "cached_lens", "key", "value")
    return {name: getattr(batch, name) for name in names}


def right(batch, cache, options):
    out, lse = np.empty_like(batch.output), np.empty_like(batch.lse) if batch.lse is not None else None
    quire.attend(quire.Batch(**parts_of(batch), output=out, lse=lse, dtype=batch.dtype), cache, options)
    return (out, lse) if lse is not None else out


def test_a_right_callable_passes():
    verdict = verify(right)
    (case,) = verdict.cases
    assert case.status == "pass", verdict.text
    assert verdict.target == "right" and {c.check: c.state for c in case.checks}["values"] == "pass"
    assert json.loads(verdict.json)["quire_verify"] == 1


def test_quick_hazards_with_power():
    """The whole of it on a Python callable: the hazards pass, and every planted fault is noticed."""
    verdict = quire.verify(right, quick=True)
    assert verdict, verdict.text
    assert verdict.power and all(m.killed for m in verdict.power if m.asked and m.can_show)
    assert {m.family for m in verdict.power if not m.can_show} == {"positions", "shapes", "head_dims", "token_scales", "latent_rows", "block_scales", "unlike_types", "strides"}  # not asked: steps between lengths, masks, a V and types of its own, scales of tokens and blocks, rows of MLA


def test_an_in_place_target_is_asked_for_more():
    class InPlace(targets.Target):
        name = "in place"
        in_place = batch_invariant = True
        kernel = "mine"

        def attend(self, batch, cache, options):
            mine = quire.Batch(**parts_of(batch), output=batch.output, lse=batch.lse, dtype=batch.dtype)
            quire.attend(mine, cache, options, quire.plan(mine, cache, options, batch_invariant=True))

    verdict = verify(InPlace())
    (case,) = verdict.cases
    states = {c.check: c.state for c in case.checks}
    assert case.status == "pass" and case.kernel == "mine", verdict.text
    assert states["canaries"] == states["rows"] == states["strides"] == "pass"


@pytest.mark.parametrize("fault, check", [
    (lambda out: out.__setitem__((3, 2, 1), 7), "values"),
    (lambda out: out.__setitem__(slice(None), 0), "values"),
])  # fmt: skip
def test_a_wrong_callable_fails_and_is_shrunk(fault, check):
    def wrong(batch, cache, options):
        out, lse = right(batch, cache, options)
        if len(out) > 3:
            fault(out)
        return out, lse

    verdict = verify(wrong, shrink=True)
    (case,) = verdict.cases
    assert not verdict and case.status == "fail" and case.reduced_line
    assert [c.check for c in case.checks if c.state == "fail"][0] == check
    page = quire.render_html(verdict.json)
    assert page.startswith("<!") and "wrong" in page


def test_reading_what_must_not_be_read_is_a_finding():
    def leaky(batch, cache, options):
        out, lse = right(batch, cache, options)
        tail = np.asarray(cache.k, np.float32)[int(batch.block_table[0, 3]), 7].sum()  # the slot after the last key of request 0
        return out + np.float16(0) * np.float16(tail), lse

    states = {c.check: c.state for c in verify(leaky).cases[0].checks}
    assert states["values"] == "pass" and states["nan_poison"] == "fail"


def test_exceptions_are_findings_and_refusals_are_not():
    def broken(batch, cache, options):
        raise ZeroDivisionError("by zero")

    def refuses(batch, cache, options):
        raise quire.UnsupportedError("not on Sundays")

    def absent(case):
        raise NotImplementedError

    (case,) = verify(broken).cases
    assert case.status == "fail" and "ZeroDivisionError: by zero" in case.checks[0].text
    verdict = verify(refuses)
    assert verdict.cases[0].status == "refused" and verdict.cases[0].reason == "not on Sundays" and verdict.verdict == "mistrusted"
    assert verify(absent).cases[0].status == "refused"


def test_interrupts_stop_the_run():
    calls = []

    def interrupted(batch, cache, options):
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(interrupted, LINE, LINE, LINE)
    assert len(calls) == 1

    def bad_progress(done, total, label):
        raise ValueError("no terminal")

    with pytest.raises(ValueError, match="no terminal"):
        verify(right, progress=bad_progress)


def test_progress_can_stop():
    seen = []

    def progress(done, total, label):
        seen.append((done, total, label))
        return len(seen) < 2

    assert verify(right, LINE, LINE, LINE, progress=progress).verdict == "stopped"
    assert seen[0][0] == 0 and seen[0][1] == 3


def test_arrays_that_the_callable_keeps_stay_valid():
    kept = []

    def keeps(batch, cache, options):
        kept.append((batch.query, cache.k))
        return right(batch, cache, options)

    verify(keeps)
    assert all(np.isfinite(q.astype(np.float32)).all() and k.shape[3] == 16 for q, k in kept)


def test_rounded_weights_widen_the_tolerance():
    def off(case):
        """Off by most of what rounding the weights to f16 costs."""
        expected = quire.reference(case.batch, case.cache, case.options)
        return (expected.out + 0.9 * 2.0**-11 * expected.abs_pv).astype(np.float16)

    line = LINE.replace(" lse=1", "")
    assert verify(off, line).cases[0].status == "fail"
    off.rounded_weights = True
    assert verify(off, line).cases[0].status == "pass"


def test_our_backends_and_adapters_by_name():
    assert verify("cpu").cases[0].status == "pass"
    assert verify("quire_vllm.ops:merge_attn_states").cases[0].status == "fail"  # merge_attn_states is no attention function
    with pytest.raises(quire.Error, match="nonsense"):
        verify("nonsense")
    with pytest.raises(quire.ArgumentError, match="no matrix is called 'all of them'"):
        quire.verify("cpu", matrices=["all of them"])


def test_skipped_checks_are_listed():
    class NoLse(targets.Target):
        name = "no lse"
        skip = {"lse": "returns no lse"}

        def attend(self, batch, cache, options):
            assert batch.lse is None
            return right(batch, cache, options)

    (case,) = verify(NoLse()).cases
    assert case.status == "pass"


def takes_bf16_nhd(p):
    return p.query == p.kv == "bf16" and p.layout == "nhd" and p.head_dim in (64, 128) and not p.sinks and p.k_scale == p.v_scale == "none"


@pytest.mark.parametrize("supports", [
    takes_bf16_nhd,
    {"query": "bf16", "kv": ["bf16"], "layout": ("nhd",), "head_dim": lambda d: d in (64, 128), "sinks": False, "k_scale": "none", "v_scale": "none"},
])  # fmt: skip
def test_supports_brings_hazards_into_the_form_that_is_taken(supports):
    def mine(case):
        if "q=bf16 kv=bf16" not in case.notes["problem"]:
            raise quire.UnsupportedError("bf16 only")
        return right(case.batch, case.cache, case.options)

    refused = quire.verify(mine, quick=True, power=False, shrink=False, matrices=["random"])
    assert sum(c.status == "refused" for c in refused.cases) > 25
    verdict = quire.verify(mine, quick=True, power=False, shrink=False, matrices=["random"], supports=supports)
    assert verdict and len(verdict.cases) > 30 and all(c.status == "pass" for c in verdict.cases), verdict.text
    assert "head_dim 64, 128" in verdict.supported and verdict.supported in verdict.text
    mine.supports = supports  # the target may say it itself
    assert len(quire.verify(mine, quick=True, power=False, shrink=False, matrices=["random"]).cases) == len(verdict.cases)


def test_types_dims_and_layouts():
    options = dict(types=["bf16", ("f16", "fp8_e5m2")], dims=[32], layouts=["hnd"], matrices=["random"], quick=True, power=False)
    verdict = quire.verify("cpu", **options)
    assert verdict and all("layout=hnd" in c.line and " d=32 " in c.line for c in verdict.cases)
    assert {c.line.split(" heads")[0] for c in verdict.cases} == {"q=bf16 kv=bf16", "q=f16 kv=fp8_e5m2"}


def test_what_is_asked_is_checked():
    for options, text in (
        (dict(types=["fp8"]), "'fp8' is no type"),
        (dict(types="bf16"), "expected a list"),
        (dict(layouts=["NHD"]), "'NHD' is none of nhd, hnd, packed"),
        (dict(supports={"dim": 64}), 'no attribute is called "dim"'),
        (dict(supports=3), "expected a dict or a function"),
        (dict(supports=lambda p: False), "supports says no to every plain line"),
    ):
        with pytest.raises(quire.ArgumentError, match=text):
            quire.verify("cpu", **options)
    with pytest.raises(ZeroDivisionError):
        quire.verify("cpu", supports=lambda p: 1 / 0)


def test_a_right_target_on_a_line_of_its_own_passes():
    verdict = verify(right, power=True)
    assert verdict, verdict.text
    assert sum(not m.can_show for m in verdict.power) > 50 and "cannot show on these cases" in verdict.text


def test_soak_resumes_and_keeps_findings(tmp_path):
    def wrong(case):
        made = right(case.batch, case.cache, case.options)
        out = made[0] if isinstance(made, tuple) else made
        if case.options.sliding_window is not None and len(out):
            out[-1] = 40
        return made

    calls = []
    result = quire.soak(wrong, 0, tmp_path, progress=lambda text: len(calls.append(text) or calls) <= 12)
    assert not result and result.next == 12 and result.findings and "window=" in result.findings[0].line
    assert "FAIL" in (tmp_path / "log.txt").read_text() and "q=" in (tmp_path / "findings.txt").read_text()
    again = quire.soak(wrong, 0.001, tmp_path)
    assert again.first == 12 and again.counts[0].cases >= 12
    with pytest.raises(quire.ArgumentError, match="of other targets"):
        quire.soak("cpu", 0.001, tmp_path)
    assert quire.soak("cpu", 0.001)


def test_ctrl_c_ends_a_soak_with_its_counts():
    def progress(text):
        if "line 3 " in text:
            raise KeyboardInterrupt

    result = quire.soak("cpu", 0, progress=progress)
    assert result.next == 3 and result.counts[0].cases == 3


CRASHES = """
import os, quire
def kernel(case):
    if len(case.batch.seq_lens) == 3:
        os.abort()
    return quire.attend(case.batch, case.cache, case.options)
quire.verify(kernel, matrices=[], lines=["q=f32 heads=2:1 d=8 page=8 reqs=2x1@9", "q=f32 heads=2:1 d=8 page=8 reqs=3x1@9"], power=False)
"""


def test_a_target_that_ends_the_process_leaves_its_case(tmp_path):
    ended = subprocess.run([sys.executable, "-c", CRASHES], cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    (left,) = tmp_path.iterdir()
    line = left.read_text().splitlines()[-1]
    assert left.name.startswith("quire-verify-crash-") and "reqs=3x1@9" in line
    assert quire.verify(right, matrices=[], lines=[line], power=False), "the line asks for the case again"


def test_a_run_that_ends_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    verdict = verify(lambda batch, cache, options: seen.extend(tmp_path.iterdir()) or right(batch, cache, options))
    assert verdict and seen and not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        verify(right, progress=lambda *_: 1 / 0)
    assert not list(tmp_path.iterdir())
    assert verify(right, crash_file=tmp_path / "no folder" / "x"), "a run without a place for the file is a run all the same"


def test_progress_is_one_line_of_a_terminal():
    import io

    from quire._progress import Progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with Progress(stream=stream) as line:
            line.case(3, 9, "hazards " + "x" * 500)
    shown = terminal.getvalue().split("\r\x1b[K")
    assert shown[1].startswith("3 of 9, 0 s: hazards xxx") and len(shown[1]) < 500 and shown[-1] == "" and file.getvalue() == ""


def test_supports_refuses_values_that_no_case_has():
    for supports, text in (({"padding": "refused"}, "padding is never 'refused'; it is one of None, 'left', 'zero'"),
                           ({"query": ["bf16", "fp16"]}, "query is never 'fp16'")):  # fmt: skip
        with pytest.raises(quire.ArgumentError, match=text):
            quire.verify(right, quick=True, power=False, supports=supports)


def test_supports_takes_the_keys_of_problem_lines():
    words = ["kbegin=0 qbegin=0", "share=0 kscale=none,head window=none"]
    given = {"key_begin": [False], "q_begin": [False], "shared_pages": [0], "k_scale": ["none", "head"], "sliding_window": [None]}
    assert from_words(words) == given
    assert quire.verify(right, matrices=["random"], random_cases=3, power=False, supports=given)


def as_contiguous(name):
    """A kernel that knows the address and the shape of an input, and makes up its strides."""

    def attend(batch, cache, options):
        parts = parts_of(batch)
        given = np.asarray(parts[name])
        parts[name] = np.lib.stride_tricks.as_strided(given, given.shape, np.empty(given.shape, given.dtype).strides)
        out = np.empty(batch.output.shape, batch.output.dtype)
        return quire.attend(quire.Batch(**parts, output=out, dtype=batch.dtype), cache, options)

    return attend


@pytest.mark.parametrize("name", ["query", "block_table"])
def test_a_kernel_that_reads_no_strides_is_found(name):
    verdict = verify(as_contiguous(name), LINE.replace(" lse=1", ""))
    (case,) = verdict.cases
    assert {c.check for c in case.checks if c.state == "fail"} == {"strided_inputs"}, verdict.text
    assert f"; {name} as a view is enough" in verdict.text


def test_strides_are_asked_as_far_as_the_target_takes_them():
    seen = {}

    def attend(batch, cache, options):
        seen["strided"] = seen.get("strided", False) or not np.asarray(batch.query).flags.c_contiguous
        seen["negative"] = seen.get("negative", False) or min(np.asarray(cache.k).strides) < 0
        return right(batch, cache, options)

    for strides, strided, negative in (("none", False, False), ("rows", True, False), ("any", True, True)):
        for by_attribute in (True, False):
            seen.clear()
            attend.strides = strides if by_attribute else "rows"
            verdict = verify(attend, LINE, LINE.replace("seed=1", "seed=4"), **({} if by_attribute else {"supports": {"strides": strides}}))
            assert verdict, verdict.text
            assert seen == {"strided": strided, "negative": negative}, strides
    with pytest.raises(quire.ArgumentError, match="strides: 'odd' is none of none, rows, any"):
        verify(right, supports={"strides": "odd"})
