#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the drawings of docs/concepts and docs/kernels: docs/assets/drawings/*.svg.

usage: draw_concepts.py            write them
       draw_concepts.py --check    compare them with what this script draws

One function per drawing. Colours are classes, so that a drawing follows the reader's light or dark scheme.
"""
import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs/assets/drawings"
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1f2328}.b{fill:#fff}.t{font-weight:600}.m{text-anchor:middle}
.e{text-anchor:end}.s,.on{font-size:11px}.s{fill:#57606a}.box{fill:#f6f8fa;stroke:#8c959f}.no{fill:#eaeef2;stroke:#d0d7de}
.r0{fill:#9ecae9;stroke:#4c78a8}.r1{fill:#ffbf79;stroke:#c96a12}.r2{fill:#98d8a0;stroke:#3d8c4c}.bad{fill:#ffb3ad;stroke:#cf222e}
.a{stroke:#57606a;fill:none;stroke-width:1.5;marker-end:url(#head)}.h{fill:#57606a}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#0d1117}.s{fill:#9198a1}.box{fill:#161b22;stroke:#6e7681}
.no{fill:#161b22;stroke:#30363d}.r0{fill:#1f4e79;stroke:#79b8ff}.r1{fill:#7a4100;stroke:#ffb26b}.r2{fill:#1b5e2a;stroke:#7ee787}
.bad{fill:#67060c;stroke:#ff7b72}.a{stroke:#9198a1}.h{fill:#9198a1}}"""


