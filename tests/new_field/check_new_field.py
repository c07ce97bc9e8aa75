#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A further optional tensor of Batch, besides its rules and kernels: at most three files say what it is.

Copies the sources, adds a tensor `tint`, and compiles every unit that the table of fields is made into: the contract, bound calls,
captures, parts of calls, the C interface, and Python's if its headers are here. Then forgets a part of the change, which must not compile.

usage: check_new_field.py [--compiler c++]

What Python makes of a row (signatures, the schema of torch) is python/tests/test_new_field.py.
"""
import argparse
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CHANGE = {  # file: (before this line, the new line)
    "src/batch/fields.inc": ("QUIRE_CACHE_TENSOR(k,", 'QUIRE_BATCH_TENSOR(tint, "tint", "tint", index, request, optional, read)'),
    "include/quire/batch.hpp": ("};\n\n/// Query rows that belong to a request", "  Tensor tint{};  ///< optional [num_reqs]; a number that no kernel reads"),
    "include/quire/quire.h": ("} quire_batch;", "  quire_tensor tint; /* optional [num_reqs]; a number that no kernel reads */"),
}
FORGOTTEN = {"src/batch/fields.inc": "src/contract/check.cpp", "include/quire/batch.hpp": "src/contract/check.cpp", "include/quire/quire.h": "src/capi/convert.cpp"}


def changed(tree: Path, files: "list[str]") -> None:
    """Copies the sources to `tree` and changes `files`."""
    for folder in ("src", "include", "python/src", "cli"):
        shutil.copytree(ROOT / folder, tree / folder)
    for file in files:
        before, line = CHANGE[file]
        text = (tree / file).read_text()
        assert text.count(before) == 1, f"{file}: {before!r} stands {text.count(before)} times"
        (tree / file).write_text(text.replace(before, f"{line}\n{before}"))


def units() -> "list[str]":
    """Every unit of the tree that includes the table."""
    headers = ("batch/fields.", '"fields.hpp"', '"types.hpp"')
    sources = [*ROOT.glob("src/**/*.cpp"), *ROOT.glob("python/src/*.cpp")]
    return sorted(str(path.relative_to(ROOT)) for path in sources if any(header in path.read_text() for header in headers))


def compiles(tree: Path, unit: str, compiler: str) -> "tuple[bool, str]":
    flags = ["-std=c++20", "-fsyntax-only", "-fvisibility=hidden", "-DFMT_HEADER_ONLY=1", "-DQUIRE_TOOLS=1", '-DQUIRE_VERSION="0"',
             "-Iinclude", "-Isrc", "-I."]  # fmt: skip
    if unit.startswith("python"):
        nanobind = Path(str(importlib.util.find_spec("nanobind").origin)).parent
        flags += ["-Ipython", f"-I{sysconfig.get_paths()['include']}", "-isystem", str(nanobind / "include")]
    done = subprocess.run([compiler, *flags, unit], cwd=tree, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default="c++")
    compiler = parser.parse_args().compiler
    assert len(CHANGE) <= 3
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        changed(Path(folder), [*CHANGE])
        has_python = importlib.util.find_spec("nanobind") is not None
        for unit in units():
            if unit.startswith("python") and not has_python:
                print(f"{unit}: left out, as {sys.executable} has no nanobind")
                continue
            ok, said = compiles(Path(folder), unit, compiler)
            print(f"{unit}: {'compiles' if ok else said}", flush=True)
            wrong += [] if ok else [unit]
    for forgotten, unit in FORGOTTEN.items():
        with tempfile.TemporaryDirectory() as folder:
            changed(Path(folder), [file for file in CHANGE if file != forgotten])
            ok, said = compiles(Path(folder), unit, compiler)
            print(f"without {forgotten}: {unit} {'compiles' if ok else 'does not compile'}", flush=True)
            wrong += [f"forgotten {forgotten}"] if ok else []
    print("\n".join(f"WRONG {one}" for one in wrong) or "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
