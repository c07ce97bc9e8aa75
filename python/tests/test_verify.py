"""quire.verify on Python's callables: what passes, what is found, what is refused, and what callbacks may do."""

import json

import numpy as np
import pytest

import quire
from quire import targets

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
    assert verdict.power and all(m.killed for m in verdict.power if m.asked)


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
    assert verify("quire.vllm:merge_attn_states").cases[0].status == "fail"  # not an attention function
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
