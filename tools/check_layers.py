#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom (docs/design.md, "Who may include whom"), that namespaces are named after folders, and that every source
file names its licence. Prints every violation, and fails if there is one.

usage: check_layers.py              check the repository
       check_layers.py --self-test  plant one violation of every kind in a scratch tree and demand that each is reported
"""
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".hip", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)

# The first line of a source file, or its second below a #! line, says this in a comment.
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED_SUFFIXES = SUFFIXES | {".py", ".sh", ".cmake", ".js"}
LICENSED_NAMES = {"CMakeLists.txt", "run", "test"}
SOURCE_FOLDERS = ("include", "src", "cli", "python", "examples", "fuzz", "tests", "tools", "bench", "cmake", "packages")

PUBLIC = ["include/quire/"]
PUBLIC_TYPES = [f"include/quire/{name}.hpp" for name in ("status", "tensor", "cache", "batch")]
TEXT = ["src/text/"]
THREADS = ["src/threads/"]
FILES = ["src/files/"]
SEMANTICS = ["src/semantics/", *TEXT]
SCHEDULE = ["src/schedule/"]
NUMERICS = ["src/numerics/"]
CEIL_DIV = ["src/semantics/ceil_div.h"]
# The table of a call's fields, for whoever does something with each tensor; exceptions as statuses, for every public call.
CAUGHT = ["src/batch/caught.h"]
FIELDS = ["src/batch/fields.h", "src/batch/fields.inc", *CAUGHT]
DTYPE_DECODE = [*(f"src/semantics/{name}.h" for name in ("dtype", "fp8", "fp4", "index_tensor", "qualifiers")), *CEIL_DIV, *TEXT]

# Folder -> what its files may include besides their own folder. The longest matching folder counts.
ALLOWED = {
    "include/quire/": [],
    "src/text/": [],
    "src/threads/": ["include/quire/interrupt.hpp"],
    "src/files/": ["include/quire/status.hpp"] + TEXT,
    "src/semantics/": PUBLIC_TYPES,
    # How devices cut their work: numbers alone, for the host and for devices.
    "src/schedule/": ["src/semantics/qualifiers.h", "src/semantics/visible_range.h", *CEIL_DIV],
    "src/batch/": PUBLIC + SEMANTICS,
    "src/device/": PUBLIC + TEXT,
    "src/contract/": PUBLIC + SEMANTICS + FIELDS + ["src/device/"],
    "src/pool/": PUBLIC + SEMANTICS + CAUGHT,
    "src/plan/": PUBLIC + SEMANTICS + CAUGHT + SCHEDULE + ["src/device/"],
    "src/attention/": PUBLIC + TEXT + FIELDS + ["src/contract/values.h", "src/device/", *(f"src/backend/{name}/entry.h" for name in ("cpu", "gpu", "cuda", "hip"))],
    "src/shards/": PUBLIC + TEXT + CEIL_DIV + CAUGHT,
    "src/cascade/": PUBLIC + SEMANTICS + FIELDS + ["src/device/", "src/plan/beside.h", "src/attention/beside.h"],
    "src/sparse/": PUBLIC + SEMANTICS + CAUGHT + ["src/device/"],
    "src/capture/": PUBLIC + SEMANTICS + FIELDS + THREADS + FILES,
    # How far a right kernel may be from the reference, and the comparison by it.
    "src/numerics/": PUBLIC + DTYPE_DECODE,
    # Parts of a case that verify and bench share: the rows that are compared, the case on a device, and its inputs as views.
    "src/cases/": PUBLIC + TEXT + FIELDS + ["src/device/", "src/capture/spoiler.h"],
    # Rows of two caches by their bytes; what append() would have written is asked of append().
    "src/caches/": PUBLIC + SEMANTICS + ["src/contract/values.h"],
    # Faults and the judges of outputs: nothing of the kernels but dtype decode, so that they stay a second opinion.
    "src/faults/": PUBLIC + DTYPE_DECODE + THREADS + CAUGHT,
    "src/report/": PUBLIC + DTYPE_DECODE + NUMERICS,
    "src/diagnose/": PUBLIC + DTYPE_DECODE + NUMERICS + THREADS + FIELDS + ["src/faults/", "src/report/"],
    "src/verify/": PUBLIC + DTYPE_DECODE + THREADS + FIELDS + FILES + ["src/report/", "src/device/", "src/cases/"],
    "src/bench/": PUBLIC + TEXT + CEIL_DIV + CAUGHT + ["src/cases/", "src/device/"],
    # The oracle: a bug shared with the kernels' masking or paging could hide there.
    "src/backend/reference/": PUBLIC_TYPES + ["include/quire/contract.hpp", "include/quire/tools/compare.hpp", "include/quire/tools/reference.hpp"] + CAUGHT + NUMERICS + DTYPE_DECODE + THREADS,
    "src/backend/cpu/": PUBLIC + SEMANTICS + ["src/plan/"],
    "src/backend/gpu/": PUBLIC + SEMANTICS + SCHEDULE + ["src/plan/", "src/device/"],
    "src/backend/cuda/": PUBLIC + SEMANTICS + SCHEDULE + ["src/plan/", "src/device/", "src/backend/gpu/"],
    "src/backend/hip/": PUBLIC + SEMANTICS + SCHEDULE + ["src/plan/", "src/device/", "src/backend/gpu/"],
    "src/capi/": PUBLIC + TEXT + FIELDS,
    # The command prints JSON values of results, with what it knows beside them, and pages of both.
    "cli/": PUBLIC + TEXT + FILES + ["src/report/json/json.h", "src/report/html/page.h", "src/plan/products.h"],
    "python/": PUBLIC + FIELDS + FILES + ["src/text/duration.h", "cli/command_line.h"],
    "examples/": PUBLIC,
    # Like a test, a fuzzer judges results by means of its own and of the library.
    "fuzz/": PUBLIC + SEMANTICS + ["src/contract/"],
}
# Folders of libquire_tools, as cmake/libraries.cmake compiles them; all others of src/ are libquire's, which includes none of these.
TOOLS = ["include/quire/tools/"] + [
    f"src/{folder}/"
    for words in re.findall(r"set\(QUIRE_(?:ORACLE|TOOLS)_FOLDERS ([^)\"]+)\)", (ROOT / "cmake/libraries.cmake").read_text(encoding="utf-8"))
    for folder in words.split()]
# Third-party headers by folder prefix; what is not named here stays inside the standard library and the operating system.
THIRD_PARTY = {
    "fmt/": ["src/text/"],
    "nlohmann/": ["src/", "cli/", "python/"],
    "CLI/": ["cli/"],
    "nanobind/": ["python/"],
    "cuda": ["src/backend/gpu/", "src/backend/cuda/", "examples/ranks/"],
    "hip/": ["src/backend/gpu/", "src/backend/hip/"],
}


def resolve(root: Path, file: Path, text: str) -> "str | None":
    """The repository path that an include names, or None if it is not ours."""
    for base in (file.parent, root / "include", root / "src", root / file.relative_to(root).parts[0], root):
        candidate = (base / text).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def complaint(root: Path, file: Path, quoted: str, angled: str) -> "str | None":
    name = file.relative_to(root).as_posix()
    folder = max((f for f in ALLOWED if name.startswith(f)), key=len, default=None)
    if folder is None:
        return "is in no known folder; give the folder a row in tools/check_layers.py"
    text = quoted or angled
    target = resolve(root, file, text)
    if target is not None:
        if name.startswith(("src/", "include/")) and target.startswith(tuple(TOOLS)) and not name.startswith(tuple(TOOLS)):
            return f"includes {target}, but libquire includes nothing of libquire_tools"
        allowed = [folder, *ALLOWED[folder]]
        return None if any(target.startswith(a) for a in allowed) else f"includes {target}, but {folder} may not"
    if quoted:
        return f'includes "{text}", which does not exist'
    for prefix, folders in THIRD_PARTY.items():
        if text.startswith(prefix) and not any(name.startswith(f) for f in folders):
            return f"includes <{text}>, but {folder} may not"
    return None


def violations(root: Path) -> "list[str]":
    found = []
    for top in ("include", "src", "cli", "python", "examples", "fuzz"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file():
                continue
            source = COMMENT.sub(lambda m: "\n" * m.group().count("\n"), file.read_text(encoding="utf-8"))
            for match in INCLUDE.finditer(source):
                reason = complaint(root, file, match.group(1), match.group(2))
                if reason:
                    line = source.count("\n", 0, match.start(1) if match.group(1) else match.start(2)) + 1
                    found.append(f"{file.relative_to(root).as_posix()}:{line}: {reason}")
    return found


NAMESPACE = re.compile(r"^namespace (quire(?:::\w+)+) \{", re.MULTILINE)
# A backend implements these namespaces of other folders: src/device's interface, and the names of the SIMT stand-in's builtins.
IMPLEMENTED = {"quire::device": "src/backend/", "quire::simt": "src/backend/"}


def namespaces_of(file: str) -> "set[str]":
    """Namespaces that a file of src/ may open: quire::<folder>::<subfolder>... or a part of that from the left, and one named after
    the file. A folder whose name is also a public function (`plan`, `verify`) has `<folder>_detail`."""
    path = file.removeprefix("src/backend/").removeprefix("src/")
    *folders, stem = Path(path).with_suffix("").parts
    names = {"quire"}
    for suffix in ("", "_detail"):
        for depth in range(1, len(folders) + 1):
            names.add("::".join(["quire", folders[0] + suffix, *folders[1:depth]]))
    names.add("::".join(["quire", *folders, stem]))
    return names | {name for name, prefix in IMPLEMENTED.items() if file.startswith(prefix)}


def misnamed(root: Path) -> "list[str]":
    found = []
    for file in sorted((root / "src").rglob("*")):
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        name = file.relative_to(root).as_posix()
        source = file.read_text(encoding="utf-8")
        for match in NAMESPACE.finditer(source):
            if match.group(1) not in namespaces_of(name):
                found.append(f"{name}:{source.count(chr(10), 0, match.start()) + 1}: opens {match.group(1)}, which is not named after the folder")
    return found


def misnamed_self_test() -> "list[str]":
    """Returns namespaces that were wrongly judged."""
    wrong = {"src/plan/a.h": "quire::planning", "src/backend/cuda/sm90/b.h": "quire::cuda::mma", "src/verify/c.h": "quire::conformance",
             "src/contract/d.h": "quire::device"}
    right = {"src/plan/kernels/e.h": "quire::plan_detail", "src/backend/cuda/sm90/f.h": "quire::cuda::sm90", "src/faults/g.h": "quire::faults_detail",
             "src/backend/cuda/ptx.h": "quire::cuda::ptx", "src/backend/hip/h.h": "quire::device"}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        for name, namespace in {**wrong, **right}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"namespace {namespace} {{\n}}\n", encoding="utf-8")
        reported = {line.split(":")[0] for line in misnamed(root)}
    return [f"namespace: wrongly judged: {name}" for name in sorted(reported ^ set(wrong))]


def needs_licence(file: Path) -> bool:
    return file.is_file() and (file.suffix in LICENSED_SUFFIXES or file.name in LICENSED_NAMES)


def unlicensed(root: Path) -> "list[str]":
    files = [*root.glob("*"), *(file for top in SOURCE_FOLDERS for file in (root / top).rglob("*"))]
    found = []
    for file in sorted(filter(needs_licence, files)):
        lines = file.read_text(encoding="utf-8").split("\n", 2)
        line = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        if line.strip("/*# ") != LICENCE:
            found.append(f"{file.relative_to(root).as_posix()}:1: does not begin with a comment that says {LICENCE}")
    return found


def unlicensed_self_test() -> "list[str]":
    """Returns files without a licence line that went unnoticed, and files with one that did not."""
    planted = {"src/a.cpp": "// What it is.\n", "tools/b.sh": f"#!/bin/sh\n# What it is.\n# {LICENCE}\n", "run": "#!/bin/sh\n",
               "tests/c.py": "# SPDX-License-Identifier: MIT\n", "cmake/d.cmake": ""}
    allowed = {"src/e.cpp": f"// {LICENCE}\n", "src/h.c": f"/* {LICENCE} */\n", "tools/f.sh": f"#!/bin/sh\n# {LICENCE}\n",
               "CMakeLists.txt": f"# {LICENCE}\n", "src/g.txt": "no source\n"}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        for name, text in {**planted, **allowed}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        reported = {line.split(":")[0] for line in unlicensed(root)}
    return [f"licence: wrongly judged: {name}" for name in sorted(reported ^ set(planted))]


def self_test() -> "list[str]":
    """One forbidden include per line of design.md's rules; returns those that went unnoticed."""
    headers = ["include/quire/tensor.hpp", "include/quire/plan.hpp", "include/quire/contract.hpp", "src/semantics/dtype.h",
               "src/semantics/visible_range.h", "src/plan/select.h", "src/contract/report.h", "src/backend/cpu/tile.h",
               "src/backend/gpu/runtime.h", "src/backend/reference/attend.h", "src/capi/guard.h", "src/text/formatted.h",
               "src/device/runtime.h", "src/schedule/cuts.h", "src/backend/cpu/entry.h", "src/diagnose/rank.h", "src/verify/judge.h",
               "include/quire/tools/verify.hpp"]
    planted = {
        "include/quire/cache.hpp": '#include "semantics/dtype.h"',
        "include/quire/batch.hpp": "#include <fmt/format.h>",
        "src/text/typed.h": '#include "quire/tensor.hpp"',
        "src/plan/slow_to_compile.cpp": "#include <fmt/format.h>",
        "src/semantics/layout.h": '#include "quire/plan.hpp"',
        "src/semantics/score.h": '#include "plan/select.h"',
        "src/contract/shape.cpp": '#include "plan/select.h"',
        "src/plan/plan.cpp": '  #  include "contract/report.h"',
        "src/backend/reference/page.cpp": '#include "semantics/visible_range.h"',
        "src/backend/reference/plan.cpp": '#include "quire/plan.hpp"',
        "src/backend/cpu/oracle.cpp": '#include "backend/reference/attend.h"',
        "src/backend/cpu/gpu.cpp": '#include "../gpu/runtime.h"',
        "src/backend/cuda/cpu.cu": '#include "backend/cpu/tile.h"',
        "src/capi/plan.cpp": '#include "plan/select.h"',
        "src/diagnose/walk.cpp": '#include "semantics/visible_range.h"',
        "src/report/cause.cpp": '#include "diagnose/rank.h"',
        "src/bench/judge.cpp": '#include "verify/judge.h"',
        "src/numerics/cause.cpp": '#include "diagnose/rank.h"',
        "cli/run.cpp": '#include "capi/guard.h"',
        "python/module.cpp": '#include "semantics/dtype.h"',
        "src/attention/tile.cpp": '#include "backend/cpu/tile.h"',
        "src/device/plan.cpp": '#include "plan/select.h"',
        "src/backend/cpu/device.cpp": '#include "device/runtime.h"',
        "src/surprise/new.cpp": '#include "quire/plan.hpp"',
        "src/schedule/list.h": '#include "plan/select.h"',
        "src/backend/cpu/cuts.cpp": '#include "schedule/cuts.h"',
        "src/pool/judged.cpp": '#include "quire/tools/verify.hpp"',
        "include/quire/attention.hpp": '#include "quire/tools/verify.hpp"',
        "src/plan/typo.cpp": '#include "plan/selekt.h"',
    }
    allowed = {
        "src/backend/cuda/attend.cu": '#include "backend/gpu/runtime.h"',
        "src/backend/cpu/attend.cpp": '#include "semantics/visible_range.h"\n#include "plan/select.h"\n#include "text/formatted.h"',
        "src/backend/gpu/list.h": '#include "schedule/cuts.h"',
        "src/attention/attend.cpp": '#include "backend/cpu/entry.h"\n#include "device/runtime.h"',
        "src/faults/plant.cpp": '#include "quire/tools/verify.hpp"',
        "src/plan/comment.cpp": '// why not include?\n/*\n#include "contract/report.h"\n*/',
        "cli/main.cpp": '#include "quire/plan.hpp"\n#include <CLI/CLI.hpp>',
    }
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        for name, text in [*((h, "") for h in headers), *planted.items(), *allowed.items()]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n", encoding="utf-8")
        reported = violations(root)
    missed = [f"not reported: {name}: {text}" for name, text in planted.items()
              if not any(line.startswith(name + ":1:") for line in reported)]
    false_alarms = [f"wrongly reported: {line}" for line in reported if line.split(":")[0] not in planted]
    return missed + false_alarms


def main() -> int:
    testing = "--self-test" in sys.argv
    problems = self_test() + misnamed_self_test() + unlicensed_self_test() if testing else violations(ROOT) + misnamed(ROOT) + unlicensed(ROOT)
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
