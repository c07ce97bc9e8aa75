#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step that is prepared once: what its layers cost beside calls that prepare themselves, with bounds and without.

usage: prepared.py --attend PATH [--base PATH] --out FILE [--commit TEXT] [--base-commit TEXT] [--rounds N] [--only NAME]
                   [--without-torch]    on a GPU: checks, times, writes FILE
       prepared.py    asks whether the tables of docs/kernels are those of bench/results/h100-prepared.json; --update makes them so

PATH is attend_cuda, of this build and of another (--base), which take turns; it says what is timed and compared. Checks come first:
layers of a prepared step, replayed with other lengths, on every kernel of CUDA, against cuda_generic; then, with torch, bound calls
and operators in graphs against the fp64 reference. Times of attend_cuda are the least of the rounds' medians. Exit 1 if an output is
wrong or does not repeat.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from run_device import save
from targets import ROOT, compare_tables

RESULTS = ROOT / "bench/results/h100-prepared.json"
HOST_COST, LAYOUTS = ROOT / "docs/kernels/host_cost.md", ROOT / "docs/kernels/layouts.md"
LAYERS = 32
COLUMNS = 2560  # of a block table for 40960 tokens in pages of 16

SHAPES = [("B1 1k", "1x1@1023"), ("B1 8k", "1x1@8191"), ("B8 1k", "8x1@1023"), ("B8 8k", "8x1@8191"), ("B64 2k", "64x1@2047"),
          ("B64 8k", "64x1@8191")]
LINES = [(f"decode {shape} {short}", f"q=bf16 kv={kv} heads=32:8 d=128 page=16 reqs={reqs}")
         for short, kv in (("bf16", "bf16"), ("e4m3", "fp8_e4m3fn")) for shape, reqs in SHAPES]
