#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the code of the pages and compares what it prints with what the pages say.

usage: check_pages.py [PAGE...]    run the blocks of these pages; default: README.md, docs/ and examples/
       check_pages.py --self-test  plant faults in copies and demand that they are noticed

A page is one session. ```python blocks share their variables; ```console blocks run their "$ " lines in the page's own folder.
A ```text block right after a Python block is what the block prints, and lines below a "$ " line are what the command prints;
`...` stands for anything. A comment before a block says when it is not run:

    <!-- needs: torch, cuda -->   run where these are present: modules, or cuda for an NVIDIA GPU; else skipped, and counted
    <!-- not run: REASON -->      only compiled; the reason is for readers of the source
    <!-- raises: ERROR -->        the Python block must end with this exception
"""
import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Pages whose blocks other tests run.
ELSEWHERE = {"docs/guides/python_tools.md": "python/tests/test_docs.py", "docs/guides/conformance.md": "python/tests/test_main.py",
             "docs/guides/vllm.md": "packages/vllm", "docs/guides/audit.md": "packages/vllm",
             "docs/guides/transformers.md": "packages/vllm"}
BLOCK = re.compile(r"(?:<!-- (needs|not run|raises): (.*?) -->\n)?^( *)```(python|console|text)\b[^\n]*\n(.*?)^\3```$",
                   re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECONDS = 120  # a page's limit; the longest takes 5 s on one core, so a hang is noticed and a slow machine is not


@dataclass
class Block:
    language: str
    source: str
    marker: str  # "", "needs", "not run" or "raises"
    words: str  # text of the marker
    expected: "str | None"  # text block behind a Python block


def blocks_of(page: str) -> "list[Block]":
    """Python and console blocks in order; a text block is attached to the Python block that it follows at once."""
    found, end = [], -1
    for match in BLOCK.finditer(page):
        marker, words, indent, language, source = match.groups()
        source = re.sub(rf"(?m)^{indent}", "", source)
        if language != "text":
            found.append(Block(language, source, marker or "", words or "", None))
        elif found and found[-1].language == "python" and not page[end : match.start()].strip():
            found[-1].expected = source
        end = match.end()
    return found


def has(need: str) -> bool:
    if need != "cuda":
        return importlib.util.find_spec(need) is not None
    import quire

    return any(device.backend == "cuda" for device in quire.info.gpu_devices())


def program_of(blocks: "list[Block]") -> str:
    """A Python program that runs the blocks. It prints one JSON list: what each printed, and the exception that ended it."""
    return f"BLOCKS = {[vars(block) for block in blocks]!r}\n" + RUNNER


RUNNER = '''
import contextlib, io, json, os, subprocess, sys, traceback
names, results = {"__name__": "__main__"}, []
for block in BLOCKS:
    out, raised = io.StringIO(), ""
    if block["language"] == "console":
        for line in block["source"].splitlines():
            if line.startswith("$ "):
                done = subprocess.run(line[2:], shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                out.write(line + "\\n" + done.stdout)
                if done.returncode not in (0, 1):
                    raised = f"exit code {done.returncode}"
    else:
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(block["source"], "<page>", "exec"), names)
        except BaseException as error:
            raised = type(error).__name__
            trace = traceback.format_exc()
            if block["marker"] != "raises":
                out.write(trace)
    results.append({"out": out.getvalue(), "raised": raised})
sys.__stdout__.write("\\0" + json.dumps(results))
'''


def wanted_of(block: Block) -> "str | None":
    if block.language == "console":
        return block.source if any(not line.startswith("$ ") for line in block.source.splitlines()) else None
    return block.expected


def differences(name: str, blocks: "list[Block]", results: "list[dict]") -> "list[str]":
    found, checker = [], doctest.OutputChecker()
    for block, result in zip(blocks, results):
        first = block.source.strip().split("\n")[0]
        expected_error = block.words if block.marker == "raises" else ""
        if result["raised"] != expected_error:
            found += [f"{name}: the block that begins with `{first}` ended with {result['raised'] or 'no error'}", result["out"]]
        wanted = wanted_of(block)
        if wanted is not None and not checker.check_output(wanted, result["out"], FLAGS):
            found += [f"{name}: the block that begins with `{first}`; the page says:", wanted, "it printed:", result["out"]]
    return found


def environment() -> "dict[str, str]":
    """The command `quire` of this interpreter, or of the build that QUIRE names, comes first in PATH."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    if os.environ.get("QUIRE"):
        folders.insert(0, str(Path(os.environ["QUIRE"]).resolve().parent))
    modules = [*map(str, ROOT.glob("packages/*")), os.environ.get("PYTHONPATH", "")]
    # A page shows what one thread prints, without colours.
    return dict(os.environ, PATH=os.pathsep.join(folders), PYTHONPATH=os.pathsep.join(modules), NO_COLOR="1", COLUMNS="120")


def run_page(name: str, page: str) -> "tuple[list[str], int, int]":
    """Problems, blocks run, blocks skipped."""
    blocks, problems, skipped = [], [], 0
    for block in blocks_of(page):
        if block.language == "python":
            try:
                compile(block.source, name, "exec")
            except SyntaxError as error:
                problems.append(f"{name}: {error}")
                continue
        if block.marker == "not run" or (block.marker == "needs" and not all(map(has, re.split(r",\s*", block.words)))):
            skipped += 1
        else:
            blocks.append(block)
    if not blocks:
        return problems, 0, skipped
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-c", program_of(blocks)], capture_output=True, text=True, cwd=folder,
                                  env=environment(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return problems + [f"{name}: not done after {SECONDS} s"], len(blocks), skipped
    printed, separator, results = done.stdout.rpartition("\0")
    if not separator:
        return problems + [f"{name}: the program of the page died", done.stdout + done.stderr], len(blocks), skipped
    return problems + differences(name, blocks, json.loads(results)), len(blocks), skipped


def pages() -> "list[Path]":
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/*.md"))]
    return [page for page in found if page.relative_to(ROOT).as_posix() not in ELSEWHERE]


def self_test() -> "list[str]":
    right = "```python\nx = 6\n```\n\n```python\nprint(x * 7)\n```\n\n```text\n42\n```\n\n```console\n$ echo a b\na ...\n```\n"
    raising = "<!-- raises: ValueError -->\n```python\nint('x')\n```\n"
    cases = {"a right page": (right, False), "an expected exception": (raising, False),
             "a wrong output": (right.replace("42", "43"), True), "a wrong line of a command": (right.replace("a ...", "c"), True),
             "a block that raises": (right.replace("x = 6", "x = y"), True), "a command that fails": ("```console\n$ exit 3\n```\n", True),
             "no exception where one is promised": (raising.replace("'x'", "'1'"), True),
             "a syntax error in a block that is not run": ("<!-- not run: no -->\n```python\nx = = 1\n```\n", True),
             "a program that dies": ("```python\nimport os; os._exit(1)\n```\n", True)}
    return [f"{what}: {'went unnoticed' if wrong else 'was refused'}" for what, (page, wrong) in cases.items()
            if bool(run_page("page", page)[0]) != wrong]


def main(arguments: "list[str]") -> int:
    if arguments == ["--self-test"]:
        problems = self_test()
        print("\n".join(problems) or "ok")
        return bool(problems)
    problems, total, skipped = [], 0, 0
    for path in [Path(argument).resolve() for argument in arguments] or pages():
        found, run, left = run_page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        problems, total, skipped = problems + found, total + run, skipped + left
    print("\n".join(problems) or f"ok: {total} blocks run, {skipped} not run here")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
