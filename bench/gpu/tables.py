#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/ that are made from result files: compares them, or writes them.

usage: tables.py              compare; exit 1 if a page says something else than its file
       tables.py --update     write them (as QUIRE_UPDATE_DOCS=1 does)
       tables.py --self-test  plant faults in a page and in results, and demand that each is found

A table stands between <!-- table: NAME --> and <!-- /table: NAME -->.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[2]
Cell = Callable[[dict, str], str]  # function of a case's results by way and a column's key


def table(rows: list[dict], corner: str, columns: dict[str, str], cell: Cell, *, way: str = "way", by_way: bool = False) -> str:
    """A row for each case and a column for each way, or the other way round. `columns`: key, and what the page calls it."""
    found: dict[str, dict] = {}
    for row in rows:
        outer, inner = (row[way], row["case"]) if by_way else (row["case"], row[way])
        found.setdefault(outer, {})[inner] = row
    lines = [f"| {corner} | " + " | ".join(columns.values()) + " |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cell(of, key) for key in columns) + " |" for name, of in found.items()]) + "\n"


def beside_nhd(of: dict, key: str) -> str:
    us, nhd = of[key]["us"], of["nhd"]["us"]
    return f"{us:.1f}" if key == "nhd" else f"{us:.1f} ({us / nhd:.2f})"


def layouts(report: dict) -> str:
    names = ("nhd", "packed", "nhd, one tensor", "hnd, one tensor", "nhd without bounds")
    return table(report["results"], "us", {name: name for name in names}, beside_nhd, way="column")


def prepared(report: dict) -> str:
    columns = {"base": f"before ({report['base_commit']})", "call": "a call that prepares itself", "prepared": "a prepared layer",
               "step": "of 32 layers, with their preparation"}  # fmt: skip
    return table(report["results"], "us", columns, lambda of, key: f"{of['prepared']['step_us'] if key == 'step' else of[key]['us']:.1f}")


def bounds(report: dict) -> str:
    columns = {"base, no bounds": "before", "call, no bounds": "call", "prepared, no bounds": "prepared",
               "call, loose bound": "call, bound of 40960", "prepared, loose bound": "prepared, bound of 40960"}  # fmt: skip
    return table(report["results"], "no bounds, times with bounds", columns, lambda of, key: f"{of[key]['us'] / of[key.split(',')[0]]['us']:.2f}")


def prepared_host(report: dict) -> str:
    columns = {case: case for case in dict.fromkeys(row["case"] for row in report["python"])}
    cell = lambda of, key: f"{of[key]['host_us']:.0f}" + (f" ({of[key]['us']:.1f})" if "us" in of[key] else "")  # noqa: E731
    return table(report["python"], "32 layers: us of the host (of the device, a layer)", columns, cell, by_way=True)


# Name, page, result file, maker.
TABLES = [
    ("layouts", "docs/kernels/layouts.md", "h200-layouts.json", layouts),
    ("bounds", "docs/kernels/layouts.md", "h100-prepared.json", bounds),
    ("prepared", "docs/kernels/host_cost.md", "h100-prepared.json", prepared),
    ("prepared-host", "docs/kernels/host_cost.md", "h100-prepared.json", prepared_host),
]


def swap(page: str, name: str, text: str) -> tuple[str, str]:
    """The page with `text` between the markers, and what was there."""
    begin, end = f"<!-- table: {name} -->\n", f"<!-- /table: {name} -->"
    if begin not in page or end not in page:
        sys.exit(f"no {begin.strip()} ... {end}")
    first, last = page.index(begin) + len(begin), page.index(end)
    return page[:first] + text + page[last:], page[first:last]


def differing(update: bool) -> list[str]:
    found = []
    for name, page_name, results, make in TABLES:
        page, source = ROOT / page_name, ROOT / "bench/results" / results
        text = make(json.loads(source.read_text(encoding="utf-8")))
        new, there = swap(page.read_text(encoding="utf-8"), name, text)
        if update:
            page.write_text(new, encoding="utf-8")
        elif there != text:
            found.append(f"{page_name}: table {name} is not that of bench/results/{results}; bench/gpu/tables.py --update")
    return found


def self_test() -> list[str]:
    page = "<!-- table: x -->\nold\n<!-- /table: x -->"
    missed = [] if swap(page, "x", "new\n") == (page.replace("old", "new"), "old\n") else ["a page that says something else"]
    for name, _, results, make in TABLES:
        report = json.loads((ROOT / "bench/results" / results).read_text(encoding="utf-8"))
        right = make(report)
        row = report["python" if make is prepared_host else "results"][0]
        row.update({figure: 2 * row[figure] for figure in ("us", "step_us", "host_us") if figure in row})
        missed += [f"{name}: another time makes the same table"] if make(report) == right else []
    return missed


def main() -> int:
    problems = self_test() if "--self-test" in sys.argv else differing("--update" in sys.argv or os.environ.get("QUIRE_UPDATE_DOCS") == "1")
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
