#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over every C++ file of the repository that the build compiles; any finding fails.

usage: check_tidy.py BUILD_DIR [FILE...]          BUILD_DIR holds compile_commands.json; FILEs narrow the run
       check_tidy.py BUILD_DIR --since REVISION   the files that differ from a revision, and those beside a header that does
"""
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# GCC's words for what clang calls differently or does not need.
UNKNOWN_TO_CLANG = ["--extra-arg=-Wno-unknown-warning-option"]


def tracked(file: Path) -> bool:
    return file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "build") and ".venv" not in file.parts


def tidy(build: Path, file: Path) -> "tuple[Path, int, str]":
    command = ["clang-tidy-19", "--quiet", "-p", str(build), *UNKNOWN_TO_CLANG, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    findings = [line for line in done.stdout.splitlines() if line.strip()]
    return file, done.returncode, "\n".join(findings)


def changed_since(revision: str) -> "list[str]":
    """Sources that differ from the revision in the working tree; for a header, the source of the same name beside it."""
    listed = subprocess.run(["git", "diff", "--name-only", "--diff-filter=d", "-z", revision, "--", "*.cpp", "*.h", "*.hpp"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    return [str(ROOT / Path(name).with_suffix(".cpp")) for name in listed.split("\0") if name]


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    files = sorted({(Path(c["directory"]) / c["file"]).resolve() for c in commands})
    since = sys.argv[2:3] == ["--since"]
    wanted = [Path(name).resolve() for name in (changed_since(sys.argv[3]) if since else sys.argv[2:])]
    files = [f for f in files if tracked(f) and f.suffix == ".cpp" and (f in wanted or not (wanted or since))]
    if since and not files:
        print(f"clang-tidy: no source differs from {sys.argv[3]}")
        return 0
    if not files:
        print("check_tidy: no files to check", file=sys.stderr)
        return 2
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, code, text in pool.map(lambda f: tidy(build, f), files):
            if code != 0:
                failed += 1
                print(text, flush=True)
    print(f"clang-tidy: {len(files)} files, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
