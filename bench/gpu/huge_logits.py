#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a GPU kernel for prompts whose logits are huge, and for sequences of 2^31 - 1 keys, beside softmax in fp64. Writes one JSON.

usage: huge_logits.py [--kernel NAME] [--out FILE] [--commit TEXT] [--long]
       huge_logits.py --self-test    what the judge notices; needs no GPU

A kernel that multiplies a dot product by the scale and subtracts the rounded maximum in one operation is off by half a unit of that
maximum: from logits of 2^31 on weights become infinite, or all of them 0. Rows are judged whose softmax f32 can tell: one key is ahead of
all others by more than logits can be off, or logits are off by less than 0.001. They may differ by the rounding of weights and outputs.

--long: sequences of 2147483647 keys, all pages of which are one page in memory. Such a call has to end. Its error is written down and not
judged: tensor cores cut sums off, by up to n 2^-24 after n products (docs/lab/2026-11-27-cuda-mma-prefill.md).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TOKENS, HEADS, KV_HEADS, PAGE = 512, 8, 2, 16
LOG2_SCALES = (-4, 12, 16, 18, 20, 22, 26, 30, 40, 60)
# Unit roundoff of bf16 is 2^-8: once for a weight, once for an output, of the largest of some 260000 values of N(0,1).
TOLERANCE = 2 * 2**-8 * 4.6
DOT_ERROR = 2.0**-20  # of a logit, over its size: f32 sums of up to 256 products


def clear_rows(logits: np.ndarray) -> np.ndarray:
    """Rows whose softmax f32 can tell. logits [..., keys] in fp64, -inf where a row does not see a key."""
    top = np.sort(logits, axis=-1)[..., -2:]
    off_by = np.where(np.isinf(logits), 0, np.abs(logits)).max(axis=-1) * DOT_ERROR
    return (top[..., 1] - top[..., 0] > 20 + 2 * off_by) | (off_by < 1e-3)


def judge(out: np.ndarray, want: np.ndarray, clear: np.ndarray) -> dict[str, Any]:
    """out, want [heads, rows, dim]; clear [heads, rows]."""
    off = np.abs(out - want).max(axis=-1)[clear]
    finite = bool(np.isfinite(out).all())
    worst = float(np.nan_to_num(off, nan=1e9, posinf=1e9).max(initial=0))
    return {"rows": int(clear.sum()), "left_out": int((~clear).sum()), "finite": finite, "worst_error": worst, "ok": finite and worst < TOLERANCE}


def call(torch: Any, quire: Any, q: Any, k: Any, v: Any, lens: list[int], table: Any, scale: float, **how: Any) -> Any:
    """The output of one request, poisoned before."""
    out = torch.full_like(q, float("nan"))
    starts = torch.tensor([0, len(q)], device="cuda", dtype=torch.int32)
    batch = quire.Batch(query=q, output=out, query_start_loc=starts, seq_lens=torch.tensor(lens, device="cuda", dtype=torch.int32), block_table=table)
    cache, options = quire.KVCache(k, v), quire.Options(softmax_scale=scale)
    plan = quire.plan(batch, cache, options, max_query_len=len(q), max_seq_len=lens[0], **how)
    quire.bind(batch, cache, options, plan=plan)(q, k, v, out)
    torch.cuda.synchronize()
    return out


