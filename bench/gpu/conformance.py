#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the GPU at hand everything that Quire knows to ask, with `quire verify`, and writes one JSON.

usage: conformance.py --quire PATH --out FILE [--commit TEXT] [--without-notes] [--only NAMES] [--count N] [--python-tests DIR]
                      [--seed N] [--caches NAMES] [--jobs N]
       conformance.py --self-test    verdicts are made up, one with each fault
       --only: sections by name, with commas between them; --count: that many lines instead of the 240 and 160 below; --jobs: as many
       `quire verify` at once, by default one for each two processors: the reference is what takes long; --eight-bits: of the lines of
       sm90 and prefill so many have 8-bit outputs or queries, by default 0.3

  hazards      all hazard cases by the planned kernel, with power: every planted fault must be caught
  notes        the notes' 48 cases, full size (3 minutes: the fp64 reference runs on the CPU)
  random       200 random cases
  python       DIR/test_vllm_cuda.py (vLLM's 96 ids on torch tensors) and DIR/test_cuda.py, with the quire that python3 imports
  sm90         240 random lines of what cuda_sm90's decode takes; a refusal counts as a failure
  cluster      240 random lines of one row a request, few enough for its cluster decode
  head_pairs   120 random lines of one row a request at head_dim 64, for decode tiles of two KV heads
  four_bits    120 random lines with 4 bits on a side or both, for cuda_generic; a refusal counts as a failure
  prefill      160 random lines of what its prefill takes; --caches: both of these cache types alone
  tall         48 random batches at head_dim 64 that fill prefill's tall tiles (docs/kernels/sm90_prefill.md)
  masked       200 random lines with masks of every kind, and its wide head_dims (192 with V of 128, 512), with and without masks
  sm90_hazards the hazards in its types and head_dims, with power: every planted fault that a case can show must be caught. Its
               HugeOffsets take many GiB of the device: --jobs 3 at most
  mma_hazards  the hazards in the types and head_dims of cuda_mma, and larger batches; a refusal counts as a failure, but for masks
               and positions that it does not take
"""
import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

# Types that cuda_sm90 takes.
SM90_TYPES = ["bf16", "f16", "bf16:fp8_e4m3fn", "bf16:fp8_e5m2", "f16:fp8_e4m3fn", "f16:fp8_e5m2", "fp8_e4m3fn"]
# Types and head_dims that cuda_mma takes, by `quire info kernels`.
MMA_TYPES = [(["--types", "bf16,f16"], ["--dims", "64,128,256"]),
             (["--types", "bf16:fp8_e4m3fn,bf16:fp8_e5m2,f16:fp8_e4m3fn,f16:fp8_e5m2"], ["--dims", "64,128"])]
# Masks and positions that cuda_mma refuses.
MMA_REFUSES = re.compile(r" (causal|chunk|spans|prefix|tree|kbegin|qbegin)=")
# Split keys, tall tiles and decode rows in one batch, as no hazard has them.
MMA_BATCHES = [
    "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=3x1@5000,2@3000,40@900,9@8000 lse=1 seed=901",
    "q=f16 kv=f16 heads=16:1 d=64 page=32 layout=hnd reqs=3x1@5000,2@3000,40@900 lse=1 sinks=1 seed=902",
    "q=bf16 kv=fp8_e4m3fn heads=8:2 d=128 page=16 reqs=3x1@5000,300@400/400 kscale=head vscale=head lse=1 seed=903",
    "q=f16 kv=fp8_e5m2 heads=8:8 d=64 page=48 reqs=3x1@2000,300@400/500,64@64 window=333 lse=1 seed=904",
    "q=bf16 kv=bf16 heads=8:1 d=256 page=16 reqs=3x1@5000,2@3000,140@900 cap=4 alibi=1 lse=1 seed=905",
    "q=f16 kv=f16 heads=34:2 d=128 page=16 layout=packed reqs=1@1000,200@300/350 kscale=head vscale=head lse=1 seed=906",
    "q=bf16 kv=bf16 out=fp8_e4m3fn heads=8:1 d=256 page=16 reqs=3x1@5000,2@3000,140@900 lse=1 seed=907",
    "q=f16 kv=fp8_e4m3fn out=fp8_e4m3fn heads=8:2 d=64 page=16 reqs=3x1@5000,300@400/400 vscale=head seed=908",
    "q=f16 kv=f16 heads=8:2 d=128 page=24 layout=packed reqs=3x1@5000,2@3000,40@900/931 lse=1 seed=909",
    "q=bf16 kv=fp8_e4m3fn heads=8:2 d=128 page=8 layout=packed reqs=3x1@5000,300@400/400 window=333 kscale=head lse=1 seed=910",
    "q=f16 kv=fp8_e5m2 heads=16:1 d=64 page=16 layout=packed reqs=3x1@5000,2@3000,40@900 lse=1 sinks=1 seed=911",
    "q=bf16 kv=bf16 heads=8:1 d=256 page=40 layout=packed reqs=3x1@5000,2@3000,140@900/1000 cap=4 alibi=1 lse=1 seed=912",
    # No request has more than 64 score rows: tall tiles with exact weights.
    "q=bf16 kv=bf16 heads=32:1 d=128 page=16 reqs=3x1@5000,2@3000,1@77 lse=1 seed=913",
    "q=f16 kv=fp8_e4m3fn heads=8:2 d=128 page=16 reqs=3x4@5000,16@400/407 kscale=head vscale=head lse=1 seed=914",
    "q=bf16 kv=bf16 heads=16:1 d=256 page=16 reqs=3x1@5000,4@300 window=333 cap=4 lse=1 seed=915",
    "q=f16 kv=f16 heads=12:1 d=64 page=8 layout=packed reqs=3x1@5000,5@900/903 lse=1 seed=916",
]


def cache_shape(pick: random.Random) -> str:
    """Layout and page size, of those that cuda_sm90 takes."""
    layout = pick.choice(["nhd", "hnd", "packed", "packed"])
    pages = [16, 16, 32, 32, 48, 64, 80, 128] + ([] if layout == "packed" else [8, 24])
    return f"page={pick.choice(pages)} layout={layout}"


def row_types(pick: random.Random, dtype: str, cache: str, all_cached: bool, rate: float) -> str:
    """Types of a line; at that rate of 8-bit outputs, and queries where the cache holds e4m3fn and every key."""
    if pick.random() >= rate:
        return f"q={dtype} kv={cache}"
    if cache != "fp8_e4m3fn" or not all_cached:
        return f"q={dtype} kv={cache} out=fp8_e4m3fn"
    return f"q=fp8_e4m3fn kv={cache} out={pick.choice(['bf16', 'bf16', 'f16', 'fp8_e4m3fn'])} qscale={pick.choice(['none', 'tensor', 'head'])}"


def prefill_lines(count: int, seed: int, caches: "list[str]" = (), eight_bits: float = 0.3) -> "list[str]":
    """Chunks of every length, decode rows among them, over everything that cuda_sm90's prefill takes."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads = pick.choice(["bf16", "f16"]), pick.choice([1, 2, 3])
        group = pick.choice([1, 2, 3, 4, 5, 7, 8, pick.choice([9, 12, 16, 17, 32, 64, 65, 100, 128])])
        context = lambda: pick.choice([0, 1, 15, 127, 128, pick.randrange(300), pick.randrange(4000)])  # noqa: E731
        rows = lambda: pick.choice([9, 64, 128, 129, pick.randrange(9, 40), pick.randrange(9, 700)])  # noqa: E731
        reqs = [f"{rows()}@{context()}" for _ in range(pick.randint(1, 4))]
        if pick.random() < 0.4:
            reqs.append(f"{pick.randint(1, 3)}x1@{context()}")
        if pick.random() < 0.4:
            count_of, length = rows(), context()
            reqs.append(f"{count_of}@{length}/{pick.choice([length, length, pick.randint(length, length + count_of)])}")
        options = [f"window={pick.choice([1, 7, 64, 100, 128, 1000])}"] * pick.choice([0, 0, 1]) + ["alibi=1"] * pick.choice([0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1]) + ["lse=1"]
        # Scores far apart: weights outgrow the maximum that they are relative to, by powers that f32 holds and by others.
        options += [f"scale={pick.choice([0.02, 0.5, 1, 3, 10])}"] * pick.choice([0, 0, 1])
        cache = pick.choice(caches or [dtype, dtype, "fp8_e4m3fn", "fp8_e5m2"])
        if cache != dtype or pick.random() < 0.3:
            options += [f"{scale}={kind}" for scale in ("kscale", "vscale") if (kind := pick.choice(["none", "tensor", "head"])) != "none"]
        types = row_types(pick, dtype, cache, not any("/" in req for req in reqs), eight_bits)
        lines.append(f"{types} heads={kv_heads * group}:{kv_heads} d={pick.choice([64, 128, 256])} "
                     f"{cache_shape(pick)} reqs={','.join(reqs)} "
                     f"{' '.join(options)} seed={seed + i}")
    return lines


TALL_ROWS = 2 * 132 * 192  # score rows from which on a GPU of 132 SMs has tall tiles (least_tall_tiles in src/plan/kernels/cuda_sm90.h)


def tall_lines(count: int, seed: int) -> "list[str]":
    """Batches at head_dim 64 that fill tall tiles: chunks on contexts, with windows that begin within tiles."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads = pick.choice(["bf16", "f16"]), pick.choice([4, 5, 8])
        group = pick.choice([8, 11, 12, 16])
        left = -(-TALL_ROWS // (kv_heads * group)) + 32 + pick.randrange(100)  # plans leave out a token of each request
        reqs = []
        while left > 0:
            rows = min(left, pick.choice([33, 96, 128, pick.randrange(20, 700)]))
            left -= rows
            context = pick.choice([0, 1, 95, 96, 97, 128, pick.randrange(700)])
            cached = f"/{pick.randint(context, context + rows)}" if pick.random() < 0.2 else ""
            reqs.append(f"{rows}@{context}{cached}")
        reqs += [f"{pick.randint(1, 3)}x1@{pick.randrange(900)}"] * pick.choice([0, 1])
        options = [f"window={pick.choice([1, 96, 97, 300, 430])}"] * pick.choice([0, 1]) + ["alibi=1"] * pick.choice([0, 0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 1]) + ["lse=1"]
        options += [f"scale={pick.choice([0.02, 0.5, 3, 10])}"] * pick.choice([0, 0, 1])
        lines.append(f"q={dtype} kv={dtype} heads={kv_heads * group}:{kv_heads} d=64 page={pick.choice([8, 16, 24, 32, 48, 64, 80, 128])} "
                     f"layout={pick.choice(['nhd', 'hnd'])} reqs={','.join(reqs)} {' '.join(options)} seed={seed + i}")
    return lines


def mask_of(pick: random.Random, lengths: "list[tuple[int, int]]") -> "list[str]":
    """Words of one kind of mask, or none, for requests of these numbers of rows and keys of context."""
    starts = [f"{r}:{begin}-{begin + pick.randint(1, 300)}" for r, (rows, context) in enumerate(lengths) if pick.random() < 0.7
              for begin in [pick.randrange(max(1, rows + context))]]
    begins = [pick.choice([0, 0, 128, pick.randrange(1000)]) for _ in lengths]
    window = f"window={pick.choice([1, 7, 64, 100, 1000])}"
    kinds = {
        "none": [],
        "causal": ["causal=" + ",".join(str(pick.randint(0, 1)) for _ in lengths), *[window] * pick.choice([0, 1])],
        "both": ["causal=0", window, f"wright={pick.choice([0, 1, 63, 500])}"],
        "chunk": [f"chunk={pick.choice([1, 100, 128, 1000])}"],
        "spans": ["spans=" + (",".join(starts) or "none"), *[window] * pick.choice([0, 1]), *["beyond=1"] * pick.choice([0, 1])],
        "prefix": [window, "prefix=" + pick.choice(["4", ",".join(str(pick.choice([0, 1, 100, 600])) for _ in lengths)])],
        "tree": ["tree=" + ",".join(str(min(rows, pick.choice([0, 1, 17, 64, 256]))) for rows, _ in lengths)],
        "places": [pick.choice([window, f"chunk={pick.choice([100, 128, 1000])}", "lse=1"]),
                   "kbegin=" + ",".join(map(str, begins)),
                   "qbegin=" + ",".join(str(max(0, begin + context + pick.choice([0, -5, 40]))) for begin, (_, context) in zip(begins, lengths))],
    }
    return kinds[pick.choice(list(kinds))]


def masked_lines(count: int, seed: int) -> "list[str]":
    """Masks of every kind, and the wide head_dims, over 16-bit caches of rows: prefill serves all rows of these."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads = pick.choice(["bf16", "f16"]), pick.choice([1, 2, 3])
        dims, group = pick.choice(["d=64", "d=128", "d=256", "d=192 dv=128", "d=512"]), pick.choice([1, 2, 3, 5, 8, 12, 16, 40, 128])
        lengths = [(pick.choice([1, 1, 9, 64, 130, pick.randrange(1, 400)]), pick.choice([0, 1, 127, 128, pick.randrange(3000)]))
                   for _ in range(pick.randint(1, 5))]
        mask = mask_of(pick, lengths)
        if not mask and dims in ("d=64", "d=128", "d=256"):
            mask = ["causal=" + ",".join(["1"] * len(lengths))]
        fresh = pick.random() < 0.3 and not any(word.startswith("qbegin") for word in mask)
        reqs = [f"{rows}@{context}" + (f"/{context + pick.randint(0, rows)}" if fresh else "") for rows, context in lengths]
        options = ["alibi=1"] * pick.choice([0, 0, 1]) + ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1])
        options += ["out=fp8_e4m3fn"] * pick.choice([0, 0, 0, 0, 1]) + [f"scale={pick.choice([0.02, 1, 10])}"] * pick.choice([0, 0, 0, 1])
        lines.append(f"q={dtype} heads={kv_heads * group}:{kv_heads} {dims} page={pick.choice([16, 32, 48, 64, 128])} "
                     f"layout={pick.choice(['nhd', 'hnd'])} reqs={','.join(reqs)} {' '.join(dict.fromkeys(mask + options + ['lse=1']))} seed={seed + i}")
    return lines


