#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks GPU kernels for softmax whose logits are huge, and for sequences of 2^31 - 1 keys, beside softmax in fp64. Writes one JSON.

usage: huge_logits.py [--kernel NAME|all] [--role WORD] [--out FILE] [--commit TEXT] [--long]
       huge_logits.py --self-test    what the judge notices; needs no GPU

A kernel that multiplies a dot product by the scale and subtracts the rounded maximum in one operation is off by half a unit of that
maximum: from logits of 2^31 on weights become infinite, or all of them 0. Rows are judged whose softmax f32 can tell: one key is ahead of
all others by more than logits can be off, or logits are off by less than 0.001. They may differ by the rounding of weights and outputs.

Without --kernel every role of the planned kernels is asked (ROLES: those of cuda_sm90 and cuda_sm90_mla on a Hopper GPU), and prompts with
exact weights. --kernel NAME: prompts and decode rows by that kernel; all: by cuda_mma and cuda_generic, too. --role: roles with that word.

--long: sequences of 2147483647 keys, all pages of which are one page in memory. Such a call has to end. Its error is written down and not
judged: tensor cores cut sums off, by up to n 2^-24 after n products.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

KEYS, PAGE = 512, 64
LOG2_SCALES = (-4, 12, 16, 18, 20, 22, 26, 30, 40, 60)
# Unit roundoff of bf16 is 2^-8: once for a weight, once for an output, of the largest of some 260000 values of N(0,1).
TOLERANCE = 2 * 2**-8 * 4.6
DOT_ERROR = 2.0**-17  # error of a logit over its size: f32 sums of up to 576 products, cut off after every 16


@dataclass(frozen=True)
class Role:
    """A kernel's code for one sort of calls: what a call is made of to get there."""

    name: str
    dims: tuple[tuple[int, int], ...] = ((64, 64), (128, 128), (256, 256))  # head_dims of K and of V
    rows: int = KEYS  # rows of a request, whose keys are these rows and those before; as many keys as KEYS, or as rows
    requests: int = 1
    heads: tuple[int, int] = (8, 2)
    layout: str = "nhd"
    codes: bool = False  # a cache of fp8_e4m3fn
    chunk: int | None = None
    kernel: str | None = None
    exact: bool = False


PROMPT, DECODE = Role("prompt"), Role("decode rows", rows=1, requests=100)
ROLES = (
    replace(PROMPT, name="prefill"),
    Role("prefill, tall tiles", ((64, 64),), rows=1700, heads=(64, 8)),
    Role("prefill, packed", layout="packed"),
    Role("prefill, codes", codes=True),
    Role("prefill, packed codes", layout="packed", codes=True),
    Role("prefill, wide", ((192, 128), (512, 512))),
    Role("prefill, masks", ((64, 64), (128, 128), (192, 128), (256, 256), (512, 512)), chunk=100),
    replace(PROMPT, name="exact weights", exact=True),
    replace(DECODE, name="decode", layout="hnd"),
    replace(DECODE, name="decode, head pairs", dims=((64, 64),)),
    replace(DECODE, name="decode, wide tiles", heads=(32, 2)),
    replace(DECODE, name="decode, packed", layout="packed"),
    replace(DECODE, name="decode, codes", codes=True),
    replace(DECODE, name="cluster", dims=((64, 64), (128, 128)), requests=16),
    replace(DECODE, name="cluster, codes", dims=((64, 64), (128, 128)), requests=16, codes=True),
    Role("mla", ((576, 512),), rows=1, requests=40, heads=(16, 1)),
)


def roles_of(kernel: str | None) -> list[Role]:
    if kernel == "all":
        return [*ROLES, *roles_of("cuda_mma"), *roles_of("cuda_generic")]
    if kernel is None:
        return list(ROLES)
    shapes = (PROMPT, replace(PROMPT, name="prompt, exact weights", exact=True), DECODE)
    return [replace(r, name=f"{kernel}, {r.name}", kernel=kernel) for r in shapes]


