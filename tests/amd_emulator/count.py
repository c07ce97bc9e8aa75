#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions that hip_matrix executes for 32 keys, by kind, on layouts beside each other.

usage: count.py --library LIBRARY --target TARGET [--out FILE]

A line runs with two lengths of context in the emulator, and the difference is scaled to 32 keys: that leaves out what a call does
once. An instruction counts once for each wave that executes it. Needs TINYGRAD as run.py does; without it nothing is executed and
the exit status is 77. Prints a row for each line, and writes all rows to FILE.
"""
import argparse
import collections
import ctypes
import functools
import json
import os
import re
import sys
from pathlib import Path

from toolchain import compiler_version, emulate, parser_of

SHORT, LONG, KEYS = 256, 512, 32  # tokens of context; keys that counts are of
KINDS = {"LDS reads": r"ds_(read|load)", "LDS writes": r"ds_(write|store)", "loads from memory": r"global_load",
         "matrix products": r"v_(mfma|wmma)"}
# One KV head, so that lines of a layout do the same work. A decode row takes the short kernel, a prompt the tall one.
SHAPES = {"decode": "heads=8:1 d=128 page=16 reqs=1@{}", "prompt": "heads=8:1 d=128 page=16 reqs=64@{}"}
TYPES = {"f16": "q=f16 kv=f16", "e4m3fn": "q=f16 kv=fp8_e4m3fn"}
LAYOUTS = ["nhd", "packed"]


def executed(session, line: str) -> collections.Counter:
    """Instructions of hip_matrix's kernels in one call of the line, by kind."""
    before = {id(emulator): list(emulator.executed) for emulator in session.emulators}
    answer = json.loads(session.library.amd_attend_line(b"hip_matrix", line.encode(), session.target.encode(), session._launch))
    if not answer["ok"]:
        raise SystemExit(f"{line}: {answer['reason']}")
    counts: "collections.Counter[str]" = collections.Counter()
    for emulator in session.emulators:
        offset = emulator.object.code[0] - emulator.object.base
        for address, instruction in emulator.disassembly.items():
            if not re.match(r"quire_attend_(short|tall)", instruction.kernel):
                continue
            index = (address - offset) // 4
            count = emulator.executed[index] - before[id(emulator)][index]
            counts["all"] += count
            for kind, pattern in KINDS.items():
                counts[kind] += count if re.match(pattern, instruction.mnemonic) else 0
    return counts


def per_keys(session, text: str) -> "dict[str, float]":
    short, long = (executed(session, text.format(context)) for context in (SHORT, LONG))
    return {kind: (long[kind] - short[kind]) * KEYS / (LONG - SHORT) for kind in long}


def count(args: argparse.Namespace, scratch: Path) -> int:
    from session import LaunchKernel, Session
    session = Session(args.library, Path(os.environ["TINYGRAD"]), args.target, scratch)
    session.library.amd_attend_line.restype = ctypes.c_char_p
    session.library.amd_attend_line.argtypes = [ctypes.c_char_p] * 3 + [LaunchKernel]
    rows = []
    for shape, sizes in SHAPES.items():
        for name, types in TYPES.items():
            for layout in LAYOUTS:
                text = f"{types} {sizes} layout={layout}"
                rows.append({"target": args.target, "shape": shape, "type": name, "layout": layout, "line": text.format(LONG),
                             **per_keys(session, text)})
                print(json.dumps(rows[-1]), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps({"compiler": compiler_version(), "keys": KEYS, "rows": rows}, indent=1) + "\n",
                                  encoding="utf-8")
    return 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--out")
    args = parser.parse_args()
    return emulate(args.library, functools.partial(count, args))


if __name__ == "__main__":
    sys.exit(main())
