# SPDX-License-Identifier: Apache-2.0
"""Executes kernels of a code object on the run loop of machine.cpp. What an instruction does is compiled by tinygrad's emulator
from AMD's pseudocode, or is one of our own models where that is wrong; what has no effect without caches and pipelines is
skipped."""
import ctypes
import os
import re
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

from code_object import CodeObject, kernel_arguments, user_scalars
from corrections import corrected_emulator
from disassembly import disassemble, refusals

ARCHITECTURES = {"gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna", "gfx1100": "rdna3", "gfx1201": "rdna4"}
WITHOUT_EFFECT = re.compile(r"buffer_(wbl2|inv|wbinvl1_vol|gl[01]_inv)$|global_(inv|wb|wbinv)$|s_(setprio|sleep|sendmsg)$")
NEEDS_A_MODEL = re.compile(r"v_(s?mfmac?|s?wmmac?)_|v_cvt_\w*(fp8|bf8)")
CALL, CALL_AND_WAIT, SKIP = 1, 2, 3
STOPS = {1: "an instruction that nothing can execute", 2: "the program counter left the code", 3: "fault",
         4: "more instructions than the limit"}
INSTRUCTION_LIMIT = 100_000_000  # instructions of one launch; the largest case takes a tenth


class Step(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("kind", c_uint32), ("operand", c_uint32)]


Decode = ctypes.CFUNCTYPE(c_int, c_uint64)


class Launch(ctypes.Structure):
    _fields_ = [("entry", c_uint64), ("code", c_uint64), ("code_words", c_uint64), ("steps", POINTER(Step)),
                ("executed", POINTER(c_uint64)), ("user_scalars", POINTER(c_uint32)), ("num_user_scalars", c_uint32),
                ("wave_size", c_uint32), ("threads", c_uint32), ("blocks", c_uint32), ("shared_bytes", c_uint32),
                ("block_in_ttmp", c_uint32), ("flush_denormals", c_uint32), ("longest_turn", c_uint32),
                ("resident_blocks", c_uint32), ("seed", c_uint64), ("instruction_limit", c_uint64), ("decode", Decode)]


class Stop(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("block", c_uint32), ("wave", c_uint32), ("is_write", c_uint32), ("pc", c_uint64),
                ("address", c_uint64), ("instructions", c_uint64)]


def bits_of(mask_or_value: "list[int]") -> int:
    return sum(1 << i for i in mask_or_value)


class Emulator:
    """One code object, ready to run. `instructions` counts those of all waves so far."""

    def __init__(self, library: ctypes.CDLL, tinygrad: Path, path: Path, without_correction: str = ""):
        self.object = CodeObject(path)
        self.disassembly = disassemble(path)
        complaints = refusals(self.disassembly)
        if complaints:
            raise SystemExit("refused, since it cannot be emulated faithfully:\n" + "\n".join(complaints))
        os.environ.setdefault("DEV", "CPU")
        self.tinygrad = corrected_emulator(tinygrad, without_correction)
        self.library = library
        library.amd_model.restype = c_void_p
        library.amd_model.argtypes = [c_char_p, c_char_p]
        self.architecture = ARCHITECTURES[self.object.target]
        self.words = self.object.code[1] // 4
        self.steps = (Step * self.words)()
        self.executed = (c_uint64 * self.words)()
        self.instructions = 0
        self._kept = {}   # memory that the C side points into
        self._error = ""
        self._decode = Decode(self._decode_at)

    def _decode_at(self, pc: int) -> int:
        try:
            self.steps[(pc - self.object.code[0]) // 4] = self._step(pc)
            return 0
        except Exception as error:  # a callback from C has nobody above it
            self._error = f"{type(error).__name__}: {error}"
            return 1

    def _step(self, pc: int) -> Step:
        instruction = self.disassembly[pc - self.object.base]
        if WITHOUT_EFFECT.match(instruction.mnemonic):
            return Step(None, SKIP, instruction.size)
        model = self.library.amd_model(self.object.target.encode(), instruction.mnemonic.encode())
        if model:
            return Step(model, CALL, 0b111111)
        if NEEDS_A_MODEL.match(instruction.mnemonic):
            raise RuntimeError(f"{instruction}: no model of this instruction, and the emulator's own is not trusted")
        (program, runtime), decoded = self.tinygrad._decode_at(pc, self.architecture)
        if decoded.size() != instruction.size:
            raise RuntimeError(f"{instruction}: {decoded.size()} bytes here, {instruction.size} to LLVM")
        self._kept[pc] = (program, runtime)
        waits = re.match(r"s_barrier(_wait)?$", instruction.mnemonic)
        return Step(ctypes.cast(runtime.fxn, c_void_p).value, CALL_AND_WAIT if waits else CALL, bits_of(program.arg.globals))

    def launch(self, symbol: str, blocks: int, argument: bytes, seed: int) -> "str | None":
        """Runs a kernel; returns None, or the reason why it did not come to its end."""
        kernel = self.object.kernels[symbol]
        wave = kernel.metadata[".wavefront_size"]
        segment = kernel_arguments(kernel, argument, blocks)
        held = (ctypes.c_char * len(segment)).from_buffer(segment)
        scalars = user_scalars(kernel, segment, ctypes.addressof(held))
        launch = Launch(entry=kernel.entry, code=self.object.code[0], code_words=self.words, steps=self.steps,
                        executed=self.executed, user_scalars=(c_uint32 * len(scalars))(*scalars),
                        num_user_scalars=len(scalars), wave_size=wave, threads=kernel.threads, blocks=blocks,
                        shared_bytes=kernel.shared_bytes, block_in_ttmp=self.architecture == "rdna4",
                        flush_denormals=kernel.rsrc1 >> 16 & 3 == 0, longest_turn=(40, 1000, 200)[seed % 3],
                        resident_blocks=1 + seed % 4, seed=seed, instruction_limit=INSTRUCTION_LIMIT, decode=self._decode)
        stop = Stop()
        self.library.amd_run(ctypes.byref(launch), ctypes.byref(stop))
        self.instructions += stop.instructions
        if stop.kind == 0:
            return None
        at = stop.pc - self.object.base
        text = f"{STOPS[stop.kind]} at {at:#x} ({self.disassembly.get(at, 'no instruction')}), block {stop.block}, wave {stop.wave}"
        if stop.kind == 1:
            text += f": {self._error}"
        if stop.kind == 3:
            text += f": {'write' if stop.is_write else 'read'} at {stop.address:#x}"
        return text
