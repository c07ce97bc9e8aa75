# SPDX-License-Identifier: Apache-2.0
"""fuzz/gpu on this machine's CPU: batches are right, and each class of fault is noticed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quire

FOLDER = Path(__file__).resolve().parents[2] / "fuzz" / "gpu"
sys.path.insert(0, str(FOLDER))

import appends  # noqa: E402
import batches  # noqa: E402
import calls  # noqa: E402
import elements  # noqa: E402
import oracle  # noqa: E402
import views  # noqa: E402
import workers  # noqa: E402

MOST_SEEDS, MOST_BATCHES = 900, 25  # a fault has to be noticed within these; most are by the first batch that has their field
CPU = views.library("cpu")


def run(seed, fault=None, **how):
    return calls.run(batches.make(seed), CPU, "cpu", fault, bind=False, **how)


def in_own_process(*words, **environment):
    return subprocess.run([sys.executable, FOLDER / "fuzz_gpu.py", *words], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})  # fmt: skip


def test_batches_of_every_family_are_right():
    said = in_own_process("--count", "60", "--workers", "2")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "60 batches" in said.stdout and "lost 0  wrong 0  refused 0" in said.stdout, said.stdout


def test_cells_of_types_scales_and_layouts_are_right():
    cells = FOLDER.parents[1] / "bench" / "gpu" / "cells.py"
    said = subprocess.run([sys.executable, cells, "--backend", "cpu", "--workers", "2", "--every", "397", "--without-random"], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "17 of 9607 asked" in said.stdout, said.stdout + said.stderr


def test_every_bound_call_is_asked_what_became_of_it(monkeypatch):
    """Else its outcome stays in memory that is freed, and the next workspace there is told of it: four valid batches were refused."""
    bound, asked = [], []
    bind, status = quire.bind, quire.attend_status
    monkeypatch.setattr(quire, "bind", lambda *args, **how: bound.append(bind(*args, **how)) or bound[-1])
    monkeypatch.setattr(quire, "attend_status", lambda b, c, o, plan, workspace, **how: asked.append(plan) or status(b, c, o, plan, workspace, **how))
    for seed in range(12):
        assert not calls.run(batches.make(seed), CPU, "cpu", append=False).refused
    assert len(bound) > 5 and len(asked) == len(bound)


def test_an_fp8_query_has_no_new_rows_whatever_the_family():
    """Q-M26 forbids them. Cells bring sides of their own to the family "any"."""
    sides = batches.Sides("fp8_e4m3fn", "fp8_e4m3fn", "fp8_e4m3fn", "bf16", 4, 1, 64, 64, 16)
    made = [batches.make(seed, family="any", sides=sides).arrays for seed in range(30)]
    assert not any("key" in arrays for arrays in made) and any("q_scale" in arrays for arrays in made)


def test_a_seed_makes_its_batch_again_and_fields_can_be_left_out():
    for seed in range(20):
        one, again, fewer = batches.make(seed), batches.make(seed), batches.make(seed, frozenset(["sinks", "alibi", "tree"]))
        assert np.array_equal(one.arena.build(1, True), again.arena.build(1, True))
        assert not {"sinks", "alibi_slopes", "tree_mask"} & set(fewer.arrays)
        assert np.array_equal(one.arrays["query"], fewer.arrays["query"], equal_nan=one.sides.q in ("f32", "f16"))


def test_every_field_is_drawn():
    seen = set()
    for seed in range(600):
        batch = batches.make(seed)
        seen |= set(batch.arrays) | {name for name, value in batch.options.items() if value not in (None, False)}
        seen |= {f"layout {batch.sides.layout}", f"q {batch.sides.q}", f"k {batch.sides.k}", f"v {batch.sides.v}", f"k_scale {batch.sides.k_scale}"}
        seen |= {"no requests"} if not batch.q_lens else set()
        seen |= {"no pages"} if not batch.arrays["k"].shape[0] else set()
        seen |= {"a request without rows"} if 0 in batch.q_lens else set()
        seen |= {"bits of 0"} if batch.tree is not None and batch.tree.size and not batch.tree.any() else set()
        seen |= {"a huge request"} if max(batch.seq_lens, default=0) > 2**30 else set()
        seen |= {"a backward axis"} if any(view.reversed_axis >= 0 for view in batch.arena.views.values()) else set()
        seen |= {f"{name} {bits.dtype}" for name, bits in batch.arrays.items() if bits.dtype.kind == "i"}
    wanted = {*(f"q {t}" for t in ("f32", "f16", "bf16", "fp8_e4m3fn")), *(f"{side} {t}" for side in "kv" for t in (*batches.CACHE_TYPES, "fp8_ds_mla", "f32")),
              *(f"layout {name}" for name in batches.LAYOUTS), *(f"k_scale {form}" for form in ("none", "scalar", "one", "head", "token")),
              "sliding_window", "window_right", "attention_chunk", "prefix_len", "prefix_lens", "spans", "spans_beyond_window", "tree_mask", "q_begin",
              "key_begin", "causal", "cached_lens", "key", "alibi_slopes", "sinks", "logits_soft_cap", "softmax_scale", "q_scale", "output_scale",
              "k_block_scale", "v_block_scale", "no requests", "no pages", "a request without rows", "bits of 0", "a huge request", "a backward axis",
              "block_table int32", "block_table int64", "seq_lens int32", "seq_lens int64", "spans int64", "tree_lens int64"}  # fmt: skip
    assert not wanted - seen, wanted - seen
    # Arguments of the public classes: a new one fails here until batches have it.
    arguments = {name for kind in (quire.Batch, quire.KVCache, quire.Options) for name in re.findall(r"(\w+): ", kind.__init__.__doc__.split("->")[0])}
    not_read_by_attend = {"slot_mapping", "request_ids"}
    said_otherwise = {"dtype", "v_dtype", "layout", "output", "lse", "padding"}
    assert arguments - not_read_by_attend - said_otherwise == seen & arguments
    with pytest.raises(quire.errors.ParseError) as refused:
        quire.parse_problem_line("q=f32 kv=none heads=1:1 d=8 page=8 reqs=1")
    assert {*batches.CACHE_TYPES, "f32", "fp8_ds_mla"} == set(str(refused.value).split("one of ")[1].split(", "))


# --- faults: what a broken kernel would compute --------------------------------------------------------------------------------------


def changed(what, name, change):
    """A fault in one argument of quire.Batch, KVCache or Options."""

    def fault(place, keywords):
        if place == what and keywords.get(name) is not None:
            keywords[name] = change(keywords[name])

    fault.field = name
    return fault


def in_output(change):
    """A fault in an output: change(elements as bits, batch)."""

    def fault(place, found):
        if place == "memory":
            change({name: views.in_bits(found["memory"], view, True) for name, view in found["views"].items()}, found["batch"], found["memory"])

    return fault


def ones(scale):
    return np.ones_like(scale)


def rolled(array, axis=0):
    return np.roll(np.asarray(array), 1, axis=axis) if np.asarray(array).size else array


def one_more_key(place, keywords):
    """seq_lens one longer, rows where they were: the last key is a page's tail."""
    if place == "batch" and not keywords["query"].shape[0] == 0 and "tree_lens" not in keywords:
        lens, starts = np.asarray(keywords["seq_lens"]), np.asarray(keywords["query_start_loc"])
        begin = np.asarray(keywords.get("key_begin", 0)) + lens - np.diff(starts)
        if "q_begin" not in keywords and (begin >= 0).all():
            keywords.update(seq_lens=lens + 1, q_begin=begin, causal=np.zeros(len(lens), np.uint8), cached_lens=lens + 1)


