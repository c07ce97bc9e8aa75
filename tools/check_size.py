#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The size of the tree, by one command: lines by area, files, public names, the longest function, the most parameters of a function,
and the files that know a field. A number above its budget (tools/size_budget.json) fails. A decision record that raises a budget says
what left the tree instead.

usage: check_size.py              compare the tree with the budget
       check_size.py --table      print each number beside its budget, and where the extremes are
       check_size.py --write      make the budget what the tree has, plus 2 % (extremes: exactly what it has)
       check_size.py --self-test  sources with known sizes, and a budget that is exceeded

Only tracked files count. Code is .cpp .h .hpp .cu .hip .py .js. A parameter of a function is one between the outer parentheses of its
definition that a caller may give by position, so that a swap of two goes unseen; `self` and `cls` are none. Functions that stand for
another project's have that project's parameters, and do not count.
"""
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tools/size_budget.json"
CODE = {".cpp", ".h", ".hpp", ".cu", ".hip", ".py", ".js"}
AREAS = {"src and include": ("src/", "include/"), "command": ("cli/",), "Python": ("python/quire/", "python/src/"),
         "tests": ("tests/", "python/tests/", "fuzz/"), "bench": ("bench/",), "packages": ("packages/",), "examples": ("examples/",)}
FIELDS = ("q_begin", "k_block_scale", "tree_mask")  # tensors of Batch and KVCache: what a further one would cost
FOREIGN = ("packages/vllm/quire_vllm/ops/", "python/quire/transformers.py")  # signatures that other projects made
ROOM = 1.02
# A definition: a name, parentheses, and a body. Control statements have the same form.
DEFINITION = re.compile(r"(?<![\w.>])(~?\w+|operator\S{1,3})\s*\(")
CONTROL = {"if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "decltype", "requires", "noexcept", "static_assert", "defined"}
BEFORE_BODY = re.compile(r"(\s|const\b|noexcept\b|override\b|final\b|try\b|&|->\s*[\w:<>,\s*&]+)*(:[^;{}]*(\{[^{}]*\}[^;{}]*)*)?\{")


def without_comments(text: str) -> str:
    """Comments, strings and lines of the preprocessor as spaces, so that places stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)
    text = re.sub(r'R"(\w*)\(.*?\)\1"|"(\\.|[^"\\\n])*"|\'(\\.|[^\'\\\n]){1,4}\'', blank, text, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#([^\n]*\\\n)*[^\n]*", blank, text, flags=re.MULTILINE)


def closing(text: str, at: int) -> int:
    """The place of the parenthesis or brace that closes the one at `at`; the end of the text if none does."""
    opens, closes, depth = text[at], {"(": ")", "{": "}"}[text[at]], 0
    for i in range(at, len(text)):
        depth += (text[i] == opens) - (text[i] == closes)
        if depth == 0:
            return i
    return len(text) - 1


def parameters(text: str) -> int:
    depth, commas = 0, 0
    for character in text:
        depth += (character in "(<{[") - (character in ")>}]")
        commas += character == "," and depth == 0
    return commas + 1 if text.strip() not in ("", "void") else 0


def functions_of_cpp(text: str) -> "list[tuple[str, int, int]]":
    """(name, lines, parameters) of each definition."""
    text, found = without_comments(text), []
    for match in DEFINITION.finditer(text):
        if match.group(1) in CONTROL:
            continue
        end = closing(text, match.end() - 1)
        body = BEFORE_BODY.match(text, end + 1)
        if body:
            last = closing(text, body.end() - 1)
            found.append((match.group(1), text.count("\n", match.start(), last) + 1, parameters(text[match.end() : end])))
    return found


def functions_of_python(text: str) -> "list[tuple[str, int, int]]":
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            of = node.args
            names = [a.arg for a in (*of.posonlyargs, *of.args) if a.arg not in ("self", "cls")]
            found.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1, len(names)))
    return found


def public_types(headers: "list[str]") -> int:
    return sum(len(re.findall(r"^(?:template .*\n)?(?:struct|class|enum class) \w+(?: final)?(?: :[^{;]*)? \{", text, re.MULTILINE))
               for text in headers)


def python_names(init: str) -> int:
    listed = re.search(r"^__all__ = \[(.*?)\]", init, re.MULTILINE | re.DOTALL)
    return len(re.findall(r'"\w+"', listed.group(1))) if listed else 0


