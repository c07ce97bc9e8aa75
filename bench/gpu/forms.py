#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Valid calls in all forms that engines have, beside softmax in f32 by torch: each tensor strided, this step's rows beside the cache, every
group from 1 to 16, planned with and without bounds, called plainly and bound. Asks for what a launch decides that a plan did not know.

usage: forms.py [--device cuda|cpu] [--rounds N] [--shapes N] [--seed N] [--kernel NAME]

A round is one batch for each head_dim, number of KV heads and group, or for N of these shapes, in every form. What no row sees is NaN or a wild page. Prints
"N calls, M bad" and how many of the bad calls share each form, size and message. Exit 1 if there are any.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

import quire

DIMS, KV_HEADS, GROUPS, PAGES = (64, 128, 256, 96), (1, 2, 4, 8), range(1, 17), (16, 64, 128)
WAYS = ("attend", "attend, planned", "attend, bounds", "bound, bounds")
FORMS: list[dict[str, str]] = [
    {}, {"starts": "step"}, {"lens": "step"}, {"starts": "step", "lens": "step"}, {"indices": "int64"}, {"table": "columns"}, {"table": "rows"},
    {"query": "qkv"}, {"query": "odd"}, {"query": "dims"}, {"cache": "pages"}, {"cache": "rows"}, {"cache": "dims"}, {"cache": "heads"},
    {"cache": "hnd"}, {"cache": "odd"}, {"output": "qkv"}, {"output": "odd"}, {"fresh": "all"}, {"fresh": "half"},
    {"fresh": "all", "rows": "qkv"}, {"fresh": "all", "rows": "odd"}, {"fresh": "half", "cached": "step"}, {"fresh": "half", "indices": "int64"},
]  # fmt: skip
# Largest error over the largest expected value or 1. Rounded weights and outputs of bf16 are off by 2^-8 each, of up to 4.6 (huge_logits.py).
TOLERANCE = 2 * 2**-8 * 4.6
MOST_FLOATS = 1 << 25  # floats of an oracle's scores, keys or values: 128 MiB


@dataclass
class Data:
    """One batch in f32, with values that the type has, and what it must give. q [tokens, heads, dim]; k, v [requests, keys, KV heads, dim]."""

    dtype: torch.dtype
    stored: torch.dtype  # element type of the cache
    page: int
    query_lens: list[int]
    seq_lens: list[int]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    want: torch.Tensor

    @property
    def starts(self) -> list[int]:
        return [0, *itertools.accumulate(self.query_lens)]


def oracle(q: Any, k: Any, v: Any, query_lens: list[int], seq_lens: list[int]) -> torch.Tensor:
    device, group = q.device, q.shape[1] // k.shape[2]
    requests, keys, kv_heads, dim = k.shape
    lens = torch.tensor([query_lens, seq_lens], device=device)
    place = torch.arange(max(query_lens), device=device)[None] < lens[0, :, None]
    rows = torch.zeros(requests, max(query_lens), kv_heads, group, dim, device=device)
    rows[place] = q.view(-1, kv_heads, group, dim)
    scores = torch.einsum("bqhgd,bkhd->bhgqk", rows, k) * dim**-0.5
    last = (lens[1] - lens[0])[:, None] + torch.arange(rows.shape[1], device=device)  # a row's own position
    scores.masked_fill_((torch.arange(keys, device=device) > last[..., None])[:, None, None], -torch.inf)
    return torch.einsum("bhgqk,bkhd->bqhgd", scores.softmax(-1), v)[place].reshape(q.shape)


def lengths(pick: random.Random, kv_heads: int, group: int, dim: int) -> tuple[list[int], list[int]]:
    """Query and sequence lengths, as many as an oracle holds."""
    requests = pick.choice((1, 1, 1, 2, 3, 4, 7, 16, 33, 64, 65, 132, 300))
    context = pick.choice((0, 1, 15, 34, 63, 64, 151, 700, 1023, 2100, 5000, 9000))
    kind = pick.choice(("one", "one", "one", "some", "few", "long"))
    query = [{"one": 1, "some": pick.randint(0, 1), "few": pick.randint(1, 5), "long": 1}[kind] for _ in range(requests)]
    query[-1] = pick.randint(20, 200) if kind == "long" else query[-1] or 1
    per_key = requests * kv_heads * max(dim, group * max(query))
    context = min(context, MOST_FLOATS // per_key)
    even = pick.random() < 0.5
    return query, [n + (context if even else pick.randint(0, context)) for n in query]


def new_data(pick: random.Random, device: str, dim: int, kv_heads: int, group: int) -> Data:
    query_lens, seq_lens = lengths(pick, kv_heads, group, dim)
    dtype = pick.choice((torch.float16, torch.bfloat16))
    stored = pick.choice((dtype, dtype, dtype, torch.float8_e4m3fn))
    made = torch.Generator(device=device).manual_seed(pick.randrange(1 << 30))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made, device=device)

    tokens, shape = sum(query_lens), (len(seq_lens), max(seq_lens), kv_heads, dim)
    q = (3 * normal(tokens, kv_heads * group, dim)).to(dtype).float()  # few keys count
    k, v = (normal(*shape).to(stored).float() for _ in range(2))
    return Data(dtype, stored, pick.choice(PAGES), query_lens, seq_lens, q, k, v, oracle(q, k, v, query_lens, seq_lens))


