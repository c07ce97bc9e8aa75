#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/assets/diagnose.svg: a terminal in which `quire diagnose` finds a cause. The text is what the command printed.

usage: draw_diagnosis.py QUIRE          run the command QUIRE and write the drawing
       draw_diagnosis.py QUIRE --check  compare the drawing with what the command prints now
"""
import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

DRAWING = Path(__file__).resolve().parent.parent / "docs/assets/diagnose.svg"
# The bug of docs/guides/the_case.md on a batch that is small enough for a page: 88 and 41 prompt rows and one decode row.
LINE = "q=f16 heads=8:2 d=64 page=16 index=i64 data=tiny reqs=88@43,41@95,1@92"
FAULT = "query_start_loc_as_int32_in_decode"
CAPTURE = ["capture", *LINE.split(), "--fault", FAULT, "--fill", "garbage", "-o", "wrong.safetensors"]
COLUMNS, CHARACTER, ROW = 96, 7.83, 20  # columns of the terminal; width and height of a character in px, 13 px monospace
FIRST, STEP = 0.8, 0.28  # seconds until the first line of the answer, and from line to line
STYLE = """
.back{fill:#f6f8fa;stroke:#d0d7de}.text{fill:#1f2328;font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.key{fill:#0550ae}.good{fill:#116329;font-weight:600}.dot{fill:#d0d7de}
.line{animation:show .01s linear backwards}@keyframes show{from{opacity:0}}
@media (prefers-reduced-motion:reduce){.line{animation:none}}
@media (prefers-color-scheme:dark){.back{fill:#0d1117;stroke:#30363d}.text{fill:#e6edf3}.key{fill:#79c0ff}
.good{fill:#7ee787}.dot{fill:#30363d}}
@media print{.line{animation:none}}"""


def answer_of(quire: str) -> "list[str]":
    """The lines that the command prints, in a terminal of COLUMNS, for a capture of LINE by a kernel with FAULT."""
    with tempfile.TemporaryDirectory() as folder:
        command = Path(quire).resolve() if Path(quire).exists() else quire
        subprocess.run([command, *CAPTURE], check=True, capture_output=True, cwd=folder)
        return subprocess.run([command, "diagnose", "wrong.safetensors"], capture_output=True, text=True, cwd=folder,
                              env={**os.environ, "COLUMNS": str(COLUMNS)}).stdout.splitlines()


def row_of(i: int, line: str, seconds: float) -> str:
    label = 2 if line.startswith("$ ") else 9 if line[:1].strip() else 0
    key, rest = line[:label], line[label:]
    shown = f'<tspan class="key">{escape(key)}</tspan>' + (
        f'<tspan class="good">{escape(rest)}</tspan>' if rest == "cause found" else escape(rest))
    return (f'<text class="text line" style="animation-delay:{seconds:.2f}s" x="20" y="{62 + ROW * i}" '
            f'xml:space="preserve">{shown}</text>')


def drawing(answer: "list[str]") -> str:
    width, height = round(COLUMNS * CHARACTER) + 40, 62 + ROW * (len(answer) + 1)
    rows = [row_of(0, "$ quire diagnose wrong.safetensors", 0)]
    rows += [row_of(i, line, FIRST + STEP * i) for i, line in enumerate(answer, 1)]
    dots = "".join(f'<circle class="dot" cx="{22 + 20 * i}" cy="20" r="6"/>' for i in range(3))
    label = "A terminal: quire diagnose reads a capture with a wrong output and names the cause"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{label}">\n<!-- Written by tools/draw_diagnosis.py for a capture of {LINE} by {FAULT}, filled with garbage -->\n'
            f'<style>{STYLE}</style>\n<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
            f"{dots}\n" + "\n".join(rows) + "\n</svg>\n")


def main(arguments: "list[str]") -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    drawn = drawing(answer_of(arguments[0]))
    if arguments[1:] != ["--check"]:
        DRAWING.write_text(drawn, encoding="utf-8")
    elif DRAWING.read_text(encoding="utf-8") != drawn:
        print(f"{DRAWING.name} does not show what the command prints: run tools/draw_diagnosis.py")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
