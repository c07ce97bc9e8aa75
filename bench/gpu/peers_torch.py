#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times torch's attention on the prefill lines of targets.json, as attend_cuda times ours: CUDA-graph replay, the median of 20, K and V
in as many copies as exceed the L2 cache several times, used in turn.

usage: peers_torch.py --out DIR [--lines LINE ...]      -> DIR/h200-peers.json
       peers_torch.py --self-test                       what is made of a problem line

K and V are dense here: torch reads no pages of 16. Two backends:

  cudnn   scaled_dot_product_attention by cuDNN. Its causal mask is aligned to the first key, so that it is asked only where a request
          has no context; requests of one length are a batch, others are not asked.
  flash   torch's FlashAttention-2, aligned to the last key, with windows and ragged batches (cumulative lengths).

FlashAttention-3 is no part of torch; where its package is not installed the file says so. An output is compared with f32 on a few rows
of every request before anything is timed; a line that a backend refuses has the reason in place of a time.
"""
import argparse
import datetime
import importlib.util
import json
import re
import sys
from pathlib import Path

import targets

L2_TIMES = 4  # as much K and V as that many L2 caches


def read_line(line: str) -> dict:
    """The parts of a problem line that matter here; reqs: (query_len, context_len) each."""
    words = dict(word.split("=", 1) for word in line.split())
    heads = [int(n) for n in words["heads"].split(":")]
    reqs = []
    for text in words["reqs"].split(","):
        times, rows, context = re.fullmatch(r"(?:(\d+)x)?(\d+)(?:@(\d+))?", text).groups()
        reqs += [(int(rows), int(context or 0))] * int(times or 1)
    return {"dtype": words["q"], "cache": words["kv"], "q_heads": heads[0], "kv_heads": heads[-1], "dim": int(words["d"]),
            "window": int(words.get("window", 0)), "reqs": reqs}


def pairs(problem: dict) -> int:
    """Of a query row and a key that it sees, for each head."""
    total = 0
    for rows, context in problem["reqs"]:
        for position in range(context, context + rows):
            total += min(position + 1, problem["window"] or position + 1)
    return total


def refusal(problem: dict, backend: str) -> "str | None":
    if problem["cache"] != problem["dtype"]:
        return "K and V of another type than Q"
    if backend == "flash":
        return None
    if problem["window"]:
        return "no windows"
    if any(context for _, context in problem["reqs"]):
        return "causal masks are aligned to the first key"
    return "requests of different lengths" if len(set(problem["reqs"])) > 1 else None


class Data:
    """Packed rows, [tokens, heads, dim], and cumulative lengths."""

    def __init__(self, torch, problem: dict):
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[problem["dtype"]]
        rows = [n for n, _ in problem["reqs"]]
        keys = [n + context for n, context in problem["reqs"]]
        shape = (sum(keys), problem["kv_heads"], problem["dim"])
        bytes_of_both = 2 * 2 * shape[0] * shape[1] * shape[2]
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        copies = max(1, min(16, -(-L2_TIMES * l2 // bytes_of_both)))

        def random(*size):
            return torch.randn(*size, device="cuda", dtype=torch.float32).to(dtype)

        self.query = random(sum(rows), problem["q_heads"], problem["dim"])
        self.caches = [(random(*shape), random(*shape)) for _ in range(copies)]
        self.max_rows, self.max_keys = max(rows), max(keys)
        self.rows_at, self.keys_at = self.sums(torch, rows), self.sums(torch, keys)

    @staticmethod
    def sums(torch, lengths: "list[int]"):
        return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def by_flash(torch, problem: dict, data: Data, copy: int):
    key, value = data.caches[copy]
    window = {"window_size_left": problem["window"] - 1, "window_size_right": 0} if problem["window"] else {}
    return torch.ops.aten._flash_attention_forward(data.query, key, value, data.rows_at, data.keys_at, data.max_rows, data.max_keys,
                                                   0.0, True, False, **window)[0]


def by_flash_dense(torch, problem: dict, data: Data, copy: int):
    """Requests of one length as a batch: kernels for that have less to look up."""
    key, value = data.caches[copy]
    count = len(problem["reqs"])
    window = {"window_size_left": problem["window"] - 1, "window_size_right": 0} if problem["window"] else {}
    out = torch.ops.aten._flash_attention_forward(*(x.view(count, -1, *x.shape[1:]) for x in (data.query, key, value)), None, None,
                                                  data.max_rows, data.max_keys, 0.0, True, False, **window)[0]
    return out.reshape(data.query.shape)


def by_cudnn(torch, problem: dict, data: Data, copy: int):
    key, value = data.caches[copy]
    count = len(problem["reqs"])
    batch = [x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (data.query, key, value)]
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
        out = torch.nn.functional.scaled_dot_product_attention(*batch, is_causal=True, enable_gqa=problem["q_heads"] != problem["kv_heads"])
    return out.transpose(1, 2).reshape(data.query.shape)


def worst_difference(torch, problem: dict, data: Data, out) -> float:
    """From f32, of the first, a middle and the last row of every request."""
    worst, row_at, key_at = 0.0, 0, 0
    key, value = (x.float() for x in data.caches[0])
    group = problem["q_heads"] // problem["kv_heads"]
    for rows, context in problem["reqs"]:
        for row in {0, rows // 2, rows - 1}:
            end = context + row + 1
            begin = max(0, end - problem["window"]) if problem["window"] else 0
            k = key[key_at + begin:key_at + end].repeat_interleave(group, 1)
            v = value[key_at + begin:key_at + end].repeat_interleave(group, 1)
            scores = torch.einsum("hd,khd->hk", data.query[row_at + row].float(), k) / problem["dim"] ** 0.5
            expected = torch.einsum("hk,khd->hd", scores.softmax(1), v)
            worst = max(worst, (out[row_at + row].float() - expected).abs().max().item())
        row_at, key_at = row_at + rows, key_at + rows + context
    return worst


def microseconds(torch, call, copies: int) -> float:
    """Of one call: graphs of as many calls as there are copies, at least 4."""
    calls = max(copies, 4)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for copy in range(copies):
            call(copy)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(calls):
            call(i % copies)
    times = []
    for i in range(22):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1000 / calls)
    return sorted(times)[len(times) // 2]


def ask(torch, line: str, backend: str, problem: dict) -> dict:
    row = {"line": line, "peer": f"torch {backend}"}
    why = refusal(problem, backend)
    if why:
        return {**row, "refused": why}
    data = Data(torch, problem)
    flash = by_flash_dense if len(set(problem["reqs"])) == 1 else by_flash
    call = {"flash": flash, "cudnn": by_cudnn}[backend]
    try:
        difference = worst_difference(torch, problem, data, call(torch, problem, data, 0))
        if not difference < 0.05:
            return {**row, "refused": f"wrong by {difference:.3g}"}
        us = microseconds(torch, lambda copy: call(torch, problem, data, copy), len(data.caches))
    except RuntimeError as e:
        return {**row, "refused": str(e).strip().splitlines()[0][:200]}
    flop = 4 * problem["dim"] * problem["q_heads"] * pairs(problem)
    return {**row, "us": round(us, 2), "tflop_per_s": round(flop / us * 1e-6, 1), "max_difference_from_f32": float(f"{difference:.3g}")}


def lines_of_table() -> "list[str]":
    return list(dict.fromkeys(case["line"] for case in targets.load_cases()
                              if case["table"] == "prefill" and "x1@" not in case["line"] and "fp8" not in case["line"]))


def matmul_tflops(torch) -> float:
    """bf16, 8192^3: the ceiling of the run."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return round(2 * 8192**3 / microseconds(torch, lambda _: torch.matmul(a, b, out=out), 1) * 1e-6, 1)


