#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of plan() and attend() on small problems, by callgrind, against counts.json: a regression in what the code does
shows on the busiest machine. More than 3 % above the golden count fails; so does 10 % below, so that the golden is renewed.

Only instructions of this program's own code count, not those of libc and libstdc++, whose variants differ between CPUs. The kernel is
cpu_avx2 everywhere (valgrind 3.19 knows no AVX-512), and tiles are those of the pretend device avx2.

usage: counts.py ATTEND_ONCE              compare (exit status 77 = skipped: no valgrind, or another compiler or other flags)
       counts.py ATTEND_ONCE --self-test  do every piece of work twice and demand that this is noticed
QUIRE_UPDATE_GOLDENS=1 writes counts.json: after a change that is meant to change the counts, run
       QUIRE_UPDATE_GOLDENS=1 tests/instructions/counts.py build/dev/tests/attend_once
look at the difference, and say in the commit what moved the counts.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent / "counts.json"
SKIPPED = 77
MOST, LEAST = 1.03, 0.90

DECODE = "q=bf16 kv=bf16 heads=8:2 d=64 page=16 reqs=4x1@500 seed=1"
PREFILL = "q=bf16 kv=bf16 heads=4:1 d=64 page=16 reqs=96@160 seed=1"
MIXED = "q=bf16 kv=fp8_e4m3fn heads=6:2 d=64 page=16 window=128 kscale=head vscale=head lse=1 reqs=40@30,3x1@200 seed=1"
MANY = "q=bf16 kv=bf16 heads=32:8 d=8 page=16 reqs=253x1@40,3x20@40 seed=1"
FOUR_BITS = "q=bf16 kv=nvfp4 heads=8:2 d=64 page=16 reqs=4x1@500 seed=1"
# name -> (function whose calls are counted, problem line)
CASES = {
    "plan of 256 requests": ("quire::plan(quire::Problem, *", MANY),
    "attend, decode": ("quire::attend(*", DECODE),
    "attend, prefill": ("quire::attend(*", PREFILL),
    "attend, mixed": ("quire::attend(*", MIXED),
    "attend, 4 bits": ("quire::attend(*", FOUR_BITS),
}


def own_instructions(profile, program):
    """Sum of the self costs in a callgrind profile that lie in the object file `program`."""
    objects, in_program, inclusive, total = {}, False, False, 0
    for line in profile.splitlines():
        if line.startswith("ob="):
            number, name = re.fullmatch(r"ob=\((\d+)\)(?: (.*))?", line).groups()
            if name is not None:
                objects[number] = name
            in_program = objects[number] == program
        elif line.startswith("cob="):  # a name of an object; the lines behind it are the callee of a call
            number, name = re.fullmatch(r"cob=\((\d+)\)(?: (.*))?", line).groups()
            if name is not None:
                objects[number] = name
        elif line.startswith("calls="):
            inclusive = True  # the next cost line is what the callee took, counted at the callee
        elif match := re.fullmatch(r"(?:[+-]?\d+|\*) (\d+)", line):
            if in_program and not inclusive:
                total += int(match[1])
            inclusive = False
    return total


def count(program, function, line, repeats):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", f"--toggle-collect={function}"]
        environment = {**os.environ, "QUIRE_CPU": "avx2", "QUIRE_NUM_THREADS": "1"}
        done = subprocess.run([*command, program, line, str(repeats)], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"counts.py: {line}: {done.stderr}")
        return own_instructions(out.read_text(), program)


def judge(name, found, expected):
    """One line of text, and whether it is good news."""
    ratio = found / expected
    verdict = "ok" if LEAST <= ratio <= MOST else "MORE" if ratio > MOST else "LESS: renew counts.json"
    return f"{name:<22} {found:>12,} instructions, golden {expected:>12,}: {100 * (ratio - 1):+.2f} %  {verdict}", verdict == "ok"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    program, self_test = str(Path(sys.argv[1]).resolve()), sys.argv[2:] == ["--self-test"]
    if shutil.which("valgrind") is None:
        skip("no valgrind here")
    build = subprocess.run([program, "--build"], check=True, capture_output=True, text=True).stdout.strip()
    found = {name: count(program, *case, repeats=2 if self_test else 1) for name, case in CASES.items()}
    if any(value == 0 for value in found.values()):
        sys.exit(f"counts.py: nothing was counted: {found}")
    if self_test:  # against the program itself, so that it says something on every compiler
        once = {name: count(program, *case, repeats=1) for name, case in CASES.items()}
        missed = [name for name in CASES if judge(name, found[name], once[name])[1] or not judge(name, once[name], once[name])[1]]
        print(f"work done twice was noticed in {len(CASES) - len(missed)} of {len(CASES)} cases")
        sys.exit(1 if missed else 0)
    if os.environ.get("QUIRE_UPDATE_GOLDENS"):
        GOLDEN.write_text(json.dumps({"build": build, "instructions": found}, indent=2) + "\n")
        return
    golden = json.loads(GOLDEN.read_text())
    if golden["build"] != build:
        skip(f"counts.json is for {golden['build']!r}, this is {build!r}")
    lines = [judge(name, found[name], golden["instructions"].get(name, 1)) for name in CASES]
    print("\n".join(text for text, _ in lines))
    sys.exit(0 if all(good for _, good in lines) else 1)


if __name__ == "__main__":
    main()
