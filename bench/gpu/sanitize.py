#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer on the kernels of cuda_sm90, and of cuda_mma on packed caches: memcheck, synccheck, initcheck and racecheck, on lines that take every kind of tile.

usage: sanitize.py --attend PATH --out FILE [--commit TEXT] [--sanitizer PATH] [--only WORD] [--jobs N]
                   writes FILE; --only: lines with this word; --jobs: so many runs at once
       sanitize.py --self-test    what is made of the tools' answers

PATH is an attend_cuda that was compiled with -lineinfo, as racecheck's reports are told apart by the functions that they name: racecheck
takes mbarriers for no order (and does not see what tensor copies and wgmma touch), so it reports pairs that they order. ORDERED says which
those are and why; exit 1 at any other report of any tool, and at an output that differs from cuda_generic's.
"""
import argparse
import collections
import concurrent.futures
import re
import subprocess
import sys
from pathlib import Path

import conformance
from timing import record, save

# Decode: narrow tiles of 16 bits and fp8, of one KV head (long merges), wide ones in slices, head_dim 256; prefill: both kernels. Packed caches: rows of values of 16, 32 and 64 tokens.
LINES = [
    ["q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2x1@1500,3x1@40"],
    ["q=bf16 kv=fp8_e4m3fn heads=8:1 d=128 page=16 reqs=3x1@3000"],
    ["q=f16 kv=f16 heads=32:2 d=64 page=32 window=300 reqs=2x2@1000"],
    ["q=bf16 kv=fp8_e5m2 heads=32:2 d=256 page=16 reqs=2x1@1000"],
    ["q=bf16 kv=bf16 heads=16:8 d=64 page=16 reqs=2x1@1500,3x1@40"],  # two KV heads a tile
    ["--key-value", "q=bf16 kv=fp8_e4m3fn heads=32:8 d=64 page=16 reqs=5x1@700"],
    ["--key-value", "q=bf16 kv=bf16 heads=16:2 d=256 page=16 reqs=2x1@900"],
    ["--key-value", "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=1x300@500,2x1@900"],
    ["q=bf16 kv=fp8_e4m3fn heads=8:2 d=128 page=16 window=200 reqs=1x300@500,2x1@900"],
    ["--key-value", "q=bf16 kv=bf16 heads=8:2 d=128 page=16 layout=packed reqs=1x300@500,2x1@900"],
    ["--key-value", "q=f16 kv=fp8_e4m3fn heads=8:2 d=128 page=32 layout=packed reqs=1x300@500,2x1@900"],
    ["q=f16 kv=f16 heads=32:2 d=64 page=64 layout=packed window=300 reqs=2x2@1000"],
    ["q=bf16 kv=fp8_e5m2 heads=16:2 d=256 page=16 layout=packed reqs=1x200@300,2x1@900"],
    # cuda_mma: prefill's tiles of both shapes, and tall ones.
    ["--kernel", "cuda_mma", "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=1x300@500,2x1@900"],
    ["--kernel", "cuda_mma", "--key-value", "q=f16 kv=fp8_e4m3fn heads=8:2 d=64 page=16 window=200 reqs=1x100@300,2x1@900"],
    ["--kernel", "cuda_mma", "q=bf16 kv=bf16 heads=24:1 d=256 page=16 reqs=2x1@900,1x2@300"],
    # cuda_mma takes packed pages that are no multiple of 16: this step's rows beside cached ones, and codes.
    ["--key-value", "q=f16 kv=f16 heads=8:2 d=128 page=24 layout=packed reqs=1x100@300,2x1@900"],
    ["q=bf16 kv=fp8_e4m3fn heads=8:2 d=64 page=8 layout=packed window=200 reqs=1x100@300,2x1@900"],
]
TOOLS = ["memcheck", "synccheck", "initcheck", "racecheck"]
# Stage (decode, prefill, or the file elsewhere) and function of the two accesses, in either order; what orders them.
ORDERED = {
    "decode: a producer warp's job, and its readers": (r"\S+ (fill_job|announce|announce_end)", r".*", "job_full, job_free"),
    "decode: results of the second warpgroup, and the first that reduces them":
        (r"\S+ (send_results|publish_sums)", r"\S+ (reduce_results|sum_of)", "found_full, found_free"),
    "prefill: a producer warp's job, and its readers": (r"\S+ start_job", r".*", "job_known, job_free"),
    "prefill: the flag of the last part, and its readers":
        (r"prefill is_last_part", r"prefill is_last_part", "bar.sync of all readers, before and after"),
    "prefill: values that no row sees, and the next tile in their place":
        (r"\S+ clear(_rows|_packed|_eights)?", r"\S+ (convert\w*|copy_uncached)", "v_free, v_full"),
    "prefill: values that no row sees, cleared by both warpgroups":
        (r"\S+ clear_eights", r"\S+ clear_eights", "no order: both write the same bits, x & mask, whatever the other has written"),
}


def function_of(access: str) -> str:
    """The innermost function's name, in `void space::Type<T<int>, (int)8>::name<X>(int, ...) const`."""
    plain = access
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    found = re.search(r"(\w+)\(", plain)
    return found.group(1) if found else plain


