# SPDX-License-Identifier: Apache-2.0
"""Faults planted in copies of the kernels' sources, compiled and executed like them, and corrections of the emulator left out: each
must be found, and nothing without one."""
import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from corrections import NAMES
from probes import Probes
from session import Session, findings
from toolchain import ROOT

CASES = ["SplitKv", "QueryLongerThanTile", "LastPagePartial"]  # hazards whose first case is run
# RDNA3 keeps the bit under the name that the emulator knows; 16-bit registers are its own and RDNA4's.
NOT_NEEDED = {("gfx1100", "returning atomics"), ("gfx1100", "16-bit registers"), ("gfx1201", "16-bit registers")}


@dataclass
class Fault:
    kernel: str  # ending of the kernel's row in kernels()
    text: str
    file: str
    old: str
    new: str
    target: str = ""  # prefix of the targets' names


# The value read behind the query is not used: only the page behind the tensor can tell.
READ_BEHIND = '  asm volatile("" ::"v"(a.query.load(a.num_tokens, 0, 0)));\n'

FAULTS = [
    Fault("generic", "a barrier is removed", "src/backend/gpu/attend_generic.h",
          "    block_barrier();  // the tile is described\n", ""),
    Fault("generic", "a shuffle asks the wrong lane", "src/backend/gpu/runtime.h",
          "__builtin_bit_cast(std::uint32_t, value), hip::lane_index() ^ mask", "__builtin_bit_cast(std::uint32_t, value), hip::lane_index() + mask"),
    Fault("generic", "a row behind the end of the query is read", "src/backend/gpu/attend_generic.h",
          "  describe_rows(a, item, block);\n", "  describe_rows(a, item, block);\n" + READ_BEHIND),
    Fault("matrix", "a barrier is removed", "src/backend/hip/matrix/attend_tall.h",
          "      gpu::block_barrier();  // the tile is there, and the addresses of the next\n", ""),
    Fault("matrix", "two registers of a product are taken for each other", "src/backend/hip/matrix/mfma.h",
          "return 4 * group + i;", "return 4 * group + (i ^ 1);", "gfx9"),
    Fault("matrix", "the halves of the wave are taken for each other", "src/backend/hip/matrix/wmma_gfx11.h",
          "return 2 * i + group;", "return 2 * i + 1 - group;", "gfx11"),
    Fault("matrix", "a row behind the end of the query is read", "src/backend/hip/matrix/items.h",
          "    const gpu::GenericItem item = uniform_item(a, index);\n", "    const gpu::GenericItem item = uniform_item(a, index);\n" + READ_BEHIND),
]


def planted(fault: Fault, folder: Path) -> Path:
    """A copy of the sources with the fault in it, and without the code objects that it does not concern."""
    for name in ("include", "src"):
        shutil.copytree(ROOT / name, folder / name)
    for source in (folder / "src/backend/hip").glob("matrix_*.hip") if fault.kernel == "generic" else ():
        source.unlink()
    file = folder / fault.file
    source = file.read_text()
    if source.count(fault.old) != 1:
        raise SystemExit(f"{fault.file}: {source.count(fault.old)} places to plant '{fault.text}', expected 1")
    file.write_text(source.replace(fault.old, fault.new))
    return folder


def first_finding(session: Session, asked: str) -> "str | None":
    """About the kernel whose name ends so."""
    for kernel, names in session.matrices(quick=True):
        for case in (names.index(name) for name in CASES if kernel.endswith(asked)):
            for finding in findings(session.judge(case)):
                return f"{names[case]}: {finding}"
    return None


def missed_by_probes(session: Session, tinygrad: Path, scratch: Path) -> "list[str]":
    """Probes that fail, and corrections of the emulator that no probe needs."""
    missed = Probes(session.library, tinygrad, session.target, scratch).findings()
    for name in NAMES:
        found = Probes(session.library, tinygrad, session.target, scratch, without_correction=name).findings()
        print(f"{session.target} emulator without its correction of {name}: {found[0] if found else 'NOT FOUND'}", flush=True)
        if not found and (session.target, name) not in NOT_NEEDED:
            missed.append(f"no probe notices that {name} are not corrected")
    return missed


def run_power(args: argparse.Namespace, scratch: Path) -> int:
    tinygrad = Path(os.environ["TINYGRAD"])
    session = Session(args.library, tinygrad, args.target, scratch)
    missed = missed_by_probes(session, tinygrad, scratch)
    faults = [fault for fault in FAULTS if args.target.startswith(fault.target)]
    for kernel in sorted({fault.kernel for fault in faults}):
        if finding := first_finding(session, kernel):
            missed.append(f"{kernel} without a fault: {finding}")
    for number, fault in enumerate(faults):
        folder = scratch / str(number)
        folder.mkdir()
        finding = first_finding(Session(args.library, tinygrad, args.target, folder, planted(fault, folder)), fault.kernel)
        print(f"{args.target} {fault.kernel}: {fault.text}: {finding or 'NOT FOUND'}", flush=True)
        if finding is None:
            missed.append(f"{fault.kernel}: nobody notices that {fault.text}")
    print("\n".join(missed) or "every planted fault is found")
    return 1 if missed else 0
