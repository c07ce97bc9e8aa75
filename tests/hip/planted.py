#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants faults in copies of the HIP host code, links test_hip with each, and demands that its tests fail.

usage: planted.py BUILD_FOLDER

Object files come before the library, so that a mutated one serves instead of the library's.
"""
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HIP, GPU = "src/backend/hip/", "src/backend/gpu/"
ATTEND = "HipAttend.Generic/gfx942_SplitKv:HipAttend.Generic/gfx1100_QueryLongerThanTile:HipAttend.Matrix/gfx942_SplitKv:" \
         "HipAttend.Matrix/gfx1201_QueryLongerThanTile:HipCall.*"
MOVE = "*HipMove.*"
STEP = "*HipStep.*"
REPLAY = "HipReplay.*:HipAttend.Generic/gfx942_PaddedRows"
MOST_SECONDS = 60


@dataclass
class Fault:
    text: str
    file: str
    old: str
    new: str
    asked: str = ATTEND


FAULTS = [
    Fault("blocks of too few threads", HIP + "vendor.cpp", "gpu::kScheduleThreads}", "gpu::kScheduleThreads / 2}"),
    Fault("matrix blocks of 64 lanes where a wave has 32", HIP + "matrix_launch.cpp", "return of_64_lanes ?", "return true ?"),
    Fault("a grid without blocks", HIP + "vendor.cpp", "plan.work().lists[i].num_blocks, list", "plan.work().lists[i].num_blocks * 0, list"),
    Fault("two blocks schedule", HIP + "vendor.cpp", "gpu::kScheduleThreads}, 1, list", "gpu::kScheduleThreads}, 2, list"),
    Fault("grid and block in each other's place", HIP + "vendor.cpp",
          "static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(what.threads)",
          "static_cast<unsigned>(what.threads), 1, 1, static_cast<unsigned>(blocks)"),
    Fault("a copy with its sides in each other's place", HIP + "vendor.cpp", "to, from, bytes, kind, stream); !s.ok()",
          "const_cast<void*>(from), to, bytes, kind, stream); !s.ok()"),
    Fault("nobody waits for the outcome", HIP + "vendor.cpp",
          'return call(&Api::stream_synchronize, "waiting for the stream", stream);', "return {};"),
    Fault("counters are not zeroed", GPU + "attend.cpp", ".reset_bytes / 4)", ".reset_bytes / 4 * 0)"),
    Fault("a refused call is told again and again", GPU + "attend.cpp", "left.heard = 1;", "", REPLAY),
    Fault("padding rows are not filled", HIP + "vendor.cpp", "if (!args[0].fills_rows()) return {};", "return {};", REPLAY),
    Fault("nobody validates", HIP + "vendor.cpp",
          "  if (Status s = launch(validate, gpu::validate_blocks(args[0]), args[0], stream); !s.ok()) return s;\n", "  (void)validate;\n"),
    Fault("every kernel is given the first list", HIP + "vendor.cpp", "gpu::GenericArgs list = args[i];", "gpu::GenericArgs list = args[0];"),
    Fault("partial sums where the states are", GPU + "resolve.cpp", "workspace + at.partial_acc", "workspace + at.partial_states"),
    Fault("a workspace 256 bytes further", GPU + "attend.cpp",
          "call.options, call.workspace.data(), i);", "call.options, call.workspace.data() + 256, i);"),
    Fault("another device's functions", HIP + "modules.cpp", "key{ordinal.value(), kernel}", "key{0, kernel}"),
    Fault("the device of the tensors is not made current", HIP + "vendor.cpp", '"hipSetDevice", ordinal', '"hipSetDevice", 0 * ordinal'),
    Fault("the wrong kernel for merge", HIP + "vendor.cpp", '"quire_merge", gpu::kMergeThreads', '"quire_append", gpu::kMergeThreads', MOVE),
    Fault("nobody appends codes of 4 bits", HIP + "vendor.cpp", "if (gpu::appends_four_bits(args))", "if (false)", MOVE),
    Fault("append of 4 bits leaves out the other side", HIP + "vendor.cpp", "gpu::appends_others(args) ?", "!gpu::appends_four_bits(args) ?",
          MOVE),
    Fault("the answer about contents is not cleared", HIP + "vendor.cpp",
          'call(&Api::memcpy, "check: hipMemcpy to the device", answer.value(), &outcome, sizeof outcome, kHostToDevice)', "{}", MOVE),
    Fault("a layer prepares, too", HIP + "vendor.cpp", "part != gpu::Part::layer", "true", STEP),
    Fault("nobody confirms a layer", HIP + "vendor.cpp", "list.prepared && i == 0", "false", STEP),
    Fault("every list confirms the layer", HIP + "vendor.cpp", "list.prepared && i == 0", "list.prepared", STEP),
    Fault("a preparation counts as a layer", GPU + "attend.cpp", "part == Part::call ? 1 : 0", "1", STEP),
    Fault("all permits are alike", GPU + "attend.cpp", "permit_of(lists);", "0 * permit_of(lists);", STEP),
    Fault("changed lengths are sound", GPU + "resolve.cpp", "outcome.stale != 0", "false", STEP),
    Fault("unprepared layers are sound", GPU + "resolve.cpp", "outcome.unprepared != 0", "false", STEP),
    Fault("append to the keys alone", GPU + "resolve.cpp", "a.value = rows_of(value);", "a.value = rows_of(key);", MOVE),
    Fault("a host address as device memory", HIP + "runtime.cpp",
          "if (attributes.type != quire::hip::kDeviceMemory && attributes.type != quire::hip::kManagedMemory)", "if (attributes.device < 0)",
          "HipDevices.*"),
    Fault("features are part of a device's name", HIP + "modules.cpp", "arch.substr(0, arch.find(':'))", "arch", "HipDevices.*"),
]


def command_of(build: Path, source: str) -> "list[str]":
    """Command by which the library compiles the source, without the compiler cache in front."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] == str(ROOT / source):
            words = shlex.split(entry["command"])
            return words[next(i for i, word in enumerate(words) if word.rsplit("/", 1)[-1].startswith(("c++", "g++", "clang++"))):]
    raise SystemExit(f"{source} is not compiled in {build}")


