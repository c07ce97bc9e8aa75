#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/lab: times from the result files, targets and peers from targets.json.

usage: targets.py             compare the pages with bench/results/h200-attend.json
       targets.py --update    write them (as QUIRE_UPDATE_DOCS=1 does)
       targets.py --lines     print what run_device.py times
       targets.py --self-test plant faults in the result file, the targets and a page, and demand that each is found

A table stands between <!-- table: NAME --> and <!-- /table: NAME -->.
"""
import copy
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/h200-attend.json"
PEERS = ROOT / "bench/results/h200-peers.json"
CAUSES = ROOT / "bench/results/h200-causes.json"
PAGES = {"decode": ROOT / "docs/lab/2026-11-22-hopper-decode.md",
         "prefill": ROOT / "docs/lab/2026-11-22-hopper-prefill.md"}


# --- the cases --------------------------------------------------------------------------------------------------------------------

def reqs_of_lengths(workload: str, requests: int) -> str:
    """Decode rows with the context lengths of those of bench/cases/<workload>.txt, in turn until there are enough."""
    text = (ROOT / "bench/cases" / f"{workload}.txt").read_text(encoding="utf-8")
    lengths = [int(length) for length in re.findall(r"\b1@(\d+)", re.search(r"reqs=(\S+)", text).group(1))]
    times = {length: 0 for length in lengths}
    for i in range(requests):
        times[lengths[i % len(lengths)]] += 1
    return ",".join(f"{count}x1@{length}" for length, count in times.items() if count)


def load_cases() -> "list[dict]":
    cases = json.loads((Path(__file__).resolve().parent / "targets.json").read_text(encoding="utf-8"))["cases"]
    for case in cases:
        if "lengths_of" in case:
            case["line"] = f"q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs={reqs_of_lengths(case['lengths_of'], case['requests'])}"
    return cases


def key_of(row: dict) -> "tuple[str, bool, str]":
    """Key of a case, or of a result."""
    return row["line"], row.get("key_value", False), row.get("asked_kernel", "") if "us" in row else row.get("kernel", "")


def cache_bytes(line: str) -> int:
    """Bytes of K and V, near enough to compare lines."""
    field = dict(word.split("=", 1) for word in line.split())
    tokens = 0
    for request in field["reqs"].split(","):
        count, lengths = request.split("x") if "x" in request else ("1", request)
        tokens += int(count) * sum(int(length.split("/")[0]) for length in lengths.split("@"))
    return tokens * int(field["heads"].split(":")[1]) * int(field["d"]) * (1 if "fp8" in field["kv"] else 2) * 2


def words(cases: "list[dict]", tables: "list[str]") -> "list[str]":
    """Arguments of attend_cuda: every line once, small ones first. What is timed after a line of 34 GB, in memory that it had, was up
    to 20 % slower: 256 x 1k 254 us before it and 286 after it, in one process on an H200."""
    wanted = dict.fromkeys(key_of(case) for case in cases if case["table"] in tables)
    found, kernel = [], ""
    for line, key_value, asked in sorted(wanted, key=lambda key: cache_bytes(key[0])):
        if asked != kernel:
            found += ["--kernel", asked]
            kernel = asked
        found += ["--key-value", line] if key_value else [line]
    return found


# --- a case against its target ----------------------------------------------------------------------------------------------------

def speed_over(row: dict, figure: dict) -> float:
    """Speed relative to the figure: 2 is twice as fast."""
    if "us" in figure:
        return figure["us"] / row["us"]
    if "tb_per_s" in figure:
        return row["kv_tb_per_s"] / figure["tb_per_s"]
    return row["tflop_per_s"] / figure["tflop_per_s"]


def with_reqs(rows: "dict[tuple, dict]", line: str, reqs: str) -> "dict | None":
    return rows.get((re.sub(r"reqs=\S+", f"reqs={reqs}", line), False, ""))


def reached(case: dict, rows: "dict[tuple, dict]") -> "float | None":
    """Share of the target's speed; none where something was not measured."""
    row, target = rows.get(key_of(case)), case.get("target")
    if row is None or target is None:
        return None
    if "of_read" in target:
        return row["of_read"] / target["of_read"]
    if "of_peer" in target:
        return speed_over(row, case["peer"]) / target["of_peer"] if "peer" in case else None
    if "of_longer" in target:
        alone = [with_reqs(rows, case["line"], reqs) for reqs in target["of"]]
        return None if None in alone else target["of_longer"] * max(one["us"] for one in alone) / row["us"]
    return speed_over(row, target)


def figure_text(figure: "dict | None") -> str:
    if not figure:
        return "-"
    if "us" in figure:
        value = f"{figure['us']:g} us"
    else:
        value = f"{figure['tb_per_s']:.2f} TB/s" if "tb_per_s" in figure else f"{figure['tflop_per_s']:g}"
    return value + (f" ({figure['who']})" if "who" in figure else "")


