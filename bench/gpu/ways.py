# SPDX-License-Identifier: Apache-2.0
"""attend_cuda on a few lines in several ways, in turns (modes `layouts` and `prepared` of run_device.py).

`layouts`: the layouts that engines have, beside nhd. `prepared`: calls that prepare themselves and layers of a prepared step, with and
without bounds, and with --base by a build before. A time is the least of the rounds' medians. Prepared layers are first replayed with
other lengths on every CUDA kernel, against cuda_generic: a wrong answer there ends the run without times."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from timing import attend_cuda, record

NOTES = "880@430,410@956,792@818,927@865,446@326,57@1007,281@504,1004@382,539@613,1@929"
COLUMNS = 2560  # columns of a block table for 40960 tokens in pages of 16, as an engine captures a graph
STEP = 32  # layers of a prepared step


@dataclass(frozen=True)
class Way:
    """How a line is asked: arguments of attend_cuda, a layout instead of the line's, and by which build."""

    name: str
    flags: tuple[str, ...] = ()
    layout: str = ""
    build: str = "now"


def decode(kv: str, reqs: str, *, d: int = 128, page: int = 16) -> str:
    return f"q=bf16 kv={kv} heads=32:8 d={d} page={page} reqs={reqs}"


def notes(kv: str, heads: str) -> str:
    return f"q=f16 kv={kv} heads={heads} d=128 page=32 reqs={NOTES}"


# Name, line, whether this step's rows come from `key` and `value`.
LAYOUT_LINES = [
    *[(f"notes {name} {short}", notes(kv, heads), True) for short, kv in (("f16", "f16"), ("e4m3", "fp8_e4m3fn"))
      for name, heads in (("MHA", "64:64"), ("MQA", "64:1"))],
    ("decode B8 1k bf16", decode("bf16", "8x1@1023"), False),
    ("decode B8 8k bf16", decode("bf16", "8x1@8191"), False),
    ("decode B64 8k bf16", decode("bf16", "64x1@8191"), False),
    ("decode B8 8k e4m3", decode("fp8_e4m3fn", "8x1@8191"), False),
    ("decode B64 8k e4m3", decode("fp8_e4m3fn", "64x1@8191"), False),
    ("decode B64 8k e4m3, page 32", decode("fp8_e4m3fn", "64x1@8191", page=32), False),
    ("decode B64 8k bf16 d64", decode("bf16", "64x1@8191", d=64), False),
    ("4 x 2k on 8k bf16", decode("bf16", "4x2048@8192"), False),
    ("4 x 2k on 8k e4m3", decode("fp8_e4m3fn", "4x2048@8192"), False),
    ("mixed 64 @ 8k + 2k @ 6k bf16", decode("bf16", "64x1@8191,2048@4096"), False),
]  # fmt: skip
LAYOUTS = [Way("nhd", (), "nhd"), Way("packed", (), "packed"), Way("nhd, one tensor", ("--one-tensor",), "nhd"),
           Way("hnd, one tensor", ("--one-tensor",), "hnd"), Way("nhd without bounds", ("--unbounded",), "nhd")]  # fmt: skip

SHAPES = [("B1 1k", "1x1@1023"), ("B1 8k", "1x1@8191"), ("B8 1k", "8x1@1023"), ("B8 8k", "8x1@8191"), ("B64 2k", "64x1@2047"),
          ("B64 8k", "64x1@8191")]  # fmt: skip
PREPARED_LINES = [(f"decode {shape} {short}", decode(kv, reqs), False)
                  for short, kv in (("bf16", "bf16"), ("e4m3", "fp8_e4m3fn")) for shape, reqs in SHAPES]  # fmt: skip
LOOSE = ("--columns", str(COLUMNS))
PREPARED = [Way("base", build="base"), Way("base, no bounds", ("--unbounded",), build="base"), Way("call"), Way("call, no bounds", ("--unbounded",)),
            Way("call, loose bound", LOOSE), Way("prepared", ("--prepared",)), Way("prepared, no bounds", ("--prepared", "--unbounded")),
            Way("prepared, loose bound", ("--prepared", *LOOSE))]  # fmt: skip