class Drawing:
    def __init__(self, width: int, height: int, label: str) -> None:
        self.width, self.height, self.label, self.parts = width, height, label, []

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", text: str = "", radius: int = 3) -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, "m")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        self.parts.append(f'<path class="a" d="M{x0:g} {y0:g}L{x1:g} {y1:g}"/>')

    def curve(self, x0: float, y0: float, x1: float, y1: float) -> None:
        middle = (y0 + y1) / 2
        self.parts.append(f'<path class="a" d="M{x0:g} {y0:g}C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1:g}"/>')

    def svg(self) -> str:
        head = ('<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                '<path class="h" d="M0 0l8 4-8 4z"/></marker></defs>')
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'height="{self.height}" role="img" aria-label="{escape(self.label)}">\n<!-- Written by tools/draw_concepts.py -->\n'
                f'<style>{STYLE}</style>\n{head}\n<rect class="b" width="{self.width}" height="{self.height}" rx="6"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def paged_cache() -> Drawing:
    """Two requests, their rows of the block table, and the pages that they name."""
    d = Drawing(760, 272, "Two requests find their tokens in pages of the cache through the block table")
    tables = [("request 0: 10 tokens", [2, 5, 0], 10), ("request 1: 6 tokens", [4, 1], 6)]
    where = {}
    for r, (name, pages, tokens) in enumerate(tables):
        x, y = (190, 580)[r], 40
        d.text(x - 14, y + 20, name, "t e")
        for j, page in enumerate(pages):
            d.box(x + 52 * j, y, 46, 30, f"r{r}", str(page))
            where[page] = (r, j, min(4, tokens - 4 * j), x + 52 * j + 23, y + 30)
    d.text(190, 28, "block_table: the pages of each request, in order", "s")
    for page in range(6):
        x, y = 24 + 122 * page, 164
        d.text(x + 52, y - 10, f"page {page}", "m s")
        owner = where.get(page)
        for offset in range(4):
            mine = owner and offset < owner[2]
            d.box(x + 26 * offset, y, 26, 40, f"r{owner[0]}" if mine else "no", str(4 * owner[1] + offset) if mine else "", 0)
        if owner:
            d.curve(owner[3], owner[4], x + 52, y - 26)
    d.text(24, 228, "Each page holds 4 tokens here. The number in a slot is the token's position in its request.", "s")
    d.text(24, 248, "slot = page × page_size + offset: position 5 of request 0 is in page 5, offset 1, so slot 21. Grey slots must not be read.", "s")
    return d


def rows_and_keys() -> Drawing:
    """Draws the keys that the rows of a prompt chunk and of a decode step see."""
    d = Drawing(760, 300, "Visible keys of a prompt chunk and of a decode row")
    size = 24
    for x, name, first, rows, keys in ((110, "chunked prefill: 4 new tokens after 5", 5, 4, 9), (480, "decode: 1 new token after 8", 8, 1, 9)):
        d.text(x, 36, name, "t")
        for k in range(keys):
            d.text(x + size * k + 12, 62, str(k), "m s")
        for i in range(rows):
            d.text(x - 10, 86 + size * i, f"row {i}, q_pos {first + i}", "e s")
            for k in range(keys):
                seen = k <= first + i
                d.box(x + size * k, 70 + size * i, size, size, ("r0" if k < first else "r1") if seen else "no", "", 0)
        d.text(x + size * keys + 8, 62, "key", "s")
    d.box(110, 196, 16, 16, "r0", "", 0)
    d.text(134, 209, "visible, computed in an earlier step (context)")
    d.box(110, 222, 16, 16, "r1", "", 0)
    d.text(134, 235, "visible, new in this step")
    d.box(110, 248, 16, 16, "no", "", 0)
    d.text(134, 261, "hidden: a later position (causal)")
    return d


def grouped_heads() -> Drawing:
    d = Drawing(760, 210, "Four query heads share each KV head")
    for h in range(8):
        x = 40 + 86 * h
        d.box(x, 44, 66, 32, f"r{h // 4}", f"q {h}")
        d.arrow(x + 33, 78, 40 + 86 * 4 * (h // 4) + 162, 132)
    for g in range(2):
        d.box(40 + 344 * g + 112, 134, 100, 34, f"r{g}", f"KV head {g}")
    d.text(40, 30, "8 query heads, 2 KV heads: group size 4", "t")
    d.text(40, 194, "Query head h reads KV head h / (num_q_heads / num_kv_heads), rounded down. The group reads each key once, not four times.", "s")
    return d


def split_kv() -> Drawing:
    d = Drawing(760, 300, "The keys of one row are split in three parts, and the partial results are merged exactly")
    for i, (name, keys) in enumerate((("keys 0 to 1023", 0), ("keys 1024 to 2047", 1), ("keys 2048 to 2999", 2))):
        x = 40 + 236 * i
        d.box(x, 50, 208, 34, f"r{i}", name)
        d.arrow(x + 104, 86, x + 104, 116)
        d.box(x + 14, 118, 180, 46, "box")
        d.text(x + 104, 138, f"out{i}, lse{i}", "m t")
        d.text(x + 104, 155, "partial result of one block", "m s")
        d.curve(x + 104, 166, 380, 208)
    d.text(40, 34, "One decode row with 3000 keys on three thread blocks", "t")
    d.box(170, 210, 420, 54, "box")
    d.text(280, 232, "lse = log(Σ exp(lseᵢ))", "m")
    d.text(470, 232, "out = Σ exp(lseᵢ − lse) · outᵢ", "m")
    d.text(380, 252, "a part without a visible key has lse = −∞, and so weight 0", "m s")
    d.text(40, 288, "The merge is exact: it gives what one pass over all keys gives, up to rounding.", "s")
    return d


def context_shards() -> Drawing:
    d = Drawing(760, 330, "Two ranks hold every second run of a context; each attends to its own keys, and one exchange merges")
    d.text(20, 26, "interleave = 4, world = 2: position p is on rank p // 4 mod 2", "t")
    for run in range(6):
        d.box(20 + 122 * run, 40, 114, 30, f"r{run % 2}", f"{4 * run} .. {4 * run + 3}")
        d.curve(77 + 122 * run, 72, 200 + 360 * (run % 2), 116)
    for rank in range(2):
        x = 40 + 360 * rank
        d.box(x, 118, 320, 44, f"r{rank}")
        d.text(x + 160, 137, f"rank {rank}: pages of its own, local indices 0 .. 11", "m on")
        d.text(x + 160, 154, "attend() over these keys, in f32", "m on")
        d.arrow(x + 160, 164, x + 160, 190)
        d.box(x + 70, 192, 180, 30, "box", f"out{rank}, lse{rank}")
        d.curve(x + 160, 224, 380, 252)
    d.box(170, 254, 420, 44, "box")
    d.text(380, 273, "one exchange, then merge_many() in the order of the ranks", "m")
    d.text(380, 290, "a rank without a visible key has lse = −∞, and so weight 0", "m s")
    d.text(20, 320, "Every rank merges the same parts in the same order, so every rank has the same bits.", "s")
    return d


def pipeline() -> Drawing:
    d = Drawing(760, 190, "From a batch to an answer: check, plan, attend, and compare or diagnose")
    steps = [("batch", "what is asked", ""), ("check", "every rule", "quire check"), ("plan", "a printable value", "quire explain"),
             ("attend", "rows written once", "quire run"), ("compare", "against fp64", "quire diagnose")]
    for i, (name, what, command) in enumerate(steps):
        x = 20 + 148 * i
        d.box(x, 50, 128, 60, "r0" if i == 3 else "box")
        d.text(x + 64, 76, name, "m t")
        d.text(x + 64, 96, what, "m on" if i == 3 else "m s")
        d.text(x + 64, 132, command, "m s")
        if i:
            d.arrow(x - 20, 80, x - 3, 80)
    d.box(168, 148, 128, 28, "bad", "", 3)
    d.text(232, 166, "error with rule id", "m on")
    d.arrow(286, 112, 286, 146)
    d.text(20, 34, "A broken rule stops the call before any row is written", "t")
    return d


def power() -> Drawing:
    d = Drawing(760, 196, "Bugs are planted one by one; the suite must notice each")
    d.text(20, 26, "Does this test suite notice bugs? Plant them, one at a time, and count", "t")
    d.text(30, 48, "bug", "s")
    for i in range(12):
        x = 30 + 58 * i
        caught = i not in (4, 9)
        d.box(x, 56, 46, 40, "r2" if caught else "bad", str(i))
        d.text(x + 23, 116, "caught" if caught else "missed", "m s")
    d.text(30, 152, "10 of 12 caught. A pass of this suite says nothing about the two bugs that it misses.")
    d.text(30, 174, "quire verify prints this count for the cases that it asked, and names the missed bugs.", "s")
    return d


def stream_k() -> Drawing:
    """Requests of 5, 2 and 9 tiles of keys on four thread blocks."""
    d = Drawing(760, 226, "Sixteen tiles of three requests are shared by four blocks, four tiles each")
    owners = [0] * 5 + [1] * 2 + [2] * 9
    d.text(20, 34, "Requests of 5, 2 and 9 tiles of keys on 4 thread blocks: equal shares of one row of tiles", "t")
    for i, r in enumerate(owners):
        d.box(24 + 44 * i + 6 * (i // 4), 60, 42, 40, f"r{r}", f"r{r}", 0)
    for b in range(4):
        x = 24 + 182 * b
        d.box(x, 112, 174, 30, "box", f"block {b}")
    notes = ["r0: part 1 of 2", "r0: part 2; r1; r2: part 1 of 3", "r2: part 2 of 3", "r2: part 3 of 3"]
    for b, note in enumerate(notes):
        d.text(24 + 182 * b + 87, 162, note, "m s")
    d.text(24, 192, "A block has at most two partial results, one at each end of its share, whatever the batch.", "s")
    d.text(24, 210, "The last block that completes a request merges the request's parts.", "s")
    return d


DRAWINGS = (paged_cache, rows_and_keys, grouped_heads, split_kv, pipeline, power, stream_k, context_shards)


def main(arguments: "list[str]") -> int:
    drawn = {FOLDER / f"{draw.__name__}.svg": draw().svg() for draw in DRAWINGS}
    if arguments == ["--check"]:
        wrong = [path.name for path, text in drawn.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        print("\n".join(f"{name} is not what tools/draw_concepts.py draws" for name in wrong) or "ok")
        return bool(wrong)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in drawn.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
