#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every cell of query type x K type x V type x scale form x layout, through attend() by each kernel that takes it, and append().

A cell is legal if the contract allows it, which a CPU serves. Behind the cells come some random batches with masks, latent rows and wide
head_dims, so that every kernel is launched. Batches, oracle, quantiser and worker processes are those of fuzz/gpu: one
that loses the device names its cell. On an H100 with 16 processors it takes about a minute:

    python3 bench/gpu/cells.py --backend cuda --workers 12 --json bench/results/gpu-cells.json --commit $(git rev-parse --short HEAD)

The JSON also has the hash of the machine code of every kernel in the library that ran (tools/kernel_hashes.py), so that
`tools/check_gpu_kernels.py --runs` can name the kernels that have changed since.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "QUIRE_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # NumPy reads it when it is loaded; workers are processes

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "fuzz" / "gpu"), str(ROOT / "tools")]

import batches  # noqa: E402
import elements  # noqa: E402
import workers  # noqa: E402

MASKS = frozenset(["window_right", "chunk", "prefix", "spans", "tree", "q_begin", "key_begin", "causal", "huge", "out_type"])
FORMS = ("none", "scalar", "one", "head", "token")
COLUMNS = ("cells", "lost", "wrong", "refused")
RANDOM_BATCHES = 3000
DIMS = (64, 128, 32, 96)  # head_dims of cells by turns: blocks and words of all types divide them


def legal_form(dtype: str, form: str) -> bool:
    if dtype == "fp8_ds_mla":
        return form == "none"
    return form in FORMS[:4] and not (dtype == "i8" and form == "none") or (form == "token" and dtype in elements.EIGHT_BITS)


def legal_types(query: str) -> "list[tuple[str, str]]":
    """Types of K and V under a query, or under rows that are appended (Q-M20)."""
    if query == "fp8_e4m3fn":
        return [(query, query)]
    types = (*batches.CACHE_TYPES, *(["f32"] if query == "f32" else []))
    return [*itertools.product(types, types), ("fp8_ds_mla", "fp8_ds_mla")]


@functools.lru_cache(None)
def all_cells() -> "list[dict[str, str]]":
    """Each one's op, types, form of scales and layout, and behind them the random batches. The form is V's where K has none such."""
    found = []
    for op, query in [("attend", q) for q in ("f32", "f16", "bf16", "fp8_e4m3fn")] + [("append", q) for q in ("f32", "f16", "bf16")]:
        for (k, v), form, layout in itertools.product(legal_types(query), FORMS, batches.LAYOUTS):
            narrow = k in elements.FOUR_BITS or v in elements.FOUR_BITS or k == "fp8_ds_mla"
            if (layout == "packed" and narrow) or not (legal_form(k, form) or legal_form(v, form)):
                continue
            found.append({"op": op, "query": query, "k": k, "v": v, "scales": form, "layout": layout})
    return found + [{"op": "random", "query": "any", "k": "any", "v": "any", "scales": "any", "layout": "any"}] * RANDOM_BATCHES