def place_of(access: str, line: "str | None") -> str:
    """The stage of a Hopper kernel by its namespace, or the file, and the function."""
    stage = re.search(r"\bsm90::(decode|prefill)::", access)
    return f"{stage[1] if stage else (line or '?').split(':')[0]} {function_of(access)}"


def kind_of(one: str, other: str) -> "str | None":
    for kind, (first, second, _) in ORDERED.items():
        for x, y in ((one, other), (other, one)):
            if re.fullmatch(first, x) and re.fullmatch(second, y):
                return kind
    return None


RACE = re.compile(r"Race reported between (\w+) access at (.*?)\+0x[0-9a-f]+(?: in (\S+))?\s+=========\s+and (\w+) access at "
                  r"(.*?)\+0x[0-9a-f]+(?: in (\S+))? \[(\d+) hazards?\]")
SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)s?\b")


def read_races(text: str) -> "tuple[collections.Counter, list[str]]":
    """Hazards by kind of ordered pair, and the reports that are no such pair."""
    ordered, others = collections.Counter(), []
    for report in re.split(r"========= (?=Error: |Warning: )", text)[1:]:
        race = RACE.search(report)
        kind = race and kind_of(place_of(race[2], race[3]), place_of(race[5], race[6]))
        if kind:
            ordered[kind] += int(race[7])
        elif race:
            others.append(f"{race[1]} {function_of(race[2])} {race[3]}, {race[4]} {function_of(race[5])} {race[6]}")
        else:
            others.append(" ".join(report.split())[:200])
    return ordered, others


# note_unheard() reads the seal of a workspace that no call has written yet: without the seal, the record begins anew (reset.h).
SEAL = re.compile(r"Uninitialized __global__ memory read of size \d+ bytes\s+=========\s+at \S*note_unheard\(.*?in reset\.h:\d+")


def read_answer(tool: str, text: str) -> dict:
    """Reads a tool's report; "others": messages without an explanation."""
    summary = SUMMARY.search(text)
    if summary is None:
        return {"others": ["no summary: " + text[-200:]]}
    outputs_agree = '"agrees": true' in text and '"agrees": false' not in text
    others = [] if outputs_agree else ["the output is wrong, or there is none"]
    if tool != "racecheck":
        of_seal = len(SEAL.findall(text)) if tool == "initcheck" else 0
        others += [] if int(summary[1]) == of_seal else [re.sub(r"\s*=========\s*", " ", text.replace("========= COMPUTE-SANITIZER", ""))[:600]]
        return {"reports": int(summary[1]), "others": others}
    ordered, unexplained = read_races(text)
    if int(summary[1]) != sum(1 for _ in RACE.finditer(text)):
        others.append(f"{summary[1]} reports, and not all of them read")
    return {"reports": int(summary[1]), "hazards": dict(ordered), "others": others + unexplained}