def target_text(case: dict) -> str:
    target = case.get("target")
    if not target:
        return "-"
    if "of_read" in target:
        return f"{100 * target['of_read']:.0f} % of the ceiling"
    if "of_peer" in target:
        return f"{target['of_peer']:.2f} x {case.get('peer_name', 'the peer')}" + ("" if "peer" in case else ", no figure")
    if "of_longer" in target:
        return f"{target['of_longer']:.2f} x the longer alone"
    return figure_text(target)


def verdict(case: dict, rows: "dict[tuple, dict]") -> str:
    share = reached(case, rows)
    if share is None:
        return "-"
    return f"**missed** ({100 * share:.0f} %)" if share < 1 else f"met ({100 * share:.0f} %)"


# --- the tables -------------------------------------------------------------------------------------------------------------------

def result_cells(table: str, row: "dict | None") -> "list[str]":
    if row is None:
        return ["not measured", "-", "-"]
    us = f"{row['us']:.1f}" if row["us"] < 1000 else f"{row['us']:.0f}"
    wrong = "" if row.get("agrees", True) and row.get("repeats", True) else " **wrong output**"
    if table == "prefill":
        return [us + wrong, f"{row['tflop_per_s']:.0f}", row["kernel"]]
    return [us + wrong, f"{row['kv_tb_per_s']:.2f}", f"{100 * row['of_read']:.0f} %"]


def peers_text(case: dict) -> str:
    texts = [figure_text(case.get("peer"))]
    if "peer_16bit_query" in case:
        texts.append(figure_text(case["peer_16bit_query"]) + " with a 16-bit query")
    if "peer_any_page" in case:
        texts.append(figure_text(case["peer_any_page"]))
    return "; ".join(texts)


def torch_text(line: str, peers: "list[dict]") -> str:
    """TFLOP/s of torch by cuDNN and by FlashAttention-2 on this line, from PEERS."""
    found = {row["peer"].split()[-1]: row.get("tflop_per_s") for row in peers if row["line"] == line}
    return " / ".join(f"{found[name]:.0f}" if found.get(name) else "-" for name in ("cudnn", "flash")) if any(found.values()) else "-"


def summary(cases: "list[dict]", rows: "dict[tuple, dict]") -> str:
    shares = [share for case in cases if (share := reached(case, rows)) is not None]
    return f"{sum(share >= 1 for share in shares)} of {len(shares)} targets met."


