# SPDX-License-Identifier: Apache-2.0
"""One target in one process: the kernels compiled and loaded, the C++ side asked to judge case after case on them."""
import ctypes
import json
from ctypes import CFUNCTYPE, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

from emulator import Emulator
from toolchain import compile_kernels

LaunchKernel = CFUNCTYPE(c_int, c_char_p, c_uint32, c_void_p, c_uint64, c_uint64, c_void_p, c_uint64)
DEEP_EVERY = 8  # cases between those whose requests also run alone and in chunks


class Session:
    def __init__(self, library: str, tinygrad: Path, target: str, scratch: Path, root: "Path | None" = None):
        self.target = target
        self.library = ctypes.CDLL(library)
        for name, arguments in {"amd_matrix": [c_uint32, c_int],
                                "amd_judge": [c_uint32, c_char_p, LaunchKernel, c_uint64, c_int],
                                "amd_judge_other": [c_char_p, c_char_p, LaunchKernel, c_uint64]}.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = c_char_p, arguments
        compiled = compile_kernels(target, scratch, root) if root else compile_kernels(target, scratch)
        self.emulators = [Emulator(self.library, tinygrad, path) for path in compiled]
        self.holder = {name: emulator for emulator in self.emulators for name in emulator.object.kernels}
        self._launch = LaunchKernel(self._launch_kernel)

    def _launch_kernel(self, symbol, blocks, argument, size, seed, error, capacity) -> int:
        symbol = symbol.decode()
        if symbol not in self.holder:
            complaint = "no code object holds this kernel"
        else:
            complaint = self.holder[symbol].launch(symbol, blocks, ctypes.string_at(argument, size), seed)
        if complaint is None:
            return 0
        text = complaint.encode()[:capacity]
        ctypes.memmove(error, text, len(text))
        return 1

    def matrices(self, quick: bool):
        """The kernels one after the other: name, and names of the hazards that judge() then takes by number."""
        index = count = 0
        while index <= count:
            matrix = json.loads(self.library.amd_matrix(index, quick))
            yield matrix["kernel"], matrix["names"]
            index, count = index + 1, matrix["kernels"] - 1

    def judge(self, case: int) -> dict:
        """Every case begins with another seed; its calls take the following ones."""
        result = self.library.amd_judge(case, self.target.encode(), self._launch, 1 + 5 * case, case % DEEP_EVERY == 0)
        return json.loads(result)

    def judge_other(self, what: str) -> dict:
        """append, merge, merge_many, contents or broken batches: how many cases, and what is wrong."""
        return json.loads(self.library.amd_judge_other(what.encode(), self.target.encode(), self._launch, 7))


def findings(result: dict) -> "list[str]":
    """Findings of a judged case."""
    return [f"{check['check']}: {check['text']}" for check in result["checks"] if check["state"] == "fail"] or \
           ([result["reason"]] if result["status"] == "fail" else [])
