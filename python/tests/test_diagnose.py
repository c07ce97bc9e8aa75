# SPDX-License-Identifier: Apache-2.0
"""quire.diagnose in memory: what it takes, what it refuses, and what a Diagnosis holds."""

import html
import json

import numpy as np
import pytest

import quire

LINE = "q=f16 heads=4:2 d=32 page=16 index=i64 reqs=20@30,1@47,5@3 lse=1 seed=4"


@pytest.fixture
def case():
    return quire.make_case(LINE)


def faulty(case, fault="query_start_loc_as_int32"):
    return quire.attend_with_fault(case.batch, case.cache, fault, case.options)


def own_batch(case):
    """The same inputs as a caller has them: arrays, and no output."""
    b = case.batch
    names = ("query", "query_start_loc", "seq_lens", "block_table")
    return quire.Batch(**{name: np.asarray(getattr(b, name)).copy() for name in names})


def test_in_memory_says_what_the_capture_says(case, tmp_path):
    out = faulty(case)
    quire.write_capture(tmp_path / "bad.safetensors", case.batch, case.cache, case.options, out)
    expected = quire.diagnose(tmp_path / "bad.safetensors")
    assert expected.verdict == "cause found"
    for found in (
        quire.diagnose(case.batch, case.cache, case.options, observed=out),
        quire.diagnose(case.batch, case.cache, case.options, out),
        quire.diagnose(case, observed=out),
    ):
        assert found.suspicions[0].fault == expected.suspicions[0].fault == "query_start_loc_as_int32"
        assert found.patterns == expected.patterns and found.wrong_tokens == expected.wrong_tokens


def test_a_batch_of_ones_own_arrays(case):
    batch = own_batch(case)
    out = quire.attend(batch, case.cache)
    assert quire.diagnose(batch, case.cache, observed=out).verdict == "right"
    out[20, 1] *= 2
    found = quire.diagnose(batch, case.cache, observed=out, full=True)
    assert not found and found.wrong_tokens == [20] and found.complete


def test_a_new_output_replaces_the_one_of_a_capture(case, tmp_path):
    quire.write_capture(tmp_path / "bad.safetensors", case.batch, case.cache, case.options, faulty(case))
    saved = quire.read_capture(tmp_path / "bad.safetensors")
    right = quire.attend(saved.batch, saved.cache, saved.options)
    assert not quire.diagnose(saved) and quire.diagnose(saved, observed=right)


def test_lse_is_judged_if_it_is_given(case):
    out = quire.attend(case.batch, case.cache, case.options)
    assert quire.diagnose(case, observed=out, lse=case.batch.lse)
    found = quire.diagnose(case, observed=out, lse=case.batch.lse * np.float32(1.442695))
    assert not found and found.suspicions[0].mechanism == "factor_lse", found.text


@pytest.mark.parametrize("call, message", [
    (lambda c, out: quire.diagnose(c.batch, c.cache, c.options), r"observed: is None, expected .*f16 \[26, 4, 32\]"),
    (lambda c, out: quire.diagnose(c), r"observed: .*observed="),
    (lambda c, out: quire.diagnose(c.batch, observed=out), r"cache: None, expected a quire.KVCache"),
    (lambda c, out: quire.diagnose(c.batch, c.cache, out), r"options: a ndarray, expected a quire.Options or None; .*observed="),
    (lambda c, out: quire.diagnose(c, c.cache, observed=out), "cache, options: a Case has its own"),
    (lambda c, out: quire.diagnose("no.safetensors", c.cache), "cache, options: a Case has its own"),
    (lambda c, out: quire.diagnose(3), r"batch: 3 \(int\), expected a quire.Batch, a quire.Case or the path of a capture"),
    (lambda c, out: quire.diagnose(c, lse=c.batch.lse), "lse: is given without observed"),
    (lambda c, out: quire.diagnose(c, observed=out[:3]), r"observed: f16 \[3, 4, 32\], expected .*\[26, 4, 32\]"),
    (lambda c, out: quire.diagnose(c, observed=out.astype(np.float32)), "observed: f32, expected f16, the type of the batch's query"),
    (lambda c, out: quire.diagnose(c, observed=out.astype(np.float64)), "observed: float64, expected f16, the type of"),
    (lambda c, out: quire.diagnose(c, observed=np.zeros(out.shape, np.int32)), "observed: i32, expected f16, the type of"),
    (lambda c, out: quire.diagnose(c, observed=[1, 2]), "observed: expected an array"),
    (lambda c, out: quire.diagnose(c, observed=out, lse=np.zeros((3, 2), np.float32)), r"lse: f32 \[3, 2\], expected f32 \[26, 4\]"),
    (lambda c, out: quire.diagnose(c, observed=out, lse=np.zeros((26, 4))), "lse: dtype float64"),
    (lambda c, out: quire.diagnose(c, observed=out, profile="weights=fp8"), "weights"),
    (lambda c, out: quire.diagnose(c, observed=out, profile=5), r"profile: 5 \(int\), expected text"),
    (lambda c, out: quire.diagnose(c, observed=out, seconds="1"), r"seconds: '1' \(str\), expected a number"),
])  # fmt: skip
def test_wrong_calls_say_what_is_wrong(case, call, message):
    with pytest.raises(quire.Error, match=message):
        call(case, faulty(case))