def link_command(build: Path) -> "list[str]":
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "test_hip"], capture_output=True, text=True, check=True).stdout
    line = next(line for line in reversed(lines.splitlines()) if " -o tests/test_hip " in line)
    line = line.split("&&")[1] if "&&" in line else line
    return shlex.split(line)


def run_tests(program: Path, asked: str) -> "str | None":
    """The first failure; None if the tests pass."""
    try:
        run = subprocess.run([program, f"--gtest_filter={asked}", "--gtest_brief=1"], capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"does not end within {MOST_SECONDS} s"
    if run.returncode == 0:
        return None
    lines = [line.strip() for line in run.stdout.splitlines()]
    failed = next((line[13:].split(" (")[0].split(",")[0] for line in lines if line.startswith("[  FAILED  ]")), f"ended with {run.returncode}")
    words = next((line for sign in ("call failed", "launching", "values:", "rows:", "Which is") for line in lines if sign in line), "")
    return f"{failed}: {words[:160]}" if words else failed


def judge(build: Path, fault: Fault, folder: Path) -> "str | None":
    text = (ROOT / fault.file).read_text()
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.file}: {text.count(fault.old)} places to plant '{fault.text}', expected 1")
    mutant = folder / Path(fault.file).name
    mutant.write_text(text.replace(fault.old, fault.new))
    words = command_of(build, fault.file)
    words[words.index("-c") + 1] = str(mutant)
    words[words.index("-o") + 1] = str(mutant.with_suffix(".o"))
    subprocess.run([*words, "-w"], cwd=build, check=True)
    link = link_command(build)
    program = folder / "test_hip"
    link[link.index("-o") + 1] = str(program)
    link.insert(next(i for i, word in enumerate(link) if word.endswith(".o")), str(mutant.with_suffix(".o")))
    subprocess.run(link, cwd=build, check=True)
    return run_tests(program, fault.asked)


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    missed = [f"without a fault: {words}" for asked in (ATTEND, MOVE, "HipDevices.*")
              if (words := run_tests(build / "tests/test_hip", asked))]
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            found = judge(build, fault, Path(folder))
        print(f"{fault.text}: {found or 'NOT FOUND'}", flush=True)
        if found is None:
            missed.append(f"nobody notices: {fault.text}")
    print("\n".join(missed) or "every planted fault is found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
