# SPDX-License-Identifier: Apache-2.0
"""Corrections of tinygrad's emulator (commit a9069c1), applied to its modules in memory; docs/kernels/amd_emulated.md lists the
faults, probes.py shows that each correction is needed and enough. An anchor that does not match exactly once is an error: the
checkout is another version."""
import functools
import importlib.util
import re
import sys
from pathlib import Path

# Name -> (file, pattern, replacement)s.
IN_SOURCE = {
    # 16-bit loads at odd addresses gave the even address's word: clang merges two byte loads into one of those.
    "odd addresses": [
        ("pcode", r"val = \(val >> \(\(\(addr.*0xFFFF\)",
         "val = ((val.cast(dtypes.uint64) | (mindex(((addr + _const(adt, 1)) >> _const(adt, 2))).cast(dtypes.uint64) << _u64(32)))"
         " >> ((addr & _const(adt, 3)).cast(dtypes.uint64) * _u64(8))).cast(dtypes.uint32) & _u32(0xFFFF)")],
    # 32-bit stores at addresses that are no multiple of 4 went to the word below: clang merges four byte stores into one of those.
    "words at odd addresses": [
        ("emu", r"if data_bits == 32: return \[idx\.store\(active\.where\(_to_u32\(val\), idx\)\)\]",
         "if data_bits == 32:\n"
         "    shift = (addr & UOp.const(3, adt)).cast(dtypes.uint64) * UOp.const(8, dtypes.uint64)\n"
         "    taken, shifted = UOp.const(0xFFFFFFFF, dtypes.uint64) << shift, _to_u32(val).cast(dtypes.uint64) << shift\n"
         "    half = lambda word, i: (word >> UOp.const(32 * i, dtypes.uint64)).cast(dtypes.uint32)\n"
         "    merged = lambda at, i: (at & (half(taken, i) ^ _c(0xFFFFFFFF))) | half(shifted, i)\n"
         "    both = active & shift.ne(UOp.const(0, dtypes.uint64))\n"
         "    above = mem.index((word_addr + UOp.const(1, adt)).valid(both))\n"
         "    return [idx.store(active.where(merged(idx, 0), idx)), above.store(both.where(merged(above, 1), above))]")],
    # Shared memory accesses of inactive lanes went to whatever address the lane's register holds.
    "inactive lanes": [
        ("emu", r"'_lds': mem, 'laneId': lane,", "'_lds': mem, '_active': _lane_active(exec_mask, lane), 'laneId': lane,"),
        ("emu", r"    idx = mem\.index\(addr >> addr_shift\)\n    return idx.*",
         "    idx = mem.index((addr >> addr_shift).valid(active))\n    return idx.store(active.where(val, idx.load()))")],
    # Atomics that return gave nothing back on CDNA, where the bit is called sc0, and on RDNA4, where it is part of th.
    "returning atomics": [
        ("emu", r"is_atomic, glc = 'ATOMIC' in op_name, _iattr\(inst, 'glc'\)",
         "is_atomic, glc = 'ATOMIC' in op_name, _iattr(inst, 'glc') or _iattr(inst, 'sc0') or _iattr(inst, 'th') & 1")],
    # 16-bit operations on v128 and above were taken for those on the upper halves of v0 and above, which is RDNA3's encoding alone.
    "16-bit registers": [
        ("emu", r"write_hi_half = bits\['d'\] == 16 and", "write_hi_half = ctx.wave_size != 64 and bits['d'] == 16 and"),
        ("emu", r"vsrc1_hi = bits\['s0'\] == 16 and", "vsrc1_hi = ctx.wave_size != 64 and bits['s0'] == 16 and"),
        ("emu", r"if bits\['s0'\] == 16:  # src0 >= 384", "if bits['s0'] == 16 and ctx.wave_size != 64:  # src0 >= 384"),
        ("emu", r"if bits\['s0'\] == 16:\n      vsrc1_hi =", "if bits['s0'] == 16 and ctx.wave_size != 64:\n      vsrc1_hi =")],
}
NAMES = [*IN_SOURCE, "DPP in place"]


def load_corrected(name: str, path: Path, corrections: "list[tuple[str, str]]"):
    """The module at `path` under `name`, with each (pattern, replacement) made once."""
    source = path.read_text()
    for pattern, replacement in corrections:
        source, count = re.subn(pattern, lambda _, text=replacement: text, source)
        if count != 1:
            raise SystemExit(f"{path}: {count} places match {pattern!r}, expected 1; this driver knows tinygrad at commit a9069c1")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, None))
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def correct_dpp(emulator) -> None:
    """DPP whose destination is its source read lanes that it had already overwritten: the permuted values are now collected
    first. row_bcast:15 and row_bcast:31 (GFX9) read lane 0 of the row instead of the last lane of the row before, or lane 31."""
    from tinygrad.dtype import AddrSpace, dtypes
    from tinygrad.uop.ops import UOp
    constant, plain_control = emulator._c, emulator._dpp16_ctrl
    row_bcast15, row_bcast31, row_mirror = 0x142, 0x143, 0x140

    def control(lane, dpp, row_mask, bank_mask, wave_size):
        if dpp not in (row_bcast15, row_bcast31):
            return plain_control(lane, dpp, row_mask, bank_mask, wave_size)
        _, enabled, _ = plain_control(lane, row_mirror, row_mask, bank_mask, wave_size)
        index = lane.cast(dtypes.int)
        if dpp == row_bcast15:
            return (index & constant(~15, dtypes.int)) - constant(1, dtypes.int), enabled, index >= constant(16, dtypes.int)
        return constant(31, dtypes.int) + (index & constant(0, dtypes.int)), enabled, index >= constant(32, dtypes.int)

    def load_source(ctx, instruction, lane, fallback):
        field = lambda name, default=0: emulator._iattr(instruction, name, default)
        masks = field("dpp"), field("row_mask", 0xF), field("bank_mask", 0xF), ctx.wave_size
        each = ctx.range()
        source, enabled, valid = control(each, *masks)
        safe = (enabled & valid).where(source, constant(0, dtypes.int))
        collected = UOp.placeholder((ctx.wave_size,), dtypes.uint32, slot=0, addrspace=AddrSpace.LOCAL)
        value = ctx.rvgpr_dyn(ctx.inst_field(type(instruction).vsrc0), safe)
        done = collected.index(each).store(value).end(each)
        permuted = collected.after(done).index(lane).load()
        _, enabled, valid = control(lane, *masks)
        return enabled.where(valid.where(permuted, UOp.const(0, fallback.dtype) if field("bc") else fallback), fallback)

    emulator._dpp16_ctrl = control
    emulator._load_dpp16_src0 = load_source


@functools.cache
def corrected_emulator(tinygrad: Path, left_out: str = ""):
    """tinygrad's emulator module, mended but for the correction named `left_out`. One for all code objects of a process: it remembers
    the instructions that it has compiled."""
    if str(tinygrad) not in sys.path:
        sys.path.insert(0, str(tinygrad))
    folder = tinygrad / "test/mockgpu/amd"
    import test.mockgpu.amd as package
    corrections = [c for name, several in IN_SOURCE.items() for c in several if name != left_out]
    chosen = lambda file: [(pattern, replacement) for in_file, pattern, replacement in corrections if in_file == file]
    package.pcode = load_corrected("test.mockgpu.amd.pcode", folder / "pcode.py", chosen("pcode"))
    emulator = load_corrected("test.mockgpu.amd.emu", folder / "emu.py", chosen("emu"))
    if left_out != "DPP in place":
        correct_dpp(emulator)
    return emulator
