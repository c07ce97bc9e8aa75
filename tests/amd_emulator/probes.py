# SPDX-License-Identifier: Apache-2.0
"""The probes of probes.hip: what each must give, from the instruction set manuals and the definitions of the fp8 formats."""
import ctypes
import math
import random
import struct
from pathlib import Path

from emulator import Emulator
from toolchain import compile_amd

PROBES = Path(__file__).with_name("probes.hip")
THREADS = 64


def dpp(values: "list[int]", source) -> "list[int]":
    """Each lane plus the lane that `source` names, if any."""
    return [value + (values[source(lane)] if source(lane) is not None else 0) for lane, value in enumerate(values)]


def expected_dpp(data: bytes, wave: int) -> "list[int]":
    found = []
    for first in range(0, THREADS, wave):
        values = list(data[first:first + wave])
        row = lambda lane: lane // 16 * 16
        values = dpp(values, lambda lane: lane - 1 if lane % 16 >= 1 else None)
        values = dpp(values, lambda lane: lane - 2 if lane % 16 >= 2 else None)
        values = dpp(values, lambda lane: row(lane) + (lane - 4) % 16)
        values = dpp(values, lambda lane: row(lane) + 15 - lane % 16)
        values = dpp(values, lambda lane: lane ^ 3)
        if wave == 64:
            values = dpp(values, lambda lane: row(lane) - 1 if lane >= 16 else None)
            values = dpp(values, lambda lane: 31 if lane >= 32 else None)
        found += values
    return found


def fp8(code: int, exponent_bits: int, fnuz: bool) -> float:
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - (0 if fnuz else 1)
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    sign = -1.0 if code & 0x80 else 1.0
    if fnuz and code == 0x80:
        return math.nan
    if not fnuz and exponent_bits == 4 and code & 0x7F == 0x7F:
        return math.nan
    if not fnuz and exponent_bits == 5 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    return sign * (math.ldexp(mantissa, 1 - bias - mantissa_bits) if exponent == 0 else
                   math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits))


def same(a: float, b: float) -> bool:
    return math.isnan(a) and math.isnan(b) or a == b and math.copysign(1, a) == math.copysign(1, b)


def wrong_fp8(data: bytes, words: "list[int]", fnuz: bool) -> "str | None":
    as_float = lambda word: struct.unpack("<f", struct.pack("<I", word))[0]
    for t in range(THREADS):
        codes, got = data[4 * t:4 * t + 4], words[16 * t:16 * t + 14]
        e4m3, e5m2 = [fp8(c, 4, fnuz) for c in codes], [fp8(c, 5, fnuz) for c in codes]
        for index, expected in enumerate(e4m3 + e5m2 + e4m3[:3] + e5m2[3:]):
            if not same(as_float(got[index]), expected):
                return f"codes {codes.hex()}: value {index} is {as_float(got[index])}, expected {expected}"
        for word, values, exponent_bits in ((got[12], e4m3, 4), (got[13], e5m2, 5)):
            back = [fp8(word >> 8 * i & 0xFF, exponent_bits, fnuz) for i in range(4)]
            if not all(map(same, back, values)):
                return f"codes {codes.hex()}: encoded again they are {word.to_bytes(4, 'little').hex()}"
    return None


class Probes:
    """Runs the probes on the emulator, with all of its corrections or without one."""

    def __init__(self, library: ctypes.CDLL, tinygrad: Path, target: str, scratch: Path, without_correction: str = ""):
        compiled = scratch / f"probes.{target}.co"
        if error := compile_amd(PROBES, target, compiled):
            raise SystemExit(error)
        self.emulator = Emulator(library, tinygrad, compiled, without_correction)
        self.target = target
        self.wave = 64 if self.target.startswith("gfx9") else 32

    def _run(self, name: str, data: bytes, words: int, counter: int = 0) -> "list[int]":
        """The words that the probe wrote; the last of them begins as `counter`."""
        given, taken = ctypes.create_string_buffer(data, len(data)), (ctypes.c_uint32 * words)()
        taken[words - 1] = counter
        argument = struct.pack("<QQ", ctypes.addressof(given), ctypes.addressof(taken))
        error = self.emulator.launch(name, 1, argument, seed=3)
        if error:
            raise RuntimeError(error)
        return list(taken)

    def findings(self) -> "list[str]":
        data = random.Random(1).randbytes(4 * THREADS)
        found = []
        for name in self.emulator.object.kernels:
            try:
                wrong = getattr(self, name)(data)
            except RuntimeError as error:
                wrong = str(error)
            if wrong:
                found.append(f"{self.target} {name}: {wrong}")
        return found

    def _compared(self, name: str, data: bytes, expected: "list[int]") -> "str | None":
        got = self._run(name, data, THREADS)
        wrong = [t for t in range(THREADS) if got[t] != expected[t] & 0xFFFFFFFF]
        return f"{len(wrong)} threads are wrong, thread {wrong[0]} has {got[wrong[0]]}, expected {expected[wrong[0]]}" if wrong else None

    def probe_dpp(self, data: bytes) -> "str | None":
        return self._compared("probe_dpp", data, expected_dpp(data, self.wave))

    def probe_two_bytes(self, data: bytes) -> "str | None":
        return self._compared("probe_two_bytes", data, [data[3 * t] | data[3 * t + 1] << 8 for t in range(THREADS)])

    def probe_four_bytes(self, data: bytes) -> "str | None":
        stored = b"\0" + data[:4 * (THREADS - 1)] + b"\0\0\0"
        return self._compared("probe_four_bytes", data, list(struct.unpack(f"<{THREADS}I", stored)))

    def probe_divergent_shared(self, _: bytes) -> "str | None":
        slots = bytes(7 * t % THREADS for t in range(THREADS))
        return self._compared("probe_divergent_shared", slots, [t if t % 3 == 0 else -1 for t in range(THREADS)])

    def probe_atomic(self, data: bytes) -> "str | None":
        total = 1000
        words = self._run("probe_atomic", data, THREADS + 1, counter=total)
        order = sorted(range(THREADS), key=lambda t: words[t])
        for t in order:
            if words[t] != total:
                return f"thread {t} was given {words[t]}, expected {total}"
            total += t + 1
        return None if words[THREADS] == total else f"the counter is {words[THREADS]}, expected {total}"

    def probe_high_registers(self, data: bytes) -> "str | None":
        return self._compared("probe_high_registers", data, list(data[:THREADS]))

    def probe_multiply_add(self, data: bytes) -> "str | None":
        return self._compared("probe_multiply_add", data, [1000 - 3 * x for x in data[:THREADS]])

    def probe_overlapping_mfma(self, data: bytes) -> "str | None":
        got = self._run("probe_overlapping_mfma", data, 4 * THREADS)
        expected = [data[t] + i + 16 for t in range(THREADS) for i in range(4)]
        wrong = [at for at in range(4 * THREADS) if got[at] != expected[at]]
        return f"lane {wrong[0] // 4} has {got[wrong[0]]} in register {wrong[0] % 4}, expected {expected[wrong[0]]}" if wrong else None

    def probe_fp8(self, _: bytes) -> "str | None":
        codes = bytes(range(256))
        return wrong_fp8(codes, self._run("probe_fp8", codes, 16 * THREADS), fnuz=self.target == "gfx942")