IN_PYTHON = [("B1 1k", "1x1@1023"), ("B8 1k", "8x1@1023"), ("B64 1k", "64x1@1023")]
# Name, which build, arguments of attend_cuda.
WAYS = [
    ("base", "base", []),
    ("base, no bounds", "base", ["--unbounded"]),
    ("call", "now", []),
    ("call, no bounds", "now", ["--unbounded"]),
    ("call, loose bound", "now", ["--columns", str(COLUMNS)]),
    ("prepared", "now", ["--prepared"]),
    ("prepared, no bounds", "now", ["--prepared", "--unbounded"]),
    ("prepared, loose bound", "now", ["--prepared", "--columns", str(COLUMNS)]),
]
# Kernel, arguments, line: all servers of lists, and both orders of two.
CHECKED = [
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=9x1@700,2x2@333"),
    ("", ["--unbounded"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023"),
    ("", ["--unbounded"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023,40@300"),
    ("", [], "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@2000,300@700"),
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@4096"),
    ("", [], "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=2000@1000,77@130,300@5,64@64"),
    ("", [], "q=f16 kv=fp8_e5m2 heads=8:8 d=64 page=32 reqs=9x1@3000,40@90"),
    ("", ["--invariant"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2x1@9000,40@300"),
    ("", [], "q=f16 kv=f16 heads=32:2 d=64 page=32 window=300 reqs=5x2@1000"),
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=64x1@1000,200@100"),
    ("cuda_mma", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=9x1@3000,40@90"),
    ("cuda_generic", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2x1@3000,40@90"),
]


def attend_cuda(path: str, words: "list[str]", commit: str) -> dict:
    run = subprocess.run([path, *words], capture_output=True, text=True, check=False, env={**os.environ, "QUIRE_COMMIT": commit})
    if run.returncode != 0:
        sys.exit(f"{path}: exit {run.returncode}\n{run.stderr[-2000:]}\n{run.stdout[-500:]}")
    return json.loads(run.stdout)


def check(args) -> "list[dict]":
    found = []
    for kernel in ("", "cuda_mma", "cuda_generic"):
        lines = [(flags, line) for of, flags, line in CHECKED if of == kernel]
        words = ["--check", *(["--kernel", kernel] if kernel else [])]
        for flags, line in lines:
            words += ["--prepared", *flags, line]
        found += attend_cuda(args.attend, words, args.commit)["results"]
    return found


def time_all(args, lines) -> "tuple[dict, list[dict]]":
    """The least of the rounds for each line and way; builds take turns."""
    builds = {"now": args.attend, **({"base": args.base} if args.base else {})}
    ways = [way for way in WAYS if way[1] in builds]
    rows: "dict[tuple[str, str], dict]" = {}
    head: dict = {}
    for turn in range(args.rounds):
        for build in list(builds)[:: 1 if turn % 2 else -1]:
            words, names = [], []
            words += ["--layers", str(LAYERS)] if build == "now" else []
            for name, line in lines:
                for way, of, flags in ways:
                    if of == build:
                        words += [*flags, line]
                        names.append((name, way))
            report = attend_cuda(builds[build], words, args.commit if build == "now" else args.base_commit)
            head = {key: value for key, value in report.items() if key not in ("results", "commit")}
            for key, row in zip(names, report["results"], strict=True):
                best = rows.setdefault(key, {**row, "case": key[0], "way": key[1], "build": build, "rounds": []})
                best["rounds"].append(row["us"])
                best["us"] = min(best["us"], row["us"])
                if "step_us" in row:
                    best["step_us"] = min(best["step_us"], row["step_us"])
                best["agrees"] = best["agrees"] and row["agrees"]
                best["repeats"] = best["repeats"] and row["repeats"]
    return head, list(rows.values())


# --- from Python ---

def graph_us(torch, enqueue, layers: int, repeats: int = 15) -> float:
    """Microseconds of the device for each of `layers` in a graph of enqueue(), median."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        enqueue()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        enqueue()
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:]) / layers * 1000


def host_us(torch, run, repeats: int = 15) -> float:
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times[2:]) * 1e6


def from_python(commit: str) -> "list[dict]":
    import torch

    import quire
    import quire.torch as ops
    import quire.vllm
    from host_cost import Step

    found = []
    for name, reqs in IN_PYTHON:
        step = Step(f"q=bf16 kv=bf16 heads=32:8 d=128 page=16 index=i32 reqs={reqs} seed=7")
        q, k, v, out = step.layers[0]
        plan = quire.plan(step.batch(), step.cache(), max_query_len=step.max_q, max_seq_len=step.max_k)
        call = quire.bind(step.batch(), step.cache(), plan=plan)
        named = (q, k, v, step.starts, step.lens, step.table)
        bounds = {"max_query_len": step.max_q, "max_seq_len": step.max_k}
        layers = [step.layers[i % 2] for i in range(LAYERS)]

        def unprepared():
            for a, b, c, o in layers:
                call(a, b, c, o)

        def prepared():
            call.prepare()
            for a, b, c, o in layers:
                call(a, b, c, o, prepared=True)

        def by_ops(shares):
            workspace = ops.prepare(*named, output=out, **bounds) if shares else None
            for a, b, c, o in layers:
                ops.attend(a, b, c, step.starts, step.lens, step.table, output=o, workspace=workspace, prepared=shares, **bounds)

        def unified():
            for a, b, c, o in layers:
                quire.vllm.unified_attention(a, b, c, o, step.starts, step.max_q, step.lens, step.max_k, step.scale, True, (-1, -1),
                                             step.table, 0.0, None, None, None)  # fmt: skip

        def with_plan(shares):
            batch, cache = step.batch(), step.cache()
            bound = quire.bind(batch, cache, plan=quire.plan(batch, cache, **bounds))
            if shares:
                bound.prepare()
            for a, b, c, o in layers:
                bound(a, b, c, o, prepared=shares)

        ways = {"BoundCall": unprepared, "BoundCall, prepared": prepared, "torch.ops": lambda: by_ops(False),
                "torch.ops, prepared": lambda: by_ops(True), "unified_attention": unified}  # fmt: skip
        for way, run in ways.items():
            out.fill_(float("nan"))
            us = graph_us(torch, run, LAYERS)
            wrong = step.judge()
            quire.synchronize()
            found.append({"case": f"decode {name} bf16", "way": way, "us": us, "host_us": host_us(torch, run), "wrong": wrong, "line": step.line})
        for shares in (False, True):
            found.append({"case": f"decode {name} bf16", "way": "32 layers with plan" + (", prepared" if shares else ""),
                          "host_us": host_us(torch, lambda shares=shares: with_plan(shares)), "wrong": step.judge(), "line": step.line})  # fmt: skip
        quire.synchronize()
    return found


# --- tables ---

def table_of_layers(report: dict) -> str:
    us = {(row["case"], row["way"]): row["us"] for row in report["results"]}
    steps = {(row["case"], row["way"]): row.get("step_us") for row in report["results"]}
    has_base = any(way == "base" for _, way in us)
    columns = (["base"] if has_base else []) + ["call", "prepared"]
    names = {"base": f"before ({report['base_commit']})", "call": "a call that prepares itself", "prepared": "a prepared layer"}
    lines = ["| us | " + " | ".join(names[c] for c in columns) + f" | of {LAYERS} layers, with their preparation |", "|---" * (len(columns) + 2) + "|"]
    for name, _ in LINES:
        if (name, "prepared") in us:
            lines.append(f"| {name} | " + " | ".join(f"{us[name, c]:.1f}" for c in columns) + f" | {steps[name, 'prepared']:.1f} |")
    return "\n".join(lines + ["", source(report)]) + "\n"


def table_of_bounds(report: dict) -> str:
    us = {(row["case"], row["way"]): row["us"] for row in report["results"]}
    columns = [c for c in ("base", "call", "prepared") if (LINES[0][0], c) in us]
    lines = ["| no bounds, times with bounds | " + " | ".join({"base": "before"}.get(c, c) for c in columns) + " | call, bound of 40960 | prepared, bound of 40960 |",
             "|---" * (len(columns) + 3) + "|"]  # fmt: skip
    for name, _ in LINES:
        if (name, "call") not in us:
            continue
        cells = [f"{us[name, c + ', no bounds'] / us[name, c]:.2f}" for c in columns]
        cells += [f"{us[name, c + ', loose bound'] / us[name, c]:.2f}" for c in ("call", "prepared")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines + ["", source(report)]) + "\n"


def table_of_host(report: dict) -> str:
    rows = {(row["case"], row["way"]): row for row in report["python"]}
    cases = list(dict.fromkeys(case for case, _ in rows))
    ways = list(dict.fromkeys(way for _, way in rows))
    lines = [f"| {LAYERS} layers: us of the host (of the device, a layer) | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for way in ways:
        cells = [f"{rows[case, way]['host_us']:.0f}" + (f" ({rows[case, way]['us']:.1f})" if "us" in rows[case, way] else "") for case in cases]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines + ["", source(report)]) + "\n"


def source(report: dict) -> str:
    return (f"{report['device']}, {report['date']}, commit {report['commit']}, read ceiling {report['read_tb_per_s']:.2f} TB/s,\nproblem lines "
            f"`{LINES[0][1].split(' reqs=')[0]} reqs=...`\n([{RESULTS.name}](../../bench/results/{RESULTS.name}), `bench/gpu/prepared.py`).")


def compare_pages(update: bool) -> int:
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    tables = [("prepared", HOST_COST, RESULTS, table_of_layers(report)), ("prepared-host", HOST_COST, RESULTS, table_of_host(report)),
              ("bounds", LAYOUTS, RESULTS, table_of_bounds(report))]
    return compare_tables(tables, "bench/gpu/prepared.py", update)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--attend")
    parser.add_argument("--base")
    parser.add_argument("--out")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--base-commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--without-torch", action="store_true")
    args = parser.parse_args()
    if not args.attend:
        return compare_pages(args.update)
    began = time.time()
    checked = check(args)
    wrong = [row["line"] for row in checked if not (row["repeats_equal"] and row["replay_agrees"] and row.get("infinite_value_agrees", True))]
    print(f"{time.time() - began:.0f} s: {len(checked)} prepared lines replayed with other lengths, wrong: {wrong}", flush=True)
    head, rows = time_all(args, [line for line in LINES if args.only in line[0]])
    print(f"{time.time() - began:.0f} s: timed", flush=True)
    report = {"commit": args.commit, "base_commit": args.base_commit, **head, "date": datetime.date.today().isoformat(),
              "checked": checked, "python": [], "results": rows}  # fmt: skip
    save(Path(args.out), report)
    if not args.without_torch:
        report["python"] = from_python(args.commit)
        save(Path(args.out), report)
        print(f"{time.time() - began:.0f} s: from Python", flush=True)
        print(table_of_host(report))
    print(table_of_layers(report), table_of_bounds(report), sep="\n")
    wrong += [row["case"] + ", " + row["way"] for row in rows if not (row["agrees"] and row["repeats"])]
    wrong += [row["case"] + ", " + row["way"] + ": " + row["wrong"][:300] for row in report["python"] if row["wrong"]]
    print("WRONG: " + str(wrong) if wrong else "all outputs are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