def run(args) -> int:
    import torch

    report = {"device": torch.cuda.get_device_name(0), "date": datetime.date.today().isoformat(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(), "matmul_tflop_per_s": matmul_tflops(torch),
              "flash_attn_3": "installed, not asked" if importlib.util.find_spec("flash_attn_interface") else "not installed",
              "method": "CUDA-graph replay, median of 20; K and V dense, rotated", "results": []}
    for line in args.lines or lines_of_table():
        for backend in ("cudnn", "flash"):
            row = ask(torch, line, backend, read_line(line))
            report["results"].append(row)
            print(line, backend, row.get("us"), row.get("tflop_per_s"), row.get("refused", ""), flush=True)
            torch.cuda.empty_cache()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    head = {key: value for key, value in report.items() if key != "results"}
    rows = ",\n".join("  " + json.dumps(row) for row in report["results"])
    (out / "h200-peers.json").write_text(json.dumps(head)[:-1] + ', "results": [\n' + rows + "\n]}\n", encoding="utf-8")
    return 0


def self_test() -> int:
    whole = read_line("q=f16 kv=f16 heads=64:8 d=128 page=32 reqs=2x3@5,7 window=4")
    bare = {"window": 0, "reqs": [(3, 5), (3, 5), (7, 0)]}
    one = {**whole, "window": 0, "reqs": [(7, 0), (7, 0)]}
    missed = [what for what, found in {
        "requests": whole["reqs"] == [(3, 5), (3, 5), (7, 0)] and whole["q_heads"] == 64 and whole["kv_heads"] == 8,
        "pairs": pairs(bare) == 2 * (6 + 7 + 8) + 28,
        "pairs of a window": pairs(whole) == 2 * 12 + (1 + 2 + 3 + 4 * 4),
        "what cuDNN is not asked": all(refusal({**one, **change}, "cudnn") for change in
                                       ({"window": 4}, {"reqs": [(7, 1)]}, {"reqs": [(7, 0), (8, 0)]}, {"cache": "fp8_e4m3fn"})),
        "what it is asked": refusal(one, "cudnn") is None and refusal(whole, "flash") is None,
        "lines of the table": any("reqs=16x1024" in line for line in lines_of_table()) and not any("64x1@" in line for line in lines_of_table()),
    }.items() if not found]
    print("\n".join(f"wrong: {what}" for what in missed) or "ok")
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", default=".")
    parser.add_argument("--lines", nargs="*")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    sys.exit(self_test() if arguments.self_test else run(arguments))
