#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the compiled AMD kernels in an ISA emulator over the hazard matrix, against the fp64 reference.

usage: run.py --library LIBRARY --target TARGET|all [--whole] [--out FILE] [--commit TEXT]
       run.py --library LIBRARY --target TARGET --power    plant faults in copies of the kernels: each must be found

LIBRARY is libquire_amd_emulator.so of the build. TINYGRAD names a checkout of tinygrad (docs/kernels/amd_emulated.md); without
one nothing is executed and the exit status is 77. One process runs one target, since its emulator starts slowly. --whole asks
every hazard in every combination of types, layouts and scales instead of in four of them. With --target all, --out also writes
the table of docs/kernels/amd_emulated.md.
"""
import argparse
import collections
import datetime
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from toolchain import ROOT, TARGETS, compiler_version, emulate, parser_of

# Kernels that no plan reaches on a target: hip_matrix leaves f16 to hip_generic where products take subnormals for zero.
NOT_PLANNED = {"gfx90a": r"quire_attend_(short|tall)_f16_"}


def coverage(session, kernel: str) -> dict:
    """Number of a kernel's instructions that some wave has executed, and the number of executions in all."""
    emulator = session.holder[kernel]
    offset = emulator.object.code[0] - emulator.object.base
    counts = [emulator.executed[(address - offset) // 4] for address, instruction in emulator.disassembly.items()
              if instruction.kernel == kernel and instruction.mnemonic not in ("s_nop", "s_code_end")]
    return {"instructions_in_code": len(counts), "of_these_executed": sum(1 for n in counts if n), "executed": sum(counts)}


def judge_attention(session, cases: int) -> dict:
    """All hazards of the kernel at hand; prints what fails."""
    from session import findings
    results = [session.judge(case) for case in range(cases)]
    for result in results:
        for finding in findings(result):
            print(f"{session.target}: {result['name']}: quire run '{result['line']}'\n  {finding}", flush=True)
    return {
        "cases": dict(collections.Counter(result["status"] for result in results)),
        "elements_compared": sum(result.get("elements", 0) for result in results if result["status"] == "pass"),
        "worst_error_of_tolerance": max(check["worst_ratio"] for result in results for check in result["checks"]),
        "not_passed": [result["line"] for result in results if result["status"] == "fail"],
    }


def judge_other(session, what: str) -> dict:
    result = session.judge_other(what)
    for finding in result["findings"]:
        print(f"{session.target}: {finding}", flush=True)
    failed = len(result["findings"])
    return {"cases": {"pass": result["cases"] - failed, "fail": failed} if failed else {"pass": result["cases"]},
            "not_passed": result["findings"]}


def run_target(args: argparse.Namespace, scratch: Path) -> dict:
    """The results of one target; prints what fails, and a line for each kernel."""
    from probes import Probes
    from session import Session
    tinygrad = Path(os.environ["TINYGRAD"])
    session = Session(args.library, tinygrad, args.target, scratch)
    probes = Probes(session.library, tinygrad, args.target, scratch)
    wrong_probes = probes.findings()
    print("".join(f"{finding}\n" for finding in wrong_probes), end="")
    judged = {kernel: judge_attention(session, len(names)) for kernel, names in session.matrices(not args.whole)}
    judged.update({what: judge_other(session, what) for what in ("append", "merge", "merge_many", "contents", "broken batches")})
    code = {kernel: coverage(session, kernel) for kernel in session.holder}
    for name, report in judged.items():
        worst = report.get("worst_error_of_tolerance")
        print(f"{args.target:8} {name}: {report['cases']}{'' if worst is None else f', worst error {worst:.3f} of its tolerance'}")
    for name, report in code.items():
        print(f"{args.target:8} {name}: {report['of_these_executed']} of {report['instructions_in_code']} instructions executed, "
              f"{report['executed']} times", flush=True)
    return {"target": args.target, "wave_instructions": sum(emulator.instructions for emulator in session.emulators),
            "judged": judged, "code": code,
            "probes": {"run": list(probes.emulator.object.kernels), "wrong": wrong_probes}}


def results_table(reports: "list[dict]") -> str:
    """Markdown: a row for each thing judged, a column for each target."""
    def cell(judged: "dict | None") -> str:
        if judged is None:
            return "-"
        cases, worst = judged["cases"], judged.get("worst_error_of_tolerance")
        asked = sum(count for status, count in cases.items() if status != "refused")
        return f"{cases.get('pass', 0)} of {asked}" + ("" if worst is None else f", {worst:.2f}")
    names = list(dict.fromkeys(name for report in reports for name in report["judged"]))
    lines = ["Cases passed, and the worst error relative to its tolerance:", "",
             "| judged | " + " | ".join(report["target"] for report in reports) + " |", "|---" * (len(reports) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(report["judged"].get(name)) for report in reports) + " |" for name in names]
    return "\n".join(lines)


def write_page(text: dict) -> None:
    """The results into docs/kernels/amd_emulated.md."""
    page = ROOT / "docs/kernels/amd_emulated.md"
    begin, end = "<!-- results: written by tests/amd_emulator/run.py -->\n", "<!-- end of results -->"
    before, rest = page.read_text().split(begin)
    executed = sum(report["wave_instructions"] for report in text["targets"])
    about = f"{text['date']}, commit {text['commit']}, {text['compiler']}; {executed / 1e9:.1f} billion instructions of waves executed. Everything:\n" \
            "`bench/results/amd-emulated.json`."
    page.write_text(before + begin + about + "\n\n" + results_table(text["targets"]) + "\n" + end + rest.split(end)[1])


def run_all(args: argparse.Namespace, scratch: Path) -> "list[dict]":
    reports = []
    for target in TARGETS:
        out = scratch / f"{target}.json"
        command = [sys.executable, __file__, "--library", args.library, "--target", target, "--out", out]
        subprocess.run(command + (["--whole"] if args.whole else []), check=False)
        if out.exists():
            reports += json.loads(out.read_text())["targets"]
    return reports


def judge(args: argparse.Namespace, scratch: Path) -> int:
    reports = run_all(args, scratch) if args.target == "all" else [run_target(args, scratch)]
    if args.out:
        text = {"statement": "compiled for and executed under emulation; never on AMD hardware", "compiler": compiler_version(),
                "emulator": "tinygrad a9069c1 with corrections (docs/kernels/amd_emulated.md)",
                "date": datetime.date.today().isoformat(), "commit": args.commit, "targets": reports}
        Path(args.out).write_text(json.dumps(text, indent=1) + "\n")
        if args.target == "all":
            write_page(text)
    expected = len(TARGETS) if args.target == "all" else 1
    complete = len(reports) == expected and all(report["wave_instructions"] > 0 for report in reports)
    failed = [line for report in reports for judged in report["judged"].values() for line in judged["not_passed"]]
    untested = {f"{name} ({report['target']})" for report in reports for name, code in report["code"].items()
                if not code["executed"] and not re.match(NOT_PLANNED.get(report["target"], "$"), name)}
    if untested:
        print(f"nothing executes {', '.join(sorted(untested))}")
    wrong_probes = [finding for report in reports for finding in report["probes"]["wrong"]]
    return 0 if complete and not failed and not untested and not wrong_probes else 1


def main() -> int:
    parser = parser_of(__doc__, [*TARGETS, "all"])
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    if args.power:
        from power import run_power
        return emulate(args.library, functools.partial(run_power, args))
    return emulate(args.library, functools.partial(judge, args))


if __name__ == "__main__":
    sys.exit(main())
