#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HIP backend as a user calls it, down to the instructions: plan(), attend() and attend_status() through the library's own host code,
on the HIP runtime of tests/hip, which has the code objects that the library carries executed in the emulator.

usage: backend.py --library LIBRARY --runtime RUNTIME --target TARGET [--every N]

RUNTIME is libquire_fake_hip.so of the build, LIBRARY libquire_amd_emulator.so. Every N-th case of the quick hazard matrix is asked. Needs
TINYGRAD as run.py does; without it nothing is executed and the exit status is 77.
"""
import argparse
import collections
import ctypes
import functools
import json
import os
import sys
from pathlib import Path

from toolchain import emulate, parser_of


class LoadedObjects:
    """The code objects that the runtime was given, as it leaves them in a folder; each is ready to run when a kernel of it is asked for."""

    def __init__(self, library: ctypes.CDLL, tinygrad: Path, folder: Path):
        self.library, self.tinygrad, self.folder = library, tinygrad, folder
        self.emulators: "dict[Path, object]" = {}

    def launch(self, symbol, blocks, argument, size, seed, error, capacity) -> int:
        complaint = self._launch(symbol.decode(), blocks, ctypes.string_at(argument, size), seed)
        if complaint is None:
            return 0
        text = complaint.encode()[:capacity]
        ctypes.memmove(error, text, len(text))
        return 1

    def _launch(self, symbol: str, blocks: int, argument: bytes, seed: int) -> "str | None":
        from emulator import Emulator
        for path in sorted(self.folder.glob("*.co")):
            if path not in self.emulators:
                self.emulators[path] = Emulator(self.library, self.tinygrad, path)
            if symbol in self.emulators[path].object.kernels:
                return self.emulators[path].launch(symbol, blocks, argument, seed)
        return "no code object that was loaded holds this kernel"


def judge(args: argparse.Namespace, folder: Path) -> int:
    from session import LaunchKernel, findings
    os.environ.update(QUIRE_HIP_LIBRARY=args.runtime, QUIRE_FAKE_HIP=args.target, QUIRE_FAKE_HIP_DUMP=str(folder))
    library, runtime = ctypes.CDLL(args.library), ctypes.CDLL(args.runtime)
    for name, arguments in {"amd_matrix": [ctypes.c_uint32, ctypes.c_int], "amd_judge_backend": [ctypes.c_uint32]}.items():
        getattr(library, name).restype, getattr(library, name).argtypes = ctypes.c_char_p, arguments
    objects = LoadedObjects(library, Path(os.environ["TINYGRAD"]), folder)
    engine = LaunchKernel(objects.launch)
    runtime.fake_hip_set_engine(engine)
    failed = 0
    for kernel in range(json.loads(library.amd_matrix(0, 1))["kernels"]):
        matrix = json.loads(library.amd_matrix(kernel, 1))
        cases = range(0, len(matrix["names"]), args.every)
        statuses: "collections.Counter[str]" = collections.Counter()
        for case in cases:
            result = json.loads(library.amd_judge_backend(case))
            statuses[result["status"]] += 1
            for finding in findings(result):
                print(f"{args.target}: {result['name']}: {result.get('line')}\n  {finding}", flush=True)
        print(f"{args.target:8} {matrix['kernel']} through the backend: {dict(statuses)}", flush=True)
        failed += statuses["fail"] + (statuses["pass"] == 0)
    instructions = sum(emulator.instructions for emulator in objects.emulators.values())
    print(f"{args.target:8} {len(objects.emulators)} code objects loaded, {instructions / 1e6:.0f} million instructions of waves")
    return 1 if failed or instructions == 0 else 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    return emulate(args.library, functools.partial(judge, args))


if __name__ == "__main__":
    sys.exit(main())
