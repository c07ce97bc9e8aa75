#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random valid batches through attend, plan, bind and append, beside an oracle in NumPy that does not call quire.

A seed makes its batch (batches.py). Workers are processes: one that is lost, with its CUDA context or by a signal, names its seed
(workers.py). A batch that the GPU refuses goes to the CPU as well. On an H100 with 16 processors:

    python3 fuzz/gpu/fuzz_gpu.py --backend cuda --workers 12 --count 100000 --json found.json
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "QUIRE_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # NumPy reads it when it is loaded; workers are processes

import workers

MOST_PRINTED = 20  # causes of a kind
REDUCTION_SECONDS = 60  # time for all attempts to leave out fields of one finding


def one(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The verdict on one seed, in this process."""
    import batches
    import calls
    import quire
    import views

    quire.set_num_threads(1)
    batch = batches.make(seed, args.without)
    try:
        result = calls.run(batch, views.library(args.backend), args.backend, bind=not args.without_bind)
    except Exception as error:  # the context is lost, or the fuzzer is wrong: the words tell
        return {"lost": f"{type(error).__name__}: {error}", "fields": batch.fields()}
    found: dict[str, Any] = {"kernels": result.kernels, "worst": result.worst}
    if result.wrong:
        found.update(wrong=result.wrong, fields=batch.fields())
    if result.refused:
        too = args.backend != "cpu" and calls.run(batch, views.library("cpu"), "cpu", all_kernels=False).refused
        found.update({"refused_by_cpu_too" if too else "refused": result.refused, "fields": batch.fields()})
    return found


def command(args: argparse.Namespace, without: frozenset[str]) -> list[str]:
    words = ["--without-bind"] if args.without_bind else []
    words += ["--without", ",".join(sorted(without))] if without else []
    return [sys.executable, __file__, "--backend", args.backend, *words]


def reduced(args: argparse.Namespace, found: dict[str, Any], kind: str) -> frozenset[str]:
    """Fields without which the batch still fails, each tried in a process of its own."""
    import batches

    without, begin = args.without, time.monotonic()
    for field in batches.FIELDS:
        if time.monotonic() - begin > REDUCTION_SECONDS:
            break
        run = subprocess.run([*command(args, without | {field}), "--one", "--seed", str(found["number"])], capture_output=True, text=True, check=False)
        said = json.loads(run.stdout.strip().splitlines()[-1]) if run.returncode in (0, 1) and run.stdout else {"lost": run.returncode, "fields": found["fields"]}
        if kind in said:
            without, found["fields"] = without | {field}, said["fields"]
    return without


def cause(found: dict[str, Any], kind: str) -> str:
    """Words that findings of one cause share: numbers are left out."""
    said = found[kind] if isinstance(found[kind], str) else found[kind][0]
    who, _, what = said.partition(": ")
    return f"{who}: " + re.sub(r"-?\d[\d.e+-]*", "#", what)[:200]


def report(args: argparse.Namespace, totals: workers.Totals, seconds: float) -> None:
    print(f"{args.backend}: {totals.done} batches from seed {args.seed} in {seconds:.0f} s by {args.workers} workers "
          f"({totals.done / max(seconds, 1e-9):.0f} a second)")  # fmt: skip
    print("  ".join(f"{kind} {count}" for kind, count in totals.counts().items()))
    print("batches by kernel: " + "  ".join(f"{name} {count}" for name, count in sorted(totals.kernels.items())))
    print(f"largest error: {totals.worst[0]:.2f} of the tolerance (seed {totals.worst[1]})")
    for kind, of_kind in totals.found.items():
        of_kind.sort(key=lambda each: each["number"])
        for words, count in collections.Counter(cause(each, kind) for each in of_kind).most_common(MOST_PRINTED):
            first = next(each for each in of_kind if cause(each, kind) == words)
            without = reduced(args, first, kind) if args.reduce and kind in ("lost", "wrong") else args.without
            print(f"{kind} x{count}: {words}")
            print(f"    rerun: {' '.join(['python3', *command(args, without)[1:], '--one', '--seed', str(first['number'])])}")
            print(f"    {'; '.join(first['fields'])}")


def record(args: argparse.Namespace, totals: workers.Totals, seconds: float) -> dict[str, Any]:
    return {"backend": args.backend, **workers.device_and_date(args.backend), "commit": args.commit, "seed": args.seed,
            "seconds": round(seconds), "batches": totals.done, **totals.counts(),
            "by_kernel": dict(sorted(totals.kernels.items())), "largest_error_of_tolerance": round(totals.worst[0], 3),
            "findings": {kind: found[:MOST_PRINTED] for kind, found in totals.found.items()}}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cpu", "cuda", "hip"), default="cpu")
    parser.add_argument("--count", type=int, default=0, help="batches; 0: as many as --minutes allow, or 1000")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1, help="of the first batch")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--without", type=lambda text: frozenset(text.split(",")), default=frozenset(), help="fields that no batch has, with commas between")
    parser.add_argument("--without-bind", action="store_true")
    parser.add_argument("--reduce", action="store_true", help="leave out fields of each kind of finding as long as it fails")
    parser.add_argument("--one", action="store_true", help="the verdict on --seed alone, as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return workers.say(range(args.seed, args.seed + args.count, args.step), lambda seed: one(seed, args))
    if args.one:
        found = one(args.seed, args)
        print(json.dumps(found))
        return 1 if {"lost", "wrong", "refused"} & set(found) else 0
    begin = time.monotonic()
    count = args.count or (10**9 if args.minutes else 1000)
    totals = workers.share_out(command(args, args.without), args.seed, count, args.workers, args.minutes * 60 or 1e9)
    seconds = time.monotonic() - begin
    report(args, totals, seconds)
    if args.json:
        args.json.write_text(json.dumps(record(args, totals, seconds), indent=1) + "\n", encoding="utf-8")
    return 1 if totals.bad() else 0


if __name__ == "__main__":
    sys.exit(main())
