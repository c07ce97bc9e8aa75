#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the costs of kernels, in src/plan/kernels/, to times of attend_cuda. The result files name the device; all of a call have one.

usage: fit_costs.py --quire PATH RESULT... [--only PATTERN] [--all] [--write]
       fit_costs.py --quire PATH RESULT... --predict    fit nothing: put what `quire explain` predicts now into the result files
       fit_costs.py --quire PATH RESULT... --agree      fit nothing: is seconds_of() what `quire explain` computes, and does fitting to
                                                        times that follow the model find its constants
       fit_costs.py --quire PATH RESULT... --table      fit nothing: print how far what `quire explain` predicts is off, by kernel
       fit_costs.py --quire PATH RESULT... --page PAGE  compare that table with the one on a page; with QUIRE_UPDATE_DOCS=1, write it
       fit_costs.py --self-test                         plant faults and demand that each is noticed

`quire explain --device h100 --json` (or h200) says what each line gives to its busiest unit; the constants are those with the least sum of
squares of log(predicted / measured) over every other line of each result file (and one for each row of constants that none of those
asks for), found by turning one of them at a time. --all fits to all lines, --only to those whose `LINE by KERNELS` a pattern is found in.
Prints how far the lines are off, those that were fitted to and the others apart. timed_lines.py says what the files hold. --write puts the
constants into the files; then rebuild, and look again: items find their unit by these costs, so a second round may differ a little.

A body without a row is not predicted, and its lines are left out: to measure it, give it one to begin with. A row that no line asks for
stays as it is, and so does a constant of 0: it says that the body has no such cost.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import run_device
import targets
import timed_lines

PLAN = Path(__file__).resolve().parents[2] / "src/plan"
HEADER = PLAN / "device_costs.h"
KERNELS = sorted((PLAN / "kernels").glob("*.cpp"))
BODY = re.compile(r'\.role = Role::(\w+),\s*\.name = "(\w+)"')
ROW = re.compile(r"\{&k(\w+), Role::(\w+), Codes::(\w+), (\d+), ((?:[\d.e+-]+, ){7}[\d.e+-]+)((?:, \d+)?(?:, PageRows::(\w+))?)\}")
NAMES = ("first", "item", "tile", "key", "score", "product", "merge", "share")
PREFILL_ROWS = 128  # the matrix units are given a multiple of them, whatever the group leaves of a tile
WITHIN = 0.15
CACHES = {"none": "16-bit", "fp8": "fp8", "token_scaled": "8-bit, scales of tokens", "four_bits": "4-bit"}


def device_of(paths: "list[str]") -> str:
    """The product that the result files name, as `quire explain --device` takes it."""
    named = {json.loads(Path(path).read_text(encoding="utf-8"))["device"].split(",")[0] for path in paths}
    if len(named) != 1:
        sys.exit(f"result files of one device are needed, not of {sorted(named)}")
    driver = named.pop()
    for product, known in re.findall(r'= \{"(\w+)",\s*"([^"]+)"', HEADER.read_text(encoding="utf-8")):
        if known == driver:
            return product
    sys.exit(f"{HEADER.name} has no constants of {driver}")


def read_costs(product: str) -> "tuple[dict, dict]":
    """The device's constants, and those of each body."""
    numbers = re.search(r'= \{"' + product + r'",\s*"[^"]+",\s*\d+' + r",\s*([\d.]+)" * 4 + r"\}", HEADER.read_text(encoding="utf-8")).groups()
    bodies = {}
    for path in KERNELS:
        text = path.read_text(encoding="utf-8")
        name = dict(BODY.findall(text))
        bodies |= {(name[role], codes, int(dim), rows or "runs"): dict(zip(NAMES, (float(x) for x in row.split(","))))
                   for device, role, codes, dim, row, _, rows in ROW.findall(text) if device == product}
    return dict(zip(("ceiling", "call", "launch", "beside"), (float(x) for x in numbers))), bodies


def number(x: float) -> str:
    return f"{x:.3g}"


def write_costs(product: str, bodies: dict) -> None:
    for path in KERNELS:
        text = path.read_text(encoding="utf-8")
        name = dict(BODY.findall(text))

        def row(match: "re.Match") -> str:
            if match[1] != product:
                return match[0]
            costs = bodies[name[match[2]], match[3], int(match[4]), match[7] or "runs"]
            return f"{{&k{product}, Role::{match[2]}, Codes::{match[3]}, {match[4]}, {', '.join(number(costs[one]) for one in NAMES)}{match[6]}}}"

        path.write_text(ROW.sub(row, text), encoding="utf-8")


