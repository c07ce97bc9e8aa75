# SPDX-License-Identifier: Apache-2.0
"""Hashes of the machine code of every GPU kernel, compared with a recorded file: a pure move or rename changes none of them.

A hash covers what a GPU executes: the instruction words of a kernel, the constants that they read, and what a launch gives it (registers,
shared and local memory, threads, parameters). Addresses, names of symbols and files, line numbers and build ids are left out.

The key of a kernel is its demangled name without namespaces and parameters, so that a new namespace or file moves no key. A kernel whose
hash is recorded under another name is renamed. Compilers of another version make other code: nothing is compared then.

check_gpu_kernels.py --hashes is the command; gpu_objects.py reads the objects.
"""
import collections
import hashlib
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

from gpu_objects import FUNCTION, Section, Symbol, amd_metadata, attributes, cubins, sections, symbols

ROOT = Path(__file__).resolve().parent.parent
CUDA_FOLDER, HIP_FOLDER = "src/backend/cuda", "src/backend/hip"
DESCRIPTOR = ".kd"  # suffix of the symbol that describes an AMD kernel to its launcher
ENTRY_OFFSET = slice(16, 24)  # bytes of a descriptor that say how far away the code is
# Attributes of a .nv.info section by number: what ptxas says of a kernel. The first two hold numbers of symbols.
PARAMETER_BANK, EXTERNAL_FUNCTIONS, LOCAL_BYTES, REGISTERS = 0x0A, 0x0F, 0x11, 0x2F

Kernels = dict[str, str]  # key -> hash and bytes of code, as one text
Hashes = dict[str, dict]  # architecture -> {"toolchain": text, "kernels": Kernels}


