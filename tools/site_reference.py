# SPDX-License-Identifier: Apache-2.0
"""Makes the generated parts of docs/reference: Python by mkdocstrings, C++ from the headers, JSON from what the commands print.

site_hooks.py puts them in place of markers when the site is built, so that nothing here can be out of date.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include/quire"
# Python names by what a reader looks for. A public name that is in no group is listed under "Other".
GROUPS = {
    "Attention": ["attend", "append", "merge", "merge_many", "plan", "bind", "synchronize", "Batch", "KVCache", "Options", "Plan", "BoundCall"],
    "Checking": ["check", "Findings", "Finding", "SlotLedger", "LedgerEntry", "rules", "Rule"],
    "Right or wrong, and why": ["reference", "compare", "diagnose", "Reference", "Comparison", "Mismatch", "Diagnosis", "Suspicion",
                                "faults", "Fault"],
    "Judging a kernel": ["verify", "soak", "Verdict", "CaseResult", "CheckResult", "SoakResult"],
    "Cases and captures": ["make_case", "read_capture", "write_capture", "capture", "record", "Case", "ProblemLine"],
    "Pages": ["PagePool", "PoolStats", "PoolMemory"],
    "What would run, and where": ["explain", "kernels", "devices", "gpu_devices", "host_device", "Explanation", "Kernel", "Device"],
    "Errors": ["Error", "ArgumentError", "ContractError", "UnsupportedError", "OutOfPagesError", "OutOfMemoryError", "ParseError",
               "FileError", "DeviceError", "RankError", "InternalError"],
}
MODULES = ["quire.distributed", "quire.vllm", "quire.testing", "quire.targets"]
LINE = "q=f32 heads=2:1 d=8 page=4 reqs=2x1@5"
COMMANDS = {"check": ["check", LINE], "explain": ["explain", LINE], "run": ["run", LINE], "rules": ["rules"], "kernels": ["kernels"],
            "devices": ["devices"], "diagnose": ["diagnose", "--no-reduced", "FILE"], "verify": ["verify", "--line", LINE, "--no-power"],
            "bench": ["bench", "--seconds", "0.01", LINE]}
MOST_KEYS = 60  # of one table; deeper keys are left to the command's own page


# --- Python -----------------------------------------------------------------------------------------------------------------------

def python_reference() -> str:
    """One entry of mkdocstrings for each public name; without the package, a sentence."""
    try:
        import quire
    except ImportError:
        return "*The package was not installed when this page was built.*\n"
    public = [name for name in dir(quire) if not name.startswith("_") and callable(getattr(quire, name))]
    named = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "Other": [name for name in public if name not in named]}
    parts = []
    for title, names in groups.items():
        parts += [f"## {title}\n"] + [entry(quire, name) for name in names if name in public]
    return "\n".join(parts + ["## Modules\n"] + [f"::: {module}\n" for module in MODULES])


def entry(quire, name: str) -> str:
    """An entry of mkdocstrings; for overloads, which it does not collect from stubs, their signatures and the docstring."""
    from quire import _quire

    stub = Path(_quire.__file__).with_name("_quire.pyi").read_text(encoding="utf-8")
    overloads = re.findall(rf"(?m)^@overload\n(def {name}\(.*?\) -> .*?):", stub)
    if overloads:
        text = (getattr(quire, name).__doc__ or "").strip()
        return f"### {name}\n\n```python\n" + "\n".join(overloads) + f"\n```\n\n```text\n{text}\n```\n"
    # The package wraps some functions of the compiled module for better errors; the stub has their signatures.
    return f"::: quire._quire.{name}\n" if hasattr(_quire, name) else f"::: {getattr(quire, name).__module__}.{name}\n"


# --- C++ --------------------------------------------------------------------------------------------------------------------------

def header_order() -> "list[str]":
    """In the order of quire.hpp, which is the order of the data; the C header last."""
    names = re.findall(r'#include "quire/(\w+\.hpp)"|#include <quire/(\w+\.hpp)>', (HEADERS / "quire.hpp").read_text(encoding="utf-8"))
    return [first or second for first, second in names] + ["quire.h"]


def introduction(text: str) -> str:
    """The comment at the top of a header."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        if "SPDX" not in line and "Copyright" not in line:
            lines.append(line.lstrip("/ "))
    return " ".join(lines)


def cpp_reference() -> str:
    parts = []
    for name in header_order():
        text = (HEADERS / name).read_text(encoding="utf-8")
        code = "\n".join("    " + line if line else "" for line in text.rstrip().splitlines())
        parts.append(f'## {name}\n\n{introduction(text)}\n\n??? note "include/quire/{name}"\n\n    ```cpp\n{code}\n    ```\n')
    return "\n".join(parts)


# --- JSON -------------------------------------------------------------------------------------------------------------------------

def kind(value) -> str:
    kinds = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "object", type(None): "null"}
    return kinds[type(value)]


def keys_of(value, path: str, found: "dict[str, tuple[str, str]]") -> None:
    """Every key with its type and the first value seen, as `cases[].checks[].state`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = f"{path}.{key}" if path else key
            example = "" if isinstance(inner, (dict, list)) else json.dumps(inner)
            found.setdefault(name, (kind(inner), example if len(example) < 60 else example[:56] + '..."'))
            keys_of(inner, name, found)
    elif isinstance(value, list):
        for inner in value[:20]:
            keys_of(inner, path + "[]", found)


def printed_json(quire: str, words: "list[str]") -> "dict | list":
    with tempfile.TemporaryDirectory() as folder:
        if "FILE" in words:
            file = f"{folder}/wrong.safetensors"
            subprocess.run([quire, "capture", *LINE.split(), "--fault", "output_zero", "-o", file], check=True, capture_output=True)
            words = [file if word == "FILE" else word for word in words]
        words = [part for word in words for part in (word.split() if word == LINE and "--line" not in words else [word])]
        done = subprocess.run([quire, *words, "--json"], capture_output=True, text=True, cwd=folder)
    return json.loads(done.stdout)


def json_reference() -> str:
    quire = os.environ.get("QUIRE") or shutil.which("quire")
    if not quire:
        return "*The command was not there when this page was built.*\n"
    parts = []
    for name, words in COMMANDS.items():
        found: "dict[str, tuple[str, str]]" = {}
        keys_of(printed_json(str(Path(quire).resolve()), words), "", found)
        shown = list(found.items())[:MOST_KEYS]
        rows = [f"| `{key}` | {what} | {f'`{example}`' if example and '|' not in example else ''} |" for key, (what, example) in shown]
        more = f"\n\nand {len(found) - len(shown)} deeper keys." if len(found) > len(shown) else ""
        parts.append(f"## quire {name} --json\n\n| key | type | example |\n|---|---|---|\n" + "\n".join(rows) + more + "\n")
    return "\n".join(parts)


GENERATED = {"<!-- python: reference -->": python_reference, "<!-- cpp: headers -->": cpp_reference, "<!-- json: schemas -->": json_reference}


def filled(markdown: str) -> str:
    """The page with its marker replaced, if it has one."""
    for marker, make in GENERATED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown
