#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode over a context, and prompts, that several GPUs of one host hold: time beside one GPU's, right against fp64, equal bits.

usage: torchrun --nproc-per-node 2 bench/gpu/distributed.py --out DIR [--commit TEXT] [--seconds S] [--only NAME]   -> DIR/distributed.json
       torchrun --nproc-per-node 2 bench/gpu/distributed.py --device cpu --out DIR    the same on gloo, on small sizes: the script's logic

Every time is that of four replays of a CUDA graph of several layers, whose caches together are larger than the L2, divided by the layers; one GPU and
all GPUs are timed in turn, in one run. `exchange_us` is NCCL's all-gather of the same bytes alone, `own_us` a rank's own attention
alone, `overlap_us` that of parts which travel by chunks of heads while attention of others runs. `one_us / sharded_us` is the gain;
below 1, one GPU is better. --profile prints the kernels of one replay, with their begin and length in us.
"""
import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path

import quire
import torch
import torch.distributed as dist
from quire.distributed import ContextShard, Group, HeadShard, ZigZag, attend, plan, prefill, prefill_plan

PAGE = 16  # tokens; also the interleave
L2_BYTES = 60e6  # of an H200; too small a number would time the cache
# name: (query heads, KV heads, requests, context, targets of sharded / one GPU by issue 26 for two H200 or None)
CASES = {
    "B1 1M": (32, 8, 1, 1 << 20, 0.54),
    "B1 128k": (32, 8, 1, 1 << 17, 0.70),
    "B1 32k": (32, 8, 1, 1 << 15, None),
    "B1 8k": (32, 8, 1, 1 << 13, None),
    "B8 128k": (32, 8, 8, 1 << 17, 0.56),
    "B64 8k": (32, 8, 64, 1 << 13, None),
}
HEAD_CASES = {"B64 8k, TP": (32, 8, 64, 1 << 13, 0.52)}
PREFILLS = {"prompt 64k": (32, 8, 1, 1 << 16, 0.54), "prompts 4 x 8k": (32, 8, 4, 1 << 13, None)}
UNEVEN = {"uneven prompts": (1, 37, 0, 1000, 2049)}
TOO_LARGE = {"B1 24M": (32, 8, 1, 24 << 20, None)}  # 103 GB of keys and values
OVERLAPS = (2, 4)  # chunks of heads
REPLAYS = 4  # of a graph in one timing
SMALL = {"B1 1k": (4, 2, 1, 1 << 10, None), "B3 200": (4, 2, 3, 200, None)}


class Timer:
    """Median seconds of a function, captured in a graph where there is a GPU."""

    def __init__(self, device: torch.device, seconds: float, profile: str = ""):
        self.device, self.seconds, self.profile = device, seconds, profile

    def __call__(self, layers: int, step) -> float:
        step()
        if self.device.type == "cpu":
            started = time.perf_counter()
            step()
            return (time.perf_counter() - started) / layers
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        torch.cuda.synchronize()
        dist.barrier()
        times, deadline = [], time.perf_counter() + self.seconds
        turns = torch.zeros(1, device=self.device)
        while True:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()  # the ranks begin within 200 us of each other; an exchange brings them together
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / layers / REPLAYS)
            turns[0] = float(time.perf_counter() < deadline or len(times) < 5)
            dist.broadcast(turns, 0)  # all ranks replay equally often
            if not turns.item():
                return statistics.median(times)


def print_kernels(layers: int, step, group: Group) -> None:
    """The kernels of one replay of a graph on rank 0: begin, length and name, in us."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    events = sorted((e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start)
    if group.rank == 0:
        for e in events[: 8 * layers]:
            print(f"kernel {e.time_range.start - events[0].time_range.start:9.1f} {e.time_range.elapsed_us():7.1f} {e.name[:90]}", flush=True)


_link: dict[str, float] = {}


