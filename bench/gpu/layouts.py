#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attend() on the layouts that engines have, beside nhd, on the same lines in one run.

usage: layouts.py --attend PATH --out FILE [--commit TEXT]    on a GPU: times everything, writes FILE
       layouts.py --attend PATH --before PATH --out FILE      nhd and packed alone, by two builds in turns, three times each
       layouts.py                                             asks whether the tables of docs/kernels/layouts.md and of
                                                              docs/lab/2026-11-25-packed.md are those of
                                                              bench/results/h200-layouts.json and h100-packed.json; --update
                                                              makes them so

Of each line: nhd with bounds (max_query_len, max_seq_len), packed (vLLM's layout of chunked_prefill_paged_decode), nhd and hnd as
one tensor (K and V side by side in the last dimension, vLLM since 0.26), and nhd without bounds. PATH is attend_cuda, which says
what is timed and compared. Exit 1 if an output is wrong or does not repeat.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from run_device import save
from targets import ROOT, compare_tables

PAGE, RESULTS = ROOT / "docs/kernels/layouts.md", ROOT / "bench/results/h200-layouts.json"
PACKED_PAGE, PACKED_RESULTS = ROOT / "docs/lab/2026-11-25-packed.md", ROOT / "bench/results/h100-packed.json"

NOTES = "880@430,410@956,792@818,927@865,446@326,57@1007,281@504,1004@382,539@613,1@929"
# Name, line without its layout, whether this step's rows come from `key` and `value`.
LINES = [
    ("notes MHA f16", f"q=f16 kv=f16 heads=64:64 d=128 page=32 reqs={NOTES}", True),
    ("notes MQA f16", f"q=f16 kv=f16 heads=64:1 d=128 page=32 reqs={NOTES}", True),
    ("notes MHA e4m3", f"q=f16 kv=fp8_e4m3fn heads=64:64 d=128 page=32 reqs={NOTES}", True),
    ("notes MQA e4m3", f"q=f16 kv=fp8_e4m3fn heads=64:1 d=128 page=32 reqs={NOTES}", True),
    ("decode B8 1k bf16", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023", False),
    ("decode B8 8k bf16", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@8191", False),
    ("decode B64 8k bf16", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191", False),
    ("decode B8 8k e4m3", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=8x1@8191", False),
    ("decode B64 8k e4m3", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@8191", False),
    ("decode B64 8k e4m3, page 32", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=32 reqs=64x1@8191", False),
    ("decode B64 8k bf16 d64", "q=bf16 kv=bf16 heads=32:8 d=64 page=16 reqs=64x1@8191", False),
    ("4 x 2k on 8k bf16", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=4x2048@8192", False),
    ("4 x 2k on 8k e4m3", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=4x2048@8192", False),
    ("mixed 64 @ 8k + 2k @ 6k bf16", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@4096", False),
]
# Lines of the comparison with a build before, beside those above.
PROMPTS = [
    ("4 x 2k on 8k bf16 d64", "q=bf16 kv=bf16 heads=32:8 d=64 page=16 reqs=4x2048@8192", False),
    ("4 x 2k on 8k bf16 d256", "q=bf16 kv=bf16 heads=16:4 d=256 page=16 reqs=4x2048@8192", False),
    ("4 x 2k on 8k e4m3 d256", "q=bf16 kv=fp8_e4m3fn heads=16:4 d=256 page=16 reqs=4x2048@8192", False),
    ("10 x 512 on 512 f16", "q=f16 kv=f16 heads=64:64 d=128 page=32 reqs=10x512@512", True),
    ("10 x 512 on 512 f16, all cached", "q=f16 kv=f16 heads=64:64 d=128 page=32 reqs=10x512@512", False),
]
# Column, layout, arguments of attend_cuda.
COLUMNS = [
    ("nhd", "nhd", []),
    ("packed", "packed", []),
    ("nhd, one tensor", "nhd", ["--one-tensor"]),
    ("hnd, one tensor", "hnd", ["--one-tensor"]),
    ("nhd without bounds", "nhd", ["--unbounded"]),
]


def words(lines: list, columns: list) -> "list[str]":
    found = []
    for _, line, key_value in lines:
        for _, layout, flags in columns:
            found += [*flags, *(["--key-value"] if key_value else []), f"{line} layout={layout}"]
    return found


def time_all(attend: str, commit: str, lines: list = LINES, columns: list = COLUMNS) -> dict:
    run = subprocess.run([attend, *words(lines, columns)], capture_output=True, text=True, check=False,
                         env={**os.environ, "QUIRE_COMMIT": commit})
    if run.returncode != 0:
        sys.exit(f"attend_cuda: exit {run.returncode}\n{run.stderr[-2000:]}")
    report = json.loads(run.stdout)
    names = [(name, column) for name, _, _ in lines for column, _, _ in columns]
    for row, (name, column) in zip(report["results"], names, strict=True):
        row["case"], row["column"] = name, column
    return {"commit": commit, "date": datetime.date.today().isoformat(), **report}


def time_builds(attend: str, before: str, commit: str, save_as: Path) -> dict:
    """nhd and packed by two builds in turns; each turn is kept as soon as it is there."""
    whole: dict = {}
    for turn in range(6):
        columns = COLUMNS[:2] if turn % 4 < 2 else COLUMNS[1::-1]
        report = time_all(attend if turn % 2 == 0 else before, commit, LINES + PROMPTS, columns)
        for row in report["results"]:
            row["build"], row["turn"] = "now" if turn % 2 == 0 else "before", turn
        whole = {**report, "results": whole.get("results", []) + report["results"]}
        save(save_as, whole)
    return whole


def table(report: dict) -> str:
    columns = [column for column, _, _ in COLUMNS]
    us = {(row["case"], row["column"]): row["us"] for row in report["results"]}
    lines = ["| us | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for name, _, _ in LINES:
        base = us[name, "nhd"]
        cells = [f"{base:.1f}"] + [f"{us[name, column]:.1f} ({us[name, column] / base:.2f})" for column in columns[1:]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    line = {row["case"]: row["line"] for row in report["results"]}
    lines += ["", f"{report['device']}, {report['date']}, read ceiling {report['read_tb_per_s']:.2f} TB/s. In brackets: times nhd. Lines:", ""]
    lines += [f"- {name}: `{line[name].rsplit(' layout=', 1)[0]}`" + (", this step's rows from `key` and `value`" if fresh else "")
              for name, _, fresh in LINES if not name.startswith("notes")]
    lines += [f"- notes: page 32, d 128, this step's rows from `key` and `value`, `reqs={NOTES}`"]
    return "\n".join(lines) + "\n"


def packed_table(report: dict) -> str:
    """Medians of the turns."""
    times: "dict[tuple, list[float]]" = {}
    for row in report["results"]:
        times.setdefault((row["case"], row["column"], row["build"]), []).append(row["us"])
    us = {key: statistics.median(found) for key, found in times.items()}
    lines = ["| us | nhd before | packed before | nhd | packed |", "|---|---|---|---|---|"]
    for name, _, _ in LINES + PROMPTS:
        cells = []
        for build in ("before", "now"):
            nhd, packed = us[name, "nhd", build], us[name, "packed", build]
            cells += [f"{nhd:.1f}", f"{packed:.1f} ({packed / nhd:.2f})"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", f"{report['device']}, {report['date']}, commit {report['commit']}, read ceiling {report['read_tb_per_s']:.2f} TB/s.",
              "In brackets: times nhd of the build. Lines that docs/kernels/layouts.md does not have:", ""]
    lines += [f"- {name}: `{line}`" + (", this step's rows from `key` and `value`" if fresh else "") for name, line, fresh in PROMPTS]
    return "\n".join(lines) + "\n"


def check(update: bool) -> int:
    tables = [(name, page, results, make(json.loads(results.read_text(encoding="utf-8"))))
              for name, page, results, make in (("layouts", PAGE, RESULTS, table), ("packed", PACKED_PAGE, PACKED_RESULTS, packed_table))]
    return compare_tables(tables, "bench/gpu/layouts.py", update)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--attend")
    parser.add_argument("--before")
    parser.add_argument("--out")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    if not args.attend:
        return check(args.update)
    if args.before:
        report = time_builds(args.attend, args.before, args.commit, Path(args.out))
        print(packed_table(report))
    else:
        report = time_all(args.attend, args.commit)
        save(Path(args.out), report)
        print(table(report))
    wrong = [row["case"] + ", " + row["column"] for row in report["results"] if not (row["agrees"] and row["repeats"])]
    if wrong:
        print("WRONG:", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