def clear_rows(first: np.ndarray, second: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Rows whose softmax f32 can tell, by the two largest logits of each and the largest in size."""
    off_by = largest * DOT_ERROR
    return (first - second > 20 + 2 * off_by) | (off_by < 1e-3)


def judge(out: np.ndarray, want: np.ndarray, clear: np.ndarray) -> dict[str, Any]:
    """out, want [..., rows, dim]; clear [..., rows]."""
    off = np.abs(out - want).max(axis=-1)[clear]
    finite = bool(np.isfinite(out).all())
    worst = float(np.nan_to_num(off, nan=1e9, posinf=1e9).max(initial=0))
    return {"rows": int(clear.sum()), "left_out": int((~clear).sum()), "finite": finite, "worst_error": worst, "ok": finite and worst < TOLERANCE}


def call(torch: Any, quire: Any, q: Any, caches: tuple[Any, ...], lens: list[int], table: Any, options: dict[str, Any], **how: Any) -> tuple[Any, str]:
    """The output of requests of equally many rows, poisoned before, and the plan. caches: K, V and their layout."""
    k, v, layout = caches
    dim = v.shape[2] if layout == "packed" else v.shape[-1]
    out = torch.full((*q.shape[:2], dim), float("nan"), device="cuda", dtype=q.dtype)
    rows = len(q) // len(lens)
    starts = torch.arange(0, len(q) + 1, rows, device="cuda", dtype=torch.int32)
    batch = quire.Batch(query=q, output=out, query_start_loc=starts, seq_lens=torch.tensor(lens, device="cuda", dtype=torch.int32), block_table=table)
    cache, chosen = quire.KVCache(k, v, layout), quire.Options(**options)
    plan = quire.plan(batch, cache, chosen, max_query_len=rows, max_seq_len=max(lens), **how)
    quire.bind(batch, cache, chosen, plan=plan)(q, k, v, out)
    torch.cuda.synchronize()
    return out, str(plan)


def packed(x: Any, keys: bool) -> Any:
    """[pages, page, heads, dim] in the packed layout."""
    if not keys:
        return x.permute(0, 2, 3, 1).contiguous()
    pages, page, heads, dim = x.shape
    n = 16 // x.element_size()
    return x.view(pages, page, heads, dim // n, n).permute(0, 2, 3, 1, 4).contiguous()


def fp64_logits(torch: Any, role: Role, q: Any, k: Any, scale: float) -> Any:
    """[requests, heads, rows, keys], -inf where a row does not see a key. k [keys, heads, dim]."""
    logits = torch.einsum("rqhd,khd->rhqk", q.double(), k) * scale
    keys = torch.arange(len(k), device="cuda")
    rows = keys[-role.rows :, None]
    hidden = keys > rows
    if role.chunk is not None:
        hidden = hidden | (keys // role.chunk != rows // role.chunk)
    return logits.masked_fill_(hidden, -torch.inf)


def huge(torch: Any, quire: Any, role: Role, dtype: Any, dims: tuple[int, int], log2_scale: int) -> dict[str, Any]:
    random = torch.Generator(device="cuda").manual_seed(dims[0] + log2_scale)
    heads, kv_heads = role.heads
    pages = -(-max(KEYS, role.rows) // PAGE)
    keys = max(KEYS, role.rows)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device="cuda").to(dtype)

    q = normal(role.requests * role.rows, heads, dims[0])
    k, v = (normal(pages, PAGE, kv_heads, d) for d in dims)
    if role.codes:
        k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
    v = k[..., : dims[1]] if dims == (576, 512) else v
    stored = {"nhd": (k, v), "hnd": (k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()) if role.layout == "hnd" else None,
              "packed": (packed(k, True), packed(v, False)) if role.layout == "packed" else None}[role.layout]  # fmt: skip
    order = torch.randperm(pages, generator=random, device="cuda").int()
    options = {"softmax_scale": 2.0**log2_scale, **({} if role.chunk is None else {"attention_chunk": role.chunk})}
    how = {"kernel": role.kernel, "exact_weights": role.exact}
    out, plan = call(torch, quire, q, (*stored, role.layout), [keys] * role.requests, order.repeat(role.requests, 1), options, **how)
    all_keys, values = (x[order.long()].flatten(0, 1)[:keys].float().double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    logits = fp64_logits(torch, role, q.view(role.requests, role.rows, heads, -1), all_keys, 2.0**log2_scale)
    top = logits.topk(2).values
    largest = torch.where(logits.isinf(), 0, logits.abs()).amax(-1)
    clear = clear_rows(*(x.cpu().numpy() for x in (top[..., 0], top[..., 1], largest)))
    want = torch.einsum("rhqk,khd->rhqd", logits.sub_(top[..., :1]).softmax(-1), values)
    got = out.double().view(role.requests, role.rows, heads, -1).transpose(1, 2)
    verdict = judge(got.cpu().numpy(), want.cpu().numpy(), clear)
    return {"case": "huge logits", "role": role.name, "plan": plan, "dtype": str(dtype), "d": dims[0], "log2_scale": log2_scale, **verdict}


def long(torch: Any, quire: Any, rows: int, **how: Any) -> dict[str, Any]:
    dim, heads, page, keys = 64, 4, 1 << 20, 2**31 - 1
    random = torch.Generator(device="cuda").manual_seed(3)
    k = torch.randn((1, page, 1, dim), generator=random, device="cuda").bfloat16()
    v = (torch.randn((1, page, 1, dim), generator=random, device="cuda") + 1).bfloat16()
    q = torch.randn((rows, heads, dim), generator=random, device="cuda").bfloat16()
    table = torch.zeros((1, -(-keys // page)), device="cuda", dtype=torch.int32)
    out, _ = call(torch, quire, q, (k, v, "nhd"), [keys], table, {"softmax_scale": dim**-0.5}, **how)
    weights = (torch.einsum("qhd,kd->qhk", q.double(), k[0, :, 0].double()) * dim**-0.5).softmax(-1)
    off = (out.double() - torch.einsum("qhk,kd->qhd", weights, v[0, :, 0].double())).abs().max()
    return {"case": f"{keys} keys", "d": dim, "rows": rows, "how": str(how), "worst_error": float(off)}


def self_test() -> int:
    random = np.random.default_rng(1)
    logits, values = random.standard_normal((1, 64, 64)) * 1e9, random.standard_normal((64, 16))
    logits[0][np.triu_indices(64, 1)] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    want = weights / weights.sum(axis=-1, keepdims=True) @ values
    top = np.sort(np.concatenate([logits, np.full((1, 64, 1), -np.inf)], axis=-1))
    clear = clear_rows(top[..., -1], top[..., -2], np.where(np.isinf(logits), 0, np.abs(logits)).max(axis=-1))
    wrong = {"NaN": want + np.where(np.arange(64) == 9, np.nan, 0)[None, :, None], "zeros": want * 0, "neighbour": np.roll(want, 1, axis=1)}
    said = {name: judge(out, want, clear)["ok"] for name, out in wrong.items()}
    close = clear_rows(*(np.array([[x]]) for x in (5e9, 5e9 - 1, 5e9)))
    ok = judge(want, want, clear)["ok"] and clear.sum() > 50 and not any(said.values()) and not close.any()
    print("ok" if ok else f"FAIL: {said}, {int(clear.sum())} rows judged")
    return 0 if ok else 1


def summary_of_role(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What all cases of a role have in common, and the plan of the first. Cases that are wrong stand in the file one by one."""
    mine = [r for r in results if r["role"] == name]
    worst = max(r["worst_error"] for r in mine)
    return {"role": name, "cases": len(mine), "wrong": sum(not r["ok"] for r in mine), "rows": sum(r["rows"] for r in mine),
            "worst_error": worst, "plan": mine[0]["plan"]}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    import quire
    import torch

    roles = [r for r in roles_of(args.kernel) if args.role in r.name]
    cases = [(r, t, d, s) for r in roles for t in (torch.bfloat16, torch.float16) for d in r.dims for s in LOG2_SCALES]
    results = [huge(torch, quire, *case) for case in cases]
    asked = [summary_of_role(role.name, results) for role in roles]
    unjudged = [role["role"] for role in asked if role["rows"] == 0]
    wrong = [r for r in results if not r["ok"]]
    for role in asked:
        print("{role}: {cases} cases, {wrong} wrong; {plan}".format(**role), *[r for r in wrong if r["role"] == role["role"]][:3], sep="\n  ")
    print(f"{len(results)} cases, {len(wrong)} wrong", *[f"{name}: no row was judged" for name in unjudged], sep="\n")
    results = list(wrong)
    if args.long:
        forced = {} if args.kernel in (None, "all") else {"kernel": args.kernel}
        ways = (forced, {**forced, "exact_weights": True})
        results += [long(torch, quire, rows, **how) for rows, how in ((100, ways[0]), (100, ways[1]), (1, ways[0]))]
    report = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "commit": args.commit,
              "tolerance": TOLERANCE, "roles": asked, "results": results}  # fmt: skip
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong or unjudged else 0


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="the planned ones by default; all: cuda_mma and cuda_generic, too")
    parser.add_argument("--role", default="", help="roles with this word in their names")
    parser.add_argument("--out", type=Path, default=Path("huge_logits.json"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if not any(args.role in role.name for role in roles_of(args.kernel)):
        parser.error(f"--role {args.role}: no role has this word in its name")
    return self_test() if args.self_test else run(args)


if __name__ == "__main__":
    sys.exit(main())