def digest(*parts: bytes) -> str:
    """16 hexadecimal digits. The length of a part counts, so that no byte can pass from one part to the next unseen."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(struct.pack("<Q", len(part)) + part)
    return hashed.hexdigest()[:16]


# --- keys ---------------------------------------------------------------------------------------------------------------------------

def without_parameters(name: str) -> str:
    """f<int (*)()>(int (*)(), g) as f<int (*)()>: the last group of parentheses is cut off."""
    depth = 0
    for at in range(len(name) - 1, -1, -1) if name.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            return name[:at]
    return name


def key_of(demangled: str) -> str:
    """void a::b::kernel<a::F16, a::Tiles<a::F16, 64> >(c::Args) as kernel<F16, Tiles<F16, 64>>."""
    name = without_parameters(demangled.replace("(anonymous namespace)::", ""))
    return re.sub(r"\w+::", "", name).removeprefix("void ").replace("> >", ">>").replace("> >", ">>")


def demangle(names: "list[str]") -> "list[str]":
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


# --- NVIDIA -------------------------------------------------------------------------------------------------------------------------

def relocations(data: "dict[str, bytes]", section: str, found: "list[Section]", names: "list[Symbol]") -> bytes:
    """The places of a section that a linker fills, without the names of ours: a target is a place in a kind of section."""
    text = []
    for prefix, form in ((".rel", "<QII"), (".rela", "<QIIq")):
        for offset, kind, symbol, *addend in struct.iter_unpack(form, data.get(prefix + section, b"")):
            target = names[symbol]
            known = 0 < target.section < len(found)
            where = re.sub(r"(\.text|\.nv\.\w+)\..*", r"\1", found[target.section].name) if known else target.name
            text.append(f"{offset} {kind} {addend} {where} {target.value} {target.size}")
    return "\n".join(text).encode()


def nvidia_kernels(elf: bytes) -> "list[tuple[str, str]]":
    """Symbol, and hash with bytes of code, of each kernel of a cubin."""
    found = sections(elf)
    data, names = {section.name: section.data for section in found}, symbols(found)
    of_symbol = {(attribute, names[words[0]].name): words[1] for attribute, words in attributes(data[".nv.info"]) if len(words) == 2}
    # Variables belong to all kernels of a file: a change of one counts as a change of each.
    variables = [part for name in sorted(data) if re.fullmatch(r"\.nv\.(constant\d+|global\.init)", name)
                 for part in (data[name], relocations(data, name, found, names))]
    kernels = []
    for section in (name for name in data if name.startswith(".text.")):
        kernel = section.removeprefix(".text.")
        constants = [data[name] for name in sorted(data) if re.fullmatch(r"\.nv\.constant[1-9]\d*", name.removesuffix("." + kernel))
                     and name.endswith("." + kernel)]
        launch = [(attribute, words) for attribute, words in attributes(data.get(f".nv.info.{kernel}", b""))
                  if attribute not in (PARAMETER_BANK, EXTERNAL_FUNCTIONS)]
        memory = [of_symbol.get((attribute, kernel), 0) for attribute in (REGISTERS, LOCAL_BYTES)]
        memory.append(len(data.get(f".nv.shared.{kernel}", b"")))
        code = digest(data[section], relocations(data, section, found, names), repr((launch, memory)).encode(), *constants, *variables)
        kernels.append((kernel, f"{code} {len(data[section])}"))
    return kernels


def nvidia_toolchain(elf: bytes) -> "tuple[str, str]":
    """Architecture and assembler, from the note that ptxas leaves."""
    note = next((section.data for section in sections(elf) if section.name == ".note.nv.tkinfo"), b"")
    target, version = re.search(rb"-arch (\w+)", note), re.search(rb", V([\d.]+)", note)
    return target.group(1).decode() if target else "unknown", f"ptxas {version.group(1).decode() if version else 'of unknown version'}"


# --- AMD ----------------------------------------------------------------------------------------------------------------------------

def launch_of(kernel: dict) -> bytes:
    """Metadata of a kernel and its parameters, without names."""
    def unnamed(values: dict) -> list:
        return sorted((key, value) for key, value in values.items() if key not in (".name", ".symbol", ".type_name", ".args"))

    return repr([unnamed(kernel), *map(unnamed, kernel.get(".args", []))]).encode()


def amd_kernels(elf: bytes) -> "list[tuple[str, str]]":
    """Symbol, and hash with bytes of code, of each kernel of a code object."""
    found = sections(elf)
    names = {symbol.name: symbol for symbol in symbols(found) if 0 < symbol.section < len(found)}

    def bytes_of(symbol: Symbol) -> bytes:
        begin = symbol.value - found[symbol.section].address
        return found[symbol.section].data[begin:begin + symbol.size]

    kernels = sorted(name.removesuffix(DESCRIPTOR) for name in names if name.endswith(DESCRIPTOR))
    # Constants, and functions that are called, belong to all kernels of a file: a change of one counts as a change of each.
    called = sorted(bytes_of(symbol) for name, symbol in names.items() if symbol.kind == FUNCTION and name not in kernels)
    constants = []
    for number, section in enumerate(found):
        if re.match(r"\.(rodata|data)", section.name):
            rest = bytearray(section.data)
            descriptors = [names[kernel + DESCRIPTOR] for kernel in kernels if names[kernel + DESCRIPTOR].section == number]
            for symbol in sorted(descriptors, key=lambda symbol: -symbol.value):
                begin = symbol.value - section.address
                del rest[begin:begin + symbol.size]
            constants.append(bytes(rest))
    launches = {kernel[".name"]: launch_of(kernel) for metadata in amd_metadata(elf) for kernel in metadata["amdhsa.kernels"]}
    hashes = []
    for kernel in kernels:
        descriptor, code = bytearray(bytes_of(names[kernel + DESCRIPTOR])), bytes_of(names[kernel])
        del descriptor[ENTRY_OFFSET]
        hashes.append((kernel, f"{digest(code, bytes(descriptor), launches[kernel], *called, *constants)} {len(code)}"))
    return hashes


def amd_toolchain(elf: bytes) -> "tuple[str, str]":
    """Architecture from the metadata, and compiler from the comment that clang leaves."""
    comment = next((section.data for section in sections(elf) if section.name == ".comment"), b"")
    version = re.search(rb"[^\0]*clang version[^\0]*", comment)
    return (amd_metadata(elf)[0]["amdhsa.target"].rsplit("--", 1)[-1],
            version.group().decode() if version else "clang of unknown version")


# --- a build ------------------------------------------------------------------------------------------------------------------------

def objects_of(cuda: "Path | None", built: "Path | None", root: Path) -> "list[Path]":
    """The objects of a build whose sources exist: what remains of a source that was renamed is of no library."""
    objects = []
    if cuda:
        folder = cuda / "CMakeFiles/quire.dir" / CUDA_FOLDER
        objects += [path for path in sorted(folder.rglob("*.cu.o")) if (root / CUDA_FOLDER / path.relative_to(folder)).with_suffix("").exists()]
    if built:
        objects += [path for path in sorted(built.glob("*.*.co")) if (root / HIP_FOLDER / path.name.split(".")[0]).with_suffix(".hip").exists()]
    return objects


def hashes_of(objects: "list[Path]") -> Hashes:
    kernels, toolchains = collections.defaultdict(list), collections.defaultdict(set)
    for path in objects:
        data = path.read_bytes()
        nvidia = path.suffix in (".o", ".so")
        for elf in cubins(data) if nvidia else [data]:
            if elf[:4] != b"\x7fELF":
                raise ValueError(f"{path}: compressed machine code, which is not read here")
            target, toolchain = nvidia_toolchain(elf) if nvidia else amd_toolchain(elf)
            toolchains[target].add(toolchain)
            kernels[target] += nvidia_kernels(elf) if nvidia else amd_kernels(elf)
    return {target: {"toolchain": ", ".join(sorted(toolchains[target])), "kernels": keyed(found)} for target, found in sorted(kernels.items())}


def keyed(kernels: "list[tuple[str, str]]") -> Kernels:
    """Kernels by key. Copies of a kernel in several files are one; different kernels of one key are numbered by their hashes."""
    by_key = collections.defaultdict(set)
    for demangled, (_, code) in zip(demangle([symbol for symbol, _ in kernels]), kernels):
        by_key[key_of(demangled)].add(code)
    return {key if number == 1 else f"{key} ({number})": code
            for key in sorted(by_key) for number, code in enumerate(sorted(by_key[key]), 1)}


# --- comparing ----------------------------------------------------------------------------------------------------------------------

def sizes(recorded: str, found: str) -> str:
    before, now = recorded.split()[1], found.split()[1]
    return f"{before} -> {now} bytes" if before != now else f"{now} bytes as before, but others, or another launch"


def difference(recorded: Kernels, found: Kernels) -> "dict[str, list[str]]":
    """Fate of each kernel that differs (changed, renamed, new, gone), as lines of text by kind."""
    lines = {"changed": [f"{key}: {sizes(recorded[key], found[key])}" for key in recorded if key in found and recorded[key] != found[key]],
             "renamed": []}
    gone = collections.defaultdict(list)
    for key in recorded:
        if key not in found:
            gone[recorded[key]].append(key)
    new = []
    for key in found:
        if key not in recorded and gone[found[key]]:
            lines["renamed"].append(f"{gone[found[key]].pop(0)} -> {key}: same machine code")
        elif key not in recorded:
            new.append(key)
    return {**lines, "new": new, "gone": [key for keys in gone.values() for key in keys]}


def compare(recorded: Hashes, found: Hashes) -> "tuple[list[str], bool]":
    """Lines of text, and whether the machine code is the recorded one. A kernel that is new or gone differs, too: renamed and changed at
    once, a kernel is both."""
    lines, same = [], True
    for target in sorted({*recorded, *found}):
        before, now = recorded.get(target), found.get(target)
        if not before or not now:
            lines.append(f"{target}: not compared: {'this build has no kernels for it' if before else 'no hashes are recorded for it'}")
        elif before["toolchain"] != now["toolchain"]:
            lines.append(f"{target}: not compared: recorded with {before['toolchain']}, built with {now['toolchain']}")
        else:
            kinds = difference(before["kernels"], now["kernels"])
            unchanged = sum(before["kernels"].get(key) == code for key, code in now["kernels"].items())
            counts = "".join(f", {len(kinds[kind])} {kind}" for kind in kinds if kinds[kind])
            lines.append(f"{target}: {unchanged} of {len(now['kernels'])} kernels have the recorded machine code{counts}")
            lines += [f"  {kind}: {line}" for kind in kinds for line in kinds[kind]]
            same = same and not (kinds["changed"] or kinds["new"] or kinds["gone"])
    return lines, same


def text_of(hashes: Hashes) -> str:
    """JSON with one line a kernel."""
    targets = []
    for target, of_target in sorted(hashes.items()):
        kernels = ",\n".join(f"    {json.dumps(key)}: {json.dumps(code)}" for key, code in of_target["kernels"].items())
        targets.append(f'  {json.dumps(target)}: {{"toolchain": {json.dumps(of_target["toolchain"])}, "kernels": {{\n{kernels}\n  }}}}')
    return "{\n" + ",\n".join(targets) + "\n}\n"


def run(file: Path, cuda: "Path | None", built: "Path | None", update: bool, root: Path = ROOT) -> "tuple[list[str], int]":
    """Lines of text and the exit status: 0 same or not compared, 1 different, 77 nothing to read."""
    if not shutil.which("c++filt"):
        return ["skipped: no c++filt"], 77
    try:
        found = hashes_of(objects_of(cuda, built, root))
    except ValueError as error:
        return [str(error)], 1
    if not found:
        return ["skipped: no GPU kernels in the build; --cuda and --built name its folders"], 77
    recorded = json.loads(file.read_text()) if file.exists() else {}
    lines, same = compare(recorded, found)
    if update:
        file.write_text(text_of({**recorded, **found}))
        return [*lines, f"written: {file}"], 0
    if not file.exists():
        return [f"{file} does not exist; --update writes it"], 1
    if not same:
        lines.append("Machine code differs from what is recorded. Where that is meant, --update records it, and the commit says why.")
    elif any(line.startswith("  renamed: ") for line in lines):
        lines.append("Names differ, machine code does not. --update records the names.")
    return lines, 0 if same else 1


# --- runs on a GPU ------------------------------------------------------------------------------------------------------------------

def not_run(recorded: Hashes, run: Hashes, launched: "list[str] | None" = None) -> "tuple[list[str], int]":
    """Lines about kernels whose recorded machine code no GPU has run in that run, and how many there are. `run`: hashes of the library that
    ran; architectures that it has no kernels of are left out, and a kernel is known by its machine code, whatever its name. `launched`:
    demangled names, if the run has noted which kernels it launched."""
    lines, total = [], 0
    keys = None if launched is None else {key_of(name) for name in launched}
    for target in sorted(set(recorded) & set(run)):
        kernels, of_run = recorded[target]["kernels"], run[target]["kernels"]
        ran = {code for key, code in of_run.items() if keys is None or re.sub(r" \(\d+\)$", "", key) in keys}
        why = {key: "since it changed" if key in of_run and of_run[key] != code else "since it came" if key not in of_run else "in that run"
               for key, code in kernels.items() if code not in ran}
        lines.append(f"{target}: {len(kernels) - len(why)} of {len(kernels)} kernels have run as they are recorded")
        lines += [f"  not run {words}: {key}" for key, words in why.items()]
        total += len(why)
    return lines, total


def check_runs(file: Path, result: Path, strict: bool) -> "tuple[list[str], int]":
    """Lines of text and the exit status. `result`: JSON of bench/gpu/cells.py. A kernel that has not run fails only if `strict`."""
    run = json.loads(result.read_text()) if result.exists() else {}
    if not run.get("hashes"):
        return [f"{result}: no run on a GPU with hashes of its kernels; bench/gpu/cells.py --json writes one"], int(strict)
    lines, total = not_run(json.loads(file.read_text()), run["hashes"], run.get("launched"))
    counts = {kind: sum(row[kind] for row in run["cells"]) for kind in ("cells", "lost", "wrong", "refused")}
    lines.append(f"last run: {run['date']}, commit {run['commit']}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return lines, int(strict and (total > 0 or counts["lost"] + counts["wrong"] + counts["refused"] > 0))


# --- the test of this file ----------------------------------------------------------------------------------------------------------

# Each version is a source for both vendors' compilers. GLOBAL is the word before a kernel, CONSTANT the one before constant memory.
BEFORE = """
GLOBAL void first(int* p, int i) { p[i] += 1; }
namespace a { template <int N> struct Tiles {}; template <class T> GLOBAL void second(int* p) { p[p[0]] = 7; }
template GLOBAL void second<Tiles<4>>(int*); }
"""
# The moved version has other lines, another namespace, another order, and a kernel more.
MOVED = """
// A comment.
namespace b::c { template <int N> struct Tiles {}; template <class T> GLOBAL void second(int* p) { p[p[0]] = 7; }

template GLOBAL void second<Tiles<4>>(int*); }
namespace b { GLOBAL void beside(float* p) { for (int i = 0; i < 100; ++i) p[i * i] *= p[i]; } }
GLOBAL void first(int* p, int i) { p[i] += 1; }
"""
TABLE = "CONSTANT int table[] = {3141, 5926, 5358, 9793, 2384, 6264, 3383, 2795, 288}; GLOBAL void first(int* p) { p[0] = table[p[0] % 9u]; }"
VERSIONS = {"before": BEFORE, "moved": MOVED, "changed": BEFORE.replace("+= 1", "+= 2"), "renamed": BEFORE.replace("first", "front"),
            "gone": BEFORE.replace("GLOBAL void first(int* p, int i) { p[i] += 1; }", ""),
            "bounds": BEFORE.replace("GLOBAL void first", "GLOBAL __launch_bounds__(64) void first"),
            "table": TABLE, "table changed": TABLE.replace("288", "289")}
# Version -> whether it passes for the one that it is compared with, and words of its lines.
EXPECTED = {"before": (True, ["2 of 2 kernels have the recorded machine code"]),
            "moved": (False, ["2 of 3 kernels have the recorded machine code, 1 new", "  new: beside"]),
            "changed": (False, ["1 of 2 kernels have the recorded machine code, 1 changed", "  changed: first: "]),
            "renamed": (True, ["1 of 2 kernels have the recorded machine code, 1 renamed", "  renamed: first -> front: same machine code"]),
            "gone": (False, ["1 of 1 kernels have the recorded machine code, 1 gone", "  gone: first"]),
            "bounds": (False, ["1 of 2 kernels have the recorded machine code, 1 changed", "  changed: first: "]),
            "table": (True, ["1 of 1 kernels have the recorded machine code"]),
            "table changed": (False, ["0 of 1 kernels have the recorded machine code, 1 changed", "  changed: first: "])}
KEYS = {"void a::b::attend<a::F16, a::Memory<a::Tiles<a::F16, 256>, 16> >(c::Args, a::Maps)": "attend<F16, Memory<Tiles<F16, 256>, 16>>",
        "a::(anonymous namespace)::kernel(void (*)(int), c::Args)": "kernel", "quire_merge": "quire_merge",
        "void a::prefill<(a::Kind)1>(c::Args)": "prefill<(Kind)1>"}


def expect(what: str, result: "tuple[list[str], bool]", same: bool, words: "list[str]") -> "list[str]":
    text = "\n".join(result[0])
    return [f"{what}: {'the same' if result[1] else 'different'}, should not be: {text}"] * (result[1] != same) + \
           [f"{what}: not said: {word!r}: {text}" for word in words if word not in text]


def runs_self_test() -> "list[str]":
    recorded = {"sm_1": {"toolchain": "v1", "kernels": {"f": "aa 16", "g": "bb 16", "h": "cc 16"}}, "gfx1": {"toolchain": "v1", "kernels": {"k": "dd 16"}}}
    run = {"sm_1": {"toolchain": "v1", "kernels": {"f": "aa 16", "g": "b0 16", "old_h": "cc 16"}}}
    lines, total = not_run(recorded, run)
    text = "\n".join(lines)
    missed = [] if total == 1 and "not run since it changed: g" in text and "sm_1: 2 of 3" in text and "gfx1" not in text else [f"kernels not run: {text}"]
    if not_run(recorded, {"sm_1": recorded["sm_1"]})[1] or "it came: f" not in "\n".join(not_run(recorded, {"sm_1": {"kernels": {}}})[0]):
        missed.append("kernels not run: all or none")
    some = not_run(recorded, {"sm_1": recorded["sm_1"]}, ["void a::f(int)", "a::h(int)"])
    if some[1] != 1 or "not run in that run: g" not in "\n".join(some[0]):
        missed.append(f"kernels not launched: {some}")
    nowhere = Path("no such file")
    return missed + [f"strict {strict}: no run" for strict in (False, True) if check_runs(nowhere, nowhere, strict)[1] != strict]


def compare_self_test() -> "list[str]":
    """The comparison on hashes written by hand."""
    recorded = {"sm_1": {"toolchain": "v1", "kernels": {"f": "aa 16", "g": "bb 16", "h": "bb 16"}}}

    def now(toolchain: str, **kernels: str) -> "tuple[list[str], bool]":
        return compare(recorded, {"sm_1": {"toolchain": toolchain, "kernels": kernels}})

    missed = expect("equal", now("v1", f="aa 16", g="bb 16", h="bb 16"), True, ["3 of 3 kernels have"])
    missed += expect("another toolchain", now("v2", f="cc 16"), True, ["sm_1: not compared: recorded with v1, built with v2"])
    missed += expect("one of two equal kernels renamed", now("v1", f="aa 16", g="bb 16", i="bb 16"), True, ["renamed: h -> i: same"])
    missed += expect("exchanged", now("v1", f="bb 16", g="aa 16", h="bb 16"), False, ["changed: f: 16 bytes as before", "changed: g"])
    missed += expect("renamed and changed", now("v1", e="cc 32", g="bb 16", h="bb 16"), False, ["new: e", "gone: f"])
    missed += expect("copied", now("v1", f="aa 16", g="bb 16", h="bb 16", i="aa 16"), False, ["new: i"])
    missed += expect("another architecture", compare(recorded, {"sm_2": recorded["sm_1"]}), True, ["sm_1: not", "sm_2: not"])
    if json.loads(text_of(recorded)) != recorded or text_of(recorded).count("\n") != 7:
        missed.append(f"written as {text_of(recorded)}")
    missed += [f"{name}: key {key_of(name)!r}" for name, key in KEYS.items() if key_of(name) != key]
    if digest(b"ab", b"c") == digest(b"a", b"bc"):
        missed.append("a byte passes from one part of a hash to the next")
    if list(keyed([("f", "aa 16"), ("f", "aa 16"), ("g", "cc 16"), ("g", "bb 16")]).values()) != ["aa 16", "bb 16", "cc 16"]:
        missed.append("copies of a kernel, or different ones of one name")
    return missed


def compiled_self_test(suffix: str, prefix: str, compile_to, scratch: Path) -> "list[str]":
    """Self-test on a compiler's output: VERSIONS of a file, each under a name of its own. `compile_to` makes an object of a source,
    or returns what the compiler says."""
    hashes, missed = {}, []
    for version, text in VERSIONS.items():
        source = scratch / f"{version}{suffix}"
        source.write_text(prefix + text)
        out = scratch / (f"{version}.cu.o" if suffix == ".cu" else f"{version}.gfx942.co")
        if error := compile_to(source, out):
            return [f"{source.name} does not compile: {error}"]
        hashes[version] = hashes_of([out])
    for version, (same, words) in EXPECTED.items():
        base = hashes["table" if version.startswith("table") else "before"]
        missed += expect(f"{suffix} {version}", compare(base, hashes[version]), same, words)
    return missed + damaged_self_test(suffix, scratch, hashes["before"])


def damaged_self_test(suffix: str, scratch: Path, before: Hashes) -> "list[str]":
    """One bit of one instruction of the first kernel is turned in the object itself, and nothing else."""
    path = scratch / ("before.cu.o" if suffix == ".cu" else "before.gfx942.co")
    data = bytearray(path.read_bytes())
    elf = cubins(bytes(data))[0] if suffix == ".cu" else bytes(data)
    found = sections(elf)
    symbol = next(symbol for symbol in symbols(found) if symbol.kind == FUNCTION and "first" in symbol.name)
    section = found[symbol.section]
    begin = symbol.value - section.address
    code = section.data[begin:begin + symbol.size]
    at = data.index(code)
    data[at + len(code) // 2] ^= 1
    damaged = path.with_name("damaged" + "".join(path.suffixes))
    damaged.write_bytes(data)
    return expect(f"{suffix} damaged", compare(before, hashes_of([damaged])), False, ["1 of 2 kernels have", "  changed: first: "])


def run_self_test(scratch: Path) -> "list[str]":
    """Exit statuses of run() on the AMD objects of compiled_self_test(), as a build would leave them."""
    root, file = scratch / "root", scratch / "hashes.json"
    (root / HIP_FOLDER).mkdir(parents=True)
    missed = []

    def status(version: str, wanted: int, word: str, update: bool = False) -> None:
        built = scratch / "built"
        built.mkdir(exist_ok=True)
        shutil.copy(scratch / f"{version}.gfx942.co", built / "kernels.gfx942.co")
        lines, code = run(file, None, built, update, root)
        if code != wanted or word not in "\n".join(lines):
            missed.append(f"run on {version}: exit status {code}, should be {wanted} and say {word!r}: {lines}")

    status("before", 77, "skipped")  # an object without its source
    (root / HIP_FOLDER / "kernels.hip").touch()
    status("before", 1, "does not exist")
    status("before", 0, "written", update=True)
    status("before", 0, "2 of 2 kernels have")
    status("changed", 1, "--update")
    status("renamed", 0, "--update records the names")
    status("changed", 0, "written", update=True)
    status("changed", 0, "2 of 2 kernels have")
    file.write_text(file.read_text().replace("clang version", "clang version 1 and"))
    status("before", 0, "not compared")
    return missed