def unwritten_row(outputs, batch, _):
    if batch.tokens:
        outputs["output"][batch.tokens - 1] = calls.filled(batch.outputs.views["output"])


def base_two(outputs, *_):
    if "lse" in outputs:
        outputs["lse"] /= np.log(2).astype(np.float32)


def beside_the_rows(outputs, batch, memory):
    memory[-1] ^= 1


def padding_written(outputs, batch, _):
    outputs["output"][batch.tokens :] = 0 if batch.given["padding"] == "left" else 1


def append_to_the_next_slot(place, found):
    if place == "append" and len(found["rows"].slots):
        slots = found["slots"]
        slots[...] = np.roll(np.asarray(slots), 1)


FAULTS = {
    "a window one key longer": changed("options", "sliding_window", lambda count: count + 1),
    "a window one key shorter": changed("options", "sliding_window", lambda count: max(1, count - 1)),
    "a window ignored": changed("options", "sliding_window", lambda _: None),
    "later keys one more": changed("options", "window_right", lambda count: count + 1),
    "a chunk one token longer": changed("options", "attention_chunk", lambda count: count + 1),
    "a prefix one key shorter": changed("options", "prefix_len", lambda count: max(0, count - 1)),
    "order ignored": changed("batch", "causal", np.zeros_like),
    "a row one position later": changed("batch", "q_begin", lambda begin: np.asarray(begin) + 1),
    "keys one position later": changed("batch", "key_begin", lambda begin: np.asarray(begin) + 1),
    "spans one position later": changed("batch", "spans", lambda spans: np.asarray(spans) + 1),
    "bits of a tree from the highest": changed("batch", "tree_mask", lambda bits: np.packbits(np.unpackbits(np.asarray(bits), axis=1), axis=1, bitorder="little")),
    "k_scale dropped": changed("cache", "k_scale", ones),
    "v_scale dropped": changed("cache", "v_scale", ones),
    "v_scale of another head or token": changed("cache", "v_scale", lambda scale: rolled(scale, np.ndim(scale) - 1) if np.ndim(scale) else scale * 2),
    "block scales of another block": changed("cache", "k_block_scale", lambda scale: rolled(scale, 3)),
    "q_scale dropped": changed("batch", "q_scale", ones),
    "output_scale dropped": changed("batch", "output_scale", ones),
    "the cap dropped": changed("options", "logits_soft_cap", lambda _: None),
    "slopes of another head": changed("options", "alibi_slopes", rolled),
    "sinks dropped": changed("options", "sinks", lambda sinks: np.full_like(sinks, -np.inf)),
    "a scale 1 % larger": changed("options", "softmax_scale", lambda scale: scale * 1.01),
    "pages of another request": changed("batch", "block_table", lambda table: rolled(table)),
    "new keys of another row": changed("batch", "key", lambda key: rolled(key.view(np.uint8 if key.itemsize == 1 else f"u{key.itemsize}")).view(key.dtype)),
    "query heads in another order": changed("batch", "query", lambda q: rolled(q.view(f"u{q.itemsize}"), 1).view(q.dtype)),
    "a key behind the last": one_more_key,
    "a row not written": in_output(unwritten_row),
    "lse in base 2": in_output(base_two),
    "a byte beside the rows": in_output(beside_the_rows),
    "padding rows written, or not": in_output(padding_written),
    "append to another slot": append_to_the_next_slot,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name):
    asked = 0
    for seed in range(1, MOST_SEEDS):
        batch = batches.make(seed, frozenset(["huge"]))
        field = getattr(FAULTS[name], "field", "query")
        if max(batch.seq_lens, default=0) > 600 or (field not in batch.arrays and batch.options.get(field) in (None, True)):
            continue
        asked += 1
        if calls.run(batch, CPU, "cpu", FAULTS[name], bind=False, all_kernels=False).wrong:
            return
        if asked == MOST_BATCHES:
            break
    pytest.fail(f"{name}: not noticed in {asked} batches")


