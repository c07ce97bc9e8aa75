# SPDX-License-Identifier: Apache-2.0
"""GPU time of append() with torch (mode `append` of run_device.py): one of 16 in a captured graph, into caches in turn, from rows that are
in the L2 cache. Every byte of a line's caches is compared with what append() writes into the same caches on a CPU."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import quire
from timing import medians, record, replayed

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


def append_us(case: Case) -> float:
    caches = [case.gpu_cache(i) for i in range(LAUNCHES)]
    case.put(caches)  # loads the kernels, which a capture may not
    (seconds,) = medians([replayed(lambda i: case.put(caches[i : i + 1]), LAUNCHES)], 40)
    return seconds * 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000, help="of the inputs; default: the clock's")


def run(args: argparse.Namespace) -> tuple[dict, bool]:
    results = []
    for line in LINES:
        case = Case(line, args.seed)
        us = append_us(case)
        results.append({"line": line, "tokens": len(case.slots), "append_us": round(us, 2), "different_bytes": case.differences()})
    method = f"one of {LAUNCHES} append() in a captured graph, median of 40 replays"
    return record(args.commit, torch.cuda.get_device_name(), method, results, seed=args.seed), not any(r["different_bytes"] for r in results)