def sides_of(cell: "dict[str, str]", number: int) -> batches.Sides:
    k, v, query = cell["k"], cell["v"], cell["query"]
    forms = [cell["scales"] if legal_form(side, cell["scales"]) else "one" if side == "i8" else "none" for side in (k, v)]
    latent = k == "fp8_ds_mla"
    dim = DIMS[number // 3 % len(DIMS)]
    heads, kv_heads, size = (8, 1, 64) if latent else [(8, 2, 16), (6, 3, 32), (4, 1, 16)][number % 3]
    out = "bf16" if query == "fp8_e4m3fn" else query
    return batches.Sides(query, k, v, out, heads, kv_heads, 576 if latent else dim, 512 if latent else dim, size, cell["layout"], latent, *forms)


def ask(number: int, backend: str) -> "dict[str, Any]":
    import calls
    import quire
    import views

    quire.set_num_threads(1)
    cell, library = all_cells()[number], views.library(backend)
    batch = batches.make(number, MASKS, "any", sides_of(cell, number)) if cell["op"] != "random" else batches.make(number)
    result = calls.Result()
    try:
        if cell["op"] == "append":
            calls.run_append(calls.Call(batch, library), library, result, cell["query"])
        else:
            result = calls.run(batch, library, backend, append=cell["op"] == "random")
    except Exception as error:
        return {"lost": f"{type(error).__name__}: {error}", "fields": batch.fields()}
    kinds = {kind: said for kind, said in (("wrong", result.wrong), ("refused", result.refused)) if said}
    return {"kernels": result.kernels, "worst": result.worst, **kinds, "fields": batch.fields() if kinds else []}


def table(cells: "list[dict[str, str]]", totals: workers.Totals) -> "list[dict[str, Any]]":
    rows: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    for cell in cells:
        rows[cell["op"], cell["query"]]["cells"] += 1
    for kind in COLUMNS[1:]:
        for found in totals.found[kind]:
            cell = cells[found["number"]]
            rows[cell["op"], cell["query"]][kind] += 1
    return [{"op": op, "query": query, **{column: counts[column] for column in COLUMNS}} for (op, query), counts in rows.items()]


def report(cells: "list[dict[str, str]]", totals: workers.Totals, seconds: float) -> None:
    print(f"{'op':8} {'query':12}" + "".join(f"{column:>9}" for column in COLUMNS))
    for row in table(cells, totals):
        print(f"{row['op']:8} {row['query']:12}" + "".join(f"{row[column]:9}" for column in COLUMNS))
    print(f"{totals.done} of {len(cells)} asked in {seconds:.0f} s; by kernel: "
          + "  ".join(f"{name} {count}" for name, count in sorted(totals.kernels.items())))  # fmt: skip
    print(f"largest error: {totals.worst[0]:.2f} of the tolerance")
    for kind in COLUMNS[1:]:
        groups = collections.defaultdict(list)
        for found in totals.found[kind]:
            cell = cells[found["number"]]
            groups[cell["op"], cell["query"], cell["k"], cell["v"]].append(found)
        for (op, query, k, v), of_group in list(sorted(groups.items()))[:40]:
            number, said = of_group[0]["number"], of_group[0][kind]
            print(f"{kind}: {op} {query} {k}/{v}: {len(of_group)} cells, first {cells[number]['scales']} {cells[number]['layout']} (--one {number}): "
                  f"{(said if isinstance(said, str) else said[0])[:200]}")  # fmt: skip


def kernel_hashes_of_library() -> "dict[str, Any]":
    """Of every CUDA kernel in the extension that is loaded here; empty without one, or without c++filt."""
    import kernel_hashes
    import quire

    try:
        return kernel_hashes.hashes_of([Path(quire._quire.__file__)])
    except (OSError, ValueError) as error:
        print(f"no hashes of kernels: {error}")
        return {}


def report_kernels(hashes: "dict[str, Any]", totals: workers.Totals, before: "Path | None") -> None:
    """What this run says of kernels, and which of them the run of `before` had otherwise or not at all."""
    import kernel_hashes

    if not hashes:
        return
    lines, total = kernel_hashes.not_run(hashes, hashes, sorted(totals.launched) or None)
    print(f"kernels of the library that this run did not launch: {total}" if totals.launched else "launches were not noted")
    print("\n".join(lines[:60]))
    if before and before.exists() and (old := json.loads(before.read_text()).get("hashes")):
        print("changed since the run before:\n" + "\n".join(kernel_hashes.not_run(hashes, old)[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cpu", "cuda", "hip"), default="cuda")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--every", type=int, default=1, help="only each such cell")
    parser.add_argument("--without-random", action="store_true", help="the cells alone")
    parser.add_argument("--one", type=int, help="the verdict on one cell, as JSON")
    parser.add_argument("--without-profile", action="store_true", help="do not note which kernels are launched (torch.profiler does)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name in ("--seed", "--count", "--step"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cells = all_cells()
    if args.worker:
        numbers = (number for number in range(args.seed, args.seed + args.count, args.step) if number % args.every == 0)
        say_all = functools.partial(workers.say, numbers, lambda number: ask(number, args.backend))
        return workers.say_launched(say_all) if args.backend == "cuda" and not args.without_profile else say_all()
    if args.one is not None:
        print(json.dumps({"cell": cells[args.one], **ask(args.one, args.backend)}))
        return 0
    begin = time.monotonic()
    words = [sys.executable, __file__, "--backend", args.backend, "--every", str(args.every), *["--without-profile"] * args.without_profile]
    totals = workers.share_out(words, 0, len(cells) - RANDOM_BATCHES * args.without_random, args.workers)
    seconds = time.monotonic() - begin
    report(cells, totals, seconds)
    hashes = kernel_hashes_of_library()
    report_kernels(hashes, totals, args.json)
    if args.json:
        found = {"backend": args.backend, **workers.device_and_date(args.backend), "commit": args.commit, "seconds": round(seconds),
                 "asked": totals.done, "cells": table(cells, totals), "by_kernel": dict(sorted(totals.kernels.items())),
                 "largest_error_of_tolerance": round(totals.worst[0], 3),
                 "findings": {kind: [{**cells[each["number"]], **each} for each in totals.found[kind][:40]] for kind in COLUMNS[1:]},
                 "launched": sorted(totals.launched) or None, "hashes": hashes}  # fmt: skip
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if totals.bad() else 0


if __name__ == "__main__":
    sys.exit(main())
