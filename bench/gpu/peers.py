#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention libraries on one GPU beside Quire, on the same inputs, in one run, and writes one JSON.

usage: peers.py [--out FILE] [--cases FILE] [--only TEXT] [--peer TEXT]... [--without TEXT]... [--rounds N] [--minutes M]
                [--joules SECONDS] [--commit TEXT]
       peers.py --list         the libraries that are installed here
       peers.py --self-test    problem lines, counts of work, who is asked what; needs no GPU

A library takes part if Python can import it: FlashInfer, FlashAttention 3 (flash_attn_interface, or vLLM's build), hpc-ops, vLLM's Triton
kernels, torch's dense attention. peer_calls.py says how each is called. Nobody's code is copied, and what is not installed is not asked.

For each case all callers get the same N(0,1) query, keys, values and page table. A call is captured in a CUDA graph that walks over
copies of K and V, at least 400 MB of them, so that no copy is in the L2 cache. All graphs of a case are captured, then replayed in a
shuffled order, round after round; a result is the median of all replays. Every output is compared with f32 attention on sampled rows,
before and after the timing. An output that is wrong, or a library that refuses, is a row with the reason and without a time.

--joules SECONDS: each caller's graph is replayed for so long once more, and the card's energy counter is read before and after (NVML,
nvmlDeviceGetTotalEnergyConsumption; needs nvidia-ml-py). The counter moves every 20 to 100 ms: less than a second says little.

The format is that of bench/results/h100-peers-c33f48cc.json, which tools/draw_performance.py draws.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import peer_calls

CASES = Path(__file__).resolve().parent / "peers.txt"
COPIED_BYTES = 400 << 20  # bytes of K and V that a graph walks over: several L2 caches of 50 to 60 MB; less would time the cache
MOST_COPIES = 96
SLOW = 4.0  # a library that takes so many times Quire's time is timed in two rounds
WRONG = 0.02  # share of a row's largest value: bf16 outputs of kernels that round weights stay under a fifth of it
WRONG_ROUNDED = 2 * 2**-4  # bound for callers that round query and weights to e4m3, each by at most 2^-4; 0.056 was seen on an H100


@dataclass(frozen=True)
class Problem:
    """One problem line. ``reqs``: (query_len, context_len) of each request; ``window``: visible keys, 0 = all."""

    line: str
    query: str
    cache: str
    q_heads: int
    kv_heads: int
    dim: int
    page: int
    window: int
    reqs: tuple[tuple[int, int], ...]

    @staticmethod
    def parse(line: str) -> Problem:
        words = dict(word.split("=", 1) for word in line.split())
        unknown = set(words) - {"q", "kv", "heads", "d", "page", "reqs", "window"}
        if unknown:
            raise ValueError(f"{line}: peers.py has no {', '.join(sorted(unknown))}")
        heads = [int(n) for n in words["heads"].split(":")]
        reqs: list[tuple[int, int]] = []
        for text in words["reqs"].split(","):
            found = re.fullmatch(r"(?:(\d+)x)?(\d+)(?:@(\d+))?", text)
            if not found:
                raise ValueError(f"{line}: {text!r} is no [count x] query_len [@ context]")
            times, rows, context = found.groups()
            reqs += [(int(rows), int(context or 0))] * int(times or 1)
        return Problem(
            line, words["q"], words["kv"], heads[0], heads[-1], int(words["d"]), int(words["page"]), int(words.get("window", 0)), tuple(reqs)
        )

    @property
    def seq_lens(self) -> list[int]:
        return [rows + context for rows, context in self.reqs]

    @property
    def query_lens(self) -> list[int]:
        return [rows for rows, _ in self.reqs]

    @property
    def is_decode(self) -> bool:
        return all(rows == 1 for rows in self.query_lens)

    @property
    def is_uniform(self) -> bool:
        return len(set(self.reqs)) == 1

    @property
    def is_fp8(self) -> bool:
        return self.cache.startswith("fp8")

    def first_key(self, position: int) -> int:
        return max(0, position + 1 - self.window) if self.window else 0

    def kv_bytes(self) -> int:
        """Bytes of the keys and values that some row sees."""
        keys = sum(rows + context - self.first_key(context) for rows, context in self.reqs)
        return keys * 2 * self.kv_heads * self.dim * (1 if self.is_fp8 else 2)

    def flops(self) -> int:
        """4 * head_dim * num_q_heads for each visible pair of a row and a key."""
        pairs = sum(position + 1 - self.first_key(position) for rows, context in self.reqs for position in range(context, context + rows))
        return 4 * self.dim * self.q_heads * pairs


class Data:
    """Inputs of a problem on the GPU: ``copies`` caches [pages, page, kv_heads, dim], one query, one table of random pages."""

    def __init__(self, torch: Any, problem: Problem, seed: int):
        self.torch, self.problem = torch, problem
        self._random = torch.Generator(device="cuda").manual_seed(seed)
        p = problem
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[p.query]
        self.cache_dtype = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(p.cache, self.dtype)
        self.columns = [-(-n // p.page) for n in p.seq_lens]
        pages = sum(self.columns)
        size = 2 * pages * p.page * p.kv_heads * p.dim * (1 if p.is_fp8 else 2)
        self.copies = min(MOST_COPIES, max(1, -(-COPIED_BYTES // size)))
        self.query = self._normal((sum(p.query_lens), p.q_heads, p.dim)).to(self.dtype)
        self.output = torch.empty_like(self.query)
        shape = (pages, p.page, p.kv_heads, p.dim)
        self.caches = [(self._normal(shape).to(self.cache_dtype), self._normal(shape).to(self.cache_dtype)) for _ in range(self.copies)]
        self.starts = self._cumulative(p.query_lens)
        self.lens = torch.tensor(p.seq_lens, device="cuda", dtype=torch.int32)
        self.table = self._table(torch.randperm(pages, generator=self._random, device="cuda").int())
        self._derived: dict[Any, Any] = {}

    def _normal(self, shape: tuple[int, ...]) -> Any:
        return self.torch.randn(shape, generator=self._random, device="cuda", dtype=self.torch.float32)

    def _cumulative(self, lengths: list[int]) -> Any:
        return self.torch.tensor([0, *lengths], device="cuda").cumsum(0).to(self.torch.int32)

    def _table(self, pages: Any) -> Any:
        table = self.torch.zeros((len(self.columns), max(self.columns)), device="cuda", dtype=self.torch.int32)
        at = 0
        for r, n in enumerate(self.columns):
            table[r, :n] = pages[at : at + n]
            at += n
        return table

    def _slots(self, request: int) -> Any:
        n, page = self.problem.seq_lens[request], self.problem.page
        positions = self.torch.arange(n, device="cuda")
        return self.table[request, positions // page].long() * page + positions % page

    def dense(self, copy: int) -> tuple[Any, Any]:
        """K and V of all requests back to back, [sum of seq_lens, kv_heads, dim]."""
        key = ("dense", copy)
        if key not in self._derived:
            slots = self.torch.cat([self._slots(r) for r in range(len(self.columns))])
            self._derived[key] = tuple(x.view(self.torch.uint8 if self.problem.is_fp8 else x.dtype).flatten(0, 1)[slots].view(x.dtype) for x in self.caches[copy])
        return self._derived[key]

    def repaged(self, page: int, copy: int) -> tuple[Any, Any, Any]:
        """K, V and a table with pages of ``page`` tokens, a multiple of the problem's: neighbours of a request in one page."""
        key = ("repaged", page, copy)
        if key not in self._derived:
            columns = [-(-n // page) for n in self.problem.seq_lens]
            order = self.torch.randperm(sum(columns), generator=self.torch.Generator(device="cuda").manual_seed(page), device="cuda").int()
            table = self.torch.zeros((len(columns), max(columns)), device="cuda", dtype=self.torch.int32)
            sides, (k, v) = [], self.dense(copy)
            for x in (k, v):
                bytes_of = x.view(self.torch.uint8)
                new = self.torch.zeros((sum(columns), page, *bytes_of.shape[1:]), device="cuda", dtype=self.torch.uint8)
                first_page = first_row = 0
                for r, (n, length) in enumerate(zip(columns, self.problem.seq_lens)):
                    mine = order[first_page : first_page + n]
                    table[r, :n] = mine
                    rows = self.torch.zeros((n * page, *bytes_of.shape[1:]), device="cuda", dtype=self.torch.uint8)
                    rows[:length] = bytes_of[first_row : first_row + length]
                    new[mine.long()] = rows.view(n, page, *bytes_of.shape[1:])
                    first_page, first_row = first_page + n, first_row + length
                sides.append(new.view(x.dtype))
            self._derived[key] = (*sides, table)
        return self._derived[key]

    def worst_error(self, output: Any) -> float:
        """Over sampled rows: the largest difference from f32 attention on copy 0, as a share of the row's largest value."""
        torch, p = self.torch, self.problem
        worst, group = 0.0, p.q_heads // p.kv_heads
        k_all, v_all = self.caches[0]
        sample = sorted({0, len(p.reqs) // 2, len(p.reqs) - 1})
        for r in sample:
            rows, context = p.reqs[r]
            slots = self._slots(r)
            for row in sorted({0, rows // 2, rows - 1}):
                seen = slots[p.first_key(context + row) : context + row + 1]
                k, v = (x.flatten(0, 1)[seen].float() if not p.is_fp8 else x.view(torch.uint8).flatten(0, 1)[seen].view(x.dtype).float() for x in (k_all, v_all))
                q = self.query[int(self.starts[r]) + row].float().view(p.kv_heads, group, p.dim)
                weights = (torch.einsum("hgd,khd->hgk", q, k) / p.dim**0.5).softmax(-1)
                expected = torch.einsum("hgk,khd->hgd", weights, v).reshape(p.q_heads, p.dim)
                error = (output[int(self.starts[r]) + row].float() - expected).abs().max() / expected.abs().max()
                worst = max(worst, float("inf") if torch.isnan(error) else float(error))
        return worst


@dataclass
class Entry:
    """One library's way of calling, for one case: ``call(copy)`` enqueues it and returns its output."""

    who: str
    call: Callable[[int], Any]
    graph: Any = None
    replays: list[float] | None = None
    error: float = 0.0
    refused: str = ""
    joules: float = 0.0  # energy of a call by the card's own counter; 0: not asked
    mhz: float = 0.0  # median clock of the SMs meanwhile
    us_sustained: float = 0.0  # time of a call meanwhile: power may lower the clock further than in the replays before


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:240]


def judge(data: Data, entry: Entry) -> None:
    data.output.fill_(float("nan"))
    error = data.worst_error(entry.call(0).view(data.query.shape))
    entry.error = max(entry.error, error)
    if not error < (WRONG_ROUNDED if peer_calls.ROUNDED in entry.who else WRONG):
        entry.refused = f"wrong: off by {error:.3g} of a row's largest value"


def prove_judge(data: Data, right: Callable[[int], Any]) -> None:
    """Outputs with heads exchanged, or of another copy of the cache, must be refused; otherwise no later verdict means anything."""
    wrong = {"heads exchanged": lambda copy: right(copy).flip(1), "a row not written": lambda copy: _without_a_row(right(copy))}
    if data.copies > 1:
        wrong["another cache"] = lambda copy: right(1)
    for name, call in wrong.items():
        entry = Entry(name, call)
        judge(data, entry)
        if not entry.refused:
            raise RuntimeError(f"the comparison with f32 did not notice: {name}")


def _without_a_row(output: Any) -> Any:
    output = output.clone()
    output[-1] = float("nan")
    return output


def capture(torch: Any, data: Data, entry: Entry) -> int:
    """The graph walks over all copies; returns how many calls are in it."""
    calls = max(4, data.copies)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for copy in range(data.copies):
            entry.call(copy)
    stream.synchronize()
    entry.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(entry.graph, stream=stream):
        for i in range(calls):
            entry.call(i % data.copies)
    entry.replays = []
    return calls


def replay(torch: Any, entry: Entry, calls: int) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    entry.graph.replay()
    end.record()
    end.synchronize()
    assert entry.replays is not None
    entry.replays.append(begin.elapsed_time(end) * 1000 / calls)


class EnergyCounter:
    """Energy that the card has used since its driver was loaded, and the clock of its SMs."""

    def __init__(self, torch: Any):
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self._nvml, self._device = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def joules(self) -> float:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device) / 1000

    def mhz(self) -> int:
        return self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)


def measure_energy(torch: Any, entry: Entry, calls: int, seconds: float, counter: EnergyCounter) -> None:
    """Replays the graph for that long without a pause of the GPU: the host enqueues the next tenth of a second before the last is done."""
    assert entry.replays
    once = statistics.median(entry.replays) * calls * 1e-6
    batch = max(1, round(0.1 / once))
    done, clocks = 0, []
    torch.cuda.synchronize()
    used, began = counter.joules(), time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(batch):
            entry.graph.replay()
        done += batch
        last = torch.cuda.Event()
        last.record()
        clocks.append(counter.mhz())
        while time.monotonic() - began < done * once - 0.05 and not last.query():
            time.sleep(0.002)
    torch.cuda.synchronize()
    entry.joules = (counter.joules() - used) / (done * calls)
    entry.us_sustained = (time.monotonic() - began) * 1e6 / (done * calls)
    entry.mhz = statistics.median(clocks)


def prepared(torch: Any, data: Data, ways: dict[str, Callable[[], Callable[[int], Any]]]) -> tuple[list[Entry], int]:
    entries, calls = [], 1
    for who, make in ways.items():
        entry = Entry(who, lambda copy: None)
        try:
            entry.call = make()
            judge(data, entry)
            if not entry.refused:
                calls = capture(torch, data, entry)
        except Exception as e:  # a library that refuses is a row of the report
            entry.refused = first_line(e)
            torch.cuda.synchronize()
        entries.append(entry)
    return entries, calls


def measure(
    torch: Any, data: Data, ways: dict[str, Callable[[], Callable[[int], Any]]], rounds: int, order: random.Random, joules: float
) -> list[Entry]:
    entries, calls = prepared(torch, data, ways)
    running = [entry for entry in entries if not entry.refused]
    for entry in running:
        replay(torch, entry, calls)  # warms up, and says who is slow
    quire_us = next((entry.replays[0] for entry in running if entry.who == "Quire" and entry.replays), 0.0)
    slow = {entry.who for entry in running if entry.replays and quire_us and entry.replays[0] > SLOW * quire_us}
    for entry in running:
        entry.replays = []
    for turn in range(rounds):
        order.shuffle(running)
        for entry in running:
            if turn < 2 or entry.who not in slow:
                for _ in range(3):
                    replay(torch, entry, calls)
    counter = EnergyCounter(torch) if joules > 0 else None
    for entry in running:
        if counter is not None:
            measure_energy(torch, entry, calls, joules, counter)
        judge(data, entry)
    return entries


def row_of(section: str, case: str, problem: Problem, entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"section": section, "case": case, "line": problem.line, "who": entry.who}
    if entry.refused or not entry.replays:
        return {**row, "refused": entry.refused or "not timed"}
    times = entry.replays
    if entry.joules:
        row |= {"joules": float(f"{entry.joules:.4g}"), "mhz": entry.mhz, "us_sustained": round(entry.us_sustained, 3)}
    return {
        **row, "us": round(statistics.median(times), 3), "us_min": round(min(times), 3), "us_max": round(max(times), 3),
        "kv_bytes": problem.kv_bytes(), "flops": problem.flops(), "error": float(f"{entry.error:.3g}"),
    }  # fmt: skip


def ceilings(torch: Any, when: str) -> list[dict[str, Any]]:
    """Ceilings of this card in this run: reading and multiplying."""
    big = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255).view(torch.int32)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def least(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(12):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        return statistics.median(times[2:])

    read, product = least(lambda: torch.amax(big)), least(lambda: torch.matmul(a, b, out=out))
    return [
        {"peer": "read", "when": when, "TBps": round(big.numel() * 4 / read * 1e-6, 3), "us": round(read, 1)},
        {"peer": "matmul", "when": when, "TFLOPs": round(2 * 8192**3 / product * 1e-6, 1), "us": round(product, 1)},
    ]


def read_cases(path: Path) -> list[tuple[str, str, Problem]]:
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if text.strip() and not text.startswith("#"):
            section, case, line = (part.strip() for part in text.split("|"))
            found.append((section, case, Problem.parse(line)))
    return found


def commit_here() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def write(path: Path, report: dict[str, Any]) -> None:
    head = {key: value for key, value in report.items() if key != "results"}
    rows = ",\n".join("  " + json.dumps(row) for row in report["results"])
    path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "results": [\n' + rows + "\n]}\n", encoding="utf-8")


def asked(ways: dict[str, Any], peers: list[str] | None, without: list[str] | None = None) -> dict[str, Any]:
    """Callers that take part: those of ``peers`` and Quire, or all, but for those whose name has a text of ``without``."""
    chosen = {who: make for who, make in ways.items() if not peers or who.startswith("Quire") or any(text in who for text in peers)}
    return {who: make for who, make in chosen.items() if not any(text in who for text in without or [])}


def run(args: argparse.Namespace) -> int:
    import torch

    started, order = time.monotonic(), random.Random(args.seed)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0), "date": datetime.date.today().isoformat(), "commit": args.commit or commit_here(),
        "software": peer_calls.versions(), "method": " ".join(__doc__.split("\n\n")[3].split()), "ceilings": ceilings(torch, "begin"), "results": [],
    }  # fmt: skip
    cases = [case for case in read_cases(args.cases) if not args.only or args.only in case[1] or args.only in case[2].line]
    for section, name, problem in cases:
        if time.monotonic() - started > args.minutes * 60:
            report["not_reached"] = [name for _, name, _ in cases[cases.index((section, name, problem)) :]]
            break
        data = Data(torch, problem, args.seed)
        if not report["results"]:
            prove_judge(data, peer_calls.ways(torch, data)["Quire"]())
        for entry in measure(torch, data, asked(peer_calls.ways(torch, data), args.peer, args.without), args.rounds, order, args.joules):
            report["results"].append(row_of(section, name, problem, entry))
            last = report["results"][-1]
            print(f"{name:34} {entry.who:34} {last.get('us', last.get('refused'))}", flush=True)
        del data
        torch.cuda.empty_cache()
        write(args.out, report)
    report["ceilings"] += ceilings(torch, "end")
    write(args.out, report)
    return int(any(row["who"].startswith("Quire") and "refused" in row for row in report["results"]))


def self_test() -> int:
    whole = Problem.parse("q=bf16 kv=fp8_e4m3fn heads=64:8 d=128 page=16 window=4 reqs=2x3@5,7")
    bare = Problem.parse("q=bf16 kv=bf16 heads=1:1 d=1 page=16 reqs=2x3@5,7")
    checks = {
        "requests": whole.reqs == ((3, 5), (3, 5), (7, 0)) and (whole.q_heads, whole.kv_heads, whole.dim, whole.page) == (64, 8, 128, 16),
        "pairs": bare.flops() == 4 * (2 * (6 + 7 + 8) + 28),
        "pairs in a window": whole.flops() == 4 * 128 * 64 * (2 * 12 + 1 + 2 + 3 + 4 * 4),
        "bytes": bare.kv_bytes() == (8 + 8 + 7) * 2 * 2,
        "bytes in a window": whole.kv_bytes() == (6 + 6 + 7) * 2 * 8 * 128,
        "kinds": whole.is_fp8 and not whole.is_decode and not whole.is_uniform and Problem.parse("q=f16 kv=f16 heads=2:1 d=64 page=1 reqs=3x1@9").is_decode,
        "cases": len(read_cases(CASES)) >= 49 and len({(section, case) for section, case, _ in read_cases(CASES)}) == len(read_cases(CASES)),
        "who is asked": list(asked({"Quire": 1, "FlashInfer decode": 2, "torch cuDNN, dense": 3}, ["FlashInfer"])) == ["Quire", "FlashInfer decode"],
        "who is left out": list(asked({"Quire": 1, "Quire, exact_weights": 2, "XQA": 3}, None, ["exact"])) == ["Quire", "XQA"],
        "a refusal has no time": "us" not in row_of("s", "c", bare, Entry("x", lambda copy: None, refused="no")),
        "no energy that nobody measured": "joules" not in row_of("s", "c", bare, Entry("x", lambda copy: None, replays=[1.0])),
        "energy of a call": row_of("s", "c", bare, Entry("x", lambda copy: None, replays=[1.0], joules=0.25, mhz=1500))["joules"] == 0.25,
        "a time is a median": row_of("s", "c", bare, Entry("x", lambda copy: None, replays=[3.0, 1.0, 2.0]))["us"] == 2.0,
    }
    try:
        Problem.parse("q=bf16 kv=bf16 heads=1:1 d=1 page=16 cap=3 reqs=1")
        checks["an option that no caller passes on"] = False
    except ValueError:
        pass
    missed = [what for what, right in checks.items() if not right]
    print("\n".join(f"wrong: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--only", help="cases whose name or problem line has this text")
    parser.add_argument("--peer", action="append", help="libraries whose name has this text, beside Quire")
    parser.add_argument("--without", action="append", help="callers whose name has this text are left out, Quire's other plans, too")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60.0, help="no case is begun after that")
    parser.add_argument("--joules", type=float, default=0.0, metavar="SECONDS", help="measure energy, too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", help="of the build that is measured; default: what git says")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if args.list:
        print("\n".join(f"{name} {version}" for name, version in peer_calls.versions().items()))
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