def sm90_lines(count: int, seed: int, caches: "list[str]" = (), eight_bits: float = 0.3) -> "list[str]":
    """Decode batches, with longer rows among them now and then, over everything that cuda_sm90 takes."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads = pick.choice(["bf16", "f16"]), pick.choice([1, 2, 3, 8])
        dim = pick.choice([64, 128, 256])
        group = pick.choice([1, 2, 3, 4, 5, 7, 8, 8, 12, 16, 20, 32, pick.choice([33, 48, 64, 65, 100, 128])])
        kv_heads = min(kv_heads, 64 // group + 1)  # the fp64 reference has to answer, too
        longest = max(1, pick.choice([8, 8, 16, 32, 64, 128]) // group)  # query rows that still are decode's
        context = lambda: pick.choice([0, 1, 15, 63, 64, pick.randrange(200), pick.randrange(3000)])  # noqa: E731
        reqs = [f"{pick.randint(1, 6)}x{pick.randint(1, longest)}@{context()}" for _ in range(pick.randint(1, 4))]
        if pick.random() < 0.2:  # few segments of many parts
            kv_heads, reqs = pick.choice([1, 2]), [f"1x{pick.randint(1, longest)}@{pick.randrange(4000, 20000)}"]
        if pick.random() < 0.2:
            reqs.append(f"{pick.randint(9, 90)}@{context()}")
        if pick.random() < 0.1:  # the row of tiles has fewer entries than requests, of which few have rows
            reqs.append(f"{pick.randint(1020, 1100)}x0@{context()}")
        if pick.random() < 0.25:
            length = context()
            reqs.append(f"{longest}@{length}/{pick.randint(length, length + longest)}")
        options = [f"window={pick.choice([1, 7, 64, 100, 1000])}"] * pick.choice([0, 0, 1]) + ["alibi=1"] * pick.choice([0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1]) + ["lse=1"]
        cache = pick.choice(caches or [dtype, dtype, "fp8_e4m3fn", "fp8_e5m2"])
        if cache != dtype or pick.random() < 0.3:
            options += [f"{scale}={kind}" for scale in ("kscale", "vscale") if (kind := pick.choice(["none", "tensor", "head"])) != "none"]
        types = row_types(pick, dtype, cache, not any("/" in req for req in reqs), eight_bits)
        lines.append(f"{types} heads={kv_heads * group}:{kv_heads} d={dim} "
                     f"{cache_shape(pick)} reqs={','.join(reqs)} "
                     f"{' '.join(options)} seed={seed + i}")
    return lines


def cluster_lines(count: int, seed: int, caches: "list[str]" = (), eight_bits: float = 0.3) -> "list[str]":
    """One row a request, over everything that cluster decode takes: few requests, whose keys suit their clusters."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads, group = pick.choice(["bf16", "f16"]), pick.choice([1, 2, 3, 5, 8]), pick.randint(1, 8)
        most = 1000 if kv_heads == 8 else 3000
        context = lambda: pick.choice([0, 1, 14, 15, 16, 127, 128, pick.randrange(200), pick.randrange(most), most])  # noqa: E731
        reqs = [f"1@{context()}" for _ in range(pick.randint(1, 6))]
        if pick.random() < 0.2:  # requests of many units a warp
            kv_heads, reqs = 8, [f"1@{pick.randrange(4000, 20000)}"]
        if pick.random() < 0.15:  # requests without rows
            reqs.insert(pick.randrange(len(reqs) + 1), f"{pick.randint(1, 3)}x0@{context()}")
        options = [f"window={pick.choice([1, 7, 15, 16, 17, 100, 1000])}"] * pick.choice([0, 0, 1]) + ["alibi=1"] * pick.choice([0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1]) + ["lse=1"]
        options += [f"scale={pick.choice([0.02, 0.5, 1, 3, 10])}"] * pick.choice([0, 0, 1])
        cache = pick.choice(caches or [dtype, dtype, "fp8_e4m3fn", "fp8_e5m2"])
        if cache != dtype or pick.random() < 0.3:
            options += [f"{scale}={kind}" for scale in ("kscale", "vscale") if (kind := pick.choice(["none", "tensor", "head"])) != "none"]
        lines.append(f"{row_types(pick, dtype, cache, True, eight_bits)} heads={kv_heads * group}:{kv_heads} d={pick.choice([64, 128])} "
                     f"page={pick.choice([16, 16, 32, 48, 64, 128])} layout={pick.choice(['nhd', 'hnd'])} reqs={','.join(reqs)} "
                     f"{' '.join(options)} seed={seed + i}")
    return lines


