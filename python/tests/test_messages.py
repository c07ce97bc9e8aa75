# SPDX-License-Identifier: Apache-2.0
"""What wrong calls say: the argument, what it is, what was expected; and the spellings that are taken."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from dense import make_job

import quire
import quire.testing

LINE = "q=f32 heads=4:2 d=16 page=4 reqs=3@6,1@9 seed=3"


@pytest.fixture(scope="module")
def job():
    return make_job([3, 1, 5], [10, 20, 0], dtype="f32")


def arrays_of(job, **changes):
    args = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=job.block_table)
    return {**args, **changes}


CALLS = {
    "Batch": lambda job: quire.Batch(**arrays_of(job), seq_lenz=job.seq_lens),
    "KVCache": lambda job: quire.KVCache(job.k, job.v, k_scales=1.0),
    "Options": lambda job: quire.Options(window=3),
    "PagePool": lambda job: quire.PagePool(4, pagesize=16),
    "SlotLedger": lambda job: quire.SlotLedger(num_page=4, page_size=16),
    "attend": lambda job: quire.attend(batch_of(job), cache_of(job), option=None),
    "plan": lambda job: quire.plan(batch_of(job), cache_of(job), threads=2),
    "check": lambda job: quire.check(batch_of(job), cache_of(job), deepth="tables"),
    "append": lambda job: quire.append(cache_of(job), job.new_k, job.new_v, slots=job.slots),
    "reference": lambda job: quire.reference(batch_of(job), cache_of(job), token=[0]),
    "compare": lambda job: quire.compare(job.q, None, referense=None),
    "explain": lambda job: quire.explain(LINE, devise="sm90"),
    "reserve": lambda job: quire.PagePool(4).reserve(1, num_token=3),
}
MEANT = {
    "Batch": ("seq_lenz", "seq_lens"),
    "KVCache": ("k_scales", "k_scale"),
    "Options": ("window", "sliding_window"),
    "PagePool": ("pagesize", "page_size"),
    "SlotLedger": ("num_page", "num_pages"),
    "attend": ("option", "options"),
    "plan": ("threads", "num_threads"),
    "check": ("deepth", "depth"),
    "append": ("slots", "slot_mapping"),
    "reference": ("token", "tokens"),
    "compare": ("referense", "reference"),
    "explain": ("devise", "device"),
    "reserve": ("num_token", "num_tokens"),
}


def batch_of(job, **changes):
    return quire.Batch(**arrays_of(job, **changes))


def cache_of(job):
    return quire.KVCache(job.k, job.v)


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelt_argument_is_named_with_the_one_that_was_meant(job, call):
    wrong, meant = MEANT[call]
    with pytest.raises(quire.ArgumentError) as caught:
        CALLS[call](job)
    assert str(caught.value) == f'{call}(): unknown argument "{wrong}"; did you mean {meant}?'
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda job: quire.Batch(query=job.q), r"Batch\(\): argument query_start_loc is missing"),
        (lambda job: quire.Batch(job.q, job.seq_lens), r"Batch\(\): 2 arguments by position, expected all by name: Batch\(query=..., ...\)"),
        (lambda job: quire.KVCache(job.k), r"KVCache\(\): argument v is missing"),
        (lambda job: quire.KVCache(job.k, job.v, k=job.k), r"KVCache\(\): k is given twice"),
        (lambda job: quire.Options(sliding_window=2.5), r"sliding_window: 2.5 \(float\), expected an integer or None"),
        (lambda job: quire.Options(sliding_window=(4, 0)), r"sliding_window: \(4, 0\) \(tuple\), expected an integer or None"),
        (lambda job: quire.Options(sliding_window=True), r"sliding_window: True \(bool\), expected an integer"),
        (lambda job: quire.Options(sliding_window=2**70), r"sliding_window: .*, expected 64 bits at most"),
        (lambda job: quire.Options(softmax_scale="0.5"), r"softmax_scale: '0.5' \(str\), expected a number or None"),
        (lambda job: quire.Options(logits_soft_cap=1j), r"logits_soft_cap: 1j \(complex\), expected a number"),
        (lambda job: quire.KVCache(job.k, job.v, 3), r"layout: 3 \(int\), expected text"),
        (lambda job: quire.attend(batch_of(job), cache_of(job), {"sliding_window": 3}), r"attend\(\): options: .* \(dict\), expected a quire.Options or None"),
        (lambda job: quire.attend(cache_of(job), batch_of(job)), r"attend\(\): batch: a KVCache, expected a quire.Batch"),
        (lambda job: quire.attend(batch_of(job)), r"attend\(\): argument cache is missing"),
        (lambda job: quire.plan(batch_of(job), cache_of(job), num_threads=2.0), r"plan\(\): num_threads: 2.0 \(float\), expected an integer"),
        (lambda job: quire.plan(*[batch_of(job)] * 20), r"plan\(\): 20 arguments by position, expected at most 9: batch, cache"),
        (lambda job: quire.reference(batch_of(job), cache_of(job), tokens=[0.5]), r"reference\(\): tokens: .*, expected a list of integers or None"),
        (lambda job: quire.PagePool(4).add("one", [1]), r"add\(\): request: 'one' \(str\), expected an integer"),
        (lambda job: quire.PagePool(4).add(0, [1, 1.5]), r"tokens\[1\]: 1.5, expected an integer"),
        (lambda job: quire.PagePool(4).add(0, [2**31]), r"tokens\[0\]: 2147483648, expected 32 bits"),
        (lambda job: quire.PagePool(4, ledgers=[None]), r"ledgers\[0\]: None, expected a quire.SlotLedger"),
        (lambda job: quire.PagePool(4, ledgers=3), r"ledgers: 3 \(int\), expected a quire.SlotLedger"),
        (lambda job: quire.PagePool(4, prefix_sharing=1), r"prefix_sharing: 1 \(int\), expected True or False"),
        (lambda job: quire.make_case(3), r"problem: 3 \(int\), expected a problem line"),
        (lambda job: quire.set_num_threads("2"), r"set_num_threads\(\): num_threads: '2' \(str\), expected an integer"),
    ],
)  # fmt: skip
def test_a_wrong_call_says_what_was_expected(job, call, text):
    with pytest.raises(quire.ArgumentError, match=text):
        call(job)


def test_other_type_errors_are_left_alone(job):
    def broken(*_):
        raise TypeError("of the callable's own: incompatible function arguments")

    with pytest.raises(TypeError, match="of the callable's own"):
        quire.verify(lambda b, c, o: None, lines=[LINE], matrices=[], power=False, progress=broken)


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(query=np.zeros((9, 4, 32))), r"query: dtype float64, expected float32, float16 or bfloat16; convert it: query.astype\(np.float32\)"),
        (dict(seq_lens=np.zeros(3, np.int16)), r"seq_lens: dtype int16, expected int32 or int64; convert it: seq_lens.astype\(np.int64\)"),
        (dict(block_table=np.zeros((3, 4), np.uint32)), r"block_table: dtype uint32, expected int32 or int64"),
        (dict(query_start_loc=np.zeros(4)), r"query_start_loc: dtype float64, expected int32 or int64"),
        (dict(query=np.zeros((9, 4, 32), np.uint16)), r'query: dtype uint16, expected .*; for raw bits, name the type: dtype="bf16"'),
        (dict(lse=np.zeros((9, 4))), r"lse: dtype float64, expected float32"),
    ],
)  # fmt: skip
def test_a_dtype_is_judged_by_what_the_array_is_for(job, changes, text):
    with pytest.raises(quire.ArgumentError, match=text) as caught:
        batch_of(job, **changes)
    assert "fp8" not in str(caught.value)


def test_lists_of_integers_are_index_tensors(job):
    cache = cache_of(job)
    lists = {name: getattr(job, name).tolist() for name in ("query_start_loc", "seq_lens", "block_table")}
    batch = batch_of(job, **lists)
    assert batch.block_table.dtype == np.int64 and repr(batch).count("i64") == 3
    assert np.array_equal(quire.attend(batch, cache), quire.attend(batch_of(job), cache))
    tuples = {**lists, "block_table": tuple(map(tuple, lists["block_table"]))}
    assert np.array_equal(batch_of(job, **tuples).block_table, job.block_table)
    lists["seq_lens"][0] = 0
    assert batch.seq_lens[0] == job.seq_lens[0], "a copy"
    k, v = np.zeros_like(job.k), np.zeros_like(job.v)
    ledger = quire.SlotLedger(k.shape[0], 8)
    quire.append(quire.KVCache(k, v), job.new_k, job.new_v, job.slots.tolist(), ledger, [7] * 9, list(range(9)))
    assert np.array_equal(k.reshape(-1, 2, 32)[job.slots], job.new_k) and ledger.entry(int(job.slots[8])).position == 8


@pytest.mark.parametrize(
    "values, text",
    [
        ([0, 2.5, 4, 9], r"query_start_loc\[1\]: 2.5, expected an integer"),
        ([0, "4", 4, 9], r"query_start_loc\[1\]: '4', expected an integer"),
        ([0, None, 4, 9], r"query_start_loc\[1\]: None, expected an integer"),
        ([0, 2**64, 4, 9], r"query_start_loc\[1\]: 18446744073709551616, expected an integer of at most 64 bits"),
        ([[0, 3], [4]], r"query_start_loc: rows of 1 to 2 entries; pad them to one length"),
    ],
)
def test_lists_of_anything_else_are_not(job, values, text):
    with pytest.raises(quire.Error, match=text):
        quire.attend(batch_of(job, query_start_loc=values), cache_of(job))


def test_lists_of_numbers_are_scales_slopes_and_sinks(job):
    k, v = (np.zeros(job.k.shape, np.float32) for _ in range(2))
    cache = quire.KVCache(k, v, k_scale=[0.5] * k.shape[2], v_scale=(2,) * k.shape[2])
    assert cache.k_scale.dtype == np.float32 and cache.v_scale.tolist() == [2.0] * k.shape[2]
    slopes = np.linspace(0.1, 0.7, 4, dtype=np.float32)
    options = quire.Options(alibi_slopes=slopes.tolist(), sinks=[0.25] * 4)
    arrays = quire.Options(alibi_slopes=slopes, sinks=np.full(4, 0.25, np.float32))
    out, expected = (quire.attend(batch_of(job), cache_of(job), given) for given in (options, arrays))
    assert np.array_equal(out, expected)
    assert not np.array_equal(out, quire.attend(batch_of(job), cache_of(job)))


@pytest.mark.parametrize(
    "values, text",
    [
        ([0.5, "1"], r"alibi_slopes\[1\]: '1', expected a real number"),
        ([True, 0.5], r"alibi_slopes\[0\]: True, expected a real number"),
        ([[0.5], [0.5]], r"alibi_slopes\[0\]: \[0.5\], expected a real number"),
    ],
)
def test_lists_of_anything_else_are_no_slopes(values, text):
    with pytest.raises(quire.ArgumentError, match=text):
        quire.Options(alibi_slopes=values)


@pytest.mark.parametrize("layout", ["NHD", "Nhd", "HND", "PACKED"])
def test_a_layout_in_any_case(layout):
    case = quire.make_case(LINE.replace("page=4", f"page=4 layout={layout.lower()}"))
    cache = quire.KVCache(case.cache.k, case.cache.v, layout)
    assert cache.layout == layout.lower()
    assert np.array_equal(quire.attend(case.batch, cache), quire.attend(case.batch, case.cache))


def test_dtypes_by_the_names_of_other_libraries(job):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    raw = np.zeros(job.k.shape, np.uint8)
    names = ["fp8_e4m3fn", "float8_e4m3fn", "torch.float8_e4m3fn", ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)]
    for dtype in names:
        assert quire.KVCache(raw, raw, dtype=dtype).dtype == "fp8_e4m3fn"
    half = job.q.astype(np.float16)
    for dtype in ("f16", "float16", np.float16, np.dtype(np.float16)):
        assert batch_of(job, query=half.view(np.uint16), dtype=dtype).dtype == "f16"
    assert quire.PagePool(2, num_layers=1, num_kv_heads=1, head_dim=8, dtype="bfloat16").cache(0).dtype == "bf16"
    with pytest.raises(quire.ArgumentError, match=r"dtype: 'fp8' is none of f32, f16, bf16, fp8_e4m3fn"):
        quire.KVCache(raw, raw, dtype="fp8")
    with pytest.raises(quire.ArgumentError, match=r"dtype: .*complex64.* is none of"):
        quire.KVCache(raw, raw, dtype=np.complex64)


def test_torch_dtypes(job):
    torch = pytest.importorskip("torch")
    raw = torch.zeros(job.k.shape, dtype=torch.uint8)
    assert quire.KVCache(raw, raw, dtype=torch.float8_e5m2).dtype == "fp8_e5m2"
    lists = {name: getattr(job, name).tolist() for name in ("query_start_loc", "seq_lens", "block_table")}
    out = quire.attend(quire.Batch(query=torch.from_numpy(job.q), **lists), cache_of(job))
    assert isinstance(out, torch.Tensor)
    job.judge(out.numpy())


def test_scales_are_real_numbers(job):
    for wrong in (True, np.bool_(True), 2j, np.complex64(2)):
        with pytest.raises(quire.ArgumentError, match=r"v_scale: .*, expected a real number"):
            quire.KVCache(job.k, job.v, v_scale=wrong)


def test_one_matrix_as_it_is():
    verdict = quire.verify("cpu_generic", matrices="random", random_cases=2, power=False)
    assert {case.matrix for case in verdict.cases} == {"random"} and len(verdict.cases) == 2
    assert [case.line for case in quire.verify("cpu_generic", matrices=[], lines=LINE, power=False).cases] == [
        str(quire.parse_problem_line(LINE))
    ]


def test_everything_has_a_repr():
    case = quire.make_case(LINE)
    out = quire.attend_with_fault(case.batch, case.cache, "kv_head_modulo", case.options)
    expected = quire.reference(case.batch, case.cache)
    found = quire.compare(out, None, expected)
    case_lse = quire.diagnose(captured(case, out))
    verdict = quire.verify("cpu_generic", matrices=[], lines=[LINE], power=False)
    objects = [
        case, case.batch, case.cache, case.options, expected, found, found.worst, case_lse, case_lse.suspicions[0], verdict,
        verdict.cases[0], verdict.cases[0].checks[0], quire.explain(LINE), quire.PagePool(4),
        quire.SlotLedger(4, 4), quire.plan(case.batch, case.cache), quire.check(case.batch, case.cache), quire.rules()[0],
    ]  # fmt: skip
    for thing in objects:
        assert " object at 0x" not in repr(thing) and type(thing).__name__ in repr(thing), repr(thing)
    assert repr(found).startswith("<Comparison WRONG: ") and "cause found: kv_head_modulo" in repr(case_lse)


def captured(case, out):
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.safetensors")
        quire.write_capture(path, case.batch, case.cache, case.options, observed=out)
        return quire.read_capture(path)


def test_functions_have_signatures():
    assert list(inspect.signature(quire.attend).parameters) == ["batch", "cache", "options", "plan", "workspace", "rows",
                                                              "stream", "nan_if_refused", "wait"]
    parameters = inspect.signature(quire.plan).parameters
    assert parameters["num_threads"].default == 0 and parameters["batch_invariant"].default is False
    assert parameters["cache"].default is inspect.Parameter.empty
    assert list(inspect.signature(quire.PagePool.slots).parameters) == ["self", "request", "begin", "end"]


def test_a_list_of_slots_for_a_cache_of_a_pool():
    pool = quire.PagePool(num_pages=4, page_size=16, num_layers=1, num_kv_heads=2, head_dim=64, dtype="f16")
    rows = np.random.default_rng(0).standard_normal((2, 2, 64)).astype(np.float16)
    quire.append(pool.cache(0), rows, rows, [5, 17])
    k = np.asarray(pool.cache(0).k)
    assert np.array_equal(k[0, :, 5], rows[0])
    assert np.array_equal(k[1, :, 1], rows[1])


def test_a_pool_without_memory_says_what_it_lacks():
    with pytest.raises(quire.Error, match="has no cache memory; create it with num_layers"):
        quire.PagePool(num_pages=4, page_size=16).cache(0)


@pytest.mark.parametrize(("name", "text"), [("causal", r"belongs in options=quire\.Options\(causal="), ("is_causal", r"belongs in options=quire\.Options\(causal="), ("sliding_window", r"belongs in options=quire\.Options\(sliding_window=")])
def test_an_option_in_the_wrong_place_is_told_its_own(job, name, text):
    with pytest.raises(quire.errors.ArgumentError, match=text):
        quire.attend(batch_of(job), cache_of(job), **{name: 4})


def test_a_float64_tensor_is_told_in_words_of_torch(job):
    torch = pytest.importorskip("torch")
    with pytest.raises(quire.errors.ArgumentError, match=r"convert it: query\.to\(torch\.float32\)"):
        quire.Batch(query=torch.zeros(1, 4, 64, dtype=torch.float64), seq_lens=[1], query_start_loc=[0, 1], block_table=[[0]])


def test_no_output_to_compare_is_said(job):
    with pytest.raises(quire.errors.ArgumentError, match="output: is None"):
        quire.compare(None, None, quire.reference(batch_of(job), cache_of(job)))
    with pytest.raises(quire.errors.ArgumentError, match="out: is None"):
        quire.testing.assert_attention_close(None, batch_of(job), cache_of(job))


BIAS = np.zeros((4, 9), np.float32)
WRONG_PLACE = {
    "a bias by name": lambda job: quire.Options(attention_bias=BIAS),
    "a bias of a batch": lambda job: batch_of(job, attn_bias=BIAS),
    "a mask of a batch": lambda job: batch_of(job, attn_mask=BIAS),
    "a bias of a cache": lambda job: quire.KVCache(job.k, job.v, position_bias=BIAS),
    "a bias by position": lambda job: quire.Options(BIAS),
    "a bias as the window": lambda job: quire.Options(0.1, BIAS),
    "a bias as a layout": lambda job: quire.KVCache(job.k, job.v, BIAS),
    "a bias as options": lambda job: quire.attend(batch_of(job), cache_of(job), BIAS),
}


@pytest.mark.parametrize("what", WRONG_PLACE)
def test_an_array_of_scores_is_told_what_to_use_instead(job, what):
    with pytest.raises(quire.ArgumentError, match=r"is no part of Quire; alibi_slopes, .* hide keys"):
        WRONG_PLACE[what](job)


def test_an_array_in_the_place_of_a_batch_is_no_bias(job):
    with pytest.raises(quire.ArgumentError, match=r"batch: a ndarray, expected a quire.Batch$"):
        quire.attend(job.q, cache_of(job))


@pytest.mark.parametrize("name", ["k_zero", "v_zero", "k_zeros", "v_zero_point", "zero_points"])
def test_zero_points_are_told_what_to_use_instead(job, name):
    with pytest.raises(quire.ArgumentError, match=rf'KVCache\(\): unknown argument "{name}"; zero points are no part of Quire.*int8'):
        quire.KVCache(job.k, job.v, **{name: 1})


def test_codes_that_no_call_takes_make_no_cache():
    codes, scale = np.zeros((8, 16, 2, 64), np.uint8), np.ones((8, 16, 2), np.float32)
    with pytest.raises(quire.ArgumentError, match=r'k: dtype="u8" is no type of a cache, expected float32, .*zero points are no part'):
        quire.KVCache(codes, codes, dtype="u8", k_scale=scale, v_scale=scale)
    with pytest.raises(quire.ArgumentError, match=r"k: dtype uint8, .*name the type: .*zero points are no part"):
        quire.KVCache(codes, codes, k_scale=scale, v_scale=scale)


def test_a_shuffled_cache_is_told_its_copy():
    k, v = np.zeros((8, 2, 8, 16, 8), np.float16), np.zeros((8, 2, 2, 64, 8), np.float16)
    batch = quire.Batch(query=np.zeros((1, 8, 64), np.float16), query_start_loc=[0, 1], seq_lens=[20], block_table=[[1, 2]])
    with pytest.raises(quire.ContractError, match=r"Q-M06 cache.v: rank 5, expected rank 4 .*order 0 1 3 2 4, the last two joined"):
        quire.attend(batch, quire.KVCache(k, v, layout="packed"))
    with pytest.raises(quire.ArgumentError, match=r"is none of nhd, hnd, packed; AITER's .*v.transpose\(0, 1, 3, 2, 4\)"):
        quire.KVCache(k, v, layout="shuffle")
    copied = v.transpose(0, 1, 3, 2, 4).reshape(8, 2, 64, 16)
    assert quire.attend(batch, quire.KVCache(k, copied, layout="packed")).shape == (1, 8, 64)


@pytest.mark.parametrize(("given", "layout"), [("nhd", "hnd"), ("hnd", "nhd")])
def test_a_cache_of_the_other_layout_is_named(given, layout):
    kv = np.zeros((8, 2, 16, 64) if layout == "hnd" else (8, 16, 2, 64), np.float32)
    batch = quire.Batch(query=np.zeros((1, 4, 64), np.float32), query_start_loc=[0, 1], seq_lens=[5], block_table=[[0]])
    with pytest.raises(quire.ContractError, match=rf"\(as layout {layout} the cache has 2 KV heads and pages of 16\)"):
        quire.attend(batch, quire.KVCache(kv, kv, given))


def test_a_table_filled_in_part_is_found_and_served(job):
    table = np.array(job.block_table)
    table[1, 1:] = 0
    batch = batch_of(job, block_table=table)
    findings = quire.check(batch, cache_of(job))
    assert "Q-T22 block_table[1]" in str(findings)
    assert not quire.check(batch, cache_of(job), depth="tables")
    assert quire.attend(batch, cache_of(job)).shape == job.q.shape


class Interface:
    """An object with nothing but an array interface."""

    def __init__(self, interface):
        self.__array_interface__ = interface


HUGE = 2**70
WRONG = {
    "threads beyond 32 bits": (lambda b, c: quire.set_num_threads(2**40), r"set_num_threads\(\): num_threads: 1099511627776 \(int\), expected 32 bits at most"),
    "threads beyond 64 bits": (lambda b, c: quire.set_num_threads(HUGE), r"num_threads: 1180591620717411303424 \(int\), expected 64 bits at most"),
    "tokens": (lambda b, c: quire.reference(b, c, tokens=[HUGE]), r"reference\(\): tokens: \[1180591620717411303424\] \(list\), expected 64 bits at most"),
    "path": (lambda b, c: quire.read_capture(5), r"path: 5 \(int\), expected text or a path"),
    "runs": (lambda b, c: quire.cascade.plan(b, c, runs=5), r"runs: 5 \(int\), expected a list of \(req_begin"),
    "a batch for cascade": (lambda b, c: quire.cascade.plan(5, c), r"plan\(\): batch: 5 \(int\), expected a quire.Batch"),
    "lists": (lambda b, c: quire.sparse.check(b, c, None, lists=3), r"check\(\): lists: 3 \(int\), expected a quire.KeyLists"),
    "a bound": (lambda b, c: quire.plan(b, c, max_seq_len=HUGE), r"plan\(\): max_seq_len: 1180591620717411303424 \(int\), expected 64 bits at most"),
    "a text for a workspace": (lambda b, c: quire.attend(b, c, workspace="abc"), r"workspace: 'abc' \(str\), expected memory: an array"),
    "a number for a workspace": (lambda b, c: quire.bind(b, c, workspace=5), r"workspace: 5 \(int\), expected memory: an array"),
    "a workspace with gaps": (lambda b, c: quire.attend(b, c, workspace=np.zeros((9, 9), np.float32)[:, ::2]), "workspace: .*cannot be seen as bytes"),
    "a request": (lambda b, c: quire.PagePool(4).preempt(HUGE), r"preempt\(\): request: 1180591620717411303424 \(int\), expected 64 bits at most"),
    "an interface without data": (lambda b, c: quire.KVCache(Interface({"shape": (2, 2), "typestr": "<f4", "version": 3}), c.v), "k: .*__array_interface__"),
    "no interface": (lambda b, c: quire.KVCache(Interface(5), c.v), "k: .*__array_interface__"),
    "a bound call": (lambda b, c: quire.bind(b, c)(valeu=5), r'BoundCall\(\): unknown argument "valeu"; did you mean value\?'),
    "prepared": (lambda b, c: quire.bind(b, c)(prepared=5), r"prepared: 5 \(int\), expected True or False"),
    "slots of a ledger": (lambda b, c: quire.SlotLedger(-1, 16), "SlotLedger num_pages: -1, expected >= 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_wrong_call_ends_in_words_of_the_bindings(job, name):
    call, text = WRONG[name]
    with pytest.raises(quire.ArgumentError, match=text):
        call(batch_of(job), cache_of(job))


def test_every_function_and_method_of_the_module_is_explained():
    from quire import _quire

    bare = [name for name, value in vars(_quire).items() if type(value).__name__ == "nb_func"]
    assert bare == ["append_arrays", "attend_arrays"], "called once a layer, with arguments that quire_vllm.ops and quire.torch make"
    methods = [f"{cls.__name__}.{name}" for cls in vars(_quire).values() if isinstance(cls, type)
               for name, value in vars(cls).items() if type(value).__name__ == "nb_method" and not name.startswith("__")]  # fmt: skip
    assert methods == []


def test_an_interface_alone_is_an_array():
    k = np.ones((2, 4, 1, 8), np.float32)
    cache = quire.KVCache(Interface(k.__array_interface__), k)
    assert (cache.dtype, cache.num_pages) == ("f32", 2)


def test_no_memory_is_an_out_of_memory_error():
    with pytest.raises(quire.errors.OutOfMemoryError, match="SlotLedger: no memory for 1099511627776 pages of 16 slots") as caught:
        quire.SlotLedger(2**40, 16)
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(MemoryError):
        quire.SlotLedger(2**36, 16)


REFERENCE_WITHOUT_MEMORY = """
import resource, quire
c = quire.make_case("q=f32 heads=64:1 d=512 page=16 reqs=1500@1500 seed=1")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    quire.reference(c.batch, c.cache)
except quire.errors.OutOfMemoryError as error:
    print("reference: out of memory" in str(error))
"""


def test_a_reference_without_memory_says_so():
    ran = subprocess.run([sys.executable, "-c", REFERENCE_WITHOUT_MEMORY], capture_output=True, text=True)
    assert ran.stdout.strip() == "True", ran.stderr[-800:]
