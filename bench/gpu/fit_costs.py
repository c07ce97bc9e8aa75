#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the costs of kernels, in src/plan/kernels/, to times of attend_cuda. The result files name the device; all of a call have one.

usage: fit_costs.py --quire PATH RESULT... [--write]
       fit_costs.py --quire PATH RESULT... --predict    fit nothing: put what `quire explain` predicts now into the result files
       fit_costs.py --quire PATH RESULT... --agree      fit nothing: is seconds_of() what `quire explain` computes, and does fitting to
                                                        times that follow the model find its constants

`quire explain --device h100 --json` (or h200) says what each line gives to its busiest unit; the constants are those with the least sum of
squares of log(predicted / measured) over every other line of each result file (and one for each row of constants that none of those
asks for), found by turning one of them at a time. Prints how far
the lines are off, those that were fitted to and the others apart. --write puts the constants into the files; then rebuild, and look
again: items find their unit by these costs, so a second round may differ a little.

A body without a row is not predicted, and its lines are left out: to measure it, give it one to begin with. A row that no line asks for
stays as it is, and so does a constant of 0: it says that the body has no such cost.
"""
import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import run_device

PLAN = Path(__file__).resolve().parents[2] / "src/plan"
HEADER = PLAN / "device_costs.h"
KERNELS = sorted((PLAN / "kernels").glob("*.cpp"))
BODY = re.compile(r'\.role = Role::(\w+),\s*\.name = "(\w+)"')
ROW = re.compile(r"\{&k(\w+), Role::(\w+), (true|false), (\d+), ([^}]*)\}")
NAMES = ("first", "item", "tile", "key", "score", "product", "merge", "share")
PREFILL_ROWS = 256  # that the matrix units are given, whatever the group leaves of them
WITHIN = 0.15


def device_of(paths: "list[str]") -> str:
    """The product that the result files name, as `quire explain --device` takes it."""
    named = {json.loads(Path(path).read_text(encoding="utf-8"))["device"] for path in paths}
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
        bodies |= {(name[role], fp8 == "true", int(dim)): dict(zip(NAMES, (float(x) for x in row.split(","))))
                   for device, role, fp8, dim, row in ROW.findall(text) if device == product}
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
            costs = bodies[name[match[2]], match[3] == "true", int(match[4])]
            return f"{{&k{product}, Role::{match[2]}, {match[3]}, {match[4]}, {', '.join(number(costs[one]) for one in NAMES)}}}"

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


def row_of(bodies: dict, one: dict, fp8: bool, dim: int) -> dict:
    own = bodies.get((one["served_by"], fp8, dim))
    return own if own is not None else bodies[one["served_by"], fp8, 0]


def list_us(one: dict, line: dict, device: dict, bodies: dict) -> float:
    if one["items"] == 0:
        return device["launch"]
    c = row_of(bodies, one, line["fp8"], line["dim"])
    rows = PREFILL_ROWS if one["served_by"] == "sm90_prefill" else one["tile_rows"]
    keys, dim = one["tile_keys"], line["dim"]
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
    used = {id(row_of(bodies, one, line["fp8"], line["dim"])) for line in lines for one in line["lists"] if one["items"]}
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
    parser.add_argument("--quire", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("results", nargs="+")
    args = parser.parse_args()
    product = device_of(args.results)
    if args.predict:
        for path in args.results:
            predict_again(args.quire, product, Path(path))
        return 0
    device, bodies = read_costs(product)
    fitted, others = [], []
    for path in args.results:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        ceiling = device["ceiling"] if args.agree else run["read_tb_per_s"]
        known = [{**row, "lists": prediction["lists"], "together": prediction["saved_us"] > 0, "explained": prediction["us"],
                  "ceiling": ceiling, "fp8": "kv=fp8" in row["line"], "dim": int(re.search(r"d=(\d+)", row["line"])[1])}
                 for row in run["results"] if not row.get("key_value") and (prediction := prediction_of(args.quire, product, row))]
        fitted += known[::2]
        others += known[1::2]
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
    for (body, fp8, dim), costs in bodies.items():
        print(f"{body:13} {'fp8' if fp8 else '   '} {dim or '':3}  " + "  ".join(f"{name} {number(costs[name])}" for name in NAMES))
    if args.write:
        write_costs(product, bodies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