def prediction_of(quire: str, product: str, result: dict) -> "dict | None":
    kernel = ["--kernel", result["asked_kernel"]] if result.get("asked_kernel") else []
    run = subprocess.run([quire, "explain", "--device", product.lower(), "--json", *kernel, result["line"]], capture_output=True, text=True,
                         check=False)
    if run.returncode != 0:
        sys.exit(f"quire explain: exit {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)["explanations"][0]["plan"]["prediction"]


def predict_again(quire: str, product: str, path: Path) -> None:
    run = json.loads(path.read_text(encoding="utf-8"))
    for row in run["results"]:
        prediction = prediction_of(quire, product, row)
        row["predicted_us"] = round(prediction["us"], 2) if prediction else 0
        row["served_by"] = [one["served_by"] for one in prediction["lists"] if one["items"]] if prediction else []
    run_device.save(path, run)


def page_rows(bodies: dict, body: str, line: dict) -> str:
    """How the body copies rows (PageRows), where it has costs of its own for that."""
    copied = {rows for name, _, _, rows in bodies if name == body}
    if "packed" in copied and "layout=packed" in line["line"]:
        return "packed"
    return "single" if "single" in copied and line["page"] % 8 != 0 else "runs"


def row_of(bodies: dict, one: dict, line: dict) -> dict:
    body, rows = one["served_by"], page_rows(bodies, one["served_by"], line)
    own = bodies.get((body, line["codes"], line["dim"], rows))
    return own if own is not None else bodies[body, line["codes"], 0, rows]


def list_us(one: dict, line: dict, device: dict, bodies: dict) -> float:
    if one["items"] == 0:
        return device["launch"]
    c = row_of(bodies, one, line)
    rows = one["tile_rows"]
    if one["served_by"] == "sm90_prefill":
        rows = -(-rows // PREFILL_ROWS) * PREFILL_ROWS
    keys, dim = one["tile_heads"] * one["tile_keys"], line["mean_dim"]
    tile = c["tile"] + 1e-6 * (keys * dim * c["key"] + rows * keys * (c["score"] + dim * c["product"]))
    read = one["read_bytes"] / (c["share"] * line["ceiling"] * 1e6)
    merge = c["merge"] if one["merges"] else 0
    return device["launch"] + c["first"] + max(one["busiest_tiles"] * tile, read) + one["busiest_items"] * c["item"] + merge


def seconds_of(line: dict, device: dict, bodies: dict) -> float:
    """Predicted time in microseconds, by the formula of src/plan/predict.cpp."""
    lists = [list_us(one, line, device, bodies) for one in line["lists"]]
    saved = min((1 - device["beside"]) * lists[0], lists[1]) if line["together"] else 0
    return device["call"] + sum(lists) - saved


def loss(lines: "list[dict]", device: dict, bodies: dict) -> float:
    return sum(math.log(seconds_of(line, device, bodies) / line["us"]) ** 2 for line in lines)


PULL = 0.003  # towards the constants that are there: what the lines do not say stays as it was


def asked_rows(lines: "list[dict]", bodies: dict) -> set:
    used = {id(row_of(bodies, one, line)) for line in lines for one in line["lists"] if one["items"]}
    return {key for key, costs in bodies.items() if id(costs) in used}


def fit(lines: "list[dict]", device: dict, bodies: dict) -> None:
    """Turns every constant up and down by ever smaller factors for as long as that helps."""
    before_fit = {key: dict(costs) for key, costs in bodies.items()}

    def cost() -> float:
        moved = sum(math.log(costs[name] / before_fit[key][name]) ** 2 for key, costs in bodies.items() for name in NAMES if costs[name])
        return loss(lines, device, bodies) + PULL * moved

    asked = asked_rows(lines, bodies)
    for step in (1.5, 1.2, 1.08, 1.03, 1.01):
        for _ in range(60):
            before = cost()
            for key, costs in bodies.items():
                for name in NAMES if key in asked else ():
                    best = cost()
                    for factor in (step, 1 / step):
                        old = costs[name]
                        costs[name] = min(old * factor, 1.0) if name == "share" else old * factor
                        now = cost()
                        if now < best - 1e-12:
                            best = now
                        else:
                            costs[name] = old
            if before - cost() < 1e-7:
                break


def disagreements(lines: "list[dict]", device: dict, bodies: dict) -> "list[str]":
    """Lines on which seconds_of() is not explain's; and what fitting does not find."""
    found = [f"{line['line'][:90]}: explain {line['explained']:.3f} us, here {mine:.3f}" for line in lines
             if abs((mine := seconds_of(line, device, bodies)) / line["explained"] - 1) > 1e-6]
    true = {key: {name: 1.3 * x if name in ("first", "tile", "score") else x for name, x in costs.items()} for key, costs in bodies.items()}
    made = [{**line, "us": seconds_of(line, device, true)} for line in lines]
    before = loss(made, device, bodies)
    fit(made, device, fitted := {key: dict(costs) for key, costs in bodies.items()})
    if loss(made, device, fitted) > before / 20:
        found.append(f"fitting to the model's own times left {loss(made, device, fitted):.3g} of {before:.3g}")
    return found


def field(line: str, name: str, absent: int) -> int:
    found = re.search(rf"(?:^| ){name}=(\d+)", line)
    return int(found[1]) if found else absent


def codes_of(line: str) -> str:
    """Codes, of device_costs.h, in a line's caches."""
    types = re.search(r"(?:^| )kv=(\S+)", line)
    if "kscale=token" in line:
        return "token_scaled"
    if types and re.search("nvfp4|mxfp4", types[1]):
        return "four_bits"
    return "fp8" if types and types[1].startswith("fp8") else "none"


def predicted_lines(quire: str, product: str, path: Path, ceiling: float) -> "list[dict]":
    """The lines of a file that explain has a time for, and that today's kernels were timed on."""
    lines = []
    for row in timed_lines.read(path):
        prediction = prediction_of(quire, product, row)
        if prediction is None or not timed_lines.is_of_this_kernel(row, prediction["lists"]):
            continue
        dim = field(row["line"], "d", 0)
        lines.append({**row, "lists": prediction["lists"], "together": prediction["saved_us"] > 0, "explained": prediction["us"],
                      "ceiling": ceiling, "codes": codes_of(row["line"]), "dim": dim,
                      "mean_dim": (dim + field(row["line"], "dv", dim)) / 2, "page": field(row["line"], "page", 16)})
    return lines


def served_by(prediction: dict) -> "list[str]":
    return [one["served_by"] for one in prediction["lists"] if one["items"]]


def kind_of(line: dict) -> "tuple[str, str]":
    """Kernels and caches of a line: a row of the table."""
    words = [CACHES[line["codes"]]]
    words += ["packed"] if "layout=packed" in line["line"] else []
    words += [f"head_dim {line['dim']}"] if line["dim"] in (192, 512) else []
    words += ["masks"] if re.search("chunk=|prefix=|spans=|tree=|wright=|causal=[01]x", line["line"]) else []
    return " + ".join(served_by(line)), ", ".join(words)


def table_text(lines: "list[dict]") -> str:
    """Predicted over measured by kernels and caches: median and worst error, and the line that is furthest off."""
    rows = ["| served by | cache | lines | within 15 % | median error | furthest off | its line |", "|---" * 7 + "|"]
    for kind in sorted({kind_of(line) for line in lines}):
        own = [(line["explained"] / line["us"], line) for line in lines if kind_of(line) == kind]
        worst, its = max(own, key=lambda one: abs(math.log(one[0])))
        text = its["line"] if len(its["line"]) <= 100 else its["line"][:97] + "..."
        rows.append(f"| {kind[0]} | {kind[1]} | {len(own)} | {sum(abs(ratio - 1) <= WITHIN for ratio, _ in own)} | "
                    f"{100 * median(abs(ratio - 1) for ratio, _ in own):.1f} % | {worst:.2f} of {its['us']:.1f} us | `{text}` |")
    inside = sum(abs(line["explained"] / line["us"] - 1) <= WITHIN for line in lines)
    return f"Predicted within 15 % of measured: {inside} of {len(lines)}.\n\n" + "\n".join(rows) + "\n"


def compare_page(page: Path, text: str) -> int:
    """Exit status: 1 if the page has another table and is not to be written."""
    new, there = targets.swap(page.read_text(encoding="utf-8"), "by kernel", text)
    if os.environ.get("QUIRE_UPDATE_DOCS") == "1":
        page.write_text(new, encoding="utf-8")
    elif there != text:
        print(f"{page.name}: table 'by kernel' is not what explain predicts; QUIRE_UPDATE_DOCS=1 rewrites it")
        return 1
    return 0


def self_test() -> int:
    """Plants wrong predictions and tables, and files of each form, and demands that each is noticed."""
    line = {"line": "q=bf16 d=64 reqs=1", "key_value": False, "lists": [{"served_by": "b", "items": 1}], "codes": "none", "dim": 64, "explained": 13.0, "us": 10.0}
    files = {"rounds of two commits": (timed_lines.of_commits, {"results": [{"line": "l", "after_us": [3, 1, 2]}]}, 2),
             "a commit that is kept": (timed_lines.of_commits, {"before_after": {"rows": [{"line": "l", "median_us": {"old": 1, "new": 2}}]}}, 2),
             "a build of before": (timed_lines.of_calls, {"results": [{"line": "l", "us": 1, "build": "before"}, {"line": "l", "us": 2}]}, 2),
             "a call of shared keys": (timed_lines.of_cascade, {"results": [
                 {"line": "page=16 reqs=4x1@95 share=2", "plain_us": 1, "parts_us": [2, 3]}]}, 2),
             "a part of a file": (timed_lines.of_parts, {"masks": {"results": [{"line": "l", "kernel": "k", "us": 2}]}}, 2),
             "slots": (timed_lines.of_key_lists, {"cases": [
                 {"reason": "lists of slots", "heads": "8:1", "d": 64, "dv": 64, "page": 64, "rows": 4, "keys_of_a_row": 32, "sparse_prepared_us": 2,
                  "portable_us": 9}]}, 2)}
    noticed = {what: (rows := reader(run)) != [] and rows[0]["us"] == us for what, (reader, run, us) in files.items()}
    noticed["the lengths of shared keys"] = [row["line"] for row in timed_lines.of_cascade(files["a call of shared keys"][1])] == [
        "page=16 causal=0 lse=1 reqs=4:32", "page=16 lse=1 reqs=4x1@63"]
    noticed["a prediction that is off"] = "0 of 1." in table_text([line]) and "| 30.0 % | 1.30 of 10.0 us |" in table_text([line])
    noticed["a prediction that is right"] = "1 of 1." in table_text([{**line, "explained": 10.0}])
    noticed["a time of an earlier kernel"] = not any(timed_lines.is_of_this_kernel(
        {"file": "h100-attend.json"}, [{"served_by": body, "tile_keys": 96, "tile_heads": 1, "items": 1}]) for body in ("sm90_cluster", "sm90_prefill"))
    missed = [what for what, found in noticed.items() if not found]
    print("\n".join(f"not noticed: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def report(name: str, lines: "list[dict]", device: dict, bodies: dict) -> None:
    ratios = [seconds_of(line, device, bodies) / line["us"] for line in lines]
    inside = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    print(f"{name}: {inside} of {len(lines)} within {100 * WITHIN:.0f} %")
    for line, ratio in zip(lines, ratios):
        if abs(ratio - 1) > WITHIN:
            served_by = "+".join(one["served_by"] for one in line["lists"] if one["items"])
            print(f"  {ratio:.2f}  {line['us']:8.1f} us  {served_by}  {line['line'][:110]}")


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--quire", default="quire")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("results", nargs="*")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    product = device_of(args.results)
    if args.predict:
        for path in args.results:
            predict_again(args.quire, product, Path(path))
        return 0
    device, bodies = read_costs(product)
    if args.table or args.page:
        text = table_text([row for path in args.results for row in predicted_lines(args.quire, product, Path(path), device["ceiling"])])
        if args.page:
            return compare_page(args.page, text)
        print(text, end="")
        return 0
    fitted, others = [], []
    for path in args.results:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        ceiling = device["ceiling"] if args.agree else run.get("read_tb_per_s", device["ceiling"])
        known = [row for row in predicted_lines(args.quire, product, Path(path), ceiling)
                 if not row["key_value"] and re.search(args.only, f"{row['line']} by {' + '.join(served_by(row))}")]
        fitted += known if args.all else known[::2]
        others += [] if args.all else known[1::2]
    for key in asked_rows(others, bodies) - asked_rows(fitted, bodies):
        only = next(line for line in others if key in asked_rows([line], bodies))
        others.remove(only)
        fitted.append(only)
    if args.agree:
        found = disagreements(fitted + others, device, bodies)
        print("\n".join(found) or "ok")
        return 1 if found else 0
    report("as it is, all", fitted + others, device, bodies)
    fit(fitted, device, bodies)
    report("fitted to these", fitted, device, bodies)
    report("not these", others, device, bodies)
    for (body, codes, dim, rows), costs in bodies.items():
        print(f"{body:13} {codes:12} {dim or '':3} {'' if rows == 'runs' else rows:6}  " + "  ".join(f"{name} {number(costs[name])}" for name in NAMES))
    if args.write:
        write_costs(product, bodies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
