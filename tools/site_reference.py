# SPDX-License-Identifier: Apache-2.0
"""Makes the generated parts of docs/reference: Python by mkdocstrings, C++ from the headers, JSON from the schemas.

site_hooks.py puts them in place of markers when the site is built, so that nothing here can be out of date.
"""
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include/quire"
SCHEMAS = ROOT / "docs/reference/schemas"
# Python names by what a reader looks for. A public name that is in no group is listed under "Other".
GROUPS = {
    "Attention": ["attend", "append", "merge", "merge_many", "plan", "bind", "synchronize", "Batch", "KVCache", "Options", "Plan", "BoundCall"],
    "Checking": ["check", "Findings", "Finding", "SlotLedger", "LedgerEntry", "rules", "Rule"],
    "Right or wrong, and why": ["reference", "compare", "diagnose", "Reference", "Comparison", "Mismatch", "Diagnosis", "Suspicion",
                                "compare_caches", "CacheComparison", "CachePart", "faults", "Fault"],
    "Judging a kernel": ["verify", "soak", "Verdict", "CaseResult", "CheckResult", "SoakResult"],
    "Cases and captures": ["make_case", "read_capture", "write_capture", "capture", "record", "Case", "ProblemLine"],
    "Pages": ["PagePool", "PoolStats", "PoolMemory"],
    "What would run, and where": ["explain", "Explanation"],
    "Errors": ["Error", "ArgumentError", "ContractError", "UnsupportedError", "OutOfPagesError", "OutOfMemoryError", "ParseError",
               "FileError", "DeviceError", "InternalError"],
}
MODULES = ["quire.info", "quire.cascade", "quire.sparse", "quire.testing", "quire.targets", "quire_distributed", "quire_vllm.ops"]


# --- Python -----------------------------------------------------------------------------------------------------------------------

def python_reference() -> str:
    """One entry of mkdocstrings for each public name; without the package, a sentence."""
    try:
        import quire
    except ImportError:
        return "*The package was not installed when this page was built.*\n"
    places = {name: module for module in (quire, quire.results, quire.errors, quire.hooks) for name in module.__all__
              if not name.startswith("_") and callable(getattr(module, name))}
    public = list(places)
    named = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "Other": [name for name in public if name not in named]}
    parts = []
    for title, names in groups.items():
        parts += [f"## {title}\n"] + [entry(places[name], name) for name in names if name in public]
    return "\n".join(parts + ["## Modules\n"] + [f"::: {module}\n" for module in MODULES])


def entry(module, name: str) -> str:
    """An entry of mkdocstrings for a name of a module; for overloads, which it does not collect from stubs, their signatures and the docstring."""
    from quire import _quire

    stub = Path(_quire.__file__).with_name("_quire.pyi").read_text(encoding="utf-8")
    overloads = re.findall(rf"(?m)^@overload\n(def {name}\(.*?\) -> .*?):", stub)
    if overloads:
        text = (getattr(module, name).__doc__ or "").strip()
        return f"### {name}\n\n```python\n" + "\n".join(overloads) + f"\n```\n\n```text\n{text}\n```\n"
    # The package wraps some functions of the compiled module for better errors; the stub has their signatures.
    return f"::: quire._quire.{name}\n" if hasattr(_quire, name) else f"::: {getattr(module, name).__module__}.{name}\n"


# --- C++ --------------------------------------------------------------------------------------------------------------------------

def header_order() -> "list[str]":
    """Headers in the order of quire.hpp and tools/tools.hpp, which is the order of the data; the C header last."""
    lists = "".join((HEADERS / name).read_text(encoding="utf-8") for name in ("quire.hpp", "tools/tools.hpp"))
    return [*re.findall(r'#include "quire/([\w/]+\.hpp)"', lists), "quire.h"]


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

def resolved(schema: dict, root: dict) -> dict:
    """A schema with its $ref followed, inside its own file or to another one."""
    target = schema.get("$ref", "")
    if target.startswith("#/$defs/"):
        return root["$defs"][target.removeprefix("#/$defs/")]
    return {"type": "object", "description": f"see [{target.removeprefix('quire:')}](#{target.removeprefix('quire:')})"} if target else schema


def kind(schema: dict) -> str:
    """Type of a field in words: "text", "whole number or null"."""
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(kind(part) for part in schema["anyOf"])
    names = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text", "array": "list", "object": "object",
             "null": "null"}
    types = schema.get("type", "object")
    return " or ".join(names[name] for name in ([types] if isinstance(types, str) else types))


def rows_of(schema: dict, path: str, root: dict) -> "list[str]":
    """A row for every key below a schema, as `cases[].checks[].state`."""
    schema = resolved(schema, root)
    if "anyOf" in schema:
        return [row for part in schema["anyOf"] for row in rows_of(part, path, root)]
    if isinstance(schema.get("items"), dict):
        return rows_of(schema["items"], path + "[]", root)
    rows = []
    for key, inner in schema.get("properties", {}).items():
        name, part = f"{path}.{key}" if path else key, resolved(inner, root)
        meaning = inner.get("description", part.get("description", "")).replace("|", "\\|")
        rows.append(f"| `{name}` | {kind(part)} | {meaning} |")
        rows += rows_of(inner, name, root)
    return rows


def json_reference() -> str:
    """A table for each file of docs/reference/schemas."""
    parts = []
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        rows = "\n".join(rows_of(schema, "", schema))
        parts.append(f"## {path.stem}\n\n{schema['title']} ([schema](schemas/{path.name}))\n\n| key | type | meaning |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


GENERATED = {"<!-- python: reference -->": python_reference, "<!-- cpp: headers -->": cpp_reference, "<!-- json: schemas -->": json_reference}


def filled(markdown: str) -> str:
    """The page with its marker replaced, if it has one."""
    for marker, make in GENERATED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown
