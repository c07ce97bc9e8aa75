#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds kernels that load from, store to or branch by a register that no instruction of the kernel writes.

The address of such an access is whatever the register held before. nvcc 13.0.88 makes such code of correct sources: from bytes of one
word, read on both sides of a branch, it keeps the reads and drops the sum that their address is (append_dims.h before 28 November 2026;
ptxas then takes R0 and the stack pointer R1 for the 64 bits). Data of such registers is no fault: padding of a struct has no value.

PTX is read, as nvcc writes it for ptxas. check_gpu_kernels.py asks for the portable kernels.

usage: ptx_addresses.py FILE...   .cu, which nvcc compiles (src/backend/cuda/*/*.cu: half an hour), or .ptx
       ptx_addresses.py --self-test
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REGISTER = r"%(?:rd|rs|rq|r|fd|f|hh|h|b|p)\d+\b"
# Instructions whose first operand is read. Of all others the first operand, or each of a list, is written.
READS_ALL = ("st.", "red.", "bar.sync", "bar.warp", "bar.arrive", "barrier", "bra", "ret", "prefetch", "cp.", "mbarrier.init", "mbarrier.inval", "fence", "membar", "trap", "brx",
             "stmatrix", "discard", "nanosleep", "griddepcontrol", "wgmma.fence", "wgmma.commit", "wgmma.wait", "setmaxnreg")
HEAD = re.compile(r"^[.\w ]*\.(?:entry|func)\b[^{;]*?\b([\w$]+)\s*\([^{;]*?\{", re.MULTILINE)


def written(operation: str, operands: str) -> "list[str]":
    if operation.startswith(READS_ALL):
        return []
    first = re.match(r"[{(][^})]*[})]|[^,]*", operands).group()
    return re.findall(REGISTER, first)


def unwritten(body: str) -> "dict[str, str]":
    """Registers that are an address, a part of one (64 bits) or a predicate, and that nothing writes: one that reads each."""
    ever, readers = set(), {}
    for text in re.split(r"[;\n]", body):
        text = text.strip().lstrip("{").strip()
        guard = re.match(r"@!?(%p\d+)\s+", text)
        if guard:
            readers.setdefault(guard.group(1), text)
            text = text[guard.end():]
        operation, _, operands = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
        if not operation or operation.startswith((".", "//", "$", "}")):
            continue
        results = written(operation, operands.strip())
        ever.update(results)
        read = re.findall(REGISTER, operands)
        for register in results:
            read.remove(register)
        of_addresses = re.findall(REGISTER, " ".join(re.findall(r"\[[^\]]*\]", operands)))
        for register in read:
            if register in of_addresses or register.startswith(("%rd", "%p")):
                readers.setdefault(register, text)
    return {register: reader for register, reader in readers.items() if register not in ever}


def complaints(ptx: str) -> "list[str]":
    """One line for each kernel with such registers."""
    _, *parts = HEAD.split(ptx)  # a body reaches to the next head: inline assembly has braces of its own
    kernels = list(zip(parts[::2], parts[1::2]))
    found = [f"{name}: no instruction writes {register}, which \"{' '.join(reader.split())}\" reads"
             for name, body in kernels for register, reader in list(unwritten(body).items())[:1]]
    return found or ([] if kernels else ["no kernels in this PTX"])


def compile_ptx(source: Path, out: Path) -> "str | None":
    """As cmake/cuda.cmake does; the compiler's words if it does not."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    portable = ["--fmad=false"] if source.resolve().parent == ROOT / "src/backend/cuda" else []
    run = subprocess.run([nvcc, "-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", *portable, f"-I{ROOT}/include", f"-I{ROOT}/src",
                          "-gencode=arch=compute_90a,code=compute_90a", "-ptx", source, "-o", out], capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr.strip()[:2000]


GOOD = """
.visible .entry good(.param .u64 good_param_0)
{
	.reg .pred %p<2>;
	ld.param.u64 %rd1, [good_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	{ add.s64 %rd4, %rd2, 2;}
	{ .reg .pred q;
	add.s64 %rd6, %rd4, 2;
}
	setp.eq.s64 	%p1, %rd4, 0;
	@%p1 bra 	$L__BB0_2;
	ld.global.v2.u32 	{%r1, %r2}, [%rd4];
	prmt.b32 	%r3, %r9, %r1, 30212;
	shfl.sync.bfly.b32 	%r4|%p0, %r3, %r2, %r1, %r2;
	@%p0 st.global.u32 	[%rd2], %r4;
$L__BB0_2:
	ret;
}
"""


def self_test() -> "list[str]":
    faults = {"%rd4": ("add.s64 %rd4, %rd2, 2", "add.s64 %rd5, %rd2, 2"), "%p1": ("setp.eq.s64 	%p1", "setp.eq.s64 	%p3"),
              "%p0": ("%r4|%p0", "%r4"), "%rd2": ("cvta.to.global.u64 	%rd2", "cvta.to.global.u64 	%rd3")}
    missed = [f"not reported: {register}" for register, (old, new) in faults.items()
              if not any(f"good: no instruction writes {register}," in line for line in complaints(GOOD.replace(old, new)))]
    return missed + (["a good kernel is complained about"] if complaints(GOOD) else []) + ([] if complaints("") else ["no kernels: not reported"])


def check(path: Path) -> "list[str]":
    if path.suffix == ".ptx":
        return complaints(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.ptx"
        return [error] if (error := compile_ptx(path, out)) else complaints(out.read_text())


def main() -> int:
    paths = [Path(word) for word in sys.argv[1:] if word != "--self-test"]
    problems = [f"{path}: {line}" for path in paths for line in check(path)] + (self_test() if "--self-test" in sys.argv else [])
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