def paged(data: Data, x: torch.Tensor, table: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
    """The rows of a cache [pages, page, KV heads, dim]; NaN where nothing is cached."""
    keys = torch.arange(table.shape[1] * data.page, device=x.device)
    padded = torch.full((x.shape[0], len(keys), *x.shape[2:]), torch.nan, device=x.device, dtype=data.dtype)
    padded[:, : x.shape[1]] = x.to(data.dtype)
    padded[keys[None] >= cached[:, None]] = torch.nan
    pages = torch.full((int(table.max()) + 2, data.page, *x.shape[2:]), torch.nan, device=x.device, dtype=data.dtype)
    pages[table.flatten().long()] = padded.view(-1, data.page, *x.shape[2:])
    return pages.to(data.stored)


def strided(x: torch.Tensor, how: str | None) -> torch.Tensor:
    """A view with the values of x; NaN, or wild numbers, between them."""
    if how is None:
        return x
    wild = torch.nan if x.is_floating_point() else 1 << 30
    if how in ("step", "columns", "dims"):  # every second of the last axis
        base = torch.full((*x.shape[:-1], 2 * x.shape[-1]), wild, device=x.device, dtype=x.dtype)[..., ::2]
    elif how == "odd":  # data begin one element behind an address of 16 bytes
        base = torch.full((x.numel() + 1,), wild, device=x.device, dtype=x.dtype)[1:].view(x.shape)
    else:  # "rows", "qkv": part of longer rows
        base = torch.full((x.shape[0], x.shape[1] + 5, *x.shape[2:]), wild, device=x.device, dtype=x.dtype)[:, 3 : 3 + x.shape[1]]
    base.copy_(x)
    return base


def cache_of(k: torch.Tensor, v: torch.Tensor, how: str | None) -> Any:
    if how == "hnd":
        return quire.KVCache(*(x.transpose(1, 2).contiguous() for x in (k, v)), "hnd")
    if how == "heads":  # stored as hnd, shown as nhd
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    elif how == "odd":
        k, v = strided(k, how), strided(v, how)
    elif how == "dims":
        k, v = torch.cat((k, v), -1).split(k.shape[-1], -1)
    elif how is not None:
        k, v = torch.stack((k, v), {"pages": 1, "rows": 2}[how]).unbind({"pages": 1, "rows": 2}[how])
    return quire.KVCache(k, v)


class Call:
    """One form of a batch."""

    def __init__(self, data: Data, form: dict[str, str], pick: random.Random) -> None:
        device = data.q.device
        index = torch.int64 if form.get("indices") == "int64" else torch.int32
        seq = torch.tensor(data.seq_lens, device=device)
        cached = seq.clone()
        if "fresh" in form:
            step = [n if form["fresh"] == "all" or i % 2 == 0 else 0 for i, n in enumerate(data.query_lens)]
            cached -= torch.tensor(step, device=device)
        columns = -(-max(data.seq_lens) // data.page)
        made = torch.Generator(device=device).manual_seed(pick.randrange(1 << 30))
        table = torch.randperm(len(seq) * columns, generator=made, device=device).view(len(seq), columns)
        k, v = (paged(data, x, table, cached) for x in (data.k, data.v))
        table[torch.arange(columns, device=device)[None] * data.page >= cached[:, None]] = 1 << 30  # an entry that names no page
        more: dict[str, Any] = {}
        if "fresh" in form:
            rows = [(r, data.seq_lens[r] - n + i) for r, n in enumerate(data.query_lens) for i in range(n)]
            at = torch.tensor(rows, device=device)
            more = {name: strided(x[at[:, 0], at[:, 1]].to(data.dtype), form.get("rows")) for name, x in (("key", data.k), ("value", data.v))}
            more["cached_lens"] = strided(cached.to(index), form.get("cached"))
        self.want = data.want
        self.out = strided(torch.full_like(data.q, torch.nan, dtype=data.dtype), form.get("output"))
        self.cache = cache_of(k, v, form.get("cache"))
        self.bounds = {"max_query_len": max(data.query_lens), "max_seq_len": max(data.seq_lens)}
        starts = torch.tensor(data.starts, device=device)
        names = {"query_start_loc": (starts, "starts"), "seq_lens": (seq, "lens"), "block_table": (table, "table")}
        more |= {name: strided(x.to(index), form.get(axis)) for name, (x, axis) in names.items()}
        self.batch = quire.Batch(query=strided(data.q.to(data.dtype), form.get("query")), output=self.out, **more)

    def run(self, way: str, kernel: str | None) -> None:
        """Enqueues the call; the plain one waits."""
        if way == "attend" and kernel is None:
            quire.attend(self.batch, self.cache)
            return
        plan = quire.plan(self.batch, self.cache, kernel=kernel, **(self.bounds if "bounds" in way else {}))
        if way.startswith("bound"):
            b = self.batch
            fresh = {} if b.key is None else {"key": b.key, "value": b.value}
            quire.bind(b, self.cache, plan=plan)(b.query, self.cache.k, self.cache.v, self.out, **fresh)
        else:
            wait = {} if self.out.is_cuda is False else {"wait": False}
            quire.attend(self.batch, self.cache, plan=plan, **wait)

    def error(self) -> torch.Tensor:
        """On the device. Rows that nobody wrote are NaN."""
        return (self.out.float() - self.want).abs().max() / self.want.abs().max().clamp(min=1)


Failures = list[tuple[dict[str, str], str]]


def ask(call: Call, way: str, kernel: str | None) -> str:
    """What an exception says, or nothing. A call may be told of a failure before it, whose own rows are NaN: it is asked again."""
    message = ""
    for _ in range(2):
        try:
            call.run(way, kernel)
            return ""
        except Exception as error:  # noqa: BLE001
            message = f"{type(error).__name__}: {error}"[:110]
    return message


def ask_batch(data: Data, what: dict[str, str], pick: random.Random, kernel: str | None, bad: Failures) -> int:
    forms = FORMS + [dict(itertools.chain.from_iterable(f.items() for f in pick.sample(FORMS, 3))) for _ in range(4)]
    asked = []
    for form in forms:
        if form.keys() & {"rows", "cached"} and "fresh" not in form:
            form = {**form, "fresh": "all"}
        way = pick.choice(WAYS)
        facts = {**what, "form": ", ".join(f"{a} {b}" for a, b in sorted(form.items())) or "plain", "way": way}
        call = Call(data, form, pick)
        message = ask(call, way, kernel)
        if message:
            bad.append((facts, message))
        asked.append((facts, call.error(), message))
    errors = torch.stack([error for _, error, _ in asked]).tolist()  # waits for all
    for (facts, _, message), error in zip(asked, errors, strict=True):
        if not message and not error < TOLERANCE:
            bad.append((facts, "rows that nobody wrote, or NaN" if error != error else f"error {error:.2g}"))
    return len(forms)


def ask_without_rows(device: str, kernel: str | None, bad: Failures) -> int:
    """Batches of no rows, planned for requests of up to 200."""
    cases = list(itertools.product((64, 128, 256, 512), ({}, {"attention_chunk": 100}, {"causal": False})))
    for dim, options in cases:
        q, k, v = (torch.ones(shape, device=device, dtype=torch.bfloat16) for shape in ((0, 8, dim), (2, 16, 2, dim), (2, 16, 2, dim)))
        one, table = torch.ones(1, device=device, dtype=torch.int32), torch.zeros(1, 2, device=device, dtype=torch.int32)
        batch = quire.Batch(query=q, query_start_loc=torch.zeros(2, device=device, dtype=torch.int32), seq_lens=20 * one, block_table=table)
        cache, chosen = quire.KVCache(k, v), quire.Options(**options)
        try:
            plan = quire.plan(batch, cache, chosen, kernel=kernel, max_query_len=200, max_seq_len=900)
            quire.attend(batch, cache, chosen, plan=plan)
        except Exception as error:  # noqa: BLE001
            bad.append(({"dim": f"{dim}", "form": f"no rows, {options}"}, f"{type(error).__name__}: {error}"[:110]))
    return len(cases)


def report(calls: int, bad: Failures, seconds: float) -> None:
    print(f"{calls} calls, {len(bad)} bad; {seconds:.0f} s")
    for message, count in collections.Counter(m for _, m in bad).most_common(12):
        print(f"\n{count} x {message}")
        mine = [facts for facts, m in bad if m == message]
        for name in mine[0]:
            shared = collections.Counter(facts.get(name, "") for facts in mine).most_common(8)
            print(f"  {name}:", *(f"{value} ({n})" for value, n in shared), sep="  ")


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shapes", type=int, default=len(DIMS) * len(KV_HEADS) * len(GROUPS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", help="the planned one by default")
    args = parser.parse_args()
    pick, calls, begin = random.Random(args.seed), 0, time.monotonic()
    bad: Failures = []
    shapes = list(itertools.product(DIMS, KV_HEADS, GROUPS))
    for dim, kv_heads, group in (shape for _ in range(args.rounds) for shape in pick.sample(shapes, args.shapes)):
        data = new_data(pick, args.device, dim, kv_heads, group)
        sizes = (dim, f"{kv_heads * group}:{kv_heads}", group, f"{data.dtype} over {data.stored}", len(data.seq_lens), max(data.query_lens), max(data.seq_lens), data.page)
        what = dict(zip(("dim", "heads", "group", "type", "requests", "rows", "keys", "page"), map(str, sizes), strict=True))
        calls += ask_batch(data, what, pick, args.kernel, bad)
    calls += ask_without_rows(args.device, args.kernel, bad)
    report(calls, bad, time.monotonic() - begin)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
