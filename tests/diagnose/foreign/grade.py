# SPDX-License-Identifier: Apache-2.0
"""Runs `quire diagnose --json` on generated captures and grades what it says against their truth.

    python grade.py PATH/quire FOLDER [--out FOLDER] [--jobs 2] [--limit N]

Writes grade.json and grade.md. Conditions are evaluated here, from the capture's index tensors; nothing that the report
says of itself (precision, exact) is believed. Counts:
  first    the first answer names mechanism and scope             top3     one of the first three does
  false    verdict "cause found" and the first answer is neither the truth nor the same on this batch
  pattern  the union of the patterns holds every wrong cell and no right one; cells within a factor 2 of the tolerance, and
           cells that the fault touched without showing there, may be on either side (strictly: only the former may).
           A scope is plain if the fault touches all of it: then the scope itself is an exact pattern; of others there may be none
"""
import argparse
import json
import os
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from capture_file import read_cells
from conditions import Cells, holds
from names import accepted, accepted_profile, mechanism_of


def decode(runs, shape):
    """Gives the mask that a truth file's [first, count] pairs stand for."""
    mask = np.zeros(int(np.prod(shape)), bool)
    for first, count in runs:
        mask[first:first + count] = True
    return mask.reshape(shape)


def diagnose(quire, path, timeout):
    """Gives (report or None, process seconds, wall seconds, MiB at most, error)."""
    begin = time.monotonic()
    with subprocess.Popen(["timeout", str(timeout), str(quire), "diagnose", "--json", "--no-reduced", str(path)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out = process.stdout.read()
        error = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    try:
        report = json.loads(out)
    except ValueError:
        report = None
        error = error or f"no JSON, exit code {process.returncode}"
    return report, seconds, time.monotonic() - begin, usage.ru_maxrss / 1024, error


def select(cells, conditions):
    """Evaluates conditions; those that this page does not know select nothing."""
    try:
        return cells.select(conditions)
    except (KeyError, ValueError, TypeError):
        return np.zeros(cells.shape, bool)


def dims_told(conditions, dim):
    """Gives the dims that conditions select; dim -1, the lse alone, selects all of a row as far as a scope is concerned."""
    chosen = np.ones(dim, bool)
    for c in conditions:
        if c["attribute"] == "dim" and list(c["values"]) != [-1]:
            chosen &= holds(np.arange(dim), c["test"], c["values"])
    return chosen


def scope_right(fault, answer, cells, shape, elsewhere):
    """Compares scopes where the mechanism would show, leaving out what another fault made wrong or the margin leaves open."""
    matters = decode(fault["effect"], shape[:2]) & ~elsewhere
    if answer.get("mechanism") != fault["mechanism"] and answer.get("mechanism") in fault["same_as"]:
        # A factor or an unwritten row shows wherever it is, also where the truth's mechanism does not.
        matters = ~elsewhere
        fault = {**fault, "scope": None}
    told = select(cells, answer.get("scope", []))
    planted = decode(fault["wrong"], shape[:2]) if fault["scope"] is None else cells.select(fault["scope"])
    if ((told ^ planted) & matters).any():
        return False
    if any(c["attribute"] == "dim" for c in fault["scope"] or []):
        return bool((dims_told(answer.get("scope", []), shape[2]) == dims_told(fault["scope"], shape[2])).all())
    return fault["mechanism"] in ("dims", "not_written") or bool(dims_told(answer.get("scope", []), shape[2]).all())


def grade_pattern(report, truth, cells):
    shape = truth["shape"][:2]
    wrong, unsure, hidden = (decode(truth[k], shape) for k in ("wrong", "unsure", "hidden"))
    entries = report.get("pattern") or []
    told = np.logical_or.reduce([select(cells, e.get("conditions", [])) for e in entries] + [np.zeros(shape, bool)])
    missed, extra = wrong & ~told, told & ~wrong & ~unsure
    dims = np.zeros(truth["shape"][2], bool)
    for e in entries:
        dims |= dims_told(e.get("conditions", []), truth["shape"][2])
    lse_alone = any(c["attribute"] == "dim" and list(c["values"]) == [-1] for e in entries for c in e.get("conditions", []))
    wrong_dims = truth.get("dims")    # captures of the first sets do not say
    dims_right = lse_alone if wrong_dims == [-1] else wrong_dims is not None and set(wrong_dims) == set(np.flatnonzero(dims))
    scopes = np.logical_or.reduce([cells.select(f["scope"]) for f in truth["faults"]] + [np.zeros(shape, bool)])
    return {"dims": bool(entries) and bool(dims_right), "plain": bool(truth["faults"]) and not (scopes & ~(wrong | unsure | hidden)).any(), "entries": len(entries), "missed": int(missed.sum()), "extra": int((extra & ~hidden).sum()),
            "exact": bool(entries) and not missed.any() and not (extra & ~hidden).any(),
            "strict": bool(entries) and not missed.any() and not extra.any(),
            "claims_exact": bool(entries) and all(e.get("exact") for e in entries)}


def answers_of(report):
    """Gives the answers; a report of the first schema has suspicions, which name faults of the catalogue."""
    return report.get("answers") or [{**s, "mechanism": mechanism_of(s.get("fault", ""))} for s in report.get("suspicions") or []]


def grade_answers(report, truth, cells):
    """Gives, per planted fault, the places (0, 1, ...) of answers with the mechanism, and with mechanism and scope."""
    shape, faults = truth["shape"], truth["faults"]
    answers = answers_of(report)
    unsure = decode(truth["unsure"], shape[:2])
    result = []
    for i, fault in enumerate(faults):
        others = [decode(f["wrong"], shape[:2]) for j, f in enumerate(faults) if j != i]
        elsewhere = np.logical_or.reduce(others + [unsure])
        named = [n for n, a in enumerate(answers) if accepted(fault, a)]
        both = [n for n in named if scope_right(fault, answers[n], cells, shape, elsewhere)]
        if report.get("verdict") == "right" and accepted_profile(fault, report):
            named, both = [0], [0] if not fault["scope"] else []
        result.append({"named": named, "both": both})
    return result


def grade_one(report, truth, path):
    """Gives the row of one capture."""
    row = {"file": path.name, "class": truth["class"], "geometry": truth["geometry"], "outside": truth.get("outside"),
           "profile": truth.get("profile") or "exact",
           "faults": [{k: f[k] for k in ("mechanism", "variant", "parameters", "scope", "shows", "wrong_cells")}
                      for f in truth["faults"]]}
    if report is None:
        return {**row, "verdict": "failed", "first": False, "first_mechanism": False, "top3": False, "false": False,
                "pattern": {"entries": 0, "exact": False, "strict": False, "dims": False, "plain": False, "claims_exact": False}, "told": None}
    cells = Cells(**read_cells(path))
    graded = grade_answers(report, truth, cells)
    answers = answers_of(report)
    found = report.get("verdict") == "cause found"
    row |= {
        "verdict": report.get("verdict"), "pattern": grade_pattern(report, truth, cells),
        "told": [{k: a.get(k) for k in ("mechanism", "fault", "parameters", "scope", "explained")} for a in answers[:3]],
        "first_mechanism": any(0 in g["named"] for g in graded), "first": any(0 in g["both"] for g in graded),
        "top3": any(n < 3 for g in graded for n in g["both"]),
        "false": found and not any(0 in g["named"] for g in graded),
        "false_scope": found and any(0 in g["named"] for g in graded) and not any(0 in g["both"] for g in graded)}
    if truth["class"] == "two":
        row["both_named"] = all(any(n < 5 for n in g["both"]) for g in graded)
    return row


def share(rows, key):
    return f"{100 * sum(bool(key(r)) for r in rows) / len(rows):.1f} %" if rows else "-"


def columns(rows):
    verdicts = {}
    for r in rows:
        verdicts[r["verdict"]] = verdicts.get(r["verdict"], 0) + 1
    return [str(len(rows)), share(rows, lambda r: r["first"]), share(rows, lambda r: r["first_mechanism"]),
            share(rows, lambda r: r["top3"]), str(sum(r["false"] for r in rows)),
            str(sum(bool(r.get("false_scope")) for r in rows)), share(rows, lambda r: r["pattern"]["exact"]),
            share([r for r in rows if r["pattern"]["plain"]], lambda r: r["pattern"]["exact"]),
            share(rows, lambda r: r["pattern"]["strict"]),
            str(sum(r["pattern"]["claims_exact"] and not r["pattern"]["strict"] for r in rows)), share(rows, lambda r: r["pattern"]["dims"]), ", ".join(f"{k} {v}" for k, v in sorted(verdicts.items()))]


HEADER = ["captures", "first right", "first mechanism", "top three", "false cause", "cause found, scope wrong", "pattern exact",
          "of plain scopes", "strictly", "claims to be exact but is not", "dims exact", "verdicts"]


def table(title, groups):
    lines = [f"| {title} | " + " | ".join(HEADER) + " |", "|---" * (len(HEADER) + 1) + "|"]
    return lines + [f"| {name} | " + " | ".join(columns(rows)) + " |" for name, rows in groups if rows]


def by(rows, key):
    return [(name, [r for r in rows if key(r) == name]) for name in sorted({key(r) for r in rows})]


def markdown(rows):
    inside = [r for r in rows if r["class"] == "inside"]
    seconds = [r["seconds"] for r in rows]
    lines = [f"{len(rows)} captures; process time median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s "
             f"({max(rows, key=lambda r: r['seconds'])['file']}); memory at most {max(r['mib'] for r in rows):.0f} MiB", ""]
    lines += table("class", [(c, [r for r in rows if r["class"] == c]) for c in ("inside", "two", "outside")])
    two = [r for r in rows if r["class"] == "two"]
    lines += ["", f"two faults: both named with their scopes {share(two, lambda r: r.get('both_named'))}", ""]
    lines += table("mechanism", by(inside, lambda r: r["faults"][0]["mechanism"])) + [""]
    lines += table("geometry", by(inside, lambda r: r["geometry"])) + [""]
    lines += table("weights of the kernel", by(inside, lambda r: r["profile"])) + [""]
    lines += table("outside", by([r for r in rows if r["class"] == "outside"], lambda r: r["outside"])) + [""]
    lines += table("variant", by(inside, lambda r: f"{r['faults'][0]['mechanism']}: {r['faults'][0]['variant']}"))
    return "\n".join(lines) + "\n"


def words(conditions):
    return ", ".join(f"{c['attribute']} {c['test']} {' '.join(map(str, c['values']))}" for c in conditions or []) or "everything"


def not_right(rows):
    """Lists captures whose first answer is not right, false causes first: what was planted, and what was told."""
    some = [r for r in rows if r["class"] != "outside" and not r["first"] or r["false"]]
    lines = ["| capture | verdict | planted | told |", "|---|---|---|---|"]
    for r in sorted(some, key=lambda r: (not r["false"], not r.get("false_scope"), r["file"])):
        planted = "; ".join(f"{f['variant']} {json.dumps(f['parameters'])} ({words(f['scope'])})" for f in r["faults"])
        told = [f"{a['mechanism']} {a.get('fault') or ''} {a.get('explained', 0):.3f} ({words(a.get('scope'))})" for a in (r["told"] or [])[:2]]
        mark = "**false** " if r["false"] else "**scope** " if r.get("false_scope") else ""
        lines.append(f"| {r['file'].split('.')[0]} | {mark}{r['verdict']} | {planted or r['outside']} | {'; '.join(told)} |")
    return "\n".join(lines) + "\n"


def grade(quire, folder, jobs=2, limit=None, timeout=600):
    """Grades every capture of a folder; gives the rows."""
    paths = sorted(folder.glob("*.safetensors"))[:limit]

    def one(path):
        truth = json.loads(path.with_suffix("").with_suffix(".truth.json").read_text())
        report, seconds, wall, mib, error = diagnose(quire, path, timeout)
        return {**grade_one(report, truth, path), "seconds": seconds, "wall": wall, "mib": mib, "error": error[-300:]}

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, paths))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    rows = grade(arguments.quire, arguments.folder, arguments.jobs, arguments.limit)
    out = arguments.out or arguments.folder
    out.mkdir(parents=True, exist_ok=True)
    (out / "grade.json").write_text(json.dumps(rows, indent=1))
    (out / "grade.md").write_text(markdown(rows) + "\n" + not_right(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
