#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the layouts of our matrix models with AMD's Matrix Instruction Calculator, element by element.

usage: check_layouts.py --library LIBRARY

MATRIX_CALCULATOR names a checkout of github.com/ROCm/amd_matrix_instruction_calculator (v1.3.2 was used); without one nothing is
compared and the exit status is 77. The calculator does not know gfx950: entries of that target alone are listed as unchecked.
"""
import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path

ARCHITECTURES = {"gfx90a": "cdna2", "gfx942": "cdna3", "gfx1100": "rdna3", "gfx1201": "rdna4"}
SKIPPED = 77
# Stands for its one dependency, of which comma-separated output needs this much.
PROGRAM = """
import runpy, sys, types
lines = lambda table, **_: "\\n".join("\\t".join(str(cell) for cell in row) for row in table)
sys.modules["tabulate"] = types.SimpleNamespace(tabulate=lines)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def published(calculator: Path, architecture: str, mnemonic: str, matrix: str) -> "list[str]":
    """A line for each lane: its number and the elements that it holds, in the order of the registers."""
    command = [sys.executable, "-c", PROGRAM, calculator / "matrix_calculator.py", "-a", architecture, "-i", mnemonic, "-M",
               f"-{matrix}", "--csv"] + (["-w", "32"] if architecture.startswith("rdna") else [])
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if line[:1].isdigit()]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--library", required=True)
    library = ctypes.CDLL(parser.parse_args().library)
    library.amd_layout.restype = ctypes.c_char_p
    calculator = Path(os.environ.get("MATRIX_CALCULATOR", "nowhere"))
    if not (calculator / "matrix_calculator.py").is_file():
        print("skipped: MATRIX_CALCULATOR names no checkout of amd_matrix_instruction_calculator")
        return SKIPPED
    wrong = checked = 0
    for index in range(10_000):
        text = library.amd_layout(index)
        if text is None:
            break
        (names, mnemonic), *ours = [line.split(",", 1) for line in text.decode().splitlines()]
        architecture = ARCHITECTURES.get(names.split()[0])
        if architecture is None:
            print(f"{names}: {mnemonic}: unchecked")
            continue
        theirs = [line.split(",", 1) for matrix in "ABD" for line in published(calculator, architecture, mnemonic, matrix)]
        same = [a == b for a, b in zip(ours, theirs)]
        if len(ours) != len(theirs) or not all(same):
            wrong += 1
            first = same.index(False) if False in same else len(same)
            print(f"{names}: {mnemonic}: line {first}: ours {ours[first:first + 1]}, AMD's {theirs[first:first + 1]}")
        checked += 1
    print(f"{checked} layouts compared, {wrong} differ")
    return 0 if checked and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
