# SPDX-License-Identifier: Apache-2.0
"""./run audit: vLLM on its own attention, with a fault planted in it, watched by Quire. The report names the fault.

First the same load runs without a fault, where an alarm would be a false one. Exit status 0 only if there is none, the planted fault is
found, and the audit followed every step of both runs that their answers needed.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import time

from jobs import make_jobs
from quire_vllm.audit.report import KINDS, read_reports
from server import Answer, Server


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, help="folder with the files that vLLM loads")
    p.add_argument("--fault", default="foreign_write", help="a name of quire_vllm/audit/plant.py (default: %(default)s)")
    p.add_argument("--step", type=int, default=20, help="when it is planted (default: %(default)s)")
    p.add_argument("--budget", default="full", help="share of a step's time (default: %(default)s)")
    p.add_argument("--requests", type=int, default=6)
    p.add_argument("--max-tokens", type=int, default=48)
    p.add_argument("--backend", default="CPU_ATTN", help="the attention backend that is watched (default: vLLM's own for CPUs)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/audit"), help="logs, reports and captures (default: %(default)s)")
    return p.parse_args()


def run(a: argparse.Namespace, name: str, plant: str) -> tuple[dict, str, str]:
    """The report of one server's life, what /metrics said of alarms, and why the report proves nothing, if so."""
    folder = a.out / name
    shutil.rmtree(folder, ignore_errors=True)
    environment = {"QUIRE_AUDIT": "1", "QUIRE_AUDIT_BUDGET": a.budget, "QUIRE_AUDIT_DIR": str(folder), "QUIRE_AUDIT_PLANT": plant,
                   "QUIRE_AUDIT_CAPTURES": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}  # fmt: skip
    arguments = ["--dtype", "bfloat16", "--max-model-len", "4096", "--enforce-eager", "--attention-backend", a.backend]
    with Server(name, a.model, a.out / f"{name}.log", arguments, environment) as server:
        answers, _ = server.chat_all(make_jobs(a.requests, a.max_tokens), a.requests)
        wait_for_steps(folder, answers)
        lines = server.get("/metrics")[1].splitlines()
        metrics = [line for line in lines if line.startswith("quire_audit_alarms_total") and not line.endswith(" 0.0")]
    report = fullest_report(folder)
    return report, "; ".join(metrics), missing(report, answers)


def fullest_report(folder: pathlib.Path) -> dict:
    return max(read_reports(str(folder)), key=lambda r: r["counts"].get("steps", 0), default={"counts": {}, "alarms": []})


def wait_for_steps(folder: pathlib.Path, answers: list[Answer], seconds: float = 30.0) -> None:
    """A report is some seconds behind its steps, and a server that is stopped kills its workers."""
    end = time.monotonic() + seconds
    while too_few_steps(fullest_report(folder), answers) and time.monotonic() < end:
        time.sleep(0.5)


def missing(report: dict, answers: list[Answer]) -> str:
    """What the report lacks."""
    failures = ", ".join(f"{kind} {count} times" for kind, count in report.get("errors", {}).items())
    return too_few_steps(report, answers) or (f"the audit itself failed: {failures}" if failures else "")


def too_few_steps(report: dict, answers: list[Answer]) -> str:
    """An answer's tokens come one in a step. A server whose answers have no token has served nothing that could be looked at."""
    steps, served = report["counts"].get("steps", 0), max((answer.tokens for answer in answers), default=0)
    if not served:
        return "no answer has a token"
    return f"the report has {steps} of at least {served} steps" if steps < served else ""


def told(report: dict) -> str:
    counts = report["counts"]
    return (f"{counts.get('steps', 0)} steps, {counts.get('visits', 0)} layers, {counts.get('slots', 0)} slots and "
            f"{counts.get('elements', 0)} output elements looked at, worst error {report.get('worst_ratio', 0):.2f} of its tolerance")  # fmt: skip


def main() -> int:
    a = parse_arguments()
    print("vLLM's own attention under audit, nothing planted", flush=True)
    clean, _, lacks = run(a, "clean", "")
    print(f"  {told(clean)}\n  alarms: {len(clean['alarms'])}", flush=True)
    print(f"the same with {a.fault} planted at step {a.step}", flush=True)
    faulty, metrics, lacks_too = run(a, "planted", f"{a.fault}@{a.step}")
    print(f"  {told(faulty)}")
    planted = faulty.get("planted", "nothing")
    first = faulty["alarms"][0] if faulty["alarms"] else None
    print(f"  planted: {planted}")
    if first is None:
        print("  alarms: 0")
    else:
        print(f"  found at step {first['step']}: {first['layer'] or 'all layers'}: {KINDS[first['kind']]}: {first['text']}")
        for name in ("diagnosis", "capture"):
            if first[name]:
                print(f"  {name}: {first[name]}")
        print(f"  alarms: {sum(faulty['counts'].get(k, 0) for k in KINDS)}; /metrics: {metrics}")
    for which, what in (("clean", lacks), ("planted", lacks_too)):
        if what:
            print(f"  the {which} run proves nothing: {what}")
    return 0 if first is not None and not clean["alarms"] and clean["counts"].get("visits") and not lacks and not lacks_too else 1


if __name__ == "__main__":
    sys.exit(main())
