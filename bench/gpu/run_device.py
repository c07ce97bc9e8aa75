#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures on the GPU at hand: one command for every figure of docs/ that is not beside other libraries (those: peers).

usage: run_device.py MODE --out FILE [--commit TEXT] ...      run_device.py MODE --help has the rest
       run_device.py --self-test                              planted faults: nothing wrong may be timed, or pass

  times      whole calls of Hopper's kernels by attend_cuda, correctness first; --out is a folder (docs/performance)
  layouts    the layouts that engines have beside nhd (docs/kernels/layouts.md)
  prepared   layers of a prepared step, with and without bounds (docs/kernels/host_cost.md)
  append     append() in a graph (docs/kernels/layouts.md)
  cascade    shared prefixes (docs/guides/shared_prefixes.md)
  sparse     key lists (docs/guides/sparse.md)

Each writes one JSON: device, date, commit, method, and results with their problem lines. Exit 1 if an output was wrong.
These are scripts of their own, and modes as well: MODE takes their words.
"""

from __future__ import annotations

import argparse
import importlib
import json
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import timing

HERE = Path(__file__).resolve().parent
MODULES = {"times": "times", "layouts": "ways", "prepared": "ways", "append": "append", "cascade": "cascade", "sparse": "sparse"}
SCRIPTS = ("cells", "conformance", "forms", "host_cost", "huge_logits", "peers", "sanitize")
ON_TORCH = ("append", "sparse")


def run(words: list[str]) -> int:
    mode = words[0]
    if mode in SCRIPTS:
        return subprocess.run([sys.executable, str(HERE / f"{mode}.py"), *words[1:]], check=False).returncode
    if mode in ON_TORCH:
        import torch

        if not torch.cuda.is_available():
            print(f"run_device.py {mode}: torch sees no GPU here", file=sys.stderr)
            return 2
    module = importlib.import_module(MODULES[mode])
    parser = argparse.ArgumentParser(prog=f"run_device.py {mode}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--commit", default=timing.this_commit(), help="of the build that is measured; default: what git says")
    module.add_arguments(parser)
    args = parser.parse_args(words[1:])
    args.mode = mode
    if mode == "times":  # three files, each as soon as it is there
        return module.run(args)
    report, right = module.run(args)
    timing.save(args.out, report)
    print(f"{args.out}: {len(report['results'])} results, {'all outputs are right' if right else 'WRONG outputs are among them'}")
    return 0 if right else 1


FAKE = """#!/usr/bin/env python3
import json, sys
row = {"us": 7.0, "agrees": True, "repeats": True, "repeats_equal": True, "replay_agrees": True}
row.update(ROW)
lines = [word for word in sys.argv[1:] if "reqs=" in word]
print(json.dumps({"device": "d", "method": "m", "read_tb_per_s": 3.0, "results": [{**row, "line": line} for line in lines]}))
"""


def self_test() -> list[str]:
    missed = importlib.import_module("times").self_test()
    with tempfile.TemporaryDirectory() as folder:
        out, attend = Path(folder) / "out.json", Path(folder) / "attend_cuda"
        for what, mode, row, code, timed in (
            ("all is well", "layouts", "{}", 0, 70), ("all is well", "prepared", "{}", 0, 72),
            ("an output that is wrong", "layouts", "{'agrees': False}", 1, 70), ("bits that do not repeat", "prepared", "{'repeats': False}", 1, 72),
            ("a prepared layer that replays wrongly", "prepared", "{'replay_agrees': False}", 1, 0),
            ("an infinity that reaches another row", "prepared", "{'infinite_value_agrees': False}", 1, 0),
        ):  # fmt: skip
            attend.write_text(FAKE.replace("ROW", row), encoding="utf-8")
            attend.chmod(attend.stat().st_mode | stat.S_IXUSR)
            found = run([mode, "--out", str(out), "--attend", str(attend), "--commit", "c", "--rounds", "1"])
            report = json.loads(out.read_text(encoding="utf-8"))
            if (found, len(report["results"])) != (code, timed) or not {"device", "date", "commit", "method"} <= report.keys():
                missed.append(f"{mode}, {what}: exit {found} with {len(report['results'])} results")
    return missed


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        missed = self_test()
        print("\n".join(missed) or "ok")
        return 1 if missed else 0
    if not sys.argv[1:] or sys.argv[1] not in (*MODULES, *SCRIPTS):
        print(f"{__doc__}\n  {', '.join(SCRIPTS)}", file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
