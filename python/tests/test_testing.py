# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, from inside and by running pytest in pytest."""

import importlib.metadata
import re

import numpy as np
import pytest

import quire
from quire.testing import assert_attention_close

LINE = "q=f16 heads=4:2 d=32 page=16 index=i64 reqs=20@30,1@47,5@3 seed=4"
INSTALLED = any(e.value == "quire.testing" for e in importlib.metadata.entry_points(group="pytest11"))


def run(pytester, source, *arguments):
    pytester.makepyfile(source)
    plugin = () if INSTALLED else ("-p", "quire.testing")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugin, *arguments)


def test_right_outputs_pass(quire_case):
    case = quire_case(LINE + " lse=1")
    out = quire.attend(case.batch, case.cache, case.options)
    assert_attention_close(out, case)
    assert_attention_close(out, case.batch, case.cache, case.options, lse=case.batch.lse)
    assert_attention_close(out, case, tokens=[3, 20])


def test_the_message_of_a_wrong_output(quire_case):
    case = quire_case(LINE)
    out = quire.attend_with_fault(case.batch, case.cache, "query_start_loc_as_int32", case.options)
    with pytest.raises(AssertionError) as caught:
        assert_attention_close(out, case)
    text = str(caught.value)
    in_order = (
        r"^\d+ of 3328 elements (exceed|differ)",
        r"^verdict: cause found$",
        r"^pattern: exactly every row, all heads: 26 x 4 of 26 x 4 cells; no other cell is wrong$",
        r"^cause:   a kernel that reads an int64 query_start_loc as int32 \(query_start_loc_as_int32\)\n {9}explains 100 % of the error$",
        r"^next:    .+",
        r"^problem: q=f16 kv=f16 heads=4:2",
        r"^capture: \S+\.safetensors \(look with: quire diagnose \S+\)$",
    )
    places = [re.search(part, text, re.MULTILINE) for part in in_order]
    assert all(places), f"{in_order[[bool(p) for p in places].index(False)]}\n{text}"
    assert [p.start() for p in places] == sorted(p.start() for p in places), text
    assert "refuted" not in text and "fact:" not in text and len(text.splitlines()) < 16, text
    path = re.search(r"capture: (\S+)", text).group(1)
    saved = quire.read_capture(path)
    assert saved.batch.query_start_loc.dtype == np.int64
    assert quire.diagnose(path).suspicions[0].fault == "query_start_loc_as_int32"


def test_the_message_of_a_cause_in_a_scope(quire_case):
    case = quire_case("q=f16 heads=4:2 d=32 page=16 reqs=20@30,3x1@47,5@3")
    out = quire.attend(case.batch, case.cache, case.options)
    out[20:23] = quire.attend(case.batch, case.cache, quire.Options(softmax_scale=0.3))[20:23]
    with pytest.raises(AssertionError) as caught:
        assert_attention_close(out, case)
    text = str(caught.value)
    assert re.search(r"^pattern: exactly the decode rows, all heads: 3 x 4 of 3 x 4 cells", text, re.MULTILINE), text
    assert re.search(r"^cause:   a kernel that multiplies .*\(factor_scores\)\n +explains 100 % of the error, in the decode rows", text, re.M), text


def test_the_message_of_an_unknown_cause(quire_case):
    """The pattern, plain observations, and no more than three suspects."""
    case = quire_case(LINE)
    out = quire.attend(case.batch, case.cache, case.options)
    out[3:9] = np.random.default_rng(5).normal(size=out[3:9].shape)
    with pytest.raises(AssertionError) as caught:
        assert_attention_close(out, case)
    text = str(caught.value)
    found = quire.diagnose(case, observed=out)
    assert found.verdict == "unknown cause"
    lines = text.splitlines()
    for label, values in (("verdict:", ["unknown cause"]), ("pattern:", found.patterns), ("fact:", found.observations)):
        first = next(i for i, line in enumerate(lines) if line.startswith(label))
        assert [line[9:] for line in lines[first : first + len(values)]] == values, text
    assert "cause:   unknown: none of" in text
    first = next(i for i, line in enumerate(lines) if line.startswith("suspect:"))
    assert lines[first + 3].startswith("problem:") and "explain less" not in text, text


