# SPDX-License-Identifier: Apache-2.0
"""Key lists on a GPU (mode `sparse` of run_device.py): DeepSeek's sparse decode (2048 slots a row over a latent cache) and lists of pages
for each KV head, beside dense attention over the whole context.

A time is that of one layer in replayed CUDA graphs on two copies of the cache; ways take turns, times are medians. Beside them stands the
portable kernel's time. Some rows of each output are compared with torch in float64."""

from __future__ import annotations

import argparse
import json

import torch

import quire
from timing import LAYERS, medians, record, replayed


def room(count):
    return torch.empty(count + 256, dtype=torch.uint8, device="cuda")


class Case:
    """Decode rows, N(0,1), pages in random order, two caches."""

    def __init__(self, rows, context, page, heads, kv_heads, dim, value_dim):
        torch.manual_seed(7)
        self.rows, self.context, self.page, self.heads, self.kv_heads, self.dim, self.value_dim = rows, context, page, heads, kv_heads, dim, value_dim
        pages = rows * context // page
        self.table = torch.randperm(pages, dtype=torch.int32).reshape(rows, -1).cuda()
        new = lambda: torch.randn(pages, page, kv_heads, dim, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        self.keys = [new() for _ in range(2)]
        self.values = [k[..., :value_dim] for k in self.keys] if kv_heads == 1 else [new() for _ in range(2)]
        self.caches = [quire.KVCache(k, v, "nhd") for k, v in zip(self.keys, self.values)]
        self.query = torch.randn(rows, heads, dim, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(rows, heads, value_dim, device="cuda", dtype=torch.bfloat16)
        self.batch = quire.Batch(query=self.query, output=self.out, query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
                                 seq_lens=torch.full((rows,), context, dtype=torch.int32, device="cuda"), block_table=self.table)

    def worst_error(self, positions_of):
        """Largest difference of some rows of the output from float64, over the largest expected value; positions_of(row, head)."""
        group, worst = self.heads // self.kv_heads, 0.0
        for row in range(0, self.rows, max(1, self.rows // 4)):
            for head in range(self.kv_heads):
                positions = positions_of(row, head).long()
                slots = self.table[row].long()[positions // self.page] * self.page + positions % self.page
                k, v = (t[0].reshape(-1, self.kv_heads, t[0].shape[-1])[slots, head].double() if t[0].is_contiguous()
                        else t[0][slots // self.page, slots % self.page, head].double() for t in (self.keys, self.values))
                q = self.query[row, head * group:(head + 1) * group].double()
                expected = torch.softmax(q @ k.T / self.dim**0.5, -1) @ v
                got = self.out[row, head * group:(head + 1) * group].double()
                worst = max(worst, ((got - expected).abs().max() / expected.abs().max()).item())
        return worst

    def portable_us(self, lists, positions_of):
        """Of cuda_generic, and its worst error."""
        step = quire.sparse.plan(self.batch, self.caches[0], lists=lists, kernel="cuda_generic")
        memory = room(step.workspace_bytes)
        (seconds,) = medians([replayed(lambda i: quire.sparse.attend(self.batch, self.caches[i % 2], lists=lists, plan=step, workspace=memory))], 3)
        quire.sparse.attend(self.batch, self.caches[0], lists=lists, plan=step, workspace=memory, wait=True)
        return round(seconds * 1e6, 1), self.worst_error(positions_of)

    def measured(self, lists, positions_of, keys):
        step = quire.sparse.plan(self.batch, self.caches[0], lists=lists)
        dense = quire.plan(self.batch, self.caches[0], max_query_len=1, max_seq_len=self.context)
        rooms = room(step.workspace_bytes), room(dense.workspace_bytes)
        self.out.fill_(float("nan"))
        quire.sparse.attend(self.batch, self.caches[0], lists=lists, plan=step, workspace=rooms[0], wait=True)
        error = self.worst_error(positions_of)
        quire.sparse.prepare(self.batch, self.caches[0], lists=lists, plan=step, workspace=rooms[0])
        torch.cuda.synchronize()
        ways = [replayed(lambda i: quire.sparse.attend(self.batch, self.caches[i % 2], lists=lists, plan=step, workspace=rooms[0], prepared=True))]
        # Lists of each layer's own: work lists are made anew.
        ways.append(replayed(lambda i: quire.sparse.attend(self.batch, self.caches[i % 2], lists=lists, plan=step, workspace=rooms[0])))
        ways.append(replayed(lambda i: quire.attend(self.batch, self.caches[i % 2], plan=dense, workspace=rooms[1])))
        prepared, own, plain = medians(ways)
        portable, portable_error = self.portable_us(lists, positions_of)
        row_bytes = 2 * (self.dim if self.kv_heads == 1 else self.kv_heads * (self.dim + self.value_dim))
        flops = 2.0 * self.rows * self.heads * keys * (self.dim + self.value_dim)
        line = f"q=bf16 heads={self.heads}:{self.kv_heads} d={self.dim} dv={self.value_dim} page={self.page} reqs={self.rows}x1@{self.context - 1}"
        return {"line": line, "rows": self.rows, "context": self.context, "page": self.page, "heads": f"{self.heads}:{self.kv_heads}", "d": self.dim, "dv": self.value_dim,
                "keys_of_a_row": keys, "reason": step.reason, "kernels": sorted(set(step.kernels)), "dense_kernel": dense.kernel, "sparse_us": round(own * 1e6, 1),
                "sparse_prepared_us": round(prepared * 1e6, 1), "dense_us": round(plain * 1e6, 1), "portable_us": portable, "times_faster": round(plain / own, 2),
                "sparse_tb_s": round(self.rows * keys * row_bytes / own / 1e12, 3), "sparse_tflop_s": round(flops / own / 1e12, 1), "worst_error": error,
                "portable_error": portable_error, "right": max(error, portable_error) < 1e-2}  # bf16 outputs and weights: 2^-8 of the largest value


def slots_case(rows, context=8192, topk=2048):
    case = Case(rows, context, 64, 128, 1, 576, 512)
    positions = torch.stack([torch.randperm(context, device="cuda")[:topk] for _ in range(rows)])
    slots = torch.gather(case.table.long(), 1, positions // 64) * 64 + positions % 64
    lists = quire.sparse.key_lists(slots.int())
    return case.measured(lists, lambda row, head: positions[row], topk)


def pages_case(rows, context=32768, page=16, top=64, by_head=True):
    case = Case(rows, context, page, 32, 8, 128, 128)
    columns = context // page
    shape = (rows, 8 if by_head else 1, columns)
    chosen = torch.rand(shape, device="cuda").argsort(-1)[..., :top]
    ids = torch.gather(case.table[:, None].expand(shape).long(), 2, chosen).int()
    counts = torch.full(ids.shape[:2], top * page, dtype=torch.int32, device="cuda")
    if not by_head:
        ids, counts = ids[:, 0].contiguous(), counts[:, 0].contiguous()
    lists = quire.sparse.key_lists(ids, counts, unit="page")
    inside = torch.arange(page, device="cuda")
    return case.measured(lists, lambda row, head: (chosen[row, head if by_head else 0][:, None] * page + inside).flatten(), top * page)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # takes none of its own


def run(args: argparse.Namespace) -> tuple[dict, bool]:
    results = []
    for make in (lambda: slots_case(64), lambda: slots_case(128), lambda: pages_case(32), lambda: pages_case(32, by_head=False), lambda: pages_case(8)):
        results.append(make())
        print(json.dumps(results[-1]), flush=True)
        torch.cuda.empty_cache()
    method = f"a layer in replayed CUDA graphs of {LAYERS}, two copies of the cache, median"
    return record(args.commit, torch.cuda.get_device_name(), method, results, torch=torch.__version__), all(r["right"] for r in results)