def test_a_mechanism_in_a_scope(quire_case):
    case = quire_case("q=f16 heads=4:2 d=32 page=16 reqs=20@30,3x1@47,5@3")
    out = quire.attend(case.batch, case.cache, case.options)
    out[20:23] = quire.attend(case.batch, case.cache, quire.Options(softmax_scale=0.3))[20:23]
    found = quire.diagnose(case, observed=out, full=True)
    first = found.suspicions[0]
    assert found.verdict == "cause found" and first.certain and not first.refutation
    assert first.mechanism == "factor_scores" and "decode rows" in first.scope and "softmax_scale" in first.next, found.text
    assert len(found.patterns) == 1 and "exactly the decode rows" in found.patterns[0]
    assert 1 <= len(found.observations) <= 5 and all(isinstance(fact, str) for fact in found.observations)
    assert found.profile == "plain"
    assert repr(first) == f"<Suspicion factor_scores in {first.scope}: explains 100 %, certain>"
    assert repr(found) == f"<Diagnosis cause found: factor_scores in {first.scope}, 3 wrong rows>"
    rounding = found.suspicions[-1]
    assert rounding.mechanism == "rounding" and not rounding.certain and "refuted" in repr(rounding)


def test_a_number_fitted_to_one_row_is_not_certain(case):
    out = quire.attend(case.batch, case.cache, case.options)
    out[20] = quire.attend(case.batch, case.cache, quire.Options(softmax_scale=0.3))[20]
    found = quire.diagnose(case, observed=out, full=True)
    assert found.verdict == "mechanism likely" and found.suspicions[0].mechanism == "factor_scores", found.text
    assert "explains 100 % of the error; other causes would look the same" in found.text


def test_what_is_not_certain_is_not_called_so(case):
    out = quire.attend(case.batch, case.cache, case.options)
    out[3:9] = np.random.default_rng(5).normal(size=out[3:9].shape)
    found = quire.diagnose(case, observed=out)
    assert found.verdict != "cause found" and not any(s.certain for s in found.suspicions), found.text
    assert found.observations and found.patterns
    assert repr(found).startswith(f"<Diagnosis {found.verdict}")


def test_a_page_for_notebooks(case):
    """A frame of its own: styles of the page do not reach the notebook, and text of a capture cannot leave the attribute."""
    found = quire.diagnose(case, observed=faulty(case))
    frame = found._repr_html_()
    assert frame.startswith("<iframe ") and frame.endswith("</iframe>") and "sandbox=" in frame
    (_, inside) = frame.split(' srcdoc="')
    inside = inside.removesuffix('"></iframe>')
    assert '"' not in inside and "<" not in inside
    assert html.unescape(inside) == quire.render_html(found.json)
    b = case.batch
    table = np.full((3, 5), 10**6)
    broken = quire.Batch(query=b.query, query_start_loc=b.query_start_loc, seq_lens=b.seq_lens, block_table=table)
    found = quire.diagnose(broken, case.cache, observed=faulty(case))
    assert found.verdict == "broken batch" and found._repr_html_().startswith("<iframe ")
    assert json.loads(found.json)["findings"]
