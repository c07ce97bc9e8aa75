#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the GPU kernels for five AMD targets and the portable ones, where there is nvcc, for NVIDIA; prints what each kernel needs.
With --cuda, the same of what a build has compiled for Hopper, and how long that took.

Fails if a kernel spills vector registers, uses scratch memory or a dynamic stack, needs more shared memory than a workgroup has, has
another wave size than its source assumes, or is one for the matrix units without a matrix instruction. Also if it uses instructions
that the emulators which execute these code objects do not know: the kernels' evidence would end there; or, of NVIDIA, an address that no
instruction computes (ptx_addresses.py). Scalar registers that AMD's compiler keeps in lanes of vector registers cost no memory
traffic and are only printed. Reads the metadata in the code objects itself: nothing but clang-22 and lld-22 is needed.

Of the Hopper kernels (src/backend/cuda/sm90) it fails if one keeps more in local memory than LOCAL_BYTES says, needs more registers than
leave room for its blocks on an SM, has static shared memory of its own, or lacks the instructions that NEEDED names for it:
wgmma (HGMMA) and tensor copies (UTMALDG), or mma.sync (HMMA) and cp.async (LDGSTS) in cluster decode. The machine code is read in the objects themselves, instruction words and all: no disassembler is needed.

usage: check_gpu_kernels.py              check src/backend
       check_gpu_kernels.py --built DIR  the same, with the AMD code objects that a build has left in DIR
       check_gpu_kernels.py --cuda DIR   the same, and the objects of the Hopper kernels in the build folder DIR
       check_gpu_kernels.py --self-test  plant kernels with each fault in a scratch folder and demand that each is reported
       check_gpu_kernels.py --hashes FILE [--cuda DIR] [--built DIR] [--update]
                                         compare the machine code of a build with the hashes in FILE (kernel_hashes.py), or write them
       check_gpu_kernels.py --hashes FILE --runs RESULT [--strict]
                                         name the kernels of FILE that have changed since the run of bench/gpu/cells.py that wrote RESULT;
                                         with --strict, fail if there is one, or if a cell of the run was not right
