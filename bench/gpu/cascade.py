# SPDX-License-Identifier: Apache-2.0
"""Shared prefixes (mode `cascade` of run_device.py): attention that reads them once against plain attention, on this machine's CPU or GPU.

Each case is a problem line. Plain and shared calls take turns; times are medians. On a GPU a time is that of one layer of a prepared
step, in replayed CUDA graphs on two copies of K and V. The parts of a shared call are timed beside it: levels of shared
pages as batches of their own, own keys, the merge. Outputs are compared with each other, and some rows with float64."""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import quire
from timing import LAYERS, medians, record, replayed

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
# Requests, tokens in common, own tokens.
CPU_CASES = [(16, 4096, 128), (16, 1024, 128), (4, 4096, 128), (16, 0, 512)]
GPU_CASES = [(256, 8192, 512), (64, 8192, 512), (256, 2048, 512), (16, 8192, 512), (16, 1024, 512), (64, 0, 4096)]


def line_of(requests, common, own):
    share = f" share={common // PAGE}" if common else ""
    return f"q=bf16 heads={HEADS}:{KV_HEADS} d={DIM} page={PAGE} reqs={requests}x1@{common + own - 1}{share}"


def seconds_of(call):
    """Of the processor, so that a busy machine does not count."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def on_cpu(requests, common, own, rounds):
    quire.set_num_threads(1)
    case = quire.make_case(line_of(requests, common, own))
    batch, cache, options = case.batch, case.cache, case.options
    plan, step = quire.plan(batch, cache, options), quire.cascade.plan(batch, cache, options)
    reference = quire.reference(batch, cache, options)
    judged = [quire.compare(out, None, reference) for out in
              (quire.attend(batch, cache, options, plan=plan), quire.cascade.attend(batch, cache, options, plan=step))]
    plain, shared = medians([lambda: seconds_of(lambda: quire.attend(batch, cache, options, plan=plan)),
                             lambda: seconds_of(lambda: quire.cascade.attend(batch, cache, options, plan=step))], rounds)
    return {"line": line_of(requests, common, own), "kernels": step.kernels, "plain_kernel": plan.kernel, "reason": step.reason,
            "plain_us": round(plain * 1e6, 1), "shared_us": round(shared * 1e6, 1), "times_faster": round(plain / shared, 3),
            "right": all(c.ok for c in judged)}


class OnGpu:
    """A case in GPU memory: N(0,1), pages in random order, two copies of K and V."""

    def __init__(self, requests, common, own):
        import torch

        self.torch, self.requests, self.common, self.own = torch, requests, common, own
        torch.manual_seed(7)
        shared, mine = common // PAGE, own // PAGE
        pages = torch.randperm(shared + requests * mine, dtype=torch.int32)
        self.table = torch.cat([pages[:shared].expand(requests, shared), pages[shared:].reshape(requests, mine)], 1).cuda()
        shape = (len(pages), PAGE, KV_HEADS, DIM)
        self.kv = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv"] for _ in range(2)]
        self.query = torch.randn(requests, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        self.starts = torch.arange(requests + 1, dtype=torch.int32, device="cuda")
        self.lens = torch.full((requests,), common + own, dtype=torch.int32, device="cuda")
        self.caches = [quire.KVCache(k, v, "nhd") for k, v in self.kv]

    def batch(self, output, starts=None, lens=None, table=None, lse=None):
        return quire.Batch(query=self.query, output=output, query_start_loc=self.starts if starts is None else starts,
                           seq_lens=self.lens if lens is None else lens, block_table=self.table if table is None else table, lse=lse)

    def room(self, count):
        return self.torch.empty(count, dtype=self.torch.uint8, device="cuda")

    def replayed(self, layer):
        return replayed(lambda i: layer(self.caches[i % 2]))

    def plain(self, batch, options=None, most_rows=1, longest=None):
        plan = quire.plan(batch, self.caches[0], options, max_query_len=most_rows, max_seq_len=longest or self.common + self.own)
        bound = quire.bind(batch, self.caches[0], options, plan=plan, workspace=self.room(plan.workspace_bytes + 256))
        bound.prepare(wait=True)
        bound(wait=True)
        return plan, self.replayed(lambda cache: bound(k=cache.k, v=cache.v, prepared=True, wait=False))

    def shared(self, batch, step):
        room = self.room(step.workspace_bytes + 256)
        quire.cascade.attend(batch, self.caches[0], plan=step, workspace=room, wait=True)
        quire.cascade.prepare(batch, self.caches[0], plan=step, workspace=room)
        return self.replayed(lambda cache: quire.cascade.attend(batch, cache, plan=step, workspace=room, prepared=True, wait=False))

    def rows_in_double(self, rows):
        torch = self.torch
        outs = []
        for r in rows:
            k, v = (t[self.table[r].long()].reshape(-1, KV_HEADS, DIM).double() for t in self.kv[0])
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            scores = torch.einsum("hd,khd->hk", self.query[r].double(), k) / DIM**0.5
            outs.append(torch.einsum("hk,khd->hd", scores.softmax(1), v))
        return torch.stack(outs)

    def parts(self):
        """Levels of one run of all requests, own keys, and the merge, each alone."""
        torch, n = self.torch, self.requests
        outs = torch.empty(2, n, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        lses = torch.empty(2, n, HEADS, device="cuda")
        pages = self.common // PAGE
        one = torch.tensor([0, n], dtype=torch.int32, device="cuda")
        length = torch.tensor([self.common], dtype=torch.int32, device="cuda")
        level = self.batch(outs[0], one, length, self.table[:1, :pages].contiguous(), lses[0])
        own = self.batch(outs[1], None, self.lens - self.common, self.table[:, pages:].contiguous(), lses[1])
        of_level, level_run = self.plain(level, quire.Options(causal=False), n, self.common)
        of_own, own_run = self.plain(own, None, 1, self.own)
        merged = torch.empty_like(outs[0])
        merge_run = self.replayed(lambda cache: quire.merge_many(outs, lses, merged))
        return [str(of_level), str(of_own)], [level_run, own_run, merge_run]


def on_gpu(requests, common, own, rounds):
    case = OnGpu(requests, common, own)
    torch = case.torch
    outs = [torch.full_like(case.query, float("nan")) for _ in range(2)]
    batches = [case.batch(out) for out in outs]
    step = quire.cascade.plan(batches[1], case.caches[0])
    plan, plain_run = case.plain(batches[0])
    shared_run = case.shared(batches[1], step)
    names, runs = case.parts() if step.shares else ([], [])
    seconds = medians([plain_run, shared_run, *runs], rounds)
    for batch, how in ((batches[0], lambda b: quire.attend(b, case.caches[0], plan=plan)),
                       (batches[1], lambda b: quire.cascade.attend(b, case.caches[0], plan=step))):
        how(batch)
    rows = [0, requests // 2, requests - 1]
    expected = case.rows_in_double(rows)
    errors = [float((out[rows].double() - expected).abs().max()) for out in outs]
    largest = float(expected.abs().max())
    # Weights, both partial results and their sum are rounded to bf16: 2^-9 each, of values up to the largest.
    right = all(error < 4 * 2**-8 * largest for error in errors) and bool(torch.isfinite(outs[1]).all())
    us = [round(s * 1e6, 2) for s in seconds]
    return {"line": line_of(requests, common, own), "plain_kernel": plan.kernel, "kernels": step.kernels, "reason": step.reason,
            "plain_us": us[0], "shared_us": us[1], "times_faster": round(us[0] / us[1], 3), "parts_us": us[2:], "parts": names,
            "error_plain": errors[0], "error_shared": errors[1], "largest": largest,
            "difference": float((outs[0].float() - outs[1].float()).abs().max()), "right": right}


def device_name(where):
    if where == "gpu":
        import torch

        return torch.cuda.get_device_name(0)
    model = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return model[0] if model else platform.processor()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--quick", action="store_true", help="the first case alone")


def run(args: argparse.Namespace) -> tuple[dict, bool]:
    cases, one = (CPU_CASES, on_cpu) if args.where == "cpu" else (GPU_CASES, on_gpu)
    results = []
    for case in cases[:1] if args.quick else cases:
        results.append(one(*case, 15))
        print(json.dumps(results[-1]), flush=True)
    method = ("processor time of one thread, calls that take turns, median of 15" if args.where == "cpu" else
              f"a layer of a prepared step in replayed CUDA graphs of {LAYERS}, two copies of K and V, median of 15")
    return record(args.commit, device_name(args.where), method, results), all(r["right"] for r in results)