def test_one_row_of_chosen_rows(quire_case):
    case = quire_case(LINE)
    out = quire.attend(case.batch, case.cache, case.options).copy()
    out[20] = 0
    assert_attention_close(out, case, tokens=[0, 25])
    with pytest.raises(AssertionError):
        assert_attention_close(out, case, tokens=[0, 20])


def test_a_wrong_lse_is_noticed(quire_case):
    case = quire_case(LINE + " lse=1")
    out = quire.attend(case.batch, case.cache, case.options)
    lse = case.batch.lse * np.float32(1.4427)
    with pytest.raises(AssertionError, match="lse"):
        assert_attention_close(out, case, lse=lse)


def test_rounded_weights_are_allowed_only_when_asked_for(quire_case):
    """A kernel that keeps weights in 16 bits is over the strict tolerance and inside the one that pays for it."""
    case = quire_case("q=bf16 heads=2 d=64 page=16 reqs=8@200 seed=1")
    out = quire.attend_with_fault(case.batch, case.cache, "weights_rounded_to_bf16", case.options) if any(
        f.id == "weights_rounded_to_bf16" for f in quire.faults()) else rounded_weights(case)  # fmt: skip
    with pytest.raises(AssertionError, match='profile: weights=bf16 .*\n(.*\n)* {9}if the kernel may do that, say so: profile="weights=bf16"'):
        assert_attention_close(out, case)
    assert_attention_close(out, case, weights="bf16")
    assert_attention_close(out, case, profile="weights=bf16")
    with pytest.raises(quire.ArgumentError, match="weights"):
        assert_attention_close(out, case, weights="fp8")


def test_a_fault_beside_rounded_weights_is_diagnosed_under_them(quire_case):
    case = quire_case("q=bf16 heads=2 d=64 page=16 reqs=8@200 seed=1")
    out = rounded_weights(case)
    out[3:] *= 2
    with pytest.raises(AssertionError) as failure:
        assert_attention_close(out, case, weights="bf16")
    text = str(failure.value)
    assert "profile: weights=bf16 (as given)" in text and "if the kernel may do that" not in text
    assert "output[token 3" in text.splitlines()[0] and not text.startswith("1 of")
    assert re.search(r"^pattern: .*5 x 2 of 5 x 2 cells", text, re.M), text
    assert re.search(r"^cause:   a kernel that multiplies the output by a factor", text, re.M), text
    (path,) = re.findall(r"look with: quire diagnose --profile weights=bf16 (\S+)\)", text)
    assert quire.diagnose(path, profile="weights=bf16").wrong_tokens == [3, 4, 5, 6, 7]