def link_bandwidth(group: Group, device: torch.device) -> float:
    """Bytes a second that a rank receives in an all-gather of 128 MiB a rank; measured once."""
    if device.type == "cpu":
        return 0.0
    if not _link:
        sent = torch.zeros(32 << 20, device=device)
        received = torch.empty(group.world * len(sent), device=device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for turn in range(4):
            if turn == 1:
                begin.record()
            dist.all_gather_into_tensor(received, sent)
        end.record()
        end.synchronize()
        _link["bytes"] = 3 * (group.world - 1) * sent.numel() * 4 / (begin.elapsed_time(end) / 1e3)
    return _link["bytes"]


def caches(name: str, layers: int, device: torch.device, dtype: torch.dtype):
    """Whole caches of one layer after the other, the same on every rank."""
    _, kv_heads, requests, context, _ = {**CASES, **HEAD_CASES, **SMALL}[name]
    pages = requests * -(-context // PAGE)
    for layer in range(layers):
        torch.manual_seed(layer)
        yield tuple(torch.randn(pages, PAGE, kv_heads, 128, dtype=dtype, device=device) for _ in range(2))


def fp64_row(query, k, v):
    """Attention of one row [heads, dim] over all keys [tokens, kv_heads, dim]: (out, its bound on sum p|v|)."""
    group = query.shape[0] // k.shape[1]
    outs, bounds = [], []
    for h in range(k.shape[1]):
        keys, values = k[:, h].double(), v[:, h].double()
        p = torch.softmax(query[h * group : (h + 1) * group].double() @ keys.T / 128**0.5, -1)
        outs.append(p @ values)
        bounds.append(p @ values.abs())
    return torch.cat(outs), torch.cat(bounds)


def worst_ratio(out, query, k, v, context: int, partials: str) -> float:
    """Largest error of request 0 over its tolerance: the rounding of the output (and of a partial result), and f32 sums."""
    expected, bound = fp64_row(query[0], k.reshape(-1, *k.shape[2:])[:context], v.reshape(-1, *v.shape[2:])[:context])
    unit = 2.0**-8 * (2 if partials == "query" else 1)
    # f32 sums of `context` terms in blocks; weights rounded to 16 bits by tensor-core kernels (decision 13 and numerics.md)
    tolerance = unit * expected.abs() + (2.0**-24 * (32 + 8 * context**0.5) + 2.0**-9) * bound
    return float(((out[0].double() - expected).abs() / tolerance).max())


class Decode:
    """One decode step: on one GPU, and with its context on all of them."""

    def __init__(self, name: str, group: Group, device: torch.device, partials: str):
        self.heads, self.kv_heads, self.requests, self.context, self.target = {**CASES, **SMALL}[name]
        self.name, self.group, self.device, self.partials = name, group, device, partials
        requests, context, pages, dtype = self.requests, self.context, -(-self.context // PAGE), torch.bfloat16
        # Four at least: a graph of one layer is timed with the skew of the ranks' launches, which a model's step has once, not per layer.
        self.layers = max(4, min(8, int(2 * L2_BYTES * group.world / (requests * context * self.kv_heads * 128 * 4)) + 1))
        self.shard = ContextShard(group.rank, group.world, PAGE)
        generator = torch.Generator(device).manual_seed(99)
        self.query = torch.randn(requests, self.heads, 128, dtype=dtype, device=device, generator=generator)
        self.starts = torch.arange(requests + 1, dtype=torch.int32, device=device)
        self.lens = torch.full((requests,), context, dtype=torch.int32, device=device)
        table = torch.arange(requests * pages, dtype=torch.int32, device=device).reshape(requests, pages)
        whole = list(caches(name, self.layers, device, dtype))
        self.last = [c[:pages] for c in whole[-1]]
        per_request = [[c.reshape(requests, pages, *c.shape[1:])[:, group.rank :: group.world] for c in kv] for kv in whole]
        own = [[c.reshape(-1, *c.shape[2:]).contiguous() for c in kv] for kv in per_request]
        own_table = torch.arange(own[0][0].shape[0], dtype=torch.int32, device=device).reshape(requests, -1)
        one_out, self.out = torch.full_like(self.query, float("nan")), torch.full_like(self.query, float("nan"))
        self.one_batch, self.batch = self._batch(one_out, table), self._batch(self.out, own_table)
        self.one_caches, self.own_caches = ([quire.KVCache(*kv) for kv in kvs] for kvs in (whole, own))
        self.one_plan = quire.plan(self.one_batch, self.one_caches[0], max_query_len=1, max_seq_len=context)
        self.workspace = torch.empty(max(self.one_plan.workspace_bytes, 64), dtype=torch.uint8, device=device)
        self.step = self.planned(exchange="all_gather")
        self.sent = torch.zeros(self.step.layout.bytes // 4, device=device)
        self.received = torch.zeros(group.world * len(self.sent), device=device)

    def _batch(self, out, table):
        return quire.Batch(query=self.query, output=out, query_start_loc=self.starts, seq_lens=self.lens, block_table=table)

    def planned(self, **how):
        return plan(self.batch, self.own_caches[0], group=self.group, shard=self.shard, partials=self.partials, **how)

    def one(self):
        for cache in self.one_caches:
            quire.attend(self.one_batch, cache, plan=self.one_plan, workspace=self.workspace)

    def sharded(self, step):
        for cache in self.own_caches:
            attend(self.batch, cache, group=self.group, plan=step)

    def own_part(self):
        step = self.step
        out, lse = step.layout.views(step.layout.empty(self.query), self.query.dtype)
        mine = quire.Batch(query=self.query, output=out, lse=lse, **step.indices)
        for cache in self.own_caches:
            quire.attend(mine, cache, plan=step.local, workspace=step.workspace)

    def exchange(self):
        for _ in range(self.layers):
            dist.all_gather_into_tensor(self.received, self.sent)

    def ratio(self) -> float:
        return worst_ratio(self.out, self.query, *self.last, self.context, self.partials)


def measure(name: str, group: Group, device: torch.device, timer: Timer, partials: str) -> dict:
    d = Decode(name, group, device, partials)
    layers, overlap_ratio = d.layers, 0.0
    seconds = {"one_us": timer(layers, d.one), "sharded_us": timer(layers, lambda: d.sharded(d.step))}
    seconds.update(own_us=timer(layers, d.own_part), exchange_us=timer(layers, d.exchange))
    for chunks in (n for n in OVERLAPS if partials == "query" and d.kv_heads % n == 0):
        d.out.fill_(float("nan"))
        chunked = d.planned(overlap=chunks)
        seconds[f"overlap_{chunks}_us"] = timer(layers, lambda c=chunked: d.sharded(c))
        overlap_ratio = max(overlap_ratio, d.ratio())
    seconds["one_again_us"] = timer(layers, d.one)
    seconds["sharded_again_us"] = timer(layers, lambda: d.sharded(d.step))
    if timer.profile == name:
        print_kernels(layers, lambda: d.sharded(d.step), group)
    bits = torch.empty((group.world, *d.out.shape), dtype=d.out.dtype, device=device)
    dist.all_gather_into_tensor(bits.reshape(-1).view(torch.uint8), d.out.reshape(-1).view(torch.uint8))
    least = {kind: min(seconds[f"{kind}_us"], seconds[f"{kind}_again_us"]) for kind in ("one", "sharded")}
    return {
        "case": name,
        "problem": f"q=bf16 heads={d.heads}:{d.kv_heads} d=128 page={PAGE} reqs={d.requests}x1@{d.context - 1}",
        "ranks": group.world,
        "partials": partials,
        "layers": layers,
        "received_bytes_per_s": link_bandwidth(group, device),
        "one_kernel": d.one_plan.kernel,
        "own_kernel": d.step.local.kernel,
        "exchange_bytes": d.step.layout.bytes,
        **{key: round(1e6 * value, 2) for key, value in seconds.items()},
        "sharded_over_one": round(least["sharded"] / least["one"], 3),
        "target": d.target,
        "worst_error_ratio_of_overlap": round(overlap_ratio, 3),
        "worst_error_ratio": round(d.ratio(), 3),
        "same_bits": bool((bits.view(torch.int16) == bits[0].view(torch.int16)).all()),
    }


def measure_heads(name: str, group: Group, device: torch.device, timer: Timer) -> dict:
    """Tensor parallel: this rank's share of the heads beside all of them."""
    heads, kv_heads, requests, context, target = {**HEAD_CASES, **SMALL}[name]
    mine, pages = HeadShard(group.rank, group.world, heads, kv_heads), -(-context // PAGE)
    query = torch.randn(requests, heads, 128, dtype=torch.bfloat16, device=device)
    starts = torch.arange(requests + 1, dtype=torch.int32, device=device)
    lens = torch.full((requests,), context, dtype=torch.int32, device=device)
    table = torch.arange(requests * pages, dtype=torch.int32, device=device).reshape(requests, pages)
    ((k, v),) = caches(name, 1, device, torch.bfloat16)
    own_k, own_v = (c[:, :, mine.kv_heads].contiguous() for c in (k, v))
    seconds = {}
    for key, q, kk, vv in (("one_us", query, k, v), ("sharded_us", query[:, mine.q_heads].contiguous(), own_k, own_v)):
        batch = quire.Batch(query=q, output=torch.empty_like(q), query_start_loc=starts, seq_lens=lens, block_table=table)
        cache = quire.KVCache(kk, vv)
        made = quire.plan(batch, cache, max_query_len=1, max_seq_len=context)
        space = torch.empty(max(made.workspace_bytes, 64), dtype=torch.uint8, device=device)
        seconds[key] = timer(1, lambda b=batch, c=cache, p=made, s=space: quire.attend(b, c, plan=p, workspace=s))
    return {
        "case": name,
        "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs={requests}x1@{context - 1}",
        "ranks": group.world,
        **{key: round(1e6 * value, 2) for key, value in seconds.items()},
        "sharded_over_one": round(seconds["sharded_us"] / seconds["one_us"], 3),
        "target": target,
    }


def measure_prefill(name: str, group: Group, device: torch.device, timer: Timer) -> dict:
    """Whole prompts in zig-zag order, keys gathered by chunks of heads or round a ring, beside one GPU that holds all of it."""
    heads, kv_heads, prompts, length, target = {**PREFILLS, **SMALL}[name]
    dtype, pages = torch.bfloat16, -(-length // PAGE)
    generator = torch.Generator(device).manual_seed(7)
    q, k, v = (torch.randn(prompts * length, h, 128, dtype=dtype, device=device, generator=generator) for h in (heads, kv_heads, kv_heads))
    starts = torch.arange(prompts + 1, dtype=torch.int32, device=device) * length
    lens = torch.full((prompts,), length, dtype=torch.int32, device=device)
    table = torch.arange(prompts * pages, dtype=torch.int32, device=device).reshape(prompts, pages)
    whole = [torch.zeros(prompts, pages * PAGE, kv_heads, 128, dtype=dtype, device=device) for _ in range(2)]
    for cache, rows in zip(whole, (k, v)):
        cache[:, :length] = rows.reshape(prompts, length, kv_heads, 128)
    cache = quire.KVCache(*(c.reshape(prompts * pages, PAGE, kv_heads, 128) for c in whole))
    one_out = torch.empty_like(q)
    batch = quire.Batch(query=q, output=one_out, query_start_loc=starts, seq_lens=lens, block_table=table)
    made = quire.plan(batch, cache, max_query_len=length, max_seq_len=length)
    space = torch.empty(max(made.workspace_bytes, 64), dtype=torch.uint8, device=device)
    zigzag = ZigZag(group.rank, group.world, (length,) * prompts, PAGE)
    prompt, position = zigzag.rows
    mine = torch.from_numpy(prompt * length + position).to(device)
    own = [a[mine].contiguous() for a in (q, k, v)]
    out = torch.empty_like(own[0])
    seconds = {"one_us": timer(1, lambda: quire.attend(batch, cache, plan=made, workspace=space))}
    plans = {n: prefill_plan(*own, zigzag=zigzag, group=group, head_chunks=n) for n in (1, 2, 4) if kv_heads % n == 0}
    ratios = {}
    for n, step in plans.items():
        seconds[f"sharded_{n}_us"] = timer(1, lambda p=step: prefill(*own, group=group, plan=p, output=out))
    ratios["gather"] = prefill_ratio(out, own[0], k, v, prompt, position, length, merged=False)
    difference = float((out.float() - one_out[mine].float()).abs().max())
    ring = prefill_plan(*own, zigzag=zigzag, group=group, exchange="ring")
    out.fill_(float("nan"))
    seconds["ring_us"] = timer(1, lambda: prefill(*own, group=group, plan=ring, output=out))
    ratios["ring"] = prefill_ratio(out, own[0], k, v, prompt, position, length, merged=True)
    seconds.update(ring_parts(own, zigzag, ring, group, timer))
    seconds["one_again_us"] = timer(1, lambda: quire.attend(batch, cache, plan=made, workspace=space))
    one = min(seconds["one_us"], seconds["one_again_us"])
    gathered = min(value for key, value in seconds.items() if key.startswith("sharded"))
    return {
        "case": name,
        "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs={prompts}x{length}",
        "ranks": group.world,
        "one_kernel": made.kernel,
        "own_kernel": plans[1].local.kernel,
        "ring_kernels": [call.local.kernel for call in (ring.calls.own, ring.calls.earlier, ring.calls.later)],
        "received_bytes_per_s": link_bandwidth(group, device),
        **{key: round(1e6 * value, 2) for key, value in seconds.items()},
        "sharded_over_one": round(gathered / one, 3),
        "ring_over_one": round(seconds["ring_us"] / one, 3),
        "target": target,
        "largest_difference": difference,
        "worst_error_ratio": round(ratios["gather"], 3),
        "ring_worst_error_ratio": round(ratios["ring"], 3),
        "auto": str(prefill_plan(*own, zigzag=zigzag, group=group).exchange),
    }


def ring_parts(own, zigzag, ring, group: Group, timer: Timer) -> dict:
    """Seconds of what a ring does, each alone on this rank: its calls of attention, a merge, a block's way to the next rank."""
    query, key, value = own
    block = torch.zeros((2, zigzag.num_pages * PAGE, *key.shape[1:]), dtype=key.dtype, device=key.device)
    received = torch.empty_like(block)
    part = torch.zeros(query.shape, dtype=query.dtype if ring.calls.partials == "query" else torch.float32, device=query.device)
    lse = torch.zeros(query.shape[:2], device=query.device)
    total, total_lse = torch.zeros_like(query), torch.zeros_like(lse)
    cache = quire.KVCache(*(half.reshape(-1, PAGE, *key.shape[1:]) for half in block))
    block[0, : len(key)], block[1, : len(value)] = key, value

    def call(made, options):
        batch = quire.Batch(query=query, output=part, lse=lse, **made.indices)
        return lambda: quire.attend(batch, cache, options, plan=made.local, workspace=ring.workspace)

    seen = quire.Options(causal=False)
    other = ring.calls.later if zigzag.rank < zigzag.world - 1 else ring.calls.earlier
    return {
        "ring_own_us": timer(1, call(ring.calls.own, None)),
        "ring_other_us": timer(1, call(other, seen)),
        "ring_merge_us": timer(1, lambda: quire.merge(total, total_lse, part, lse, total, total_lse)),
        "ring_shift_us": timer(1, lambda: group.shift(block, received)()),
    }


def prefill_ratio(out, query, k, v, prompt, position, length: int, merged: bool) -> float:
    """Largest error over the tolerance of a few rows, the first and the last of each prompt among them. merged: of 16-bit parts, each of
    which is rounded by 2**-9 of its size."""
    rows = sorted({0, len(position) // 3, len(position) // 2, len(position) - 1})
    worst = 0.0
    for row in rows:
        first = int(prompt[row]) * length
        keys = slice(first, first + int(position[row]) + 1)
        expected, bound = fp64_row(query[row], k[keys], v[keys])
        rounded = 2.0**-9 * (2 if merged else 1)  # weights, parts
        tolerance = 2.0**-8 * expected.abs() + (2.0**-24 * (32 + 8 * (position[row] + 1.0) ** 0.5) + rounded) * bound
        worst = max(worst, float(((out[row].double() - expected).abs() / tolerance).max()))
    return worst


def check_uneven(name: str, group: Group, device: torch.device, timer: Timer) -> dict:
    """All rows of prompts that do not divide, by a gather and by a ring, against fp64. Nothing is timed."""
    lengths, heads, kv_heads = UNEVEN[name], 8, 2
    generator = torch.Generator(device).manual_seed(11)
    q, k, v = (torch.randn(sum(lengths), h, 128, dtype=torch.bfloat16, device=device, generator=generator) for h in (heads, kv_heads, kv_heads))
    firsts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    zigzag = ZigZag(group.rank, group.world, lengths, PAGE)
    prompt, position = (torch.from_numpy(a) for a in zigzag.rows)
    mine = (firsts[prompt] + position).to(device)
    own = [a[mine].contiguous() for a in (q, k, v)]
    outs = {kind: prefill(*own, group=group, zigzag=zigzag, exchange=kind, output=torch.full_like(own[0], float("nan"))) for kind in ("gather", "ring")}
    worst = dict.fromkeys(outs, 0.0)
    for row in range(0, len(mine), 1 if len(mine) < 300 else 7):
        first = int(firsts[prompt[row]])
        keys = slice(first, first + int(position[row]) + 1)
        expected, bound = fp64_row(own[0][row], k[keys], v[keys])
        for kind, out in outs.items():
            rounded = 2.0**-9 * (1 + (kind == "ring"))
            tolerance = 2.0**-8 * expected.abs() + (2.0**-24 * (32 + 8 * (float(position[row]) + 1) ** 0.5) + rounded) * bound
            worst[kind] = max(worst[kind], float(((out[row].double() - expected).abs() / tolerance).nan_to_num(1e9).max()))
    return {"case": name, "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs={','.join(map(str, lengths))}", "ranks": group.world,
            "worst_error_ratio": round(worst["gather"], 3), "ring_worst_error_ratio": round(worst["ring"], 3)}  # fmt: skip


def measure_too_large(name: str, group: Group, device: torch.device, timer: Timer) -> dict:
    """A context that one GPU cannot hold; compared with fp64 attention that every rank computes over its keys, chunk by chunk."""
    heads, kv_heads, _, context, _ = TOO_LARGE[name]
    shard = ContextShard(group.rank, group.world, PAGE)
    pages = shard.local_length(context) // PAGE
    torch.manual_seed(group.rank)
    k, v = (torch.empty(pages, PAGE, kv_heads, 128, dtype=torch.bfloat16, device=device) for _ in range(2))
    for begin in range(0, pages, 1 << 14):
        for cache in (k, v):
            cache[begin : begin + (1 << 14)].normal_()
    query = torch.randn(1, heads, 128, dtype=torch.bfloat16, device=device, generator=torch.Generator(device).manual_seed(99))
    integers = dict(dtype=torch.int32, device=device)
    out = torch.empty_like(query)
    batch = quire.Batch(query=query, output=out, query_start_loc=torch.tensor([0, 1], **integers),
                        seq_lens=torch.tensor([context], **integers), block_table=torch.arange(pages, **integers)[None])  # fmt: skip
    cache = quire.KVCache(k, v)
    step = plan(batch, cache, group=group, shard=shard)
    seconds = timer(1, lambda: attend(batch, cache, group=group, plan=step))
    top, total, sums, bounds = None, 0, 0, 0
    for begin in range(0, pages, 1 << 13):
        keys, values = (c[begin : begin + (1 << 13)].reshape(-1, kv_heads, 128).double() for c in (k, v))
        s = torch.einsum("hgd,nhd->hgn", query[0].double().reshape(kv_heads, -1, 128), keys) / 128**0.5
        new = s.amax(-1, keepdim=True) if top is None else torch.maximum(top, s.amax(-1, keepdim=True))
        scale = 1 if top is None else torch.exp(top - new)
        p = torch.exp(s - new)
        total = total * scale + p.sum(-1, keepdim=True)
        sums, bounds = (x * scale + torch.einsum("hgn,nhd->hgd", p, y) for x, y in ((sums, values), (bounds, values.abs())))
        top = new
    parts = [torch.empty((group.world, *a.shape), dtype=a.dtype, device=device) for a in (top, total, sums, bounds)]
    for part, a in zip(parts, (top, total, sums, bounds)):
        dist.all_gather_into_tensor(part, a.contiguous()[None])
    top, total, sums, bounds = parts
    weight = torch.exp(top - top.amax(0))
    expected, bound = ((weight * x).sum(0) / (weight * total).sum(0) for x in (sums, bounds))
    tolerance = 2.0**-7 * expected.abs() + (2.0**-24 * (32 + 8 * context**0.5) + 2.0**-9) * bound
    return {
        "case": name,
        "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs=1x1@{context - 1}",
        "ranks": group.world,
        "bytes_of_keys_and_values": 2 * context * kv_heads * 128 * 2,
        "bytes_of_a_gpu": torch.cuda.get_device_properties(device).total_memory,
        "own_kernel": step.local.kernel,
        "sharded_us": round(1e6 * seconds, 2),
        "worst_error_ratio": round(float(((out[0].double().reshape(expected.shape) - expected).abs() / tolerance).max()), 3),
    }


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy reads and writes: the ceiling of this card in this run."""
    a = torch.empty(1 << 28 if device.type == "cuda" else 1 << 20, device=device)
    b = torch.empty_like(a)
    b.copy_(a)
    if device.type == "cpu":
        return 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(10):
        b.copy_(a)
    end.record()
    end.synchronize()
    return 10 * 2 * a.numel() * 4 / (begin.elapsed_time(end) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timing")
    parser.add_argument("--only", help="cases whose name begins so; several by commas")
    parser.add_argument("--partials", nargs="+", default=["query", "f32"])
    parser.add_argument("--profile", default="", help="a decode case")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    group = Group.from_torch(timeout=60)
    timer = Timer(device, args.seconds, args.profile)
    result = {
        "schema": "quire.distributed_bench/1",
        "date": datetime.date.today().isoformat(),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "copy_bytes_per_s": copy_bandwidth(device),
        "rows": [],
    }

    def asked(cases):
        return [name for name in (cases if on_gpu else SMALL) if name.startswith(tuple((args.only or "").split(",")))]

    jobs = [(measure, name, partials) for name in asked(CASES) for partials in args.partials]
    jobs += [(measure_heads, name, None) for name in asked(HEAD_CASES)]
    jobs += [(measure_prefill, name, None) for name in asked(PREFILLS)]
    jobs += [(check_uneven, name, None) for name in UNEVEN if name.startswith(tuple((args.only or "").split(",")))]
    jobs += [(measure_too_large, name, None) for name in (asked(TOO_LARGE) if on_gpu else [])]
    for function, name, partials in jobs:
        row = function(name, group, device, timer, *([partials] if partials else []))
        result["rows"].append(row)
        if rank == 0:
            print(json.dumps(row), flush=True)
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "distributed.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
