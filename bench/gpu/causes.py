#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What keeps a kernel of cuda_sm90 from being faster, by Nsight Compute (ncu), on the lines that targets.json marks with "ncu".

usage: causes.py --attend PATH --out DIR [--commit TEXT] [--ncu PATH] [--limit SECONDS]    -> DIR/h200-causes.json
       causes.py --self-test    what is made of ncu's answer

The first launch of attend_decode, or of attend_prefill on the lines of its table, is asked, alone and from cold caches, at the clock that the device
chooses. Shares are of what the device could do in the kernel's time; a stall is the share of the time of warps that have not ended
(of a warpgroup that multiplies as of a warp that copies and mostly waits). targets.py puts them into the pages.
"""
import argparse
import csv
import datetime
import io
import re
import subprocess
import sys
import time
from pathlib import Path

import conformance
import run_device
import targets

SECTIONS = ["SpeedOfLight", "WarpStateStats", "SchedulerStats", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis"]
SHARES = {
    "dram": ["dram__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"],
    "l2": ["lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"],
    "issue": ["smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__inst_issued.avg.pct_of_peak_sustained_active",
              "sm__instruction_throughput.avg.pct_of_peak_sustained_active"],
    "tensor": ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
               "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active",
               "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active"],
}
# The first family of names that ncu prints; one that counts the same again (warps that could not issue) is not added to it.
STALLS = [re.compile(name) for name in (r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio",
                                        r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio")]
IN_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


def number(text: str) -> float:
    return float(text.replace(",", ""))


def stalls_of(family: "re.Pattern", found: "dict[str, tuple[str, str]]") -> "dict[str, float]":
    matches = [(family.fullmatch(name), value) for name, (value, _) in found.items()]
    return {match.group(1): number(value) for match, value in matches if match and value and "not_issued" not in match.group(1)}


def read_answer(text: str) -> "dict | None":
    """Reads ncu's raw page: a row of names, one of units, one of values. None if ncu saw no kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return None
    names, units, values = list(csv.reader(io.StringIO("\n".join(lines[:3]))))
    found = {name: (value, unit) for name, value, unit in zip(names, values, units)}
    time_of, unit = found["gpu__time_duration.sum"]
    result = {"kernel": re.search(r"attend_\w+", found["Kernel Name"][0]).group(), "us": round(number(time_of) * IN_US[unit], 2)}
    for name, choices in SHARES.items():
        known = [found[choice][0] for choice in choices if choice in found]
        result[name] = round(number(known[0]), 1) if known else None
    stalls = next(filter(None, (stalls_of(family, found) for family in STALLS)), {})
    whole = sum(stalls.values())
    top = sorted(stalls.items(), key=lambda item: -item[1])[:3]
    result["stalls"] = {name: round(100 * value / whole, 1) for name, value in top} if whole else {}
    return result


def ask(args, line: str, kernel: str) -> "dict | str":
    """Returns ncu's values for the kernel on the line, or the reason why there are none."""
    command = [args.ncu, "--csv", "--page", "raw", "--kernel-name", kernel, "--launch-count", "1",
               "--clock-control", "none", "--kill", "on"]
    for section in SECTIONS:
        command += ["--section", section]
    try:
        run = subprocess.run([*command, args.attend, line], capture_output=True, text=True, check=False, timeout=40)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return read_answer(run.stdout) or (run.stderr + run.stdout)[-300:]


def self_test() -> int:
    answer = ('==PROF== x\n"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",'
              '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'
              '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"\n'
              '"","","ns","%","inst","inst"\n"0","void quire::cuda::sm90::attend_decode<A, B>(int)","12,500","77.31","1","3"\n')
    good = {"kernel": "attend_decode", "us": 12.5, "dram": 77.3, "l2": None, "issue": None, "tensor": None,
            "stalls": {"long_scoreboard": 75.0, "barrier": 25.0}}
    missed = [] if read_answer(answer) == good else [f"an answer: {read_answer(answer)}"]
    twice = answer.replace('"smsp__average_warps_issue_stalled_barrier_per', '"smsp__average_warps_issue_stalled_barrier_not_issued_per')
    missed += [] if read_answer(twice)["stalls"] == {"long_scoreboard": 100.0} else ["stalls counted twice"]
    missed += [] if read_answer("==PROF== nothing\n") is None else ["no kernel"]
    missed += [] if read_answer(answer.replace("12,500", "13,500")) != good else ["another time"]
    missed += [] if any(case.get("ncu") for case in targets.load_cases()) else ["no case is marked"]
    print("\n".join(f"not noticed: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def main() -> int:
    if "--self-test" in sys.argv:
        return self_test()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--attend", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--limit", type=float, default=600.0)
    args = parser.parse_args()
    began, results = time.monotonic(), []
    for case in targets.load_cases():
        if not case.get("ncu"):
            continue
        late = time.monotonic() - began > args.limit
        answer = "not asked: out of time" if late else ask(args, case["line"], f"attend_{case['table']}")
        results.append({"line": case["line"], **(answer if isinstance(answer, dict) else {"refused": answer})})
    report = {"device": conformance.device(), "date": datetime.date.today().isoformat(), "commit": args.commit,
              "method": "ncu, the first launch on each line, cold caches, clocks as they come", "results": results}
    run_device.save(Path(args.out, "h200-causes.json"), report)
    return 0 if all("refused" not in row for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())