"""
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_hashes
import ptx_addresses
from gpu_objects import amd_kernels, attributes, cubins, sections, symbols, unpack

ROOT = Path(__file__).resolve().parent.parent
AMD_FOLDER = ROOT / "src/backend/hip"
MATRIX_KERNEL = re.compile(r"quire_attend_(short|tall)_")
MATRIX_INSTRUCTION = {"gfx9": "v_mfma_f32_16x16x16", "gfx1": "v_wmma_f32_16x16x16"}
NOT_EMULATED = re.compile(r"^\s+(ds_swizzle\w*|s_getpc_b64|v_permlane\w*|global_load_lds\w*|buffer_load\w*lds|ds_read\w*_tr_\w*|\w*_dpp8\w*|"
                          r"v_\w+_e64_dpp|(?:global|ds|flat)_atomic_(?:pk_)?add_f\w*)|(row_(?:share|newbcast|xmask))", re.MULTILINE)
AMD_TARGETS = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}  # target -> wave size
SHARED_LIMIT = 64 * 1024  # limit of AMD workgroups; nvcc refuses static arrays beyond its own limit
SKIPPED = 77


def clang() -> "str | None":
    return shutil.which("clang++-22") if shutil.which("ld.lld-22") else None


def nvcc() -> "str | None":
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


# --- AMD code objects -------------------------------------------------------------------------------------------------------------

def amd_complaints(kernel: dict, wave: int) -> "list[str]":
    found = [f"{kernel[key]} {what}" for key, what in ((".vgpr_spill_count", "vector registers spilled"),
                                                       (".private_segment_fixed_size", "bytes of scratch")) if kernel.get(key)]
    if kernel.get(".uses_dynamic_stack"):
        found.append("a dynamic stack")
    if kernel[".group_segment_fixed_size"] > SHARED_LIMIT:
        found.append(f"{kernel['.group_segment_fixed_size']} bytes of shared memory, at most {SHARED_LIMIT}")
    if kernel[".wavefront_size"] != wave:
        found.append(f"waves of {kernel['.wavefront_size']}, expected {wave}")
    return found


def compiler(target: str, root: Path) -> "list[str]":
    """Compiler command of cmake/hip.cmake, with warnings as errors. `root` is the folder of the headers."""
    return [clang(), "-x", "hip", f"--offload-arch={target}", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib",
            "-O3", "-std=c++20", "-mcode-object-version=5", "-Wall", "-Wextra", "-Werror", f"-I{root}/include", f"-I{root}/src"]


def warnings_of(source: Path, target: str) -> "str | None":
    """Warnings of the compiler for a source whose code object exists already: a build does not stop at warnings."""
    run = subprocess.run([*compiler(target, ROOT), source, "-fsyntax-only"], capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr.strip()[:2000]


def compile_amd(source: Path, target: str, out: Path, root: Path = ROOT) -> "str | None":
    """Makes a code object, and the assembly beside it; the compiler's words if it does not."""
    assembly = out.with_suffix(".s")
    run = subprocess.run([*compiler(target, root), source, "-S", "-o", assembly], capture_output=True, text=True)
    if run.returncode == 0:
        run = subprocess.run([clang(), "-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={target}",
                              "-mcode-object-version=5", assembly, "-o", out], capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr.strip()[:2000]


def amd_functions(assembly: str) -> "dict[str, str]":
    """The text of each function by its name."""
    return {name: text for name, text in re.findall(r"^(\w+):\s*; @\1\n(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)}


def instruction_complaints(name: str, text: str, target: str) -> "list[str]":
    found = sorted({a or b for a, b in NOT_EMULATED.findall(text)})
    complaints = [f"{word} is not emulated" for word in found]
    if MATRIX_KERNEL.match(name) and not re.search(r"^\s+" + MATRIX_INSTRUCTION[target[:4]], text, re.MULTILINE):
        complaints.append("no matrix instruction")
    return complaints


def check_amd(source: Path, target: str, scratch: Path, built: "Path | None" = None) -> "tuple[list[str], list[str]]":
    """Lines about each kernel, and complaints."""
    out = (built or scratch) / f"{source.stem}.{target}.co"
    if error := warnings_of(source, target) if built else compile_amd(source, target, out):
        return [], [f"{target}: does not compile: {error}"]
    text_of_all = out.with_suffix(".s").read_text()
    functions = amd_functions(text_of_all)
    lines, complaints = [], []
    for kernel in amd_kernels(out.read_bytes()):
        name, text = kernel[".name"], functions.get(kernel[".name"], "")
        occupancy = re.search(r"; Occupancy: (\d+)", text_of_all.split(f"; @{name}\n")[1]) if text else None
        products, instructions = (len(re.findall(pattern, text, re.MULTILINE)) for pattern in (r"\tv_(?:mfma|wmma)_", r"^\t[a-z]"))
        lines.append(f"{target:8} {name:27} wave {kernel['.wavefront_size']}  vgpr {kernel['.vgpr_count']:3}  "
                     f"sgpr {kernel['.sgpr_count']:3} ({kernel['.sgpr_spill_count']:3} in lanes)  "
                     f"shared {kernel['.group_segment_fixed_size']:5}  scratch {kernel['.private_segment_fixed_size']}  "
                     f"waves/simd {occupancy.group(1) if occupancy else '?':>2}  "
                     f"products {products:3}  instructions {instructions:5}")
        found = amd_complaints(kernel, AMD_TARGETS[target]) + instruction_complaints(name, text, target)
        complaints += [f"{target} {name}: {c}" for c in found + ([] if text else ["not in the assembly"])]
    return lines, complaints or ([] if lines else [f"{target}: no kernels"])


# --- NVIDIA: the assembler's own report --------------------------------------------------------------------------------------------

CUDA_LAUNCHES = """
#include "backend/gpu/runtime.h"
#include "backend/gpu/append.h"
#include "backend/gpu/append_four_bits.h"
#include "backend/gpu/attend_generic.h"
#include "backend/gpu/check_contents.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/merge.h"
#include "backend/gpu/reset.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
using namespace quire::gpu;
KERNEL(kResetThreads) quire_reset(const ResetArgs a) { reset(a); }
KERNEL(kValidateThreads) quire_validate(const AttendArgs a) { validate(a, block_index(), num_blocks()); }
KERNEL(kScheduleThreads, 1) quire_schedule(const AttendArgs a) {
  QUIRE_SHARED(memory, kScheduleSharedBytes);
  schedule(a, SharedArea(memory));
}
KERNEL(kGenericThreads, kGenericBlocksPerUnit) quire_attend_generic(const GenericArgs a) {
  QUIRE_SHARED(memory, kGenericSharedBytes);
  attend_generic(a, SharedArea(memory));
}
KERNEL(kFillThreads) quire_fill_rows(const AttendArgs a) { fill_rows(a); }
KERNEL(kAppendThreads) quire_validate_slots(const AppendArgs a) { validate_slots(a); }
KERNEL(kAppendThreads) quire_append(const AppendArgs a) { append(a); }
KERNEL(kAppendThreads) quire_append_four_bits(const AppendArgs a) { append_four_bits(a); }
KERNEL(kMergeThreads) quire_merge(const MergeArgs a) { merge(a); }
KERNEL(kContentThreads) quire_check_contents(const GenericArgs a) { check_contents(a); }
"""
REPORT = re.compile(r"Function properties for (\S+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+"
                    r"ptxas info\s+: Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def check_cuda(text: str, scratch: Path) -> "tuple[list[str], list[str]]":
    source = scratch / "kernels.cu"
    source.write_text(text)
    run = subprocess.run([nvcc(), "-std=c++20", "-arch=sm_90", "--fmad=false", "-Xptxas", "-v", f"-I{ROOT}/include", f"-I{ROOT}/src",
                          "-cubin", "--keep", "--keep-dir", scratch, source, "-o", scratch / "kernels.cubin"], capture_output=True, text=True)
    if run.returncode != 0:
        return [], [f"sm_90: does not compile: {run.stderr.strip()[:2000]}"]
    lines, complaints = [], [f"sm_90 {c}" for c in ptx_addresses.complaints((scratch / "kernels.ptx").read_text()) if text]
    for name, stack, stores, loads, registers, shared in REPORT.findall(run.stderr):
        lines.append(f"{'sm_90':8} {name:22} registers {registers:3}  shared {shared or 0:>5}  stack {stack}  spills {stores} + {loads}")
        if int(stores) or int(loads):
            complaints.append(f"sm_90 {name}: {stores} bytes of spill stores, {loads} of spill loads")
        if int(stack):
            complaints.append(f"sm_90 {name}: a stack frame of {stack} bytes")
    return lines, complaints or ([] if lines else ["sm_90: no kernels"])


# --- Hopper: machine code in the objects of a build -------------------------------------------------------------------------------

REGISTERS = 65536  # registers of an SM, given out to warps
SYSTEM_SHARED = 1024  # bytes that every block of this architecture has, whatever it asks for
# Bytes a thread may keep in local memory: what it keeps now, which is the least that has been reached but for wide tiles of decode
# (16 at most, of head_dim 128 alone, before they took slices of requests). Who is not named may keep none.
LOCAL_BYTES = {"prefill B?[Ff]16 masks (64|128)": 72, "prefill B?[Ff]16 masks (192 128|256|512)": 88,  # the thread that draws items
               "decode B?[Ff]16 PlainTiles 128 32": 64, "decode Bf16 Fp8Tiles 128 32": 56, "decode F16 Fp8Tiles 128 32": 48,
               "decode B?[Ff]16 PlainTiles 64 32": 48, "decode Bf16 Fp8Tiles 64 32": 48, "decode F16 Fp8Tiles 64 32": 56,
               "decode B?[Ff]16 PlainTiles 256 16": 48, "decode B?[Ff]16 Fp8Tiles 256 16": 40,
               "decode B?[Ff]16 (Plain|Fp8)Tiles 256 8": 32,
               "decode B?[Ff]16 PackedTiles 128 32": 64, "decode B?[Ff]16 PackedFp8Tiles 128 32": 40,
               "decode B?[Ff]16 Packed(Fp8)?Tiles 64 32": 32, "decode B?[Ff]16 Packed(Fp8)?Tiles 256 16": 40,
               "decode B?[Ff]16 Packed(Fp8)?Tiles 256 8": 24,
               # Outside the loops over tiles: facts of a job, and the place of a tile's values where this step's rows and packed
               # ones meet.
               "prefill B?[Ff]16 packed (128|256)": 80, "prefill B?[Ff]16 packed codes (128|256)": 128,
               "prefill B?[Ff]16 packed codes 64": 16, "prefill B?[Ff]16 codes (128|256)": 16,
               "prefill B?[Ff]16 tall 64": 8,  # the producers', of 32 registers a thread
               # The producers', of 40 registers a thread, where they copy key by key.
               "mla B?[Ff]16": 16}
# Instructions by the low 9 bits of their words (the bits above say where operands come from), and by what nvdisasm calls them.
OPCODES = {0x1F0: "HGMMA", 0x1B4: "UTMALDG", 0x03C: "HMMA", 0x1AE: "LDGSTS", 0x187: "STL", 0x183: "LDL"}
# Instructions that a kernel must have, by the first word of its name. Without them it falls back to scalar products or plain loads.
NEEDED = {"decode": ("HGMMA", "UTMALDG"), "prefill": ("HGMMA", "UTMALDG"), "mla": ("HGMMA", "UTMALDG"),
          "cluster": ("HMMA", "LDGSTS"), "merge_mla": ()}


def short_name(mangled: str) -> str:
    """attend_decode<Bf16, PlainTiles<Bf16, 128>> as decode Bf16 PlainTiles 128, attend_prefill<Bf16, Memory<128, CacheKind::codes,
    128, false, false>> as prefill Bf16 codes 128, attend_cluster<CodeUnit<F16, 64, true>> as cluster F16 CodeUnit 64 true."""
    kernel = re.search(r"attend_(decode|prefill|mla|cluster)|(merge_mla)", mangled)
    words = re.findall(r"(F16|Bf16|PlainTiles|Fp8Tiles|PackedTiles|PackedFp8Tiles|PlainUnit|CodeUnit)(?=[EI])", mangled)
    kind = re.search(r"CacheKindE(\d)E", mangled)
    codes = ["", "codes", "packed", "packed codes"][int(kind.group(1))].split() if kind else []
    what = kernel.group(1) or kernel.group(2) if kernel else mangled
    numbers, flags = re.findall(r"Li(\d+)E", mangled), re.findall(r"Lb([01])E", mangled)
    if what == "prefill":  # Memory<head_dim, kind, head_dim of V, masks, tall>
        set_flags = [name for name, flag in zip(("masks", "tall"), flags) if flag == "1"]
        numbers, codes, flags = list(dict.fromkeys(numbers)), [*codes, *set_flags], []
    return " ".join([what, *sorted(dict.fromkeys(words), key=lambda word: word.endswith("Unit")), *codes, *numbers,
                     *(["false", "true"][int(flag)] for flag in flags)])


def hopper_kernels(elf: bytes) -> "list[dict]":
    """Registers, spills and memory of each kernel of a cubin."""
    all_sections = sections(elf)
    found, names = {section.name: section.data for section in all_sections}, [symbol.name for symbol in symbols(all_sections)]
    of_all = {(attribute, names[words[0]]): words[1] for attribute, words in attributes(found[".nv.info"]) if len(words) == 2}
    kernels = []
    for section, code in found.items():
        if not section.startswith(".text."):
            continue
        name = section[len(".text."):]
        opcodes = [word & 0x1FF for word, _ in struct.iter_unpack("<QQ", code)]
        threads = next((w for a, w in attributes(found[f".nv.info.{name}"]) if a == 0x05), (1024, 1, 1))
        kernels.append({"name": short_name(name), "registers": of_all[0x2F, name], "local": of_all.get((0x11, name), 0),
                        "threads": threads[0] * threads[1] * threads[2], "shared": len(found.get(f".nv.shared.{name}", b"")),
                        "code": len(code), **{what: opcodes.count(opcode) for opcode, what in OPCODES.items()}})
    return kernels


def blocks_of(kernel: str) -> int:
    """Blocks of an SM that plans count with (src/plan/kernels/cuda_sm90.h): of decode's, by head_dim and score rows."""
    numbers = [int(word) for word in kernel.split() if word.isdigit()]
    if not kernel.startswith("decode ") or not numbers or numbers[0] > 128 or numbers[1:] not in ([], [8]):
        return 1
    return 3 if "Fp8" in kernel else 2


def hopper_complaints(kernel: dict, blocks: int) -> "list[str]":
    allowed = next((most for name, most in LOCAL_BYTES.items() if re.fullmatch(name, kernel["name"])), 0)
    needed = NEEDED.get(kernel["name"].split()[0])
    found = ["has no entry in NEEDED"] if needed is None else [f"no {what}" for what in needed if kernel[what] == 0]
    if kernel["local"] > allowed:
        found.append(f"{kernel['local']} bytes of local memory (spills), at most {allowed}")
    if kernel["local"] == 0 and kernel["STL"] + kernel["LDL"] > 0:
        found.append("reads or writes local memory that its metadata does not have")
    of_a_warp = (kernel["registers"] * 32 + 255) // 256 * 256
    if of_a_warp * ((kernel["threads"] + 31) // 32) * blocks > REGISTERS:
        found.append(f"{kernel['registers']} registers a thread leave no room for {blocks} blocks of {kernel['threads']} threads")
    if kernel["shared"] > SYSTEM_SHARED:
        found.append(f"{kernel['shared'] - SYSTEM_SHARED} bytes of static shared memory: it comes on top of what launches ask for")
    return found


def check_hopper(objects: "list[Path]") -> "tuple[list[str], list[str]]":
    lines, complaints = [], []
    for path in objects:
        for elf in cubins(path.read_bytes()):
            if elf[:4] != b"\x7fELF":
                complaints.append(f"sm_90a: {path.name}: compressed machine code, which is not read here")
                continue
            for k in hopper_kernels(elf):
                blocks = blocks_of(k["name"])
                lines.append(f"{'sm_90a':8} {k['name']:27} registers {k['registers']:3} x {k['threads']:3} threads x {blocks} blocks  "
                             f"shared {k['shared'] - SYSTEM_SHARED if k['shared'] else 0}  local {k['local']:3} (STL {k['STL']}, LDL {k['LDL']})  "
                             f"{'  '.join(f'{what} {k[what]:3}' for what in NEEDED.get(k['name'].split()[0], ()))}  code {k['code']:6}")
                complaints += [f"sm_90a {k['name']}: {c}" for c in hopper_complaints(k, blocks)]
    return lines, complaints or ([] if lines else ["sm_90a: no kernels"])


def compile_seconds(build: Path) -> "list[str]":
    """Compile time of each CUDA source, from ninja's log. A hit in the compiler cache takes a tenth of a second."""
    log = build / ".ninja_log"
    if not log.exists():
        return []
    seconds = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[3].endswith(".cu.o") and "backend/cuda" in fields[3]:
            seconds[fields[3].split("backend/cuda/")[1][:-2]] = (int(fields[1]) - int(fields[0])) / 1000
    return [f"seconds  {name:27} {value:.1f}{' (compiler cache)' if value < 0.5 else ''}" for name, value in seconds.items()]


def check_hopper_build(build: Path) -> "tuple[list[str], list[str]]":
    objects = sorted((build / "CMakeFiles/quire.dir/src/backend/cuda/sm90").glob("*/*.cu.o"))
    lines, complaints = check_hopper(objects)
    return lines + compile_seconds(build), complaints


# --- the two uses -----------------------------------------------------------------------------------------------------------------

def check_repository(built: "Path | None", cuda: "Path | None") -> "list[str]":
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        scratch = Path(folder)
        jobs = [pool.submit(check_amd, source, target, scratch, built) for source in sorted(AMD_FOLDER.glob("*.hip")) for target in AMD_TARGETS if clang()]
        if nvcc():
            jobs.append(pool.submit(check_cuda, CUDA_LAUNCHES, scratch))
        if cuda:
            jobs.append(pool.submit(check_hopper_build, cuda))
        results = [job.result() for job in jobs]
    for lines, _ in results:
        print("\n".join(lines))
    return [complaint for _, complaints in results for complaint in complaints]


AMD_FAULTS = {
    "scratch": "extern \"C\" __attribute__((global)) void k(int* p, int i) "
               "{ volatile int x[9000]; for (int j = 0; j < 9000; ++j) x[j] = p[j]; p[i] = x[i]; }",
    "local memory": "extern \"C\" __attribute__((global)) void k(int* p, int i) "
                    "{ static __attribute__((shared)) int x[20000]; x[i] = i; p[i] = x[i ^ 1]; }",
    "no matrix instruction": "extern \"C\" __attribute__((global)) void quire_attend_short_f16_64(float* p) { p[0] += p[1]; }",
    "ds_swizzle_b32 is not emulated": "extern \"C\" __attribute__((global)) void k(int* p, int i) "
                                      "{ p[i] = __builtin_amdgcn_ds_swizzle(p[i], 0x1F); }",
    # A branch over more than 128 KiB of code begins with it.
    "s_getpc_b64 is not emulated": "extern \"C\" __attribute__((global)) void k(long* p) { asm volatile(\"s_getpc_b64 %0\" : \"=s\"(p[0])); }",
    "does not compile": "int k(",
    "no kernels": "",
}
CUDA_FAULTS = {
    "stack frame": "extern \"C\" __global__ void k(int* p, int i) { volatile int x[999]; for (int j = 0; j < 999; ++j) x[j] = p[j]; p[i] = x[i]; }",
    "spill stores": "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(double* p) { double x[40];\n"
                    "#pragma unroll\nfor (int j = 0; j < 40; ++j) x[j] = p[j * 7];\n__syncthreads();\n"
                    "#pragma unroll\nfor (int j = 0; j < 40; ++j) p[j] = x[39 - j] * x[(j * 7) % 40]; }",
    "too much shared data": "extern \"C\" __global__ void k(int* p, int i) { __shared__ int x[20000]; "
                            "x[i] = i; __syncthreads(); p[i] = x[i ^ 1]; }",
    "no kernels": "",
}

# Kernels with names as NEEDED has them, and one other. One spills; none has the instructions that NEEDED asks for.
HOPPER_FAULTS = """
extern "C" __global__ void __launch_bounds__(1024, 1) attend_decode(double* p) { double x[60];
#pragma unroll
for (int j = 0; j < 60; ++j) x[j] = p[j * 7];
__syncthreads();
#pragma unroll
for (int j = 0; j < 60; ++j) p[j] = x[59 - j] * x[(j * 7) % 60]; }
extern "C" __global__ void attend_cluster(float* p) { p[0] += p[1]; }
extern "C" __global__ void attend_other(float* p) { p[0] += p[1]; }
extern "C" __global__ void attend_prefill(float* p) { __shared__ float x[2000]; x[threadIdx.x] = p[0]; __syncthreads(); p[0] = x[5]; }
"""
HOPPER_WORDS = ["decode: no HGMMA", "decode: no UTMALDG", "cluster: no HMMA", "cluster: no LDGSTS", "attend_other: has no entry in NEEDED",
                "bytes of local memory (spills), at most 0", "prefill: 8000 bytes of static shared memory"]


def compile_hopper(source: Path, out: Path) -> "str | None":
    """Makes an object; the compiler's words if it does not."""
    run = subprocess.run([nvcc(), "-std=c++20", "-gencode=arch=compute_90a,code=sm_90a", "-c", source, "-o", out], capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr.strip()[:2000]


def hopper_self_test(scratch: Path) -> "list[str]":
    source, out = scratch / "hopper.cu", scratch / "hopper.cu.o"
    source.write_text(HOPPER_FAULTS)
    if error := compile_hopper(source, out):
        return [f"hopper.cu does not compile: {error}"]
    complaints = check_hopper([out])[1]
    missed = [f"not reported for sm_90a: {word}: {complaints}" for word in HOPPER_WORDS if not any(word in c for c in complaints)]
    good = {"name": "decode", "registers": 168, "threads": 160, "shared": SYSTEM_SHARED, "local": 0, "HGMMA": 8, "UTMALDG": 2, "STL": 0, "LDL": 0}
    cluster = {**good, "name": "cluster", "HGMMA": 0, "UTMALDG": 0, "HMMA": 8, "LDGSTS": 2}
    for bad in ({"registers": 255}, {"STL": 1}, {"local": 8}, {"HGMMA": 0}):
        if not hopper_complaints({**good, **bad}, 2):
            missed.append(f"not reported: {bad}")
    if hopper_complaints(good, 2) or hopper_complaints({**good, "name": "merge_mla", "HGMMA": 0, "UTMALDG": 0}, 2) or hopper_complaints(cluster, 1):
        missed.append("a good Hopper kernel is complained about")
    if not check_hopper([])[1]:
        missed.append("no Hopper kernels at all are not reported")
    return missed


# Macros that give the words GLOBAL and CONSTANT of kernel_hashes.py's test sources a meaning for each compiler.
CUDA_WORDS = "#define GLOBAL __global__\n#define CONSTANT __constant__\n"
AMD_WORDS = """#define GLOBAL __attribute__((global))
#define CONSTANT __attribute__((constant)) const
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
"""


def hashes_self_test(scratch: Path) -> "list[str]":
    missed = kernel_hashes.compare_self_test() + kernel_hashes.runs_self_test()
    if clang():
        missed += kernel_hashes.compiled_self_test(".hip", AMD_WORDS, lambda source, out: compile_amd(source, "gfx942", out), scratch)
        missed += kernel_hashes.run_self_test(scratch)
    if nvcc():
        missed += kernel_hashes.compiled_self_test(".cu", CUDA_WORDS, compile_hopper, scratch)
    return missed


def self_test() -> "list[str]":
    missed = ptx_addresses.self_test()
    packed = bytes([0x82, 0xA1, 0x61, 0x93, 0x01, 0xE0, 0xCD, 0x01, 0x00, 0xD9, 0x01, 0x62, 0xC3])
    if unpack(packed)[0] != {"a": [1, -32, 256], "b": True}:
        missed.append(f"MessagePack read as {unpack(packed)[0]}")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for word, text in AMD_FAULTS.items() if clang() else ():
            source = scratch / "fault.hip"
            source.write_text(text)
            complaints = check_amd(source, "gfx942", scratch)[1]
            if not any(word in c for c in complaints):
                missed.append(f"not reported for gfx942: {word}: {complaints}")
        for word, text in CUDA_FAULTS.items() if nvcc() else ():
            complaints = check_cuda(text, scratch)[1]
            if not any(word in c for c in complaints):
                missed.append(f"not reported for sm_90: {word}: {complaints}")
        missed += hopper_self_test(scratch) if nvcc() else []
        missed += hashes_self_test(scratch)
    good = {".group_segment_fixed_size": 0, ".wavefront_size": 64}
    for bad in ({".vgpr_spill_count": 3}, {".uses_dynamic_stack": True}, {".group_segment_fixed_size": 70000}, {".wavefront_size": 32}):
        if not amd_complaints({**good, **bad}, 64):
            missed.append(f"not reported: {bad}")
    return missed + (["a good kernel is complained about"] if amd_complaints(good, 64) else [])


def main() -> int:
    folders = {word: Path(sys.argv[i + 1]) for i, word in enumerate(sys.argv) if word in ("--built", "--cuda", "--hashes", "--runs")}
    if "--runs" in folders:
        lines, status = kernel_hashes.check_runs(folders["--hashes"], folders["--runs"], "--strict" in sys.argv)
        print("\n".join(lines))
        return status
    if "--hashes" in folders:
        lines, status = kernel_hashes.run(folders["--hashes"], folders.get("--cuda"), folders.get("--built"), "--update" in sys.argv)
        print("\n".join(lines))
        return status
    for name, found in (("clang-22 with lld-22", clang()), ("nvcc", nvcc())):
        if not found:
            print(f"skipped: no {name}")
    if not clang() and not nvcc():
        return SKIPPED
    problems = self_test() if "--self-test" in sys.argv else check_repository(folders.get("--built"), folders.get("--cuda"))
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