def test_a_read_of_a_page_that_no_row_sees_is_noticed():
    """Slots that no row sees hold NaN, also those behind a request's last key; slots that a row sees hold none."""
    for seed in range(40):
        batch = batches.make(seed)
        slots = batches.seen_slots(batch, oracle.seen_by_all(batch), batch.arrays["k"].shape[0])
        if batch.sides.k in ("f32", "f16", "bf16", *elements.FP8) and slots.size:
            assert np.isfinite(elements.decode(batch.arrays["k"][slots], batch.sides.k)).all()
            assert np.isnan(elements.decode(batch.arrays["k"][~slots], batch.sides.k)).all()


def test_a_lost_worker_names_its_seed_and_the_others_go_on(tmp_path):
    """The worker of seed 7 dies of a signal when it calls attend()."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(FOLDER)!r})\nimport calls\nwhole = calls.run\n"
        "def run(batch, *rest, **how):\n    if batch.seed == 7:\n        os.kill(os.getpid(), 11)\n    return whole(batch, *rest, **how)\ncalls.run = run\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(quire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    said = in_own_process("--count", "12", "--workers", "2", "--without-bind", PYTHONPATH=path)
    assert said.returncode == 1 and "lost 1" in said.stdout and "--one --seed 7" in said.stdout and "12 batches" in said.stdout, said.stdout + said.stderr


def test_a_number_is_asked_once_though_workers_leave_out_others():
    """Workers ask each fifth number, as those of cells.py with --every do; one is lost at 10, and another one goes on behind it."""
    program = (f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import workers; seed, count, step = map(int, sys.argv[3::2])\n"
               "numbers = (number for number in range(seed, seed + count, step) if number % 5 == 0)\n"
               "sys.exit(workers.say(numbers, lambda number: {'lost': 'here'} if number == 10 else {}))")  # fmt: skip
    totals = workers.share_out([sys.executable, "-c", program], 0, 40, 2)
    assert totals.done == 8 and [found["number"] for found in totals.found["lost"]] == [10]


# --- the oracle's own parts ---------------------------------------------------------------------------------------------------------


def test_element_types_agree_with_ml_dtypes():
    import ml_dtypes

    values = np.concatenate([np.random.default_rng(1).standard_normal(20000) * 10.0 ** np.repeat(np.arange(-5, 5), 2000), [0, -0.0, 1e30, 448, 464, 465]])
    values = values.astype(np.float32)
    for dtype, name in views.ML_NAMES.items():
        kind = getattr(ml_dtypes, name)
        codes = np.arange(65536 if dtype == "bf16" else 256).astype(elements.bits_type(dtype))
        with np.errstate(invalid="ignore"):  # signalling NaN
            assert np.array_equal(elements.decode(codes, dtype), codes.view(kind).astype(np.float64), equal_nan=True), dtype
        fits = np.abs(values) <= elements.LARGEST.get(dtype, np.inf)
        assert np.array_equal(elements.encode(values[fits], dtype), values[fits].astype(kind).view(codes.dtype)), dtype
    assert np.array_equal(elements.encode(values[np.abs(values) <= 6], "nvfp4"), values[np.abs(values) <= 6].astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def test_the_quantiser_is_that_of_append():
    result = calls.Result()
    for dtype in ("f32", "f16", "bf16"):
        for seed in range(400, 420):
            batch = batches.make(seed)
            if dtype == "f32" or "f32" not in (batch.sides.k, batch.sides.v):  # Q-M20
                calls.run_append(calls.Call(batch, CPU), CPU, result, dtype)
    assert not result.wrong and not result.refused and result.kernels["append"] > 40


def test_a_quantiser_that_rounds_otherwise_is_noticed(monkeypatch):
    monkeypatch.setattr(appends, "quotient", lambda values, scale: (values * (np.float32(1) / np.asarray(scale, np.float32))).astype(np.float32))
    result = calls.Result()
    for seed in range(400, 460):
        batch = batches.make(seed)
        calls.run_append(calls.Call(batch, CPU), CPU, result)
    assert result.wrong
