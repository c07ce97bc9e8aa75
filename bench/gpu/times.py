# SPDX-License-Identifier: Apache-2.0
"""The figures of Hopper's kernels on the GPU at hand (mode `times` of run_device.py): correctness first, then times. Without the one there
are none of the other.

  1  conformance.py on random lines of a fresh seed      -> OUT/conformance.json
  2  attend_cuda --check: repeats, replays, infinities   -> OUT/replay.json
  3  attend_cuda on every line of times.txt              -> OUT/attend.json

Exit 1, and no step 3, if 1 or 2 found anything; exit 1 also if an output that was timed differs from cuda_generic's or from itself.
--quick: of step 1 only the random lines of cuda_sm90, 60 of each kind. Steps take about 300, 1 and 45 s; --quick: 60 for the first.
--limit: no longer than that in all: conformance that is not done by 60 % of it counts as failed, and of the times those that are there
when it is over are kept ("complete": false).
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import save

HERE = Path(__file__).resolve().parent
CHECKED = [
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=9x1@700,2x2@333",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@2000",
    "q=bf16 kv=bf16 heads=8:2 d=128 page=16 layout=nhd reqs=2000@1000,77@130,300@5,8x1@500,64@64 seed=1",
    "q=f16 kv=f16 heads=6:2 d=64 page=32 layout=hnd reqs=333@100,50,700 window=200 seed=2",
    "q=bf16 kv=bf16 heads=4:4 d=128 page=16 reqs=300@9000 seed=3",
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@2000,300@700",
    "q=f16 kv=fp8_e5m2 heads=8:8 d=64 page=32 reqs=9x1@3000,40@90",
    "q=bf16 kv=bf16 heads=16:2 d=256 page=16 reqs=9x1@3000,40@90",
    "q=f32 kv=f32 heads=4:2 d=80 page=16 reqs=9x1@300,40@90",
]


def conformance_passes(args, out: Path) -> bool:
    command = [sys.executable, str(HERE / "conformance.py"), "--quire", args.quire, "--out", str(out), "--commit", args.commit,
               "--seed", str(args.seed)]
    if args.quick:
        command += ["--only", "sm90,prefill", "--count", "60"]
    elif args.without_notes:
        command += ["--without-notes"]
    code, text = within(0.6 * args.limit if args.limit else None, command)
    if code != 0:
        print(f"conformance.py: {'not done in time' if code is None else f'exit {code}'}\n{text[-4000:]}")
    return code == 0


def within(seconds: "float | None", command: "list[str]", **more) -> "tuple[int | None, str]":
    """Exit code, or none if it had to be stopped, and what it printed."""
    with tempfile.TemporaryFile("w+") as out:
        try:
            code = subprocess.run(command, stdout=out, check=False, timeout=seconds, **more).returncode
        except subprocess.TimeoutExpired:
            code = None
        out.seek(0)
        return code, out.read()


def results_so_far(text: str) -> dict:
    """Results that attend_cuda had printed when it was stopped, one per line."""
    head, *rows = text.split("\n")
    kept = [row.strip().rstrip(",") for row in rows if row.strip().rstrip(",").endswith("}")]
    return {**json.loads(head + "]}"), "complete": False, "results": [json.loads(row) for row in kept]}


def attend(args, words: "list[str]") -> dict:
    left = max(1.0, args.limit - (time.monotonic() - args.began)) if args.limit else None
    code, text = within(left, [args.attend, *words], env={**os.environ, "QUIRE_COMMIT": args.commit})
    if code is None:
        return results_so_far(text)
    if code != 0:
        sys.exit(f"attend_cuda: exit {code}\n{text[-2000:]}")
    return json.loads(text)


def words(tables: "list[str]") -> "list[str]":
    """Arguments of attend_cuda for the lines of these tables of times.txt, in its order."""
    found, kernel = [], ""
    for row in (HERE / "times.txt").read_text(encoding="utf-8").splitlines():
        if row.startswith("#"):
            continue
        of, how, line = (field.strip() for field in row.split("|"))
        if not set(of.split(",")) & set(tables):
            continue
        asked = " ".join(word for word in how.split() if word != "fresh")
        found += ["--kernel", asked] if asked != kernel else []
        found += ["--key-value", line] if "fresh" in how else [line]
        kernel = asked
    return found


def bad_checks(report: dict) -> "list[str]":
    """Lines of step 2 with any answer but yes, and lines that no output depended on."""
    asked = ("repeats_equal", "replay_agrees", "infinite_value_agrees")
    return [row["line"] for row in report["results"]
            if not all(row.get(key, True) for key in asked) or row["outputs_moved_by"] == 0 or row.get("infinite_outputs") is False]


def bad_times(report: dict) -> "list[str]":
    return [row["line"] for row in report["results"] if not row["agrees"] or not row["repeats"]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("--quire", "--attend"):
        parser.add_argument(name, required=True, help="the program of the build")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--without-notes", action="store_true")
    parser.add_argument("--tables", default="decode,prefill,others", help="of times.txt")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--limit", type=float, default=0.0, help="seconds")


def run(args, conforms=conformance_passes, ask=attend) -> int:
    """Exit status. args.out: the folder that takes the three files."""
    out = Path(args.out)
    args.began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - args.began:6.1f} s  {text}", flush=True)

    say(f"conformance, seed {args.seed}")
    passes = conforms(args, out / "conformance.json")
    say("repeats, replays, infinities")
    checked = ask(args, ["--check", *CHECKED])
    save(out / "replay.json", checked)
    wrong = bad_checks(checked) + ([] if checked.get("complete", True) else ["not done in time"])
    if not passes or wrong:
        say(f"NOT TIMED: conformance {'passes' if passes else 'FAILS'}; --check fails on {len(wrong)} lines: {wrong}")
        return 1
    say("times")
    timed = ask(args, words(args.tables.split(",")))
    timed["correctness"] = {"seed": args.seed, "conformance": "quick" if args.quick else "whole", "passed": True}
    save(out / "attend.json", timed)
    wrong = bad_times(timed)
    say(f"{len(timed['results'])} lines timed, read ceiling {timed['read_tb_per_s']} TB/s" + (f"; WRONG: {wrong}" if wrong else ""))
    return 1 if wrong else 0


def self_test() -> "list[str]":
    good_check = {"line": "l", "repeats_equal": True, "outputs_moved_by": 0.1, "replay_agrees": True, "infinite_value_agrees": True,
                  "infinite_outputs": True}
    good_time = {"line": "l", "agrees": True, "repeats": True}
    missed = []

    def expect(what: str, code: int, timed: bool, conforms: bool = True, check: "dict | None" = None, time_: "dict | None" = None,
               whole: bool = True) -> None:
        def ask(_, words: "list[str]") -> dict:
            row = {**good_check, **(check or {})} if words[0] == "--check" else {**good_time, **(time_ or {})}
            return {"read_tb_per_s": 4.5, "complete": whole, "results": [row]}

        with tempfile.TemporaryDirectory() as folder:
            parser = argparse.ArgumentParser()
            add_arguments(parser)
            args = parser.parse_args(["--quire", "q", "--attend", "a"])
            args.out, args.commit = folder, "c"
            found = run(args, lambda *_: conforms, ask), (Path(folder) / "attend.json").exists()
        if found != (code, timed):
            missed.append(f"{what}: exit and timed are {found}")

    expect("all is well", 0, True)
    expect("conformance fails", 1, False, conforms=False)
    expect("--check is stopped", 1, False, whole=False)
    for key, value in (("repeats_equal", False), ("outputs_moved_by", 0), ("replay_agrees", False), ("infinite_value_agrees", False),
                       ("infinite_outputs", False)):
        expect(key, 1, False, check={key: value})
    for key in ("agrees", "repeats"):
        expect(f"a timed line that does not: {key}", 1, True, time_={key: False})
    cut = results_so_far('{"device": "d", "read_tb_per_s": 4.5, "results": [\n  {"line": "a", "us": 1},\n  {"line": "b", "us": 2}')
    if cut["complete"] or [row["line"] for row in cut["results"]] != ["a", "b"]:
        missed.append(f"results of a run that was stopped: {cut}")
    if results_so_far('{"results": [\n  {"line": "a", "us": 1},\n  {"line": "b", "u')["results"] != [{"line": "a", "us": 1}]:
        missed.append("half a line is no result")
    asked = words(["prefill"])
    if asked.count("--key-value") != 2 or "--kernel" in asked or words(["others"]).count("--kernel") < 2 or words(["none"]):
        missed.append("lines of times.txt are asked in another way, or in another table")
    if within(0.2, ["sh", "-c", "echo begun; sleep 5"]) != (None, "begun\n") or within(None, ["sh", "-c", "exit 3"])[0] != 3:
        missed.append("a command that takes too long")
    return missed