def huge(torch: Any, quire: Any, dtype: Any, dim: int, log2_scale: int, **how: Any) -> dict[str, Any]:
    random = torch.Generator(device="cuda").manual_seed(dim + log2_scale)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device="cuda").to(dtype)

    pages = TOKENS // PAGE
    q, k, v = normal(TOKENS, HEADS, dim), normal(pages, PAGE, KV_HEADS, dim), normal(pages, PAGE, KV_HEADS, dim)
    order = torch.randperm(pages, generator=random, device="cuda").int()
    out = call(torch, quire, q, k, v, [TOKENS], order[None], 2.0**log2_scale, **how)
    keys, values = (x[order.long()].flatten(0, 1).double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.double(), keys) * 2.0**log2_scale
    logits.masked_fill_(torch.ones(TOKENS, TOKENS, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
    want = torch.einsum("hqk,khd->hqd", (logits - logits.amax(-1, keepdim=True)).softmax(-1), values)
    verdict = judge(out.double().transpose(0, 1).cpu().numpy(), want.cpu().numpy(), clear_rows(logits.cpu().numpy()))
    return {"case": "huge logits", "dtype": str(dtype), "d": dim, "log2_scale": log2_scale, "how": str(how), **verdict}


def long(torch: Any, quire: Any, rows: int, **how: Any) -> dict[str, Any]:
    dim, heads, page, keys = 64, 4, 1 << 20, 2**31 - 1
    random = torch.Generator(device="cuda").manual_seed(3)
    k = torch.randn((1, page, 1, dim), generator=random, device="cuda").bfloat16()
    v = (torch.randn((1, page, 1, dim), generator=random, device="cuda") + 1).bfloat16()
    q = torch.randn((rows, heads, dim), generator=random, device="cuda").bfloat16()
    table = torch.zeros((1, -(-keys // page)), device="cuda", dtype=torch.int32)
    out = call(torch, quire, q, k, v, [keys], table, dim**-0.5, **how)
    weights = (torch.einsum("qhd,kd->qhk", q.double(), k[0, :, 0].double()) * dim**-0.5).softmax(-1)
    off = (out.double() - torch.einsum("qhk,kd->qhd", weights, v[0, :, 0].double())).abs().max()
    return {"case": f"{keys} keys", "d": dim, "rows": rows, "how": str(how), "worst_error": float(off)}


def self_test() -> int:
    random = np.random.default_rng(1)
    logits, values = random.standard_normal((1, 64, 64)) * 1e9, random.standard_normal((64, 16))
    logits[0][np.triu_indices(64, 1)] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    want = weights / weights.sum(axis=-1, keepdims=True) @ values
    clear = clear_rows(np.concatenate([logits, np.full((1, 64, 1), -np.inf)], axis=-1))
    wrong = {"NaN": want + np.where(np.arange(64) == 9, np.nan, 0)[None, :, None], "zeros": want * 0, "neighbour": np.roll(want, 1, axis=1)}
    said = {name: judge(out, want, clear)["ok"] for name, out in wrong.items()}
    close = np.array([[[5e9, 5e9 - 1, 0.0]]])
    ok = judge(want, want, clear)["ok"] and clear.sum() > 50 and not any(said.values()) and not clear_rows(close).any()
    print("ok" if ok else f"FAIL: {said}, {int(clear.sum())} rows judged")
    return 0 if ok else 1


def run(args: argparse.Namespace) -> int:
    import quire
    import torch

    ways = ({"kernel": args.kernel}, {"kernel": args.kernel, "exact_weights": True}) if args.kernel else ({}, {"exact_weights": True})
    cases = [(t, d, s, how) for t in (torch.bfloat16, torch.float16) for d in (64, 128, 256) for s in LOG2_SCALES for how in ways]
    results = [huge(torch, quire, t, d, s, **how) for t, d, s, how in cases]
    wrong = [r for r in results if not r["ok"]]
    print(f"{len(results)} cases, {len(wrong)} wrong", *wrong[:5], sep="\n")
    if args.long:
        results += [long(torch, quire, rows, **how) for rows, how in ((100, ways[0]), (100, ways[1]), (1, ways[0]))]
    report = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "commit": args.commit, "tolerance": TOLERANCE, "results": results}
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="the planned one by default")
    parser.add_argument("--out", type=Path, default=Path("huge_logits.json"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    return self_test() if args.self_test else run(args)


if __name__ == "__main__":
    sys.exit(main())