def render(table: str, cases: "list[dict]", report: dict, peers: "list[dict]") -> str:
    rows = {key_of(row): row for row in report["results"]}
    mine = [case for case in cases if case["table"] == table]
    rate = {"decode": "TB/s | of the ceiling", "prefill": "TFLOP/s | kernel"}[table]
    against = " target | reached | best peer (notes, other run) |"
    against += " torch, dense: cuDNN / flash |" if table == "prefill" else ""
    lines = [f"{report['device']}, {report['date']}, commit {report['commit']}, read ceiling of the run {report['read_tb_per_s']:.2f} TB/s. "
             + summary(mine, rows), "",
             f"| case | us | {rate} |{against}",
             "|---" * (4 + against.count("|")) + "|"]
    group = None
    for case in mine:
        if case["group"] != group:
            group = case["group"]
            lines.append(f"| **{group}** |" + " |" * (3 + against.count("|")))
        cells = [case["case"], *result_cells(table, rows.get(key_of(case)))]
        cells += [target_text(case), verdict(case, rows), peers_text(case)]
        cells += [torch_text(case["line"], peers)] if table == "prefill" else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def causes_text(table: str, cases: "list[dict]", report: dict) -> str:
    """Text about the values that causes.py measured on the table's cases."""
    found = {row["line"]: row for row in report["results"]}
    lines = [f"{report['device']}, {report['date']}, commit {report['commit']}; {report['method']}.", "",
             "| case | the kernel alone, us | DRAM | L2 | issue slots | tensor cores | warps wait for |", "|---" * 7 + "|"]
    for case in cases:
        if case["table"] != table or not case.get("ncu"):
            continue
        row = found.get(case["line"], {"refused": "not asked"})
        if "refused" in row:
            cells = ["not asked"] + ["-"] * 5
        else:
            shares = [f"{row[name]:.0f} %" if row[name] is not None else "-" for name in ("dram", "l2", "issue", "tensor")]
            cells = [f"{row['us']:.1f}", *shares, ", ".join(f"{name} {share:.0f} %" for name, share in row["stalls"].items()) or "-"]
        lines.append(f"| {case['group']}: {case['case']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def swap(page: str, table: str, text: str) -> "tuple[str, str]":
    """The page with `text` between the markers, and what was there."""
    begin, end = f"<!-- table: {table} -->\n", f"<!-- /table: {table} -->"
    if begin not in page or end not in page:
        sys.exit(f"no {begin.strip()} ... {end}")
    first, last = page.index(begin) + len(begin), page.index(end)
    return page[:first] + text + page[last:], page[first:last]


def compare_tables(tables: "list[tuple[str, Path, Path, str]]", tool: str, update: bool) -> int:
    """Compares (or writes) tables of pages, each a name, its page, the results that it is made from, and its text. Exit status."""
    differing = []
    for name, page, source, text in tables:
        new, there = swap(page.read_text(encoding="utf-8"), name, text)
        if update:
            page.write_text(new, encoding="utf-8")
        elif there != text:
            differing.append(f"{page.relative_to(ROOT)}: table {name} is not that of {source.relative_to(ROOT)}; {tool} --update")
    print("\n".join(differing) or "ok")
    return 1 if differing else 0


def check(update: bool) -> int:
    cases, report = load_cases(), json.loads(RESULTS.read_text(encoding="utf-8"))
    peers, causes = json.loads(PEERS.read_text(encoding="utf-8"))["results"], json.loads(CAUSES.read_text(encoding="utf-8"))
    tables = [(table, path, RESULTS, render(table, cases, report, peers)) for table, path in PAGES.items()]
    tables += [(f"causes of {table}", PAGES[table], CAUSES, causes_text(table, cases, causes)) for table in ("decode", "prefill")]
    return compare_tables(tables, "bench/gpu/targets.py", update)


def self_test() -> int:
    cases, report = load_cases(), json.loads(RESULTS.read_text(encoding="utf-8"))
    row = {"line": "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=1x1@1023", "kernel": "k", "us": 6.0, "kv_tb_per_s": 0.7, "of_read": 0.15,
           "tflop_per_s": 2.0, "agrees": True, "repeats": True}
    good = {**report, "results": [row]}

    def changed(**values) -> str:
        return render("decode", cases, {**good, "results": [{**row, **values}]}, [])

    missed = []
    for what, found in {
        "a target that is met": "met (108 %)" in render("decode", cases, good, []),
        "a target that is missed": "**missed** (93 %)" in changed(us=7.0),
        "a wrong output": "**wrong output**" in changed(agrees=False) and "**wrong output**" in changed(repeats=False),
        "a changed time": changed(us=6.1) != render("decode", cases, good, []),
        "a line that is not there": "not measured" in render("decode", cases, {**good, "results": []}, []),
        "a page that says something else": swap("<!-- table: x -->\nold\n<!-- /table: x -->", "x", "new\n")[1] == "old\n",
        "torch beside us": torch_text("l", [{"line": "l", "peer": "torch cudnn", "refused": "no"},
                                            {"line": "l", "peer": "torch flash", "tflop_per_s": 270.2}]) == "- / 270"
        and torch_text("other", [{"line": "l", "peer": "torch flash", "tflop_per_s": 270.2}]) == "-",
        "a cause": "| 32:8 bf16: B1 1k | 9.1 | 30 % | - | 5 % | 1 % | barrier 60 % |" in causes_text("decode", cases, {
            **report, "method": "m", "results": [{**row, "us": 9.1, "dram": 30.1, "l2": None, "issue": 5.2, "tensor": 1.0,
                                                  "stalls": {"barrier": 60.0}}]}),
        "a cause that nobody asked for": "| 32:8 bf16: B1 1k | not asked |" in causes_text("decode", cases,
                                                                                           {**report, "method": "m", "results": []}),
        "decode rows of a trace": reqs_of_lengths("W2", 8).startswith("2x1@170,1x1@1117"),
    }.items():
        if not found:
            missed.append(what)
    mixed = copy.deepcopy(next(case for case in cases if "of_longer" in case.get("target", {})))
    longer = {key_of(mixed): {**row, "us": 110.0}}
    for reqs, us in zip(mixed["target"]["of"], (100.0, 50.0)):
        longer[(re.sub(r"reqs=\S+", f"reqs={reqs}", mixed["line"]), False, "")] = {**row, "us": us}
    if abs(reached(mixed, longer) - 1) > 1e-9:
        missed.append("1.10 x the longer alone")
    sizes = [cache_bytes(word) for word in words(cases, ["decode", "prefill", "others"]) if "reqs=" in word]
    if sizes != sorted(sizes) or cache_bytes("kv=bf16 heads=32:8 d=128 reqs=2x1@1023,5@6/7") != 2 * (2048 + 11) * 8 * 128 * 2:
        missed.append("a large line before a small one")
    lines = [key_of(case) + (case["table"], case["group"]) for case in cases]
    missed += [f"twice in targets.json: {line}" for line in set(lines) if lines.count(line) > 1]
    print("\n".join(f"not noticed: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def main() -> int:
    if "--lines" in sys.argv:
        print("\n".join(words(load_cases(), ["decode", "prefill", "others"])))
        return 0
    if "--self-test" in sys.argv:
        return self_test()
    return check("--update" in sys.argv or os.environ.get("QUIRE_UPDATE_DOCS") == "1")


if __name__ == "__main__":
    sys.exit(main())