def rounded_weights(case):
    """Dense attention of one request in f64, weights rounded to the type of the batch before they meet V."""
    import ml_dtypes

    b, c = case.batch, case.cache
    positions = np.arange(int(b.seq_lens[0]))
    slots = b.block_table[0][positions // c.page_size], positions % c.page_size
    k, v = (np.asarray(a)[slots].astype(np.float64) for a in (c.k, c.v))
    q = b.query.astype(np.float64)
    out = np.zeros(q.shape)
    for i in range(len(q)):
        n = len(positions) - len(q) + i + 1
        for h in range(q.shape[1]):
            s = k[:n, h] @ q[i, h] / np.sqrt(q.shape[2])
            p = np.exp(s - s.max())
            out[i, h] = p.astype(ml_dtypes.bfloat16).astype(np.float64) @ v[:n, h] / p.sum()
    return out.astype(ml_dtypes.bfloat16)


def test_arguments(quire_case):
    case = quire_case(LINE)
    with pytest.raises(quire.ArgumentError, match="a Case has its own"):
        assert_attention_close(case.batch.output, case, case.cache)
    with pytest.raises(quire.ArgumentError, match="cache: is None"):
        assert_attention_close(case.batch.output, case.batch)


def test_poisoned_cache_runs_with_both_poisons(poisoned_cache, request):
    case = poisoned_cache(LINE)
    assert bool(np.isnan(case.cache.k.astype(np.float32)).any()) == ("nan" in request.node.name)
    assert_attention_close(quire.attend(case.batch, case.cache, case.options), case)


MODULE = """
    import numpy as np, quire
    from quire.testing import assert_attention_close

    LINE = "q=f16 heads=2 d=16 page=8 reqs=5@11,1@20"

    def masked_by_weight(case, filtered):
        '''Multiplies every slot of the last page; with `filtered`, NaN is taken for 0.'''
        b, c = case.batch, case.cache
        out = np.zeros(b.query.shape)
        for r, (first, last) in enumerate(zip(b.query_start_loc, b.query_start_loc[1:])):
            length = int(b.seq_lens[r])
            positions = np.arange(-(-length // c.page_size) * c.page_size)
            slots = b.block_table[r][positions // c.page_size], positions % c.page_size
            k, v = (np.asarray(a)[slots].astype(np.float64) for a in (c.k, c.v))
            if filtered:
                k, v = np.nan_to_num(k), np.nan_to_num(v)
            for i in range(first, last):
                for h in range(b.query.shape[1]):
                    s = k[:, h] @ b.query[i, h].astype(np.float64) / 4
                    s = np.where(positions <= length - last + i, s, -np.inf)
                    p = np.exp(s - s.max())
                    out[i, h] = (p / p.sum()) @ v[:, h]
        return out.astype(np.float16)
"""


def test_pytest_run_with_the_plugin(pytester):
    result = run(pytester, MODULE + """
    def test_right(poisoned_cache):
        case = poisoned_cache(LINE)
        assert_attention_close(quire.attend(case.batch, case.cache, case.options), case)

    def test_zero_times_nan(poisoned_cache):
        case = poisoned_cache(LINE)
        assert_attention_close(masked_by_weight(case, filtered=False), case)

    def test_filtered(poisoned_cache):
        case = poisoned_cache(LINE)
        assert_attention_close(masked_by_weight(case, filtered=True), case)

    def test_wrong(quire_case):
        case = quire_case(LINE)
        out = quire.attend(case.batch, case.cache, case.options)
        out[5] = 0
        assert_attention_close(out, case)
    """, "--quire-captures", "found", "-v")  # fmt: skip
    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(["*test_zero_times_nan?nan? FAILED*", "*test_wrong FAILED*"])
    result.stdout.fnmatch_lines(["E*verdict: *", "E*problem: q=f16*", "E*capture: *found*.safetensors (look with: quire diagnose *"])
    assert "quire/testing.py" not in result.stdout.str().replace("found", "")  # the traceback ends in the test
    names = sorted(p.name for p in (pytester.path / "found").iterdir())
    assert [n.split("--")[-1] for n in names] == names and len(names) == 2 and any("test_wrong" in n for n in names)
    for path in (pytester.path / "found").iterdir():
        assert quire.read_capture(path).notes["producer"] == "quire.testing"


def test_captures_go_to_the_temporary_folder_by_default(pytester):
    result = run(pytester, MODULE + """
    def test_wrong(quire_case):
        case = quire_case(LINE)
        assert_attention_close(np.zeros_like(case.batch.output), case)
    """, f"--basetemp={pytester.path / 'temporary'}")  # fmt: skip
    result.assert_outcomes(failed=1)
    assert list((pytester.path / "temporary").rglob("*.safetensors"))


def test_help_names_the_option(pytester):
    run(pytester, "", "--help").stdout.fnmatch_lines(["*--quire-captures*"])
