# SPDX-License-Identifier: Apache-2.0
"""An AMD code object in host memory: segments mapped, relocations applied, kernels with their descriptors and metadata.

Layouts as in LLVM's "User Guide for AMDGPU Backend", code object V5: ELF header, kernel descriptor (64 bytes), metadata note.
"""
import ctypes
import mmap
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_gpu_kernels import amd_kernels  # noqa: E402

MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950", 0x41: "gfx1100", 0x4E: "gfx1201"}  # e_flags, EF_AMDGPU_MACH
PT_LOAD, PT_DYNAMIC = 1, 2
DT_SYMTAB, DT_RELA, DT_RELASZ = 6, 7, 8
R_AMDGPU_ABS64, R_AMDGPU_RELATIVE64 = 3, 13
SHT_DYNSYM = 11


@dataclass
class Kernel:
    name: str
    metadata: dict
    entry: int  # address in this process
    shared_bytes: int
    rsrc1: int
    rsrc2: int
    properties: int  # bits of the user SGPRs that the hardware fills
    preload: int     # kernel arguments in user SGPRs: dwords in bits 0 to 6, first dword above

    @property
    def threads(self) -> int:
        return self.metadata[".max_flat_workgroup_size"]


class CodeObject:
    """`base` is where address 0 of the file lies; `code` gives (address, bytes) of the executable segment."""

    def __init__(self, path: Path):
        elf = path.read_bytes()
        assert elf[:5] == b"\x7fELF\x02" and struct.unpack_from("<H", elf, 18)[0] == 224, f"{path} is no AMDGPU ELF file"
        self.path = path
        self.target = MACHINES[struct.unpack_from("<I", elf, 48)[0] & 0xFF]
        table, = struct.unpack_from("<Q", elf, 32)
        count, = struct.unpack_from("<H", elf, 56)
        # type, flags, offset, address, physical address, file size, memory size, alignment
        segments = [struct.unpack_from("<IIQQQQQQ", elf, table + 56 * i) for i in range(count)]
        self.memory = mmap.mmap(-1, max(s[3] + s[6] for s in segments if s[0] == PT_LOAD) + 4096)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for kind, flags, offset, address, _, size, *_ in segments:
            if kind == PT_LOAD:
                self.memory[address:address + size] = elf[offset:offset + size]
            if kind == PT_LOAD and flags & 1:
                self.code = (self.base + address, size)
        self._relocate(elf, next((s for s in segments if s[0] == PT_DYNAMIC), None))
        symbols = self._symbols(elf)
        self.kernels = {k[".name"]: self._kernel(k, symbols[k[".symbol"]]) for k in amd_kernels(elf)}

    def _relocate(self, elf: bytes, dynamic: "tuple | None") -> None:
        if dynamic is None:
            return
        entries = dict(struct.unpack_from("<Qq", elf, at) for at in range(dynamic[2], dynamic[2] + dynamic[5], 16))
        first = entries.get(DT_RELA, 0)
        for at in range(first, first + entries.get(DT_RELASZ, 0), 24):
            where, info, addend = struct.unpack_from("<QQq", self.memory, at)
            symbol, kind = info >> 32, info & 0xFFFFFFFF
            if kind == R_AMDGPU_RELATIVE64:
                value = self.base + addend
            elif kind == R_AMDGPU_ABS64:
                value = self.base + struct.unpack_from("<Q", self.memory, entries[DT_SYMTAB] + 24 * symbol + 8)[0] + addend
            else:
                raise NotImplementedError(f"{self.path}: relocation of kind {kind}")
            struct.pack_into("<Q", self.memory, where, value)

    @staticmethod
    def _symbols(elf: bytes) -> "dict[str, int]":
        table, = struct.unpack_from("<Q", elf, 40)
        count, = struct.unpack_from("<H", elf, 60)
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * i) for i in range(count)]
        found = {}
        for _, kind, _, _, offset, size, link, *_ in sections:
            for at in range(offset, offset + size if kind == SHT_DYNSYM else offset, 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                begin = sections[link][4] + name
                found[elf[begin:elf.index(b"\0", begin)].decode()] = value
        return found

    def _kernel(self, metadata: dict, descriptor: int) -> Kernel:
        shared, _, _ = struct.unpack_from("<III", self.memory, descriptor)
        entry, = struct.unpack_from("<q", self.memory, descriptor + 16)
        _, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", self.memory, descriptor + 44)
        return Kernel(metadata[".name"], metadata, self.base + descriptor + entry, shared, rsrc1, rsrc2, properties, preload)


def kernel_arguments(kernel: Kernel, argument: bytes, blocks: int) -> bytearray:
    """The segment for a kernel of one argument by value, with what the compiler reads behind it for a grid of one dimension."""
    hidden = {"hidden_block_count_x": blocks, "hidden_block_count_y": 1, "hidden_block_count_z": 1,
              "hidden_group_size_x": kernel.threads, "hidden_group_size_y": 1, "hidden_group_size_z": 1, "hidden_grid_dims": 1}
    segment = bytearray(b"\xFF" * (kernel.metadata[".kernarg_segment_size"] + 64))
    for slot in kernel.metadata[".args"]:
        offset, size, kind = slot[".offset"], slot[".size"], slot[".value_kind"]
        if kind == "by_value":
            assert size == len(argument), f"{kernel.name}: an argument of {size} bytes, given {len(argument)}"
            segment[offset:offset + size] = argument
        elif kind in hidden:
            segment[offset:offset + size] = hidden[kind].to_bytes(size, "little")
        else:
            segment[offset:offset + size] = bytes(size)
    return segment


def user_scalars(kernel: Kernel, segment: bytearray, segment_address: int) -> "list[int]":
    """The user SGPRs in the order of the descriptor's bits."""
    pair = [segment_address & 0xFFFFFFFF, segment_address >> 32]
    words: "list[int]" = []
    # Private segment buffer, dispatch packet, queue, kernel arguments, dispatch id, flat scratch, private segment size
    for bit, value in enumerate(([0] * 4, None, [0, 0], pair, [0, 0], [0, 0], [0])):
        if kernel.properties >> bit & 1:
            assert value is not None, f"{kernel.name} reads the dispatch packet, which this launch does not have"
            words += value
    count, first = kernel.preload & 0x7F, kernel.preload >> 7
    words += struct.unpack_from(f"<{count}I", segment, 4 * first)
    return words + [0] * ((kernel.rsrc2 >> 1 & 31) - len(words))