def measured(files: "dict[str, str]") -> "tuple[dict[str, int], dict[str, str]]":
    """Numbers by name, and where the extremes are. `files`: text by path from the root."""
    code = {path: text for path, text in files.items() if Path(path).suffix in CODE}
    numbers = {f"lines of {area}": sum(text.count("\n") for path, text in code.items() if path.startswith(folders))
               for area, folders in AREAS.items()}
    numbers["lines of code"] = sum(text.count("\n") for text in code.values())
    numbers["lines of docs"] = sum(text.count("\n") for path, text in files.items() if path.startswith("docs/"))
    numbers["lines of results"] = sum(text.count("\n") for path, text in files.items() if path.startswith("bench/results/"))
    numbers["files"] = len(files)
    numbers["public C++ types"] = public_types([text for path, text in files.items() if path.startswith("include/") and path.endswith(".hpp")])
    numbers["names of Python's top level"] = python_names(files.get("python/quire/__init__.py", ""))
    own = ("src/", "include/", "cli/", "python/quire/", "python/src/", "packages/distributed/quire_distributed/", "packages/vllm/quire_vllm/")
    defined = [(lines, 0 if path.startswith(FOREIGN) else count, f"{path}: {name}") for path, text in code.items() if path.startswith(own) and not path.endswith(".js")
               for name, lines, count in (functions_of_python if path.endswith(".py") else functions_of_cpp)(text)]
    longest, widest = max(defined, default=(0, 0, "")), max(defined, key=lambda each: each[1], default=(0, 0, ""))
    numbers["lines of the longest function"], numbers["parameters of a function"] = longest[0], widest[1]
    spread = {field: sum(1 for path, text in code.items() if path.startswith(own) and re.search(rf"\b{field}\b", text)) for field in FIELDS}
    numbers["files that know a field"] = max(spread.values())
    return numbers, {"lines of the longest function": longest[2], "parameters of a function": widest[2],
                     "files that know a field": max(spread, key=lambda field: spread[field])}


EXTREMES = {"lines of the longest function", "parameters of a function", "files that know a field", "public C++ types", "names of Python's top level"}


def budget_of(numbers: "dict[str, int]") -> "dict[str, int]":
    return {name: number if name in EXTREMES else int(number * ROOM) for name, number in numbers.items()}


def complaints(numbers: "dict[str, int]", budget: "dict[str, int]", where: "dict[str, str]") -> "list[str]":
    found = [f"{name}: {number}, the budget is {budget[name]}" + (f" ({where[name]})" if name in where else "")
             for name, number in numbers.items() if number > budget.get(name, number)]
    return found + [f"{name}: has no budget" for name in numbers if name not in budget]


def tracked() -> "dict[str, str]":
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path: (ROOT / path).read_text(encoding="utf-8", errors="replace") for path in listed.split("\0") if path and (ROOT / path).is_file()}


def self_test() -> "list[str]":
    cpp = ('int none(void) { return 0; }\n// int comment(int a, int b, int c) { }\nA::A(int a, std::map<int, int> b) : a_(a), b_{b} {\n  if (a) {}\n'
           '  call(1, 2, 3);\n}\nconst char* s = "f(a, b, c) {";\nauto g(int a, int (*b)(int, int), int c) noexcept -> int {\n  return 1;\n}\n')
    found = [] if functions_of_cpp(cpp) == [("none", 1, 0), ("A", 4, 2), ("g", 3, 3)] else [f"C++: {functions_of_cpp(cpp)}"]
    python = "class A:\n  def f(self, a, b, *, c):\n    pass\n"
    found += [] if functions_of_python(python) == [("f", 2, 2)] else [f"Python: {functions_of_python(python)}"]
    files = {"include/a.hpp": "struct A {\n};\nenum class B {\n};\nstruct Later;\nint q_begin;\n", "src/a.cpp": cpp, "docs/a.md": "\n",
             "python/quire/__init__.py": '__all__ = [\n  "a",\n  "b",\n]\n', "packages/vllm/quire_vllm/ops/a.py": "def f(a, b, c, d):\n  pass\n"}
    numbers, where = measured(files)
    for name, wanted in {"public C++ types": 2, "names of Python's top level": 2, "parameters of a function": 3, "files": 5, "lines of docs": 1,
                         "files that know a field": 1, "lines of src and include": 16}.items():
        found += [] if numbers[name] == wanted else [f"{name}: {numbers[name]}, expected {wanted}"]
    said = complaints(numbers, {**budget_of(numbers), "files": 4}, where)
    return found + ([] if said == ["files: 5, the budget is 4"] else [f"said {said}"])


def main() -> int:
    if "--self-test" in sys.argv:
        found = self_test()
    elif not (ROOT / ".git").exists():
        print("skipped: no checkout, so nothing says which files are tracked")
        return 77
    else:
        numbers, where = measured(tracked())
        if "--write" in sys.argv:
            BUDGET.write_text(json.dumps(budget_of(numbers), indent=1) + "\n", encoding="utf-8")
        budget = json.loads(BUDGET.read_text(encoding="utf-8"))
        if "--table" in sys.argv:
            print("\n".join(f"{name:32} {number:8} of {budget.get(name, 0):8}  {where.get(name, '')}".rstrip() for name, number in numbers.items()))
        found = complaints(numbers, budget, where)
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
