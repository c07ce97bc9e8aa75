#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libquire by itself: its archive calls no function of Quire's that it does not hold, and its machine code stays within a budget.

usage: check_core.py ARCHIVE [--most BYTES]   fails at a symbol of Quire's that is undefined, and at more bytes of code
       check_core.py --self-test COMPILER     plants an archive with an undefined symbol, and one that is too large
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def output_of(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def complaints(archive: str, most: "int | None") -> "list[str]":
    symbols = [line.split(None, 2 if line[0] != " " else 1) for line in output_of("nm", "--demangle", archive).splitlines()
               if line and not line.endswith(":")]
    defined = {words[-1] for words in symbols if words[-2] != "U"}
    found = [f"undefined: {name}" for name in sorted({words[-1] for words in symbols if words[-2] == "U"} - defined)
             if re.search(r"\bquire", name)]
    size = int(output_of("size", "--totals", archive).splitlines()[-1].split()[0])
    print(f"{Path(archive).name}: {len(defined)} symbols, {size} bytes of code")
    if most is not None and size > most:
        found.append(f"{size} bytes of code, at most {most}: a decision record says what a larger libquire is for")
    return found


def self_test(compiler: str) -> "list[str]":
    source = "namespace quire { int verify(); int attend() { return verify(); } }\n"
    with tempfile.TemporaryDirectory() as scratch:
        source_file, object_file, archive = (str(Path(scratch) / name) for name in ("a.cpp", "a.o", "liba.a"))
        Path(source_file).write_text(source, encoding="utf-8")
        output_of(compiler, "-c", source_file, "-o", object_file)
        output_of("ar", "rc", archive, object_file)
        found = complaints(archive, most=1)
    wanted = ("undefined: quire::verify()", "bytes of code, at most 1")
    return [f"not reported: {words}" for words in wanted if not any(words in line for line in found)]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("archive", nargs="?")
    parser.add_argument("--most", type=int)
    parser.add_argument("--self-test", metavar="COMPILER")
    args = parser.parse_args()
    found = self_test(args.self_test) if args.self_test else complaints(args.archive, args.most)
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
