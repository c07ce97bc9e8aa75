# SPDX-License-Identifier: Apache-2.0
"""LLVM's disassembly of a code object: an opinion independent of the emulator's decoder, and the reason to refuse
objects whose instructions the emulator is known to get wrong."""
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r"^\s+(\S+)\s*(.*?)\s*// ([0-9A-F]{12}):((?: [0-9A-F]{8})+)", re.MULTILINE)
LABEL = re.compile(r"^([0-9a-f]{16}) <(\S+)>:", re.MULTILINE)

# Pattern over "mnemonic operands" -> what is wrong with it in the emulator (docs/kernels/amd_emulated.md).
REFUSED = {
    r"_e64_dpp\b": "VOP3 with DPP ignores the lane permutation",
    r"^v_permlanex?16_b32": "v_permlane16 and v_permlanex16 in place read lanes that they have already written",
    r"^v_dot2\w* .*, -?\d[\d.]*(?: |$)": "v_dot2 with an inline constant as addend",
    r"^v_permlane(16|32)_swap": "not implemented",
    r"_dpp8\b|dpp8:|row_share:|row_newbcast:|row_xmask:": "DPP controls that are not implemented",
    r"^ds_swizzle": "not implemented",
    r"^(global|buffer)_load_lds|^ds_(read|load)_.*tr_": "not implemented",
    r"^flat_": "the emulator has no apertures: a generic pointer to shared memory would go astray",
    r"^scratch_|^buffer_(load|store)": "kernels keep nothing in scratch memory",
    r"atomic_cmpswap": "compare-and-swap loops do not end on gfx90a and gfx1201",
    r"^s_(get|set)reg": "the emulator keeps hardware registers where its inline constants lie",
    r"^v_mad_f32 .*(clamp|mul:|div:)": "modifiers that the model does not have",
    r"^v_s?mfmac?_.*(cbsz|abid|blgp|neg):|^v_s?wmma.*(neg_lo|neg_hi|op_sel|clamp)": "modifiers that the models do not have",
}


@dataclass
class Instruction:
    mnemonic: str
    operands: str
    size: int
    kernel: str

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.operands}".rstrip()


def disassembler() -> "str | None":
    return shutil.which("llvm-objdump-22")


def disassemble(path: Path) -> "dict[int, Instruction]":
    """Disassembled instructions by address in the file."""
    text = subprocess.run([disassembler(), "-d", path], capture_output=True, text=True, check=True).stdout
    found = {}
    labels = list(LABEL.finditer(text))
    for label, following in zip(labels, labels[1:] + [None]):
        body = text[label.end():following.start() if following else len(text)]
        for mnemonic, operands, address, words in LINE.findall(body):
            found[int(address, 16)] = Instruction(mnemonic, operands, 4 * len(words.split()), label.group(2))
    return found


def refusals(instructions: "dict[int, Instruction]") -> "list[str]":
    """One line for each kind of instruction that makes results worthless."""
    found = {}
    for address, instruction in instructions.items():
        for pattern, reason in REFUSED.items():
            if re.search(pattern, str(instruction)):
                found.setdefault((instruction.kernel, reason), f"{instruction.kernel}+{address:#x}: {instruction}: {reason}")
    return list(found.values())
