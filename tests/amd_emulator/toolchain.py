# SPDX-License-Identifier: Apache-2.0
"""Requirements of an emulated run beside the repository, and the compilation of kernels for it."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from check_gpu_kernels import AMD_FOLDER, AMD_TARGETS, clang, compile_amd  # noqa: E402

from disassembly import disassembler  # noqa: E402

TARGETS = list(AMD_TARGETS)
SKIPPED = 77  # exit status of a test that did nothing


def missing() -> "str | None":
    """Returns why this machine cannot emulate, or None."""
    tinygrad = os.environ.get("TINYGRAD", "")
    if not tinygrad:
        return "no emulator: TINYGRAD names no checkout of tinygrad"
    if not (Path(tinygrad) / "test/mockgpu/amd/emu.py").is_file():
        return f"no emulator: {tinygrad} is no checkout of tinygrad with test/mockgpu"
    if sys.version_info < (3, 11):
        return "no emulator: it needs Python 3.11"
    if not clang():
        return "no clang-22 with lld-22 (apt-get install clang-22 lld-22)"
    if not disassembler():
        return "no llvm-objdump-22 (apt-get install llvm-22)"
    if not shutil.which(os.environ.get("CC", "clang")):
        return "no clang, with which the emulator compiles its instructions"
    return None


def parser_of(usage: str, targets: "list[str]" = TARGETS) -> argparse.ArgumentParser:
    """The arguments of every emulated run."""
    made = argparse.ArgumentParser(usage=usage)
    made.add_argument("--library", required=True)
    made.add_argument("--target", required=True, choices=targets)
    return made


def emulate(library: str, run: "Callable[[Path], int]") -> int:
    """The exit status of run(), which gets a scratch folder; SKIPPED where this machine cannot emulate."""
    if reason := missing():
        print(f"skipped: {reason}")
        return SKIPPED
    os.environ.setdefault("CACHEDB", str(Path(library).resolve().parent / "amd_emulator_cache.db"))  # instructions, compiled
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder))


def compiler_version() -> str:
    first = subprocess.run([clang(), "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return re.sub(r" *\(.*\)", "", first)


def compile_kernels(target: str, scratch: Path, root: Path = ROOT) -> "list[Path]":
    """The code objects of src/backend/hip for one target; `root` may be a copy with a fault in it."""
    made = []
    for source in sorted((root / AMD_FOLDER.relative_to(ROOT)).glob("*.hip")):
        made.append(scratch / f"{source.stem}.{target}.co")
        if error := compile_amd(source, target, made[-1], root):
            raise SystemExit(f"{target}: {source} does not compile: {error}")
    return made
