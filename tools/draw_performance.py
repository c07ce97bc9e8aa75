#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the charts and tables of docs/performance/ from the result files in bench/results.

usage: draw_performance.py              write docs/performance/*.svg and the tables of docs/performance/index.md
       draw_performance.py --check      compare them with the result files
       draw_performance.py --self-test  change a result and demand that it is noticed

A chart has one row per problem and one mark per library: time of the library divided by Quire's. Right of the line at 1 Quire is faster,
left of it slower; nothing is left out for being slower.
"""
import copy
import json
import math
import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/performance"
PAGE = FOLDER / "index.md"
GPU, CPU = ROOT / "bench/results/h100-peers-c33f48cc.json", ROOT / "bench/results/cpu-amx-peers.json"
# Libraries of a chart: name, and what the results of its kernels begin with. Dense kernels have no page table and are not shown.
GPU_PEERS = {"FlashAttention 3": ("FlashAttention 3",), "FlashInfer": ("FlashInfer", "XQA", "cuDNN paged"),
             "hpc-ops": ("hpc-ops",)}
CPU_PEERS = {"vLLM CPU": ("vllm_cpu",), "torch SDPA, K and V already dense": ("torch_sdpa",), "ONNX Runtime GQA": ("ort_gqa",)}
SECTIONS = {"decode": "Decode, 32:8 heads, head_dim 128, bf16", "decode64": "Decode, 64:8 heads, head_dim 128, bf16",
            "decode8": "Decode, 32:8 heads, head_dim 128, fp8 (e4m3) cache, bf16 query", "decodex": "Decode, other shapes",
            "prefill": "Prefill, causal, bf16", "mixed": "Prefill and decode in one batch"}
# The README's chart: long and short, wins and losses, as (section, case).
FIRST = [("decode", "32:8 d128 bf16 B1 1k"), ("decode", "32:8 d128 bf16 B8 8k"), ("decode", "32:8 d128 bf16 B64 8k"),
         ("decode8", "32:8 d128 e4m3 B8 1k"), ("decode8", "32:8 d128 e4m3 B64 8k"), ("prefill", "16x1k"), ("prefill", "16k"),
         ("prefill", "2k@30k"), ("prefill", "d64 4k"), ("mixed", "64 decode @8k + 2k chunk @6k")]
WORDS = {"32:8 d128 bf16 B1 1k": "decode, 1 request, 1k keys", "32:8 d128 bf16 B8 8k": "decode, 8 requests, 8k keys",
         "32:8 d128 bf16 B64 8k": "decode, 64 requests, 8k keys", "32:8 d128 e4m3 B8 1k": "decode, fp8 cache, 8 × 1k",
         "32:8 d128 e4m3 B64 8k": "decode, fp8 cache, 64 × 8k", "16x1k": "prefill, 16 prompts of 1k", "16k": "prefill, 16k tokens",
         "2k@30k": "prefill, 2k tokens after 30k", "d64 4k": "prefill, head_dim 64, 4k tokens",
         "64 decode @8k + 2k chunk @6k": "64 decode rows and a 2k chunk"}
TICKS = (2, 5, 0.5, 0.7, 3, 8, 12, 20, 1.4, 0.8, 1.2, 0.9, 1.1, 0.6, 1.6)  # the first that fit are shown
NOISE = 0.03  # two captures of one case differ by 0.3 % in the median and 6 % at most; a smaller limit would call noise a win

STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1f2328}.back{fill:#fff}.title{font-size:14px;font-weight:600}
.small{font-size:11px;fill:#57606a}.axis{stroke:#57606a}.grid{stroke:#d8dee4}.s0{fill:#0072b2}.s1{fill:#d55e00}.s2{fill:#009e73}
.s3{fill:#cc79a7}.mark{stroke:#fff;stroke-width:1}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.small{fill:#9198a1}.axis{stroke:#9198a1}.grid{stroke:#30363d}
.s0{fill:#56b4e9}.s1{fill:#e69f00}.s2{fill:#2dd4a7}.s3{fill:#f0a5cf}.mark{stroke:#0d1117}}"""


def best(rows: "list[dict]", starts: "tuple[str, ...]") -> "dict | None":
    """The fastest paged kernel of a library, or None where it has none for this problem or refused it."""
    found = [row for row in rows if row["who"].startswith(starts) and "dense" not in row["who"] and "us" in row]
    return min(found, key=lambda row: row["us"], default=None)


def gpu_cases(data: dict) -> "dict[tuple[str, str], dict]":
    """Maps (section, case) to the problem line, Quire's row, and each library's best row."""
    cases = {}
    for row in data["results"]:
        cases.setdefault((row["section"], row["case"]), []).append(row)
    return {key: {"line": rows[0]["line"], "quire": next(row for row in rows if row["who"] == "Quire"),
                  "peers": {name: best(rows, starts) for name, starts in GPU_PEERS.items()}} for key, rows in cases.items()}


def ratios(case: dict) -> "dict[str, float]":
    return {name: row["us"] / case["quire"]["us"] for name, row in case["peers"].items() if row}


def cpu_cases(data: dict) -> "list[tuple[str, dict[str, float]]]":
    found = []
    for case in data["cases"]:
        seconds = {name: result["seconds"]["median"] for name, result in case["results"].items() if result["status"] == "ok"}
        found.append((case["line"], {name: seconds[key[0]] / seconds["quire"] for name, key in CPU_PEERS.items() if key[0] in seconds}))
    return found


# --- charts -----------------------------------------------------------------------------------------------------------------------

def mark(series: int, x: float, y: float) -> str:
    """A shape for each library, so that colours are not needed to tell them apart."""
    shapes = [f'<circle class="mark s0" cx="{x:.1f}" cy="{y}" r="5.5"/>',
              f'<rect class="mark s1" x="{x - 5:.1f}" y="{y - 5}" width="10" height="10"/>',
              f'<path class="mark s2" d="M{x:.1f} {y - 6.5}l6.5 12h-13z"/>',
              f'<path class="mark s3" d="M{x:.1f} {y - 7}l7 7-7 7-7-7z"/>']
    return shapes[series]


def shown_ticks(low: float, high: float, place) -> "list[float]":
    """Ticks of the axis: 1, and as many others as have room for their words (34 px)."""
    found = [1.0]
    for tick in TICKS:
        if low <= tick <= high and all(abs(place(tick) - place(other)) >= 34 for other in found):
            found.append(tick)
    return found


def chart(title: str, subtitle: str, rows: "list[tuple[str, dict[str, float]]]", series: "list[str]") -> str:
    left = 40 + round(6.8 * max(len(label) for label, _ in rows))  # px of a character at 12 px, and margins
    width, row_height, top = left + 624, 26, 84
    values = [value for _, found in rows for value in found.values()]
    low, high = min(0.7, min(values) * 0.95), max(values) * 1.08
    scale = (width - left - 26) / math.log(high / low)
    place = lambda value: left + scale * math.log(value / low)  # noqa: E731
    bottom = top + row_height * len(rows)
    parts = [f'<rect class="back" width="{width}" height="{bottom + 52}" rx="6"/>', f'<text class="title" x="16" y="26">{escape(title)}</text>',
             f'<text class="small" x="16" y="44">{escape(subtitle)}</text>']
    for tick in shown_ticks(low, high, place):
        x = place(tick)
        parts.append(f'<line class="{"axis" if tick == 1 else "grid"}" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}"/>'
                     f'<text class="small" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}×</text>')
    parts.append(f'<text class="small" x="{left}" y="{bottom + 36}">time of the other / time of Quire: left of 1× Quire is slower, '
                 f'right of it faster</text>')
    x = 16.0
    for i, name in enumerate(series):
        parts.append(mark(i, x + 6, 62) + f'<text x="{x + 18:.0f}" y="66">{escape(name)}</text>')
        x += 40 + 6.6 * len(name)
    for i, (label, found) in enumerate(rows):
        y = top + row_height * i + row_height // 2
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
                     f'<line class="grid" x1="{left}" y1="{y}" x2="{width - 26}" y2="{y}"/>')
        # Marks of one row are set apart by 3 px, so that equal times do not hide each other.
        parts += [mark(series.index(name), place(value), y + 3 * series.index(name) - 4) for name, value in found.items()]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 52}" width="{width}" height="{bottom + 52}" role="img" '
            f'aria-label="{escape(title)}">\n<!-- Written by tools/draw_performance.py -->\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n")


def gpu_words(data: dict) -> str:
    return f"{data['device']}, {data['date']}, commit {data['commit'][:7]}; best paged kernel of each library; median of CUDA-graph replays"


def charts(gpu: dict, cpu: dict) -> "dict[str, str]":
    cases, peers = gpu_cases(gpu), list(GPU_PEERS)
    drawn = {"overview.svg": chart("Attention time against other paged kernels", gpu_words(gpu),
                                   [(WORDS[key[1]], ratios(cases[key])) for key in FIRST], peers)}
    for section, title in SECTIONS.items():
        rows = [(case, ratios(found)) for (name, case), found in cases.items() if name == section]
        drawn[f"{section}.svg"] = chart(title, gpu_words(gpu), rows, peers)
    machine = f"{cpu['machine']['cpu']} with AMX, 1 thread, {cpu['date'][:10]}, commit {cpu['commit'][:7]}"
    rows = [(re.sub(r"q=bf16 kv=bf16 |page=16 layout=hnd ", "", line), found) for line, found in cpu_cases(cpu)]
    drawn["cpu.svg"] = chart("CPU attention, bf16, page 16", machine, rows, list(CPU_PEERS))
    return drawn


# --- tables -----------------------------------------------------------------------------------------------------------------------

def summary(cases: "dict[tuple[str, str], dict]") -> str:
    shown = [case for (section, _), case in cases.items() if section in SECTIONS]
    fastest = [min(ratios(case).values()) for case in shown]
    faster, level = sum(f > 1 + NOISE for f in fastest), sum(abs(f - 1) <= NOISE for f in fastest)
    return (f"Of {len(shown)} problems, Quire is faster than every other paged kernel in {faster}, within {NOISE:.0%} of the fastest in {level}, "
            f"and slower in {len(shown) - faster - level}.".replace("%", " %"))


def table(cases: "dict[tuple[str, str], dict]", section: str) -> "list[str]":
    lines = ["| problem line | Quire | " + " | ".join(GPU_PEERS) + " | fastest other / Quire |", "|---|" + "---|" * (len(GPU_PEERS) + 2)]
    for (name, _), case in cases.items():
        if name != section:
            continue
        row, factor = case["quire"], min(ratios(case).values())
        rate = f"{row['kv_bytes'] / row['us'] / 1e6:.2f} TB/s" if section.startswith("decode") else f"{row['flops'] / row['us'] / 1e6:.0f} TFLOP/s"
        cells = [f"{peer['us']:.1f}" if peer else "-" for peer in case["peers"].values()]
        word = "**slower**" if factor < 1 - NOISE else "faster" if factor > 1 + NOISE else "level"
        lines.append(f"| `{case['line']}` | {row['us']:.1f} ({rate}) | " + " | ".join(cells) + f" | {factor:.2f}, {word} |")
    return lines


def tables(gpu: dict) -> str:
    cases, parts = gpu_cases(gpu), []
    parts += [summary(gpu_cases(gpu)), ""]
    for section, title in SECTIONS.items():
        parts += [f"### {title}", "", f"![{title}: time of other libraries divided by Quire's]({section}.svg)", "",
                  '??? note "Microseconds, by problem line"', ""]
        parts += ["    " + line for line in table(cases, section)] + [""]
    return "\n".join(parts)


def page_with(page: str, text: str) -> str:
    return re.sub(r"(<!-- generated: gpu -->\n).*?(<!-- /generated -->)", lambda m: m[1] + text + m[2], page, flags=re.DOTALL)


def files(gpu: dict, cpu: dict) -> "dict[Path, str]":
    page = PAGE.read_text(encoding="utf-8")
    return {**{FOLDER / name: text for name, text in charts(gpu, cpu).items()}, PAGE: page_with(page, tables(gpu))}


def differing(gpu: dict, cpu: dict) -> "list[str]":
    return [path.name for path, text in files(gpu, cpu).items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def self_test(gpu: dict, cpu: dict) -> "list[str]":
    slower, other = copy.deepcopy(gpu), copy.deepcopy(cpu)
    slower["results"][0]["us"] *= 2
    other["cases"][0]["results"]["quire"]["seconds"]["median"] *= 2
    found = []
    if "index.md" not in differing(slower, cpu) or "overview.svg" not in differing(slower, cpu):
        found.append("a changed GPU result went unnoticed")
    if differing(gpu, other) != ["cpu.svg"]:
        found.append("a changed CPU result went unnoticed")
    return found


def main(arguments: "list[str]") -> int:
    gpu, cpu = (json.loads(path.read_text(encoding="utf-8")) for path in (GPU, CPU))
    if arguments == ["--self-test"]:
        problems = self_test(gpu, cpu)
    elif arguments == ["--check"]:
        problems = [f"{name} is not what bench/results says: run tools/draw_performance.py" for name in differing(gpu, cpu)]
    else:
        problems = []
        for path, text in files(gpu, cpu).items():
            path.write_text(text, encoding="utf-8")
    print("\n".join(problems) or "ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
