#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C++ example of README.md is a program: this extracts it, so that the tests can run it and compare what it prints. The code in
Python and the shell, here and on the other pages, is run by check_pages.py.

usage: check_readme.py cpp FILE         write the C++ example to FILE
       check_readme.py expect LANG CMD  run CMD and compare its output with the text block that follows the LANG example
       check_readme.py links            every relative link of a Markdown page, and every page that a source file names, is there; and
                                        every file of bench/results is named by a page, a test, a tool or a source file
       check_readme.py columns          no line of prose, and no row of a table, is longer than 120 columns
       check_readme.py --self-test      plant faults in copies and demand that they are noticed
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 120  # width of a line of prose or a row of a table; beyond it, a diff or an editor beside a page scrolls
MADE = ("reference/contract.md", "reference/confusion.md", "reference/faults.md", "reference/features.md")  # written from the sources' own texts
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE = re.compile(r"(?<![\w./*-])((?:docs/)?(?:[a-z_]+/)*[a-z0-9_]+\.md)\b")
FORGE = "../../actions/"  # the repository's pages of its workflows: links from its front page, whatever its address is
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def example(page: str, language: str) -> "tuple[str, str]":
    """The first block in `language` and the text block right after it: source and expected output."""
    blocks = BLOCK.findall(page)
    for (name, source), (after, output) in zip(blocks, blocks[1:]):
        if name == language and after == "text":
            return source, output
    raise SystemExit(f"README.md has no {language} example followed by a text block")


def compare(command: "list[str]", expected: str) -> "list[str]":
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        return [f"{command[0]}: exit code {done.returncode}", done.stdout + done.stderr]
    if done.stdout != expected:
        return ["README.md says:", expected, "the program printed:", done.stdout]
    return []


def broken_links(root: Path, pages: "list[Path]") -> "list[str]":
    found = []
    for page in pages:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith(FORGE) and not (page.parent / target).exists():
                found.append(f"{page.relative_to(root)}: link to {target}, which does not exist")
    return found


def unknown_pages(root: Path, files: "list[Path]") -> "list[str]":
    """Pages that comments and texts name, with or without their folder, and that do not exist."""
    pages = ["/" + page.relative_to(root).as_posix() for page in root.glob("**/*.md") if "build" not in page.parts]
    found = []
    for file in files:
        for name in PAGE.findall(file.read_text(encoding="utf-8", errors="replace")):
            if not any(page.endswith("/" + name) for page in pages):
                found.append(f"{file.relative_to(root)}: names {name}, which does not exist")
    return found


def unread_results(root: Path, readers: "list[Path]") -> "list[str]":
    """Files of bench/results that nobody names: a result is kept for the page, test or chart that states its figures."""
    texts = [reader.read_text(encoding="utf-8", errors="replace") for reader in readers]
    return [f"{file.relative_to(root)}: no page, test, tool or source file names it"
            for file in sorted(root.glob("bench/results/*")) if not any(file.name in text for text in texts)]


def long_lines(root: Path, pages: "list[Path]") -> "list[str]":
    """Lines of prose and rows of tables beyond the last column. Headings, code, pictures and parts that a test writes are none; `code`
    within a line is not broken."""
    found = []
    for page in pages:
        fenced = made = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            made = (made or line.startswith("<!-- ") and ": written from " in line) and not line.startswith("<!-- /")
            prose = not fenced and not made and not line.startswith(("    ", "#", "!["))
            if prose and len(re.sub(r"`[^`]*`", "`", line)) > COLUMNS:
                found.append(f"{page.relative_to(root)}:{number}: {len(line)} columns, expected at most {COLUMNS}")
    return found


def source_files() -> "list[Path]":
    folders = ("src", "include", "cli", "python", "packages", "cmake", "fuzz")
    return sorted(path for folder in folders for path in ROOT.glob(f"{folder}/**/*")
                  if path.suffix in (".h", ".hpp", ".cpp", ".cu", ".hip", ".inc", ".py", ".cmake"))


def markdown_pages() -> "list[Path]":
    return sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("examples/**/*.md")) + sorted(ROOT.glob("packages/**/*.md"))


def self_test() -> "list[str]":
    page = "```cpp\nint main() {}\n```\n\n```text\n42\n```\n"
    problems = []
    for what, code, wrong in (("a right example", "print(6 * 7)", False), ("a wrong output", "print(6 * 9)", True),
                              ("a failing example", "raise ValueError", True)):
        if bool(compare([sys.executable, "-c", code], example(page, "cpp")[1])) != wrong:
            problems.append(f"{what} {'went unnoticed' if wrong else 'was refused'}")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "page.md"
        (Path(scratch) / "bench/results").mkdir(parents=True)
        for name in ("read.json", "unread.json"):
            (Path(scratch) / "bench/results" / name).touch()
        file.write_text("[figures](bench/results/read.json)", encoding="utf-8")
        if unread_results(Path(scratch), [file]) != ["bench/results/unread.json: no page, test, tool or source file names it"]:
            problems.append("a result that nobody reads went unnoticed, or one that is read was refused")
        file.write_text("[here](page.md) [web](https://example.org) [CI](../../actions/x) [gone](gone.md)\n", encoding="utf-8")
        if broken_links(Path(scratch), [file]) != ["page.md: link to gone.md, which does not exist"]:
            problems.append("a broken link went unnoticed, or a good one was refused")
        source = Path(scratch) / "x.h"
        source.write_text("// see page.md and docs/gone.md\n", encoding="utf-8")
        if unknown_pages(Path(scratch), [source]) != ["x.h: names docs/gone.md, which does not exist"]:
            problems.append("a page that does not exist went unnoticed, or one that does was refused")
        made = "<!-- x: written from y; Z=1 rewrites it -->\n| " + "cell " * 30 + "|\n<!-- /x -->\n"
        file.write_text("word " * 30 + "\n```\n" + "code " * 30 + "\n```\n" + made + "| " + "cell " * 30 + "|\nshort\n", encoding="utf-8")
        if long_lines(Path(scratch), [file]) != ["page.md:1: 150 columns, expected at most 120", "page.md:8: 153 columns, expected at most 120"]:
            problems.append("a long line or row went unnoticed, or code or a part that a test writes was refused")
    return problems


def main(arguments: "list[str]") -> int:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    if arguments[:1] == ["cpp"] and len(arguments) == 2:
        Path(arguments[1]).write_text(example(page, "cpp")[0], encoding="utf-8")
        return 0
    if arguments[:1] == ["expect"] and len(arguments) > 2:
        problems = compare(arguments[2:], example(page, arguments[1])[1])
    elif arguments == ["links"]:
        problems = broken_links(ROOT, markdown_pages()) + unknown_pages(ROOT, source_files())
        programs = [path for folder in ("tests", "tools", "bench") for path in ROOT.glob(f"{folder}/**/*") if path.suffix in (".py", ".cpp", ".txt")]
        problems += unread_results(ROOT, markdown_pages() + source_files() + programs)
    elif arguments == ["columns"]:
        made = [ROOT / "docs" / name for name in MADE]
        problems = long_lines(ROOT, [page for page in markdown_pages() if page not in made])
    elif arguments == ["--self-test"]:
        problems = self_test()
    else:
        print(__doc__, file=sys.stderr)
        return 2
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
