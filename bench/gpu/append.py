#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU time of append() on a GPU with torch: one of 16 in a captured graph, into caches in turn, from rows that are in the L2 cache.

usage: append.py [--commit TEXT] [--out FILE]      prints JSON, and writes it to FILE

Before a line is timed, every byte of its caches is compared with what append() writes into the same caches on a CPU. The exit status is 1
if one differs.
"""
import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import quire

LAUNCHES = 16
LINES = [
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=1x1@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=256@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=2048@900",
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=1x1@900 kscale=head",
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@900",
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=256@900",
    "q=f16 kv=fp8_e5m2 heads=32:8 d=128 page=16 reqs=256@900 kscale=head",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=hnd reqs=256@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=64x1@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=256@900",
    "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=packed reqs=256@901",
    "q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 layout=packed reqs=256@900",
]


def bits(array) -> np.ndarray:
    """Elements of two bytes as int16, of one as uint8."""
    array = np.asarray(array)
    return array.view({1: np.uint8, 2: np.int16, 4: np.float32}[array.dtype.itemsize])


class Case:
    """A line's caches and this step's rows, on the CPU and on the GPU."""

    def __init__(self, line: str, seed: int):
        case = quire.make_case(f"{line} seed={seed}")
        b, c = case.batch, case.cache
        self.layout, self.dtype, self.row_dtype = c.layout, c.dtype, b.dtype
        starts, lens, table = (np.asarray(a, np.int64) for a in (b.query_start_loc, b.seq_lens, b.block_table))
        self.slots = np.array(
            [table[r, p // c.page_size] * c.page_size + p % c.page_size
             for r in range(len(lens)) for p in range(lens[r] - (starts[r + 1] - starts[r]), lens[r])], np.int64)  # fmt: skip
        random = np.random.default_rng(seed)
        shape = (len(self.slots), c.num_kv_heads, c.head_dim)
        to = torch.bfloat16 if self.row_dtype == "bf16" else torch.float16
        self.rows = [torch.from_numpy(random.standard_normal(shape, np.float32)).to(to) for _ in range(2)]
        self.k, self.v, self.scale = bits(c.k), bits(c.v), None if c.k_scale is None else np.asarray(c.k_scale, np.float32)
        self.gpu_rows = [rows.cuda() for rows in self.rows]
        self.gpu_slots = torch.from_numpy(self.slots).cuda()
        self.gpu_scale = None if self.scale is None else torch.from_numpy(self.scale.copy()).cuda()
        self.gpu_caches = [[torch.from_numpy(np.ascontiguousarray(a)).cuda() for a in (self.k, self.v)] for _ in range(LAUNCHES)]

    def cache(self, k, v, scale):
        return quire.KVCache(k, v, self.layout, scale, None, self.dtype)

    def gpu_cache(self, i: int):
        view = (lambda t: t) if self.dtype.startswith("fp8") else (lambda t: t.view(torch.bfloat16 if self.dtype == "bf16" else torch.float16))
        return self.cache(*(view(t) for t in self.gpu_caches[i]), self.gpu_scale)

    def differences(self) -> int:
        """Bytes of two caches that differ from those of a CPU."""
        k, v = self.k.copy(), self.v.copy()
        raw = (lambda a: a.view(np.uint16)) if k.dtype == np.int16 else (lambda a: a)
        quire.append(self.cache(raw(k), raw(v), self.scale), *self.rows, self.slots)
        found = int((k != self.k).sum() == 0)  # nothing was written
        for i in (0, LAUNCHES - 1):
            for mine, other in zip(self.gpu_caches[i], (k, v)):
                found += int((mine.cpu().numpy() != other).sum())
        return found

    def put(self, caches, stream=None) -> None:
        for cache in caches:
            quire.append(cache, *self.gpu_rows, self.gpu_slots, stream=stream)


def graph_us(case: Case) -> float:
    caches = [case.gpu_cache(i) for i in range(LAUNCHES)]
    case.put(caches)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.put(caches)
    found = []
    for i in range(43):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            found.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of the build that is measured; default: what git says")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000, help="of the inputs; default: the clock's")
    args = parser.parse_args()
    if not torch.cuda.is_available() or not quire.gpu_devices():
        print("append.py: no GPU that this build has kernels for", file=sys.stderr)
        return 2
    commit = args.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "commit": commit, "seed": args.seed,
              "method": f"one of {LAUNCHES} append() in a captured graph, median of 40 replays", "results": []}  # fmt: skip
    wrong = 0
    for line in LINES:
        case = Case(line, args.seed)
        us = graph_us(case)
        different = case.differences()
        wrong += different
        report["results"].append({"line": line, "tokens": len(case.slots), "append_us": round(us, 2), "different_bytes": different})
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