def ask(args, tool: str, line: "list[str]") -> dict:
    command = [args.sanitizer, "--tool", tool, "--print-limit", "100000"]
    command += ["--racecheck-report", "analysis"] if tool == "racecheck" else []
    try:
        run = subprocess.run([*command, args.attend, "--once", *line], capture_output=True, text=True, check=False, timeout=args.timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"others": [str(error)]}
    return read_answer(tool, run.stdout + run.stderr)


def self_test() -> int:
    agrees = '{"agrees": true}\n'
    job = ("========= Error: Race reported between Write access at sm90::decode::Producer<B<(int)8>>::announce_end(const C<(int)2> &) const+0x5f30 in "
           "producer.h:112\n=========     and Read access at void sm90::decode::Consumer<T>::fold_tiles<X>(State &) const+0x69e0 in consumer.h:80 [96 hazards]\n"
           "========= \n========= RACECHECK SUMMARY: 1 hazards displayed (1 errors, 0 warnings)\n")
    clean = agrees + "========= ERROR SUMMARY: 0 errors\n"
    explained = read_answer("racecheck", agrees + job)
    missed = []
    if explained["others"] or sum(explained["hazards"].values()) != 96:
        missed.append(f"a pair that a barrier orders: {explained}")
    one = job.replace("[96 hazards]", "[1 hazard]").replace("1 hazards displayed (1 errors", "1 hazard displayed (1 error")
    missed += [] if not read_answer("racecheck", agrees + one)["others"] else ["one hazard that a barrier orders"]
    faults = {
        "a pair that none does": agrees + job.replace("announce_end", "raise_maxima"),
        "decode's last part": agrees + job.replace("announce_end", "is_last_part").replace("fold_tiles", "is_last_part"),
        "a report of another form": agrees + job.replace("Race reported between", "Something about"),
        "a wrong output": agrees + job + '{"agrees": false}',
        "no output": job,
        "no summary": agrees,
    }
    missed += [what for what, text in faults.items() if not read_answer("racecheck", text)["others"]]
    missed += [] if not read_answer("memcheck", clean)["others"] else ["a clean answer"]
    seal = ("========= Uninitialized __global__ memory read of size 8 bytes\n=========     at quire::gpu::note_unheard(quire::gpu::CallState &)+0xe0 in "
            "reset.h:18\n")
    missed += [] if read_answer("initcheck", clean.replace(" 0 errors", " 7 errors"))["others"] else ["errors"]
    missed += [] if not read_answer("initcheck", seal + clean.replace(" 0 errors", " 1 errors"))["others"] else ["the seal of a new workspace"]
    missed += [] if read_answer("initcheck", seal + clean.replace(" 0 errors", " 2 errors"))["others"] else ["an error beside the seal"]
    missed += [] if read_answer("memcheck", seal + clean.replace(" 0 errors", " 1 errors"))["others"] else ["the seal under memcheck"]
    print("\n".join(f"not noticed: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def main() -> int:
    if "--self-test" in sys.argv:
        return self_test()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--attend", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=90, help="seconds of a run")
    args = parser.parse_args()
    asked = [(tool, line) for line in LINES if args.only in " ".join(line) for tool in TOOLS]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        answers = list(pool.map(lambda one: ask(args, *one), asked))
    results = [{"line": " ".join(line), "tool": tool, **answer} for (tool, line), answer in zip(asked, answers)]
    method, ordered = "compute-sanitizer on attend_cuda --once", {kind: by for kind, (_, _, by) in ORDERED.items()}
    save(Path(args.out), record(args.commit, conformance.device(), method, results, ordered=ordered))
    for row in results:
        print(row["tool"], row["line"], "ok" if not row["others"] else row["others"][:3])
    return 1 if any(row["others"] for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
