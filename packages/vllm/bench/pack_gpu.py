# SPDX-License-Identifier: Apache-2.0
"""pack_gpu.py SITE OUT.tar.xz: what gpu.py needs on a machine that has torch and a Hopper GPU, and no network, as one small archive.

SITE is a folder that ``pip install --target SITE --no-deps`` has filled with a vllm wheel (0.26 to 0.33; its release notes name the torch), the
packages that vLLM needs beside torch and transformers, quire with CUDA, and packages/vllm. There: unpack the archive, put its folder on
PYTHONPATH, and run gpu.py.

Left out: headers, libraries that no task of gpu.py loads, and machine code for other GPUs and for other head sizes than gpu.py's model has.
The code that is left out becomes zeros in place, so that every library keeps its layout.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import re
import struct
import tarfile
from collections.abc import Iterator

_ARCHITECTURE = 90  # of the machine code that is kept: Hopper. PTX is kept, too
_FLASH_KERNEL = re.compile(rb"EEELi128ENS_1(0bfloat16|2float_e4m3)_tEf")  # FlashAttention 3 for head_dim 128 of V, bf16 and e4m3
_OTHER_QK = b"Li192EEEEEELi128"  # ... whose K has another head_dim
_LIBRARIES = ("vllm/_C_stable_libtorch.", "vllm/vllm_flash_attn/_vllm_fa3_C.")  # of vLLM's own; the others are not loaded
_NEVER = re.compile(r"/include/|/__pycache__/|^bin/|^vllm/third_party/(deep_gemm|fmha_sm100|flashmla)/|/configs/E=|/configs/N=|swagger|^vllm/vllm-rs")
_MAGIC, _HEADER = b"\x50\xed\x55\xba", 16  # of a fatbinary (CUDA's container of machine code for several architectures)
_ELF = 2  # kind of a member that is machine code

STUBS = '''"""Packages that vLLM imports and that no task of gpu.py calls: any name in them is an empty class."""
import importlib.abc
import importlib.machinery
import sys
import types

NAMES = ("mistral_common", "openai_harmony", "xgrammar", "llguidance", "outlines_core", "tilelang")


def any_value(cls, source, handler):
    from pydantic_core import core_schema

    return core_schema.any_schema()


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__, "__get_pydantic_core_schema__": classmethod(any_value)})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in NAMES else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
'''


def members(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(offset, bytes, kind, architecture) of the code of each member of each fatbinary in a library."""
    at = data.find(_MAGIC)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        if (version, header) != (1, _HEADER):
            at = data.find(_MAGIC, at + 4)
            continue
        inner, end = at + header, at + header + size
        while inner < end:
            kind, _, skip, length = struct.unpack_from("<HHIQ", data, inner)
            (architecture,) = struct.unpack_from("<I", data, inner + 28)
            yield inner + skip, length, kind, architecture
            inner += skip + length
        at = data.find(_MAGIC, end)


def is_needed(code: bytes, kind: int, architecture: int) -> bool:
    if kind != _ELF:
        return True
    if architecture != _ARCHITECTURE:
        return False
    kernels = [name for name in re.findall(rb"\.text\.([0-9A-Za-z_]+)", code) if b"FlashAttnFwdSm90" in name]
    return not kernels or any(_FLASH_KERNEL.search(name) and _OTHER_QK not in name for name in kernels)


def stripped(data: bytes) -> bytes:
    """A library without the machine code that is not needed."""
    changed = bytearray(data)
    for at, length, kind, architecture in members(data):
        if not is_needed(data[at : at + length], kind, architecture):
            changed[at : at + length] = bytes(length)
    return bytes(changed)


def chosen(site: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site).as_posix()
        if not path.is_file() or _NEVER.search(name):
            continue
        if name.startswith("vllm/") and ".so" in path.suffixes and not name.startswith(_LIBRARIES):
            continue
        yield path


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("site", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    a = p.parse_args()
    with tarfile.open(a.out, "w:xz", preset=6) as archive:
        for path in chosen(a.site):
            name = path.relative_to(a.site).as_posix()
            data = stripped(path.read_bytes()) if name.startswith(_LIBRARIES) else path.read_bytes()
            _add(archive, name, data, path.stat().st_mode)
        _add(archive, "sitecustomize.py", STUBS.encode(), 0o644)
    print(f"{a.out}: {a.out.stat().st_size / 2**20:.1f} MiB")


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode & 0o777
    archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
