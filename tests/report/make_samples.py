#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes samples/*.json: reports that show every part of the page, for tools/check_report.py. Made up, but in the shapes of
docs/reference/report.md; numbers are drawn from a fixed seed.

usage: make_samples.py [FOLDER]
"""
import json
import math
import random
import sys
from pathlib import Path

NOTES = [(880, 430), (410, 956), (792, 818), (927, 865), (446, 326), (57, 1007), (281, 504), (1004, 382), (539, 613), (1, 929)]
NOTES_LINE = ("q=f16 kv=f16 heads=64:64 d=128 page=32 layout=packed reqs=880@430,410@956,792@818,927@865,446@326,57@1007,281@504,"
              "1004@382,539@613,1@929 pages=640 index=i64 seed=0")

FAULTS = [
    ("query_start_loc_as_int32", "index_width", "reads an int64 query_start_loc as int32", "rows", 0.0),
    ("seq_lens_as_int32", "index_width", "reads int64 seq_lens as int32", "values", 0.0),
    ("block_table_as_int32", "index_width", "reads an int64 block_table as int32", "values", 0.0),
    ("missing_last_token", "tokens", "leaves the newest token out", "values", 4.2e-6),
    ("extra_token", "tokens", "reads one token past the end of the sequence", "nan_poison", 5.1e-6),
    ("window_ignored", "mask", "ignores the sliding window", "nan_poison", 8.8e-5),
    ("window_off_by_one", "mask", "shows one key too many at the window's left edge", "values", 2.0e-6),
    ("causal_off_by_one", "mask", "lets a row see the next row's key", "values", 3.9e-6),
    ("page_swapped", "pages", "exchanges two neighbouring pages", "values", 1.0e-6),
    ("page_tail_read", "pages", "reads the last page to its end", "garbage_poison", 2.2e-5),
    ("k_scale_dropped", "scales", "forgets k_scale", "values", 7.4e-7),
    ("kv_scales_swapped", "scales", "swaps k_scale and v_scale", "values", 1.2e-6),
    ("e4m3fn_as_fnuz", "fp8", "reads fp8_e4m3fn codes as fp8_e4m3fnuz", "values", 5.0e-4),
    ("gqa_modulo", "heads", "maps query head h to KV head h % num_kv_heads", "values", 1.4e-3),
    ("alibi_from_context_end", "bias", "counts ALiBi distances from the end of the context", "values", 6.0e-6),
    ("split_left_out", "split", "leaves the last split out of the merge", "values", 9.1e-5),
    ("lse_base_2", "merge", "writes lse in base 2", "lse", 0.0),
    ("row_never_written", "rows", "never writes the last row of the batch", "nan_poison", 6.6e-4),
    ("canary_overwritten", "rows", "writes one element past a row", "canaries", 0.0),
    ("nan_skipped", "tokens", "skips a visible key whose score is NaN", "values", 0.0),
]


def ratio(r: random.Random, typical: float) -> float:
    return float(f"{typical * math.exp(r.gauss(0, 0.7)):.3g}")


def rows_picture(reqs, heads, kernels):
    requests = [{"req": i, "count": 1, "query_len": q, "context_len": c, "cached_len": q + c, "rows": q * heads} for i, (q, c) in enumerate(reqs)]
    return {"kernel": kernels[0][0] if kernels else "", "kernels": [{"kernel": k, "rows": n} for k, n in kernels], "requests": requests,
            "expected": sum(q for q, _ in reqs) * heads, "text": ""}


def error_picture(r, reqs, heads, dims, wrong, nonfinite=()):
    """wrong: {(req, head): factor}; nonfinite: (req, head) pairs with NaN."""
    starts, rows, ratios = [0], [], []
    for q, _ in reqs:
        starts.append(starts[-1] + q)
    worst = [[ratio(r, 0.2) * wrong.get((i, h), 1) for h in range(heads)] for i in range(len(reqs))]
    broken = [[dims if (i, h) in nonfinite else 0 for h in range(heads)] for i in range(len(reqs))]
    for i, h in sorted(set(wrong) | set(nonfinite))[:24] or [(0, 0), (1, 2)]:
        token = starts[i + 1] - 1
        rows.append({"token": token, "req": i, "q_pos": reqs[i][1] + reqs[i][0] - 1, "head": h})
        ratios.append([None if (i, h) in nonfinite and d % 16 < 8 else ratio(r, 0.1) * wrong.get((i, h), 1) for d in range(dims)])
    for i, h in nonfinite:
        worst[i][h] = None
    bad = [[q if (i, h) in nonfinite or worst[i][h] > 1 else 0 for h in range(heads)] for i, (q, _) in enumerate(reqs)]
    return {"request_head": {"requests": [{"req": i, "query_len": q, "context_len": c, "rows": q} for i, (q, c) in enumerate(reqs)],
                             "heads": [[h, h] for h in range(heads)], "worst": worst, "nonfinite": broken, "wrong": bad, "text": ""},
            "row_dim": {"rows": rows, "dims": dims, "bin": 1, "ratio": ratios, "lse": [0.2] * len(rows), "text": f"the {len(rows)} worst of {starts[-1] // 2 * heads} cells"},
            "rows_compared": starts[-1] // 2 * heads, "rows_total": starts[-1] * heads}


def whole_picture(*arguments):
    """Picture of a batch whose cells were all compared."""
    picture = error_picture(*arguments)
    return picture | {"rows_compared": picture["rows_total"]}


def page_picture(r, reqs, num_pages, page_size, unwritten=(), shared=0, recycled=0.3):
    """unwritten: (request, logical page) pairs with slots that nobody wrote."""
    states = ["clean", "recycled", "hidden", "owned", "shared", "unwritten"]
    ids = list(range(num_pages))
    r.shuffle(ids)
    owners, filled, blank = {}, {}, {}
    for i, (q, c) in enumerate(reqs):
        for logical in range(-(-(q + c) // page_size)):
            page = owners_page = ids[logical] if logical < shared else ids.pop()
            owners.setdefault(owners_page, []).append([i, logical])
            filled[page] = min(page_size, q + c - logical * page_size)
            if (i, logical) in unwritten:
                blank[page] = 1
    cells, counts = [], dict.fromkeys(states, 0)
    for page in range(num_pages):
        mine = owners.get(page, [])
        state = "unwritten" if page in blank else "shared" if len(mine) > 1 else "owned" if mine else "recycled" if r.random() < recycled else "clean"
        counts[state] += 1
        cells.append([page, states.index(state), filled.get(page, 0), blank.get(page, 0), len(mine), mine[:4]])
    return {"page_size": page_size, "num_pages": num_pages, "bin": 1, "outside": 0, "states": states, "counts": counts, "cells": cells, "text": "",
            "columns": ["page", "state", "filled", "unwritten", "num_owners", "owners"]}


def make_cases(r, matrices):
    names = ["LastPagePartial", "ChunkStartsMidPage", "WindowHidesFirstPage", "WindowOne", "NoVisibleKey", "QueryLenZero", "SharedPrefixPages",
             "PageTailNaN", "OutOfWindowNaN", "TablePastEndHuge", "QueryLongerThanTile", "OddHeadDim", "OddGroup", "OddPage", "NegativeSlopes",
             "SinkDominates", "Fp8Extremes", "PeakySoftmax", "SpeculativeRows", "CachedLenBetween"]
    cases = []
    for matrix, count in matrices:
        for i in range(count):
            name = names[i % len(names)] if matrix == "hazards" else f"{matrix}-{i}"
            kv = r.choice(["f16", "bf16", "fp8_e4m3fn", "fp8_e5m2"])
            line = f"q=bf16 kv={kv} heads=8:2 d={r.choice([24, 64, 128])} page={r.choice([5, 16, 32])} layout=nhd reqs=1x{r.randint(40, 900)},3x1@{r.randint(10, 2000)} seed={i}"
            values = ratio(r, 0.25)
            checks = [{"check": "values", "state": "pass", "worst_ratio": min(values, 0.97), "text": ""},
                      {"check": "lse", "state": "pass", "worst_ratio": min(ratio(r, 0.05), 0.9), "text": ""},
                      {"check": "nan_poison", "state": "pass", "worst_ratio": 0, "text": ""},
                      {"check": "garbage_poison", "state": "pass", "worst_ratio": 0, "text": ""},
                      {"check": "rows", "state": "pass", "worst_ratio": 0, "text": ""},
                      {"check": "canaries", "state": "pass", "worst_ratio": 0, "text": ""},
                      {"check": "repeat", "state": "pass", "worst_ratio": 0, "text": ""}]
            cases.append({"matrix": matrix, "name": name, "line": line, "status": "pass", "kernel": r.choice(["cpu_avx512", "cpu_avx512", "cpu_generic"]),
                          "reason": "", "seconds": ratio(r, 0.05), "compared": 4096, "checks": checks, "reduced_line": ""})
    return cases


def summary(cases):
    names = list(dict.fromkeys(c["matrix"] for c in cases))
    count = lambda m, s: sum(c["matrix"] == m and (not s or c["status"] == s) for c in cases)
    return [{"name": m, "cases": count(m, ""), "passed": count(m, "pass"), "failed": count(m, "fail"), "refused": count(m, "refused")} for m in names]


def power(survivors=()):
    mutants = [{"id": i, "family": f, "text": t, "killed": i not in survivors, "check": "" if i in survivors else c,
                "line": "q=bf16 kv=bf16 heads=4:2 d=64 page=16 layout=nhd reqs=17@40,1@99 index=i64 seed=3",
                "finding": "" if i in survivors else f"output[token 16, head 1, dim 3]: observed 0.731, expected -0.114 ({c})"} for i, f, t, c, _ in FAULTS]
    killed = sum(m["killed"] for m in mutants)
    return {"killed": killed, "total": len(mutants), "survivors": list(survivors), "mutants": mutants}


def peer():
    mutants = [{"id": i, "killed": e > 1e-4, "max_error": e} for i, _, _, _, e in FAULTS]
    return [{"line": NOTES_LINE, "name": "vLLM test_prefix_prefill.py", "atol": 1e-4, "known_killed": 2, "known_total": 10, "killed": sum(m["killed"] for m in mutants), "total": len(mutants), "mutants": mutants}]


def verify_pass(r):
    cases = make_cases(r, [("notes", 24), ("hazards", 220), ("random", 100)])
    for c in cases[30:240:17]:
        c.update(status="refused", kernel="", reason="fp8_e5m2 caches need a query of 16 bits", checks=[])
    return {"quire_verify": 1, "version": "0.1.0", "date": "2026-01-20", "device": "avx512bf16, 2 threads", "target": "cpu", "verdict": "pass", "seconds": 84.2,
            "power": power(), "peer": peer(), "matrices": summary(cases), "cases": cases,
            "explain": "cpu_avx512 tile=64x64 split=1024 items=40 merges=8\n  cpu_avx512bf16  refused: kv is fp8_e4m3fn, expected bf16\n  cpu_generic     not needed: cpu_avx512 comes first"}


def verify_fail(r):
    cases = make_cases(r, [("notes", 8), ("hazards", 40), ("random", 20)])
    reqs = [(37, 0), (1, 130), (64, 12), (5, 300), (0, 44), (18, 77)]
    wrong = {(1, h): 10 ** (1 + h % 4) for h in range(8)} | {(3, 5): 4.0}
    for n, at in enumerate([9, 21, 52]):
        c = cases[at]
        c.update(status="fail", reduced_line="q=bf16 kv=bf16 heads=1:1 d=24 page=5 layout=nhd reqs=1@5 seed=13  (24 requests and 7 heads taken away)")
        c["checks"][0].update(state="fail", worst_ratio=1834.2, text="1024 of 24000 elements exceed the tolerance, the worst by a factor of 1.83e+03 at output[token 37, head 3, dim 11]: observed 1.69, expected -0.0213")
        c["checks"][2].update(state="fail", text="NaN in output[token 37, head 0, dim 0]: something that must not be read was read")
        c["checks"][6].update(state="skipped", text="values are wrong already")
        c["pictures"] = {"error": error_picture(r, reqs, 8, 24, wrong, {(1, 0), (5, 7)} if n == 0 else ()),
                         "pages": page_picture(r, reqs, 180, 5, unwritten={(1, 26), (3, 60)}, shared=2), "rows": rows_picture(reqs, 8, [("cpu_avx512", 125 * 8)])}
    cases[30].update(status="refused", kernel="", reason="ALiBi is not supported by this adapter", checks=[])
    return {"quire_verify": 1, "version": "0.1.0", "date": "2026-01-20", "device": "2 threads", "target": "torch.sdpa", "verdict": "mistrusted", "seconds": 12.5,
            "power": power(("lse_base_2", "window_off_by_one")), "peer": peer(), "matrices": summary(cases), "cases": cases}


PLAIN = {"weights": "f32", "scores": "f32", "accumulator": "f32", "products": "f32", "dequantised": "exact", "found": False, "words": "computes in f32", "worst": 0.3, "least_factor": 2e-4}
ROUNDING = {"mechanism": "rounding", "fault": "rounding", "family": "", "text": "rounds differently: the kernel's numerics", "detail": "", "scope": "", "explained": 0.0, "certain": False,
            "largest_move": 1e-5, "largest_left": 1.69, "refutation": "rounding moves these rows by at most 1e-05 (docs/reference/numerics.md); observed 1.69", "next": ""}


def suspicion(mechanism, fault, text, detail, explained, *, certain=False, scope="", refutation="", next_step="", family=""):
    return {"mechanism": mechanism, "fault": fault, "family": family, "text": text, "detail": detail, "scope": scope, "explained": explained, "certain": certain, "largest_move": 1.69,
            "largest_left": 1.69 * (1 - explained), "refutation": refutation, "next": next_step}


def refuted(r):
    """Hypotheses that do not fit; some cannot show."""
    found = [suspicion("other", name, text, "", 0.0004 * r.random(), refutation=f"moves these rows by at most {move:.2g}; observed 1.69", family=family) for name, family, text, _, move in FAULTS[3:]]
    for s in found[8:12]:
        s["refutation"] = "cannot show here: the cache is not fp8" if s["family"] in ("fp8", "scales") else "cannot show here: no request is long enough to be split"
    return found + [ROUNDING]


def pattern(text, conditions, cells, wrong_cells=None):
    wrong_cells = cells if wrong_cells is None else wrong_cells
    return {"text": text, "rule": True, "conditions": conditions, "cells": cells, "wrong_cells": wrong_cells, "precision": wrong_cells / cells, "recall": 1.0, "exact": wrong_cells == cells}


def answer(s, of, as_good=()):
    return {key: s[key] for key in ("mechanism", "fault", "text", "detail", "explained", "certain")} | {
        "scope": of["conditions"], "scope_text": s["scope"], "pattern": of["text"], "as_good": list(as_good)}


def wrong_of(requests):
    """requests: (req, query_len, context_len, rows as text, count of rows, heads as text, count of heads, elements)"""
    listed = [{"req": r, "query_len": q, "context_len": c, "rows": rows, "wrong_rows": n, "wrong_cells": n * k, "heads": heads, "elements": elements, "lse": False, "largest_error": 1.69}
              for r, q, c, rows, n, heads, k, elements in requests]
    return {"rows": sum(x["wrong_rows"] for x in listed), "cells": sum(x["wrong_cells"] for x in listed), "elements": sum(x["elements"] for x in listed), "requests": listed}


def diagnosis(r):
    cause = suspicion("table_row", "query_start_loc_as_int32", "reads an int64 query_start_loc as int32", "sees query_len 0 for requests with query_len 1, so row 5336 is never written", 1.0,
                      certain=True, next_step="look for .cumsum() of an int32 tensor: torch returns int64; cast it, or pass dtype", family="index_width")
    where = pattern("exactly the decode rows, all heads: 1 x 64 of 1 x 64 cells; no other cell is wrong", [{"attribute": "query_len", "test": "is", "values": [1]}], 64)
    return {"quire_diagnose": 2, "version": "0.1.0", "file": "notes_row_5336.safetensors", "problem": NOTES_LINE, "verdict": "cause found", "seconds": 1.31, "profile": PLAIN,
            "laws": [{"law": "outside the convex hull of its V rows", "text": "row 5336, head 0, dim 3 holds 1.69; the values that it may average lie in [-0.001, 0.001]", "rows": 1, "tokens": "5336"},
                     {"law": "one value in every dim (never written, or 0 where no key is seen)", "text": "row 5336, head 0: every dim holds 1.69", "rows": 1, "tokens": "5336"}],
            "complete": False, "compared_rows": 420, "pattern": [where], "observations": ["visible keys: smallest wrong 930, largest right 1745"], "answers": [answer(cause, where)],
            "wrong": wrong_of([(9, 1, 929, "5336", 1, "all 64 heads", 64, 8192)]), "suspicions": [cause] + refuted(r),
            "pictures": {"error": error_picture(r, NOTES, 64, 128, {(9, h): 2e6 for h in range(64)}), "pages": page_picture(r, NOTES, 640, 32, unwritten={(9, 29)}, recycled=0),
                         "rows": rows_picture(NOTES, 64, [])},
            "explain": "vLLM on gfx1100: rows with query_len > 1 go to context_attention_fwd, rows with query_len 1 to paged_attention_2d",
            "reduced": "notes_row_5336.reduced.safetensors"}


MIXED = [(1, 40), (84, 0), (1, 300), (6, 73), (5, 8), (1, 12), (33, 90), (1, 5)]


def two_causes(r):
    """Two sets of wrong cells, a cause for each, and one that this batch cannot tell from the second."""
    sets = [pattern("set 1 of 2: exactly the prefill rows with num_keys >= 2, heads with head % 2 = 0: 127 x 6 of 127 x 6 cells", [{"attribute": "query_len", "test": "from", "values": [2]}], 762) | {"also": ["the rows of requests 0, 3", "the rows with context_len <= 96"]},
            pattern("set 2 of 2: exactly the rows of requests 2, 7, all heads: 2 x 12 of 2 x 12 cells; no cell outside of the 2 sets is wrong", [{"attribute": "request", "test": "is", "values": [2, 7]}], 24)]
    first = suspicion("key_range", "", "leaves out every m-th key", "keys at positions k % 8 = 1", 1.0, certain=True, scope="the prefill rows with num_keys >= 2, heads with head % 2 = 0",
                      next_step="look at the loop over this group of keys")
    second = suspicion("factor_scores", "scale_from_padded_head_dim", "takes the default softmax_scale from a padded head_dim", "1 / sqrt(128)", 1.0, certain=True, scope="the rows of requests 2, 7, all heads",
                       next_step="print the scale that the kernel receives")
    equal = suspicion("factor_scores", "", "multiplies q . K by another factor", "0.79 fits", 1.0, certain=True, scope=second["scope"])
    wrong = {(i, h): 1e3 for i in (1, 3, 4, 6) for h in range(0, 12, 2)} | {(i, h): 1e3 for i in (2, 7) for h in range(12)}
    return {"quire_diagnose": 2, "version": "0.1.0", "file": "two.safetensors", "verdict": "cause found", "seconds": 0.6, "profile": PLAIN, "complete": True, "compared_rows": 132, "pattern": sets, "laws": [],
            "answers": [answer(first, sets[0]), answer(second, sets[1], ["factor_scores"])], "suspicions": [first] + refuted(r) + [second, equal] + refuted(r), "reduced": "two.reduced.safetensors",
            "wrong": wrong_of([(1, 84, 0, "2-84", 83, "6 of 12 heads", 6, 39000), (2, 1, 300, "85", 1, "all 12 heads", 12, 960), (7, 1, 5, "131", 1, "all 12 heads", 12, 950)]),
            "pictures": {"error": whole_picture(r, MIXED, 12, 80, wrong), "pages": page_picture(r, MIXED, 60, 16), "rows": rows_picture(MIXED, 12, [])}}


def likely(r):
    where = pattern("the rows with context, all heads: 560 of 48 x 12 cells (precision 0.972, recall 1); no other cell is wrong", [{"attribute": "context_len", "test": "from", "values": [1]}], 576, 560)
    best = suspicion("table_row", "", "reads K and V by another request's row of block_table", "row 7 of block_table is read", 0.953, next_step="look at the request index with which the kernel reads block_table")
    wrong = {(i, h): 1e5 for i in (0, 2, 3, 4, 5, 6, 7) for h in range(12)}
    return {"quire_diagnose": 2, "version": "0.1.0", "file": "likely.safetensors", "verdict": "mechanism likely", "seconds": 0.6, "profile": PLAIN, "complete": True, "compared_rows": 132, "pattern": [where],
            "answers": [answer(best, where)], "suspicions": [best] + refuted(r), "observations": ["out / expected differs from dim to dim"], "laws": [],
            "wrong": wrong_of([(6, 33, 90, "98-130", 33, "all 12 heads", 12, 31000), (3, 6, 73, "86-91", 6, "all 12 heads", 12, 5600)]),
            "pictures": {"error": whole_picture(r, MIXED, 12, 80, wrong, {(0, 3), (2, 5)}), "pages": page_picture(r, MIXED, 60, 16), "rows": rows_picture(MIXED, 12, [])}}


def unknown(r):
    where = pattern("exactly the rows with row >= 5, all heads: 107 x 12 of 107 x 12 cells; no other cell is wrong", [{"attribute": "row", "test": "from", "values": [5]}], 1284)
    best = [suspicion("rounded", name, text, "tiles of 32", 0.4 / (n + 1), refutation=f"explains {40 / (n + 1):.1f} %, leaves 0.4 of 1.69") for n, (name, _, text, _, _) in enumerate(FAULTS[:7])]
    facts = ["visible keys: smallest wrong 6, largest right 372; pages: smallest wrong 1, largest right 13; rows of the request: smallest wrong 58, largest right 89",
             "out / expected differs from dim to dim", "|error| is 0.00288 at the median and 0.0381 at most, 326 tolerances; |out| is too small in 50 % of the wrong elements",
             "lse is right in the wrong cells", "the wrong cells differ in sign from head to head"]
    return {"quire_diagnose": 2, "version": "0.1.0", "file": "odd.safetensors", "verdict": "unknown cause", "seconds": 0.4, "profile": PLAIN, "complete": True, "compared_rows": 132, "pattern": [where],
            "answers": [answer(s, where) for s in best[:5]], "suspicions": best + refuted(r), "observations": facts, "laws": [], "reduced": "odd.reduced.safetensors",
            "wrong": wrong_of([(1, 84, 0, "6-84", 79, "all 12 heads", 12, 70000), (6, 33, 90, "103-130", 28, "all 12 heads", 12, 26000)]),
            "pictures": {"error": whole_picture(r, MIXED, 12, 80, {(i, h): 300 for i in (1, 6) for h in range(12)}), "rows": rows_picture(MIXED, 12, [])}}


def right(r):
    profile = PLAIN | {"weights": "bf16", "found": True, "words": "rounds its softmax weights to bf16", "worst": 0.63, "least_factor": 0.0064}
    return {"quire_diagnose": 2, "version": "0.1.0", "file": "right.safetensors", "verdict": "right", "seconds": 0.2, "profile": profile, "complete": True, "compared_rows": 132, "pattern": [], "observations": [],
            "answers": [], "laws": [], "suspicions": [], "wrong": wrong_of([]), "problem": "q=bf16 kv=bf16 heads=12:3 d=80 reqs=1@40,84",
            "pictures": {"error": whole_picture(r, MIXED, 12, 80, {}), "pages": page_picture(r, MIXED, 60, 16), "rows": rows_picture(MIXED, 12, [])}}


def bench_result(kernel, threads, flops, median, floor, compute, status="ok", invariant=False):
    interval = {"median": median, "low": median * 0.985, "high": median * 1.02, "blocks": 15}
    return {"asked_kernel": kernel if status == "wrong" else "", "threads": threads, "batch_invariant": invariant, "status": status, "reason": "" if status == "ok" else "worst at token 3, head 1",
            "kernel": kernel, "plan": f"{kernel} tile=64x64 split=1024 items=40", "plan_seconds": 3.1e-6, "seconds": interval, "clock": "wall", "calls": 1240, "disturbed": 3,
            "block_seconds": [median] * 15, "gbs": 67.1e6 / median * 1e-9, "gflops": flops / median * 1e-9, "floor": {"seconds": floor, "memory_seconds": 0 if compute else floor,
            "compute_seconds": floor if compute else 0, "read_gbs": 33.1, "compute_gflops": 234.0, "compute": "bf16 dot"}, "of_floor": floor / median, "of_gather": 0.91,
            "rows_compared": 1, "rows_total": 1, "worst_ratio": 0.31}


def bench_run(_):
    cases = []
    for line, flops, compute, floor, median in [("1@16383", 0.268e9, False, 2.03e-3, 2.3e-3), ("16x1@2047", 0.537e9, False, 4.06e-3, 4.7e-3), ("512@1536", 15.0e9, True, 64e-3, 92e-3)]:
        results = [bench_result("cpu_avx512bf16", t, flops, median / (1.94 if t == 2 else 1), floor / t, compute, invariant=i) for i in (False, True) for t in (1, 2)]
        if line == "512@1536":
            results.append(bench_result("cpu_generic", 1, flops, 9 * median, floor, compute, status="wrong"))
        cases.append({"name": "targets", "line": f"q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=hnd reqs={line}", "kv_bytes": 67108864, "flops": flops,
                      "rotation": {"copies": 4, "working_set_bytes": 268435456, "kind": "from memory: copies of K and V in turn"}, "results": results})
    ceilings = [{"threads": t, "loops": "avx512", "reads": [{"bytes": 8 << 20, "stream_gbs": 98.0 * t, "gather_gbs": 90.0 * t}, {"bytes": 256 << 20, "stream_gbs": 33.1 + 20 * (t - 1),
                 "gather_gbs": 29.6 * t}], "fma_gflops": 117.0 * t, "bf16_dot_gflops": 234.0 * t, "amx_gflops": 0, "ping_pong_ns": 0 if t == 1 else 32.0, "drift": 0.031} for t in (1, 2)]
    return {"schema": "quire.bench/1", "quire_bench": 1, "ok": False, "version": "0.1.0", "commit": "0123456789ab", "date": "2026-01-20T10:00:00Z", "seconds_per_result": 2,
            "machine": {"cpu": "AMD EPYC 9R14", "features": "avx512bf16", "cores": 2, "l1_bytes": 32768, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20, "compiler": "gcc 12.2.0"},
            "ceilings": ceilings, "cases": cases}


def hostile_bench(_):
    attack = "</script><img src=x onerror=alert(1)><b>\u202e"
    result = {"kernel": attack, "status": attack, "reason": attack, "plan": [attack], "threads": attack, "seconds": attack, "gflops": -1, "floor": None, "of_floor": "1e9"}
    timed = {"threads": 1, "seconds": {"median": 1e-300, "low": -1, "high": None}, "gflops": 1e300, "status": "ok"}
    return {"quire_bench": 1, "machine": {"cpu": attack, "l3_bytes": attack}, "commit": attack, "ceilings": [attack, {"threads": 1, "reads": [{"stream_gbs": 1e-300}, attack]}, None],
            "cases": [attack, 7, None, {"line": attack, "flops": 1e300, "kv_bytes": -1, "rotation": attack, "results": [attack, result, timed, {**timed, "threads": 2}]}]}


def hostile(_):
    attack = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1><!--<script>\u2028' \" & javascript:window.pwned=1"
    c = {"matrix": attack, "name": attack, "line": attack, "status": "fail", "kernel": attack, "reason": attack, "seconds": "1e999", "reduced_line": attack,
         "checks": [{"check": attack, "state": attack, "worst_ratio": attack, "text": attack}, attack, None], "pictures": attack}
    return {"quire_verify": 1, "version": attack, "target": attack, "device": attack, "verdict": attack, "date": [attack], "explain": attack, "cases": [c, attack, 7, None],
            "matrices": [{"name": attack, "cases": "x"}], "__proto__": {"polluted": True},
            "power": {"killed": 1, "total": 2, "survivors": [attack], "mutants": [{"id": attack, "family": attack, "text": attack, "killed": False, "check": attack, "line": attack}]},
            "peer": [{"line": attack, "atol": None, "mutants": attack}, attack]}


def hostile_diagnosis(_):
    attack = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
    s = {"mechanism": attack, "fault": attack, "text": attack, "detail": attack, "scope": [attack], "explained": attack, "certain": attack, "refutation": attack, "next": attack}
    return {"quire_diagnose": 2, "file": attack, "verdict": attack, "profile": attack, "pattern": [attack, None, {"text": attack, "conditions": attack}], "observations": [attack, 7, None],
            "answers": [attack, {"scope_text": attack, "pattern": attack, "explained": 1e300, "as_good": attack}], "suspicions": [s, attack, None, {}], "laws": [attack, {"law": attack, "rows": attack}],
            "wrong": {"rows": attack, "cells": -1, "elements": 1e300, "requests": [attack, {"req": attack, "rows": [attack], "heads": [3, attack]}]}, "complete": attack, "compared_rows": attack,
            "pictures": {"error": {"request_head": {"requests": [attack, {}], "heads": [attack, [0, attack]], "worst": attack, "wrong": [[attack]]}, "row_dim": {"rows": [{}], "ratio": [[attack, 3, 0.5]], "lse": attack}}},
            "reduced": attack, "problem": attack, "explain": attack, "next": attack}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "samples")
    folder.mkdir(parents=True, exist_ok=True)
    for make in (verify_pass, verify_fail, diagnosis, two_causes, likely, unknown, right, bench_run, hostile, hostile_diagnosis, hostile_bench):
        text = json.dumps(make(random.Random(7)), separators=(",", ":"))
        (folder / f"{make.__name__}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