# Kernel, arguments, line: all servers of lists, and both orders of two.
CHECKED = [
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=9x1@700,2x2@333"),
    ("", ["--unbounded"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023"),
    ("", ["--unbounded"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=8x1@1023,40@300"),
    ("", [], "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@2000,300@700"),
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@4096"),
    ("", [], "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=2000@1000,77@130,300@5,64@64"),
    ("", [], "q=f16 kv=fp8_e5m2 heads=8:8 d=64 page=32 reqs=9x1@3000,40@90"),
    ("", ["--invariant"], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2x1@9000,40@300"),
    ("", [], "q=f16 kv=f16 heads=32:2 d=64 page=32 window=300 reqs=5x2@1000"),
    ("", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=64x1@1000,200@100"),
    ("cuda_mma", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=9x1@3000,40@90"),
    ("cuda_generic", [], "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2x1@3000,40@90"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attend", required=True, help="attend_cuda of the build")
    parser.add_argument("--base", help="attend_cuda of another build, which takes turns")
    parser.add_argument("--base-commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="lines whose name has these words")


def layers_that_go_wrong(attend: str, commit: str) -> list[str]:
    """Lines of CHECKED whose prepared layers do not repeat, replay, or keep an infinity where it belongs."""
    wrong = []
    for kernel in ("", "cuda_mma", "cuda_generic"):
        words = ["--check", *(["--kernel", kernel] if kernel else [])]
        for of, flags, line in CHECKED:
            words += ["--prepared", *flags, line] if of == kernel else []
        for row in attend_cuda(attend, words, commit)["results"]:
            if not (row["repeats_equal"] and row["replay_agrees"] and row.get("infinite_value_agrees", True)):
                wrong.append(row["line"])
    return wrong


def asked(lines: list, ways: list[Way], build: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Arguments of attend_cuda for one build, and the (case, way) of each answer."""
    words, names = [], []
    for name, line, fresh in lines:
        for way in ways:
            if way.build == build:
                words += [*way.flags, *(["--key-value"] if fresh else []), line + (f" layout={way.layout}" if way.layout else "")]
                names.append((name, way.name))
    return words, names


def timed(args: argparse.Namespace, lines: list, ways: list[Way], first: list[str]) -> tuple[dict, list[dict]]:
    """The least of the rounds for each line and way; builds take turns. `first`: arguments for this build alone."""
    builds = {"now": args.attend, **({"base": args.base} if args.base else {})}
    rows: dict[tuple[str, str], dict] = {}
    head: dict = {}
    for turn in range(args.rounds):
        for build in list(builds)[:: 1 if turn % 2 else -1]:
            words, names = asked(lines, ways, build)
            if not names:
                continue
            report = attend_cuda(builds[build], (first if build == "now" else []) + words, args.commit if build == "now" else args.base_commit)
            head = {key: value for key, value in report.items() if key not in ("results", "commit")}
            for key, row in zip(names, report["results"], strict=True):
                best = rows.setdefault(key, {**row, "case": key[0], "way": key[1], "build": build, "rounds": []})
                best["rounds"].append(row["us"])
                for figure in ("us", "step_us"):
                    if figure in row:
                        best[figure] = min(best[figure], row[figure])
                for word in ("agrees", "repeats"):
                    best[word] = best[word] and row[word]
    return head, list(rows.values())


def run(args: argparse.Namespace) -> tuple[dict, bool]:
    prepared = args.mode == "prepared"
    if args.base and not prepared:
        sys.exit("run_device.py layouts: no way asks a build before; time it in a run of its own")
    lines, ways, first = (PREPARED_LINES, PREPARED, ["--layers", str(STEP)]) if prepared else (LAYOUT_LINES, LAYOUTS, [])
    wrong = layers_that_go_wrong(args.attend, args.commit) if prepared else []
    head, rows = ({}, []) if wrong else timed(args, [line for line in lines if args.only in line[0]], ways, first)
    more = {"base_commit": args.base_commit} if args.base else {}
    report = record(args.commit, head.get("device", "unknown"), head.get("method", "not timed"), rows, wrong=wrong, **more)
    report["read_tb_per_s"] = head.get("read_tb_per_s", 0)
    return report, not wrong and all(row["agrees"] and row["repeats"] for row in rows)
