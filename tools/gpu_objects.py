# SPDX-License-Identifier: Apache-2.0
"""Readers of what GPU compilers write: ELF files, the metadata of AMD code objects, NVIDIA's fat binaries. Imported by
check_gpu_kernels.py and kernel_hashes.py. Python alone reads them: no disassembler and no ELF tool is needed.
"""
import re
import struct
from typing import NamedTuple


class Section(NamedTuple):
    name: str
    kind: int  # sh_type; NO_BITS has a size and no bytes, and is read as zeros
    address: int
    data: bytes


class Symbol(NamedTuple):
    name: str
    kind: int  # st_type: 2 is a function
    section: int
    value: int
    size: int


NO_BITS = 8
FUNCTION = 2


# --- ELF files, 64-bit and little-endian ---------------------------------------------------------------------------------------------

def text_at(data: bytes, at: int) -> str:
    return data[at:data.index(b"\0", at)].decode()


def sections(elf: bytes) -> "list[Section]":
    table, = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<HHH", elf, 58)
    raw = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = raw[of_names][4]
    return [Section(text_at(elf, names + name), kind, address, bytes(length) if kind == NO_BITS else elf[begin:begin + length])
            for name, kind, _, address, begin, length in raw]


def symbols(found: "list[Section]") -> "list[Symbol]":
    """The symbol table of a file with these sections."""
    data = {section.name: section.data for section in found}
    return [Symbol(text_at(data[".strtab"], name), info & 0xF, section, value, size)
            for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", data[".symtab"])]


def notes(elf: bytes):
    """(type, description) of every note in the program headers of an ELF file."""
    assert elf[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF file"
    table, = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for i in range(count):
        kind, _, begin, _, _, length = struct.unpack_from("<IIQQQQ", elf, table + i * size)
        at = begin
        while kind == 4 and at < begin + length:
            name_size, text_size, note_type = struct.unpack_from("<III", elf, at)
            text = at + 12 + (name_size + 3) // 4 * 4
            yield note_type, elf[text:text + text_size]
            at = text + (text_size + 3) // 4 * 4


# --- AMD: a note of type 32 holds a MessagePack map --------------------------------------------------------------------------------

def unpack(data: bytes, at: int = 0):
    """The MessagePack value at `at`, and where it ends. Only what compilers write: no floats, no extensions."""
    tag = data[at]
    if tag < 0x80:
        return tag, at + 1
    if tag >= 0xE0:
        return tag - 256, at + 1
    sized = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I",
             0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at + 1
    if tag in sized:
        number = struct.unpack_from(sized[tag], data, at + 1)[0]
        at += 1 + struct.calcsize(sized[tag])
        if 0xCC <= tag <= 0xD3:
            return number, at
        kind = "text" if 0xD9 <= tag <= 0xDB else "bytes" if tag <= 0xC6 else "list" if tag <= 0xDD else "map"
    else:
        kind = "map" if tag < 0x90 else "list" if tag < 0xA0 else "text" if tag < 0xC0 else ""
        number, at = tag & (0x1F if kind == "text" else 0x0F), at + 1
    if kind == "text":
        return data[at:at + number].decode(), at + number
    if kind == "bytes":
        return data[at:at + number], at + number
    values = []
    for _ in range(number * (2 if kind == "map" else 1)):
        value, at = unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2])) if kind == "map" else values), at


def amd_metadata(elf: bytes) -> "list[dict]":
    return [unpack(text)[0] for kind, text in notes(elf) if kind == 32]


def amd_kernels(elf: bytes) -> "list[dict]":
    return [kernel for metadata in amd_metadata(elf) for kernel in metadata["amdhsa.kernels"]]


# --- NVIDIA: cubins in a fat binary, and the attributes of their kernels ------------------------------------------------------------

def cubins(data: bytes) -> "list[bytes]":
    """The machine code in the fat binaries of an object file."""
    found = []
    for start in (m.start() for m in re.finditer(re.escape(struct.pack("<IH", 0xBA55ED50, 1)), data)):
        at, = struct.unpack_from("<H", data, start + 6)
        length, = struct.unpack_from("<Q", data, start + 8)
        at += start
        end = at + length
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            if kind == 2:
                found.append(data[at + header:at + header + size])
            at += header + size
    return found


def attributes(info: bytes):
    """(attribute, 32-bit words) of a .nv.info section; of short ones, the word."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            yield attribute, struct.unpack(f"<{value // 4}I", info[at:at + value // 4 * 4])
            at += value
        else:
            yield attribute, (value,)