def head_pair_lines(count: int, seed: int) -> "list[str]":
    """One row a request at head_dim 64, for decode tiles of two KV heads: more segments than clusters take, or long requests."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, kv_heads, group = pick.choice(["bf16", "f16"]), pick.choice([2, 4, 6, 8, 16]), pick.randint(1, 8)
        context = lambda: pick.choice([0, 1, 15, 63, 64, 127, pick.randrange(200), pick.randrange(1500)])  # noqa: E731
        requests = -(-133 // kv_heads) + pick.randrange(20)
        reqs = [f"{rows}x1@{context()}" for rows in (requests // 3, requests // 3, requests - requests // 3 * 2)]
        if pick.random() < 0.25:  # few segments of many parts
            reqs = [f"1@{pick.randrange(9000, 20000)}"]
        if pick.random() < 0.25:  # rows that are not cached
            length = context()
            reqs.append(f"1@{length}/{length}")
        if pick.random() < 0.15:  # requests without rows
            reqs.insert(pick.randrange(len(reqs) + 1), f"{pick.randint(1, 3)}x0@{context()}")
        options = [f"window={pick.choice([1, 7, 63, 64, 65, 1000])}"] * pick.choice([0, 0, 1]) + ["alibi=1"] * pick.choice([0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1]) + ["lse=1"]
        options += [f"scale={pick.choice([0.02, 0.5, 3, 10])}"] * pick.choice([0, 0, 1]) + ["out=fp8_e4m3fn"] * pick.choice([0, 0, 0, 1])
        options += ["kscale=head vscale=tensor"] * pick.choice([0, 0, 0, 0, 1])  # served by tiles of one head
        lines.append(f"q={dtype} kv={dtype} heads={kv_heads * group}:{kv_heads} d=64 page={pick.choice([8, 16, 16, 24, 48, 64, 128])} "
                     f"layout=nhd reqs={','.join(reqs)} {' '.join(options)} seed={seed + i}")
    return lines


def four_bit_lines(count: int, seed: int) -> "list[str]":
    """nvfp4 or mxfp4 on a side or on both, over layouts, head_dims, masks and scales that the portable kernel takes."""
    pick = random.Random(seed)
    lines = []
    for i in range(count):
        dtype, four, kv_heads, group = pick.choice(["bf16", "f16", "f32"]), ["nvfp4", "mxfp4"], pick.choice([1, 2, 3, 8]), pick.randint(1, 9)
        other = [dtype, *four, "fp8_e4m3fn", "fp8_e5m2"]
        sides = pick.choice([(pick.choice(four), pick.choice(other)), (pick.choice(other), pick.choice(four))])
        context = lambda: pick.choice([0, 1, 15, 63, 64, pick.randrange(200), pick.randrange(2000)])  # noqa: E731
        reqs = [f"{pick.randint(1, 4)}x{pick.choice([1, 1, 2, 9, 33])}@{context()}" for _ in range(pick.randint(1, 4))]
        if pick.random() < 0.25:
            length = context()
            reqs.append(f"9@{length}/{pick.randint(length, length + 9)}")
        options = [f"window={pick.choice([1, 7, 64, 1000])}"] * pick.choice([0, 0, 1]) + ["alibi=1"] * pick.choice([0, 0, 1])
        options += ["cap=5"] * pick.choice([0, 0, 0, 1]) + ["sinks=1"] * pick.choice([0, 0, 1]) + ["causal=0"] * pick.choice([0, 0, 0, 1])
        options += [f"{scale}={kind}" for scale in ("kscale", "vscale") if (kind := pick.choice(["none", "tensor", "head"])) != "none"]
        dims = [32, 64, 96, 128, 160, 256]
        lines.append(f"q={dtype} kv={'/'.join(sides)} heads={kv_heads * group}:{kv_heads} d={pick.choice(dims)} dv={pick.choice(dims)} "
                     f"page={pick.choice([1, 5, 16, 64])} layout={pick.choice(['nhd', 'hnd'])} reqs={','.join(reqs)} "
                     f"{' '.join([*options, 'lse=1'])} seed={seed + i}")
    return lines


def in_lines(lines: "list[str]") -> "list[str]":
    return [word for line in lines for word in ("--line", line)]


def by_lines(lines: "list[str]", pieces: int) -> "list[list[str]]":
    """Arguments of that many calls, or fewer, which ask for all lines."""
    return [in_lines(lines[i::pieces]) for i in range(min(pieces, len(lines)))]


def verify(quire: str, *arguments: str) -> dict:
    run = subprocess.run([quire, "verify", "--json", *arguments], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        sys.exit(f"quire verify {' '.join(arguments[:4])} ...: exit {run.returncode}\n{run.stderr or run.stdout}")
    return json.loads(run.stdout)["verdicts"][0]


def summary(verdicts: "list[dict]", refusable: "re.Pattern | None" = None) -> dict:
    """Verdict of a section. `refusable`: cases whose lines match it are left out if the kernel refuses them."""
    every = [case for verdict in verdicts for case in verdict["cases"]]
    cases = [case for case in every if not (case["status"] == "refused" and refusable and refusable.search(case["line"]))]
    matrices = [matrix for verdict in verdicts for matrix in verdict["matrices"]]
    result = {
        "verdict": "pass" if cases and all(case["status"] == "pass" for case in cases) else "fail",
        "cases": dict(collections.Counter(case["status"] for case in cases)),
        "left_out": len(every) - len(cases),
        "served_by": dict(collections.Counter(case["kernel"] or "none" for case in cases)),
        "worst_error_of_tolerance": max(matrix["worst_ratio"] for matrix in matrices),
        "elements": sum(matrix["num_elements"] for matrix in matrices),
        "elements_compared": sum(matrix["num_compared"] for matrix in matrices),
        "not_passed": [case["line"] for case in cases if case["status"] != "pass"],
    }
    mutants = [mutant for verdict in verdicts for mutant in (verdict.get("power") or {}).get("mutants", [])]
    if mutants:
        result["power"] = power_of_all(mutants)
        if result["power"]["survived"]:
            result["verdict"] = "fail"
    return result


def power_of_all(mutants: "list[dict]") -> dict:
    """Power of a suite whose parts ran one by one: the suite notices a fault if one part does. A fault that no case of any part can
    show was not asked about."""
    ids = list(dict.fromkeys(mutant["id"] for mutant in mutants))
    killed = {mutant["id"] for mutant in mutants if mutant["killed"]}
    asked = {mutant["id"] for mutant in mutants if mutant["asked"] and mutant["can_show"]}
    return {"killed": len(killed), "total": len(asked), "survived": [name for name in ids if name in asked - killed],
            "could_not_be_asked": [name for name in ids if name not in asked]}


def self_test() -> int:
    def verdict(status: str, killed: bool, can_show: bool = True) -> dict:
        return {"cases": [{"status": status, "kernel": "k", "line": "l"}],
                "matrices": [{"worst_ratio": 0.5, "num_elements": 1, "num_compared": 1}],
                "power": {"mutants": [{"id": "fault", "killed": killed, "asked": True, "can_show": can_show}]}}

    def passes(*verdicts: dict, refusable: str = "x") -> bool:
        return summary(list(verdicts), re.compile(refusable))["verdict"] == "pass"

    missed = [what for what, noticed in {
        "a part that notices what another does not": passes(verdict("pass", False), verdict("pass", True)),
        "a case that fails": not passes(verdict("pass", True), verdict("fail", True)),
        "a case that is refused": not passes(verdict("refused", True)),
        "a refusal that may be": passes(verdict("pass", True), verdict("refused", True), refusable="l"),
        "refusals alone": not passes(verdict("refused", True), refusable="l"),
        "a failure where a refusal may be": not passes(verdict("fail", True), refusable="l"),
        "a fault that nobody notices": not passes(verdict("pass", False), verdict("pass", False)),
        "a fault that no case can show": passes(verdict("pass", False, can_show=False)),
        "a fault that one part can show": not passes(verdict("pass", False, can_show=False), verdict("pass", False)),
    }.items() if not noticed]
    print("\n".join(f"not noticed: {what}" for what in missed) or "ok")
    return 1 if missed else 0


def python_tests(folder: str) -> dict:
    """Counts of every outcome; a test that was skipped is not a pass."""
    files = [str(Path(folder) / name) for name in ("test_vllm_cuda.py", "test_cuda.py")]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *files], capture_output=True, text=True,
                         check=False)
    outcomes = re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) (?:\S*::)?(\S+)", run.stdout, re.MULTILINE)
    if not outcomes:
        sys.exit(run.stdout + run.stderr)
    return {
        "verdict": "pass" if run.returncode == 0 and all(outcome == "PASSED" for outcome, _ in outcomes) else "fail",
        "tests": dict(collections.Counter(outcome.lower() for outcome, _ in outcomes)),
        "vllm_ids": sum(name.startswith("test_contexted_kv_attention") and outcome == "PASSED" for outcome, name in outcomes),
        "not_passed": [name for outcome, name in outcomes if outcome != "PASSED"],
    }


def device() -> str:
    listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()[0]


def main() -> int:
    if "--self-test" in sys.argv:
        return self_test()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--quire", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--without-notes", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--count", type=int)
    parser.add_argument("--python-tests")
    parser.add_argument("--caches", type=lambda names: names.split(","), default=[])
    parser.add_argument("--eight-bits", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1, help="of the random lines for cuda_sm90")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    args = parser.parse_args()
    # Of each section, the arguments of its calls of `quire verify`.
    of_decode = sm90_lines(args.count or 240, args.seed, args.caches, args.eight_bits)
    of_clusters = cluster_lines(args.count or 240, args.seed, args.caches, args.eight_bits)
    of_four_bits = four_bit_lines(args.count or 120, args.seed)
    of_prefill = prefill_lines(args.count or 160, args.seed, args.caches, args.eight_bits)
    of_masks = masked_lines(args.count or 200, args.seed)
    of_tall = tall_lines(args.count or 48, args.seed)
    of_head_pairs = head_pair_lines(args.count or 120, args.seed)
    sections = {
        "sm90_hazards": [["--backend", "cuda", "--types", types, "--dims", "64,128,256"] for types in SM90_TYPES],
        "hazards": [["--backend", "cuda", "--matrix", "hazards"]],
        "random": [["--backend", "cuda", "--matrix", "random", "--no-power"]],
        "mma_hazards": [["--backend", "cuda_mma", "--no-power", *asked]
                        for asked in [*(types + dims for types, dims in MMA_TYPES), in_lines(MMA_BATCHES)]],
        "sm90": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_decode, 2 * args.jobs)],
        "cluster": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_clusters, 2 * args.jobs)],
        "prefill": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_prefill, 2 * args.jobs)],
        "head_pairs": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_head_pairs, 2 * args.jobs)],
        "tall": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_tall, 2 * args.jobs)],
        "masked": [["--backend", "cuda_sm90", "--no-power", *lines] for lines in by_lines(of_masks, 2 * args.jobs)],
        "four_bits": [["--backend", "cuda_generic", "--no-power", *lines] for lines in by_lines(of_four_bits, 2 * args.jobs)],
        "notes": [["--backend", "cuda", "--matrix", "notes", "--no-power"]],
    }
    if args.without_notes:
        del sections["notes"]
    if args.only:
        sections = {name: sections[name] for name in args.only.split(",")}
    report = {"device": device(), "date": datetime.date.today().isoformat(), "commit": args.commit, "seed": args.seed}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {name: [pool.submit(verify, args.quire, *words) for words in calls] for name, calls in sections.items()}
        for name, verdicts in running.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            report[name] = summary([verdict.result() for verdict in verdicts], MMA_REFUSES if name == "mma_hazards" else None)
    if args.python_tests:
        print("python ...", file=sys.stderr, flush=True)
        sections["python"] = report["python"] = python_tests(args.python_tests)
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    return 0 if all(report[name]["verdict"] == "pass" for name in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
