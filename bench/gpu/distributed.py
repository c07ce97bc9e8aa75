#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode over a context, and prompts, that several GPUs of one host hold: time beside one GPU's, right against fp64, equal bits.

usage: torchrun --nproc-per-node 2 bench/gpu/distributed.py --out DIR [--commit TEXT] [--seconds S] [--only NAME]   -> DIR/distributed.json
       torchrun --nproc-per-node 2 bench/gpu/distributed.py --device cpu --out DIR    the same on gloo, on small sizes: the script's logic

Every time is that of four replays of a CUDA graph of several layers, whose caches together are larger than the L2, divided by the layers;
one GPU and all GPUs are timed in turn, in one run. `one_us / sharded_us` is the gain; below 1, one GPU is better. `worst_error_ratio` is the
largest error over Quire's derived tolerance (numerics.md). --profile prints the kernels of one replay, with their begin and length in us.

Decode: `exchange_us` is NCCL's all-gather of the same bytes alone, `own_exchange_us` the step's, `own_us` a rank's own attention alone,
`merge_us` the merge alone.

Prompts: `sharded_N_us` gathers keys by NCCL in N chunks of heads, `copy_N_us` by copy engines, `ring_us` round a ring. `attention_N_us` is
their attention alone, `*_exchange_us` all but attention, `ring_*_us` a part of a ring alone; of these, the slowest rank counts.
"""
import argparse
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

import quire
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages/distributed"))
from quire_distributed import ContextShard, Group, HeadShard, ZigZag, attend, plan, prefill, prefill_plan
from quire_distributed._copies import Copies
from quire_distributed._gather import Gathers
from quire_distributed._prompt_blocks import pages_of

PAGE = 16  # tokens; also the interleave
L2_BYTES = 60e6  # bytes of an H200's L2 cache; a smaller number would time the cache
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
REPLAYS = 4  # replays of a graph in one timing
ON_CPU = {"CPU B8 4k": (32, 8, 8, 1 << 12, None)}  # asked for by --only
SMALL = {"B1 1k": (4, 2, 1, 1 << 10, None), "B3 200": (4, 2, 3, 200, None)}


class Timer:
    """Median seconds of a function, captured in a graph where there is a GPU."""

    def __init__(self, device: torch.device, seconds: float, profile: str = ""):
        self.device, self.seconds, self.profile = device, seconds, profile

    def __call__(self, layers: int, step) -> float:
        step()
        if self.device.type == "cpu":
            times = []
            for _ in range(5):
                dist.barrier()
                started = time.perf_counter()
                step()
                times.append((time.perf_counter() - started) / layers)
            return statistics.median(times)
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
            dist.broadcast(turns, 0)  # every rank replays equally often
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
    _, kv_heads, requests, context, _ = {**CASES, **HEAD_CASES, **SMALL, **ON_CPU}[name]
    pages = requests * -(-context // PAGE)
    for layer in range(layers):
        torch.manual_seed(layer)
        yield tuple(torch.randn(pages, PAGE, kv_heads, 128, dtype=dtype, device=device) for _ in range(2))


def judged(out, query, k, v, ends, rounds: bool, merged: bool) -> float:
    """Largest error of rows over Quire's derived tolerance (numerics.md); 1e9 if one is NaN or infinite. Row i of query [rows, heads, 128]
    sees keys [0, ends[i]) of k and v [tokens, kv_heads, 128]. rounds: of weights to 16 bits; merged: from partial results of 16 bits."""
    pages = -(-len(k) // PAGE)
    caches = [torch.zeros(pages * PAGE, *a.shape[1:], dtype=a.dtype) for a in (k, v)]
    for cache, a in zip(caches, (k, v)):
        cache[: len(a)] = a
    batch = quire.Batch(query=query.cpu(), query_start_loc=torch.arange(len(ends) + 1), seq_lens=torch.tensor(ends),
                        block_table=torch.arange(pages).repeat(len(ends), 1))  # fmt: skip
    words = ["weights=bf16"] * rounds + ["parts=bf16"] * merged
    expected = quire.reference(batch, quire.KVCache(*(c.reshape(pages, PAGE, *c.shape[1:]) for c in caches)), profile=",".join(words) or None)
    found = _ratio(out.cpu(), expected)
    if PLANTED:
        PLANTED.append(found)
        for wrong in planted(out.cpu()):
            PLANTED.append(-_ratio(wrong, expected))
    return found


def _ratio(out, expected) -> float:
    found = quire.compare(out, None, expected)
    return 1e9 if found.num_nonfinite_mismatches else found.worst_ratio


NO_COPIES: list[bool] = []  # its length is not 0 with --no-copies
#: Of --self-test: ratios of right rows, and below 0 those of rows in which a fault is planted.
PLANTED: list[float] = []


def planted(out):
    """Outputs with one wrong row: the last head has the result of the first, and the last row was never written."""
    swapped, unwritten = out.clone(), out.clone()
    swapped[-1, -1] = out[-1, 0]
    unwritten[-1] = float("nan")
    return swapped, unwritten


class Decode:
    """One decode step: on one GPU, and with its context on all of them."""

    def __init__(self, name: str, group: Group, device: torch.device, partials: str):
        self.heads, self.kv_heads, self.requests, self.context, self.target = {**CASES, **SMALL, **ON_CPU}[name]
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

    def own_exchange(self):
        """The exchange as a step makes it."""
        for _ in range(self.layers):
            self.group.all_gather(self.sent, self.received.reshape(self.group.world, -1))

    def merge(self):
        outs, lses = self.step.layout.views(self.received.reshape(self.group.world, self.heads, -1), self.query.dtype)
        for _ in range(self.layers):
            quire.merge_many(outs, lses, torch.empty_like(self.query), None)

    def ratio(self) -> float:
        k, v = (c.reshape(-1, *c.shape[2:])[: self.context] for c in self.last)
        rounds, merged = self.step.local.rounds_weights(1), self.partials == "query"
        return judged(self.out[:1], self.query[:1], k, v, [self.context], rounds, merged)


def measure(name: str, group: Group, device: torch.device, timer: Timer, partials: str) -> dict:
    d = Decode(name, group, device, partials)
    layers = d.layers
    seconds = {"one_us": timer(layers, d.one), "sharded_us": timer(layers, lambda: d.sharded(d.step))}
    seconds.update(own_us=timer(layers, d.own_part), exchange_us=timer(layers, d.exchange))
    seconds.update(own_exchange_us=timer(layers, d.own_exchange), merge_us=timer(layers, d.merge))
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
    counts = [n for n in (1, 2, 4) if kv_heads % n == 0]
    plans = {("sharded", n): prefill_plan(*own, zigzag=zigzag, group=group, exchange="gather", head_chunks=n) for n in counts}
    refused = ""
    for n in counts if device.type == "cuda" else ():
        step, refused = plan_of_copies(own, zigzag, head_chunks=n)
        plans |= {("copy", n): step} if step else {}
    ratios, outs = {}, {}
    for (kind, n), step in plans.items():
        out.fill_(float("nan"))
        seconds[f"{kind}_{n}_us"] = timer(1, lambda p=step: prefill(*own, group=group, plan=p, output=out))
        outs[kind, n] = out.clone()
        if n == counts[-1]:
            ratios[kind] = prefill_ratio(out, own[0], k, v, prompt, position, length, step)
        if kind == "sharded":
            alone = timer(1, attention_alone(own, zigzag, step, group, torch.empty_like(out)))
            seconds[f"attention_{n}_us"] = worst_of_ranks(alone, device)
        seconds[f"{kind}_{n}_exchange_us"] = timer(1, exchange_alone(own, zigzag, step, group))
    same_bits = all(bool((outs[kind, n].view(torch.int16) == outs["sharded", n].view(torch.int16)).all()) for kind, n in outs)
    difference = float((out.float() - one_out[mine].float()).abs().max())
    ring = prefill_plan(*own, zigzag=zigzag, group=group, exchange="ring")
    out.fill_(float("nan"))
    seconds["ring_us"] = timer(1, lambda: prefill(*own, group=group, plan=ring, output=out))
    ratios["ring"] = prefill_ratio(out, own[0], k, v, prompt, position, length, ring)
    seconds.update({name: worst_of_ranks(alone, device) for name, alone in ring_parts(own, zigzag, ring, group, timer).items()})
    seconds["one_again_us"] = timer(1, lambda: quire.attend(batch, cache, plan=made, workspace=space))
    one = min(seconds["one_us"], seconds["one_again_us"])
    least = {kind: min(seconds[f"{kind}_{n}_us"] for n in counts) for kind in dict.fromkeys(kind for kind, _ in plans)}
    return {
        "case": name,
        "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs={prompts}x{length}",
        "ranks": group.world,
        "one_kernel": made.kernel,
        "own_kernel": plans["sharded", 1].local.kernel,
        "ring_kernels": [call.local.kernel for call in (ring.calls.own, ring.calls.earlier, ring.calls.later)],
        "received_bytes_per_s": link_bandwidth(group, device),
        **{key: round(1e6 * value, 2) for key, value in seconds.items()},
        **{f"{kind}_over_one": round(value / one, 3) for kind, value in least.items()},
        "ring_over_one": round(seconds["ring_us"] / one, 3),
        "target": target,
        "largest_difference": difference,
        **({"copies_have_the_bits_of_a_gather": same_bits} if "copy" in least else {"no_copies": refused}),
        "worst_error_ratio": round(ratios.pop("sharded"), 3),
        **{f"{kind}_worst_error_ratio": round(value, 3) for kind, value in ratios.items()},
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


def plan_of_copies(own, zigzag, **how):
    """(plan, "") of a group of its own, or (None, why not): a group that was refused is broken."""
    if NO_COPIES:
        return None, "--no-copies"
    try:
        return prefill_plan(*own, zigzag=zigzag, group=Group.from_torch(timeout=60), exchange="copy", **how), ""
    except quire.Error as error:
        return None, str(error)


def exchange_alone(own, zigzag, step, group: Group):
    """What a gather does but for attention: blocks are packed and travel."""
    _, key, value = own
    if step.shared is None:
        return lambda: Gathers(key, value, zigzag, step.head_chunks, step.slots, group).wait(step.head_chunks - 1)
    return lambda: Copies(key, value, zigzag, step.head_chunks, step.slots, group, step.shared).wait(step.head_chunks - 1)


def attention_alone(own, zigzag, step, group: Group, out):
    """The calls of a gather over keys that are there already."""
    query, key, value = own
    gathers = Gathers(key, value, zigzag, step.head_chunks, step.slots, group)
    arrived = [gathers.wait(chunk) for chunk in range(step.head_chunks)]
    heads = query.shape[1] // step.head_chunks

    def calls() -> None:
        for chunk, blocks in enumerate(arrived):
            mine = slice(chunk * heads, (chunk + 1) * heads)
            batch = quire.Batch(query=query[:, mine], output=out[:, mine], **step.calls.indices)
            cache = quire.KVCache(*pages_of(blocks, zigzag.num_pages, PAGE))
            quire.attend(batch, cache, plan=step.calls.local, workspace=step.workspace)

    return calls


def has_short_parts(step) -> bool:
    """Whether results are merged from partial results of 16 bits."""
    return step.exchange.kind == "ring" and step.calls.partials == "query"


def worst_of_ranks(value: float, device: torch.device) -> float:
    largest = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def prefill_ratio(out, query, k, v, prompt, position, length: int, step) -> float:
    """Largest error over the tolerance of a few rows, the first and the last among them."""
    rows = sorted({0, len(position) // 3, len(position) // 2, len(position) - 1})
    worst = 0.0
    for row in rows:
        first = int(prompt[row]) * length
        keys = slice(first, first + int(position[row]) + 1)
        how = step.local.rounds_weights(length), has_short_parts(step)
        worst = max(worst, judged(out[row : row + 1], query[row : row + 1], k[keys], v[keys], [int(position[row]) + 1], *how))
    return worst_of_ranks(worst, query.device)


def check_uneven(name: str, group: Group, device: torch.device, timer: Timer) -> dict:
    """All rows of prompts that do not divide, by every exchange, against fp64. Nothing is timed."""
    lengths, heads, kv_heads = UNEVEN[name], 8, 2
    generator = torch.Generator(device).manual_seed(11)
    q, k, v = (torch.randn(sum(lengths), h, 128, dtype=torch.bfloat16, device=device, generator=generator) for h in (heads, kv_heads, kv_heads))
    firsts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    zigzag = ZigZag(group.rank, group.world, lengths, PAGE)
    prompt, position = (torch.from_numpy(a) for a in zigzag.rows)
    mine = (firsts[prompt] + position).to(device)
    own = [a[mine].contiguous() for a in (q, k, v)]
    worst = {}
    for kind in ("gather", "ring", "copy"):
        if kind == "copy":
            step, refused = plan_of_copies(own, zigzag)
            if refused:
                continue
        else:
            step = prefill_plan(*own, zigzag=zigzag, group=group, exchange=kind)
        out = prefill(*own, group=group, plan=step, output=torch.full_like(own[0], float("nan")))
        ratios = [0.0]
        for i, (first, length) in enumerate(zip(firsts.tolist(), lengths)):
            rows = torch.nonzero(prompt == i)[:, 0]
            longest = max(end - begin for begin, end in zigzag.ranges(i))
            keys = slice(first, first + length)
            if len(rows):
                at = rows.to(device)
                how = step.local.rounds_weights(longest), has_short_parts(step)
                ratios.append(judged(out[at], own[0][at], k[keys], v[keys], (position[rows] + 1).tolist(), *how))
        worst[kind] = round(worst_of_ranks(max(ratios), device), 3)
    return {"case": name, "problem": f"q=bf16 heads={heads}:{kv_heads} d=128 page={PAGE} reqs={','.join(map(str, lengths))}", "ranks": group.world,
            "worst_error_ratio": worst.pop("gather"), **{f"{kind}_worst_error_ratio": ratio for kind, ratio in worst.items()}}  # fmt: skip


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
    parser.add_argument("--no-copies", action="store_true", help="leave out copies between GPUs")
    parser.add_argument("--self-test", action="store_true", help="plant a wrong row in every output that is judged; exit status 1 if one passes")
    args = parser.parse_args()
    if args.self_test:
        PLANTED.append(0.0)
    NO_COPIES.extend([True] * args.no_copies)
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
    jobs += [(measure, name, partials) for name in ON_CPU if args.only and not on_gpu and name.startswith(args.only) for partials in args.partials]
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
    missed = [-ratio for ratio in PLANTED if -1 <= ratio < 0]
    wrong = [ratio for ratio in PLANTED if ratio > 1]
    if args.self_test:
        faults = sum(ratio < 0 for ratio in PLANTED)
        print(f"rank {rank}: {faults - len(missed)} of {faults} planted rows are over the tolerance, {len(wrong)} right outputs are", flush=True)
    if missed or wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
