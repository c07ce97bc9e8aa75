# SPDX-License-Identifier: Apache-2.0
"""Makes random batches: mixed decode and chunked prefill, RoPE'd keys with outlier channels, GQA, many types and options."""
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from attention import View
from conditions import Cells

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "fp8_e4m3fn": ml_dtypes.float8_e4m3fn}
LARGEST = {"fp8_e4m3fn": 448.0}

# Geometries: name, query heads, KV heads, head_dim, page_size, layout, query types, cache types, options, RoPE (base, style).
GEOMETRIES = [
    ("llama", 8, 2, 128, 16, "nhd", ("bf16", "f16"), ("same",), {}, (500000.0, "neox")),
    ("glm", 16, 2, 128, 7, "nhd", ("bf16", "f16"), ("same",), {}, (10000.0, "interleaved")),
    ("gemma2", 8, 4, 96, 16, "hnd", ("bf16", "f16"), ("same",), {"cap": (3.0, 20.0), "window": (40, 500)}, (10000.0, "neox")),
    ("mpt", 8, 8, 64, 32, "packed", ("f16",), ("same",), {"alibi": 1}, None),
    ("falcon-mqa", 8, 1, 64, 32, "nhd", ("bf16", "f16"), ("same",), {}, (10000.0, "neox")),
    ("llama-fp8", 8, 2, 128, 16, "nhd", ("bf16", "f16"), ("fp8_e4m3fn",), {"scales": 1}, (500000.0, "neox")),
    ("gptj", 4, 4, 80, 24, "hnd", ("f32",), ("same",), {}, (10000.0, "interleaved")),
    ("f32-gqa", 8, 2, 64, 16, "nhd", ("f32",), ("same",), {"window": (0, 500)}, (10000.0, "neox")),
    ("mistral-fp8", 16, 2, 128, 32, "packed", ("f16", "bf16"), ("fp8_e4m3fn",), {"scales": 1, "window": (60, 700)}, (10000.0, "neox")),
    ("big", 32, 4, 64, 64, "nhd", ("bf16",), ("same",), {}, (500000.0, "neox")),
    ("bloom-mqa", 8, 1, 128, 16, "nhd", ("bf16", "f16"), ("same",), {"alibi": 1}, None),
    ("everything", 12, 3, 80, 20, "hnd", ("f16", "f32"), ("fp8_e4m3fn",), {"scales": 1, "cap": (5.0, 30.0), "alibi": 1, "sinks": 1}, None),
    ("gpt-oss", 16, 2, 64, 16, "nhd", ("bf16",), ("same",), {"sinks": 1, "window": (32, 200)}, (10000.0, "neox")),
    ("sinks", 8, 4, 96, 11, "hnd", ("f16", "f32"), ("same",), {"sinks": 1}, (500000.0, "neox")),
    ("starcoder-mqa", 8, 1, 128, 48, "nhd", ("f16", "f32"), ("same",), {"window": (0, 300)}, (10000.0, "neox")),
]
ELEMENTS = 1_600_000    # most elements of K, and of V, in a capture


@dataclass
class Batch:
    """One capture's inputs; caches are held as [pages, page_size, kv_heads, head_dim] whatever the layout is."""
    geometry: str
    layout: str
    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: np.ndarray
    window: int | None = None
    cap: float | None = None
    slopes: np.ndarray | None = None
    sinks: np.ndarray | None = None
    k_scale: np.ndarray | None = None
    v_scale: np.ndarray | None = None
    softmax_scale: float | None = None
    rope: tuple | None = None
    cached_lens: np.ndarray | None = None
    new_k: np.ndarray | None = None
    new_v: np.ndarray | None = None
    before: np.ndarray | None = None
    with_lse: bool = False
    weight_type: type = None    # the numerics profile of the kernel that is imitated
    tile: int = 64
    splits: int = 1

    def __post_init__(self):
        self.gathered = {}
        self.num_tokens, self.num_heads, self.dim = self.q.shape
        self.num_pages, self.page_size, self.num_kv_heads, _ = self.k_cache.shape
        self.num_requests = len(self.seq_lens)
        self.group = self.num_heads // self.num_kv_heads
        self.query_lens = np.diff(self.query_start_loc)
        self.context_lens = self.seq_lens - self.query_lens
        self.cells = Cells(self.query_start_loc, self.seq_lens, self.block_table, self.page_size, self.window,
                           self.num_heads, self.num_kv_heads)

    def rows(self, r):
        return slice(int(self.query_start_loc[r]), int(self.query_start_loc[r + 1]))

    def pages_of(self, r):
        return self.block_table[r, :-(-int(self.cached_len(r)) // self.page_size)]

    def cached_len(self, r):
        return int(self.seq_lens[r] if self.cached_lens is None else self.cached_lens[r])

    def dequantise(self, cache, scale, dtype):
        x = cache.astype(np.float32).astype(dtype)
        return x if scale is None else x * np.broadcast_to(np.asarray(scale, dtype), self.num_kv_heads)[:, None]

    def slots(self, cache, pages, length):
        """Gathers the first tokens of a list of pages, as stored."""
        return cache[pages].reshape(-1, self.num_kv_heads, self.dim)[:length]

    def gather(self, r, dtype=np.float32, pages=None):
        """Gives K and V of request r, dequantised, [seq_len, kv_heads, head_dim]."""
        pages, cached = self.pages_of(r) if pages is None else pages, self.cached_len(r)
        k = self.dequantise(self.slots(self.k_cache, pages, cached), self.k_scale, dtype)
        v = self.dequantise(self.slots(self.v_cache, pages, cached), self.v_scale, dtype)
        if cached < self.seq_lens[r]:
            new = slice(int(self.query_start_loc[r] + cached - self.context_lens[r]), int(self.query_start_loc[r + 1]))
            k = np.concatenate([k, self.new_k[new].astype(dtype)])
            v = np.concatenate([v, self.new_v[new].astype(dtype)])
        return k, v

    def scale(self):
        return self.dim ** -0.5 if self.softmax_scale is None else self.softmax_scale

    def own(self, r, dtype):
        """Gives K and V of request r, gathered once; nobody may write to them."""
        if (r, dtype) not in self.gathered:
            self.gathered[r, dtype] = self.gather(r, dtype)
            for x in self.gathered[r, dtype]:
                x.setflags(write=False)
        return self.gathered[r, dtype]

    def view(self, r, dtype=np.float32):
        k, v = self.own(r, dtype)
        heads = np.arange(self.num_heads)
        return View(
            request=r, q=self.q[self.rows(r)].astype(dtype), k=k, v=v,
            q_pos=np.arange(self.context_lens[r], self.seq_lens[r]), k_pos=np.arange(len(k)), kv_head=heads // self.group,
            scale=np.full(self.num_heads, np.float64(np.float32(self.scale()))), cap=self.cap or np.inf,
            slope=np.zeros(self.num_heads) if self.slopes is None else self.slopes.astype(np.float64),
            sink=np.full(self.num_heads, -np.inf) if self.sinks is None else self.sinks.astype(np.float64),
            window=self.window, tile=self.tile, splits=self.splits, weight_type=self.weight_type)


def rotate(x, positions, rope, sign=1.0):
    """Rotates [tokens, heads, D] by RoPE to these positions, or back with sign -1."""
    base, style = rope
    half = x.shape[-1] // 2
    angle = sign * np.asarray(positions, np.float64)[:, None] * base ** (-np.arange(half) / half)[None, :]
    cos, sin = (f(angle).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    out = np.empty(x.shape, np.float32)
    a, b = (slice(0, half), slice(half, None)) if style == "neox" else (slice(0, None, 2), slice(1, None, 2))
    out[..., a], out[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
    return out


def lengths(draw, budget, geometry):
    """Draws query and context lengths of 5 to 20 requests, decode and chunks mixed, context from 1 to thousands of tokens."""
    count, rows_left = draw.integer(5, 20), 320 if geometry != "big" else 120
    query, context = [], []
    for i in range(count):
        kind = draw.rng.random()
        q = 1 if kind < 0.55 else draw.integer(2, 6) if kind < 0.68 else draw.log_integer(8, 130)
        # Every batch has decode rows and at least one chunk.
        q = 1 if i == 0 else draw.integer(16, 90) if i == 1 else q
        q = min(q, max(rows_left, 1))
        c = 0 if (q > 1 and draw.chance(0.25)) else draw.log_integer(1, 4000 if draw.chance(0.06) else 1800)
        c = min(c, max(budget - q, 1) if q == 1 else max(budget - q, 0))
        query.append(q)
        context.append(c)
        rows_left, budget = rows_left - q, budget - q - c
        if rows_left <= 0 or budget <= 64:
            break
    order = draw.rng.permutation(len(query))
    return np.array(query)[order], np.array(context)[order]


def keys_and_values(draw, tokens, heads, dim):
    """Draws K before RoPE, with a few channels far from zero as real keys have, and V near N(0,1)."""
    rng = draw.rng
    k = rng.standard_normal((tokens, heads, dim), dtype=np.float32)
    mean = np.zeros((heads, dim), np.float32)
    for h in range(heads):
        channels = rng.choice(dim, 4, replace=False)
        mean[h, channels] = rng.uniform(3, 8, 4) * rng.choice([-1, 1], 4)
    v = rng.standard_normal((tokens, heads, dim), dtype=np.float32) * rng.uniform(0.7, 1.4, (heads, 1)).astype(np.float32)
    return k + mean, v


def deal_pages(draw, seq, context, page_size):
    """Deals physical pages in random order; some requests share a prefix of full context pages."""
    need = -(-seq // page_size)
    num_pages = int(need.sum()) + draw.integer(2, 6)
    free = list(draw.rng.permutation(num_pages))
    table = [[free.pop() for _ in range(n)] for n in need]
    full = context // page_size
    if draw.chance(0.35):
        able = np.flatnonzero(full >= 1)
        if len(able) >= 2:
            members = draw.rng.permutation(able)[:max(2, len(able) // 2)]
            shared = int(min(full[members].min(), draw.integer(1, 6)))
            for r in members[1:]:
                table[r][:shared] = table[members[0]][:shared]
    return table, num_pages


def quantise(x, name, scale):
    x = x if scale is None else x / np.broadcast_to(np.asarray(scale, np.float32), x.shape[-2])[:, None]
    if name in LARGEST:
        x = np.clip(x, -LARGEST[name], LARGEST[name])
    return x.astype(TYPES[name])


def scales(draw, k, v, name):
    """Draws k_scale and v_scale: per tensor or per head, from the largest element as calibration does."""
    per_head = draw.chance(0.5)
    room = draw.choice([1.0, 0.5, 2.0])     # 2: calibration on other data, so that some elements saturate
    result = []
    for x in (k, v):
        amax = np.abs(x).max(axis=(0, 2))
        s = (amax if per_head else amax.max(keepdims=True)) / LARGEST[name] / room * draw.rng.uniform(0.8, 1.0, 1)
        s = s.astype(np.float32)
        result.append(s if per_head or draw.chance(0.5) else s.reshape(()))
    return result


def fill_pages(draw, batch_shape, table, seq, k, v, name):
    """Puts tokens in their pages; every slot that nobody may read holds poison: NaN, stale finite values or zero."""
    num_pages, page_size, heads, dim = batch_shape
    poison = draw.choice(["stale", "stale", "nan", "nan", "zero"])
    caches = []
    for x in (k, v):
        if poison == "stale":
            cache = quantise(draw.rng.standard_normal((num_pages * page_size, heads, dim), dtype=np.float32), name, None)
        else:
            cache = np.full((num_pages * page_size, heads, dim), {"nan": np.nan, "zero": 0}[poison], np.float32).astype(TYPES[name])
        begin = 0
        for pages, n in zip(table, seq):
            slot = (np.asarray(pages)[:, None] * page_size + np.arange(page_size)).reshape(-1)[:n]
            cache[slot] = x[begin:begin + n]
            begin += n
        caches.append(cache.reshape(batch_shape))
    return caches


def random_batch(draw, geometry=None):
    """Makes one batch of a geometry; a third of the geometries is held out."""
    name, heads, kv_heads, dim, page_size, layout, q_types, kv_types, options, rope = geometry or draw.choice(GEOMETRIES)
    q_type, kv_type = draw.any(q_types), draw.any(kv_types)
    kv_type = q_type if kv_type == "same" else kv_type
    budget = ELEMENTS // (kv_heads * dim)
    query, context = lengths(draw, budget, name)
    seq = query + context
    table, num_pages = deal_pages(draw, seq, context, page_size)
    k, v = keys_and_values(draw, int(seq.sum()), kv_heads, dim)
    positions = np.concatenate([np.arange(n) for n in seq])
    k = share_prefixes(k, table, seq, page_size)
    v = share_prefixes(v, table, seq, page_size)
    q = draw.rng.standard_normal((int(query.sum()), heads, dim), dtype=np.float32) * draw.rng.uniform(0.7, 1.6)
    if rope is not None:
        k = rotate(k, positions, rope)
        q = rotate(q, np.concatenate([np.arange(c, s) for c, s in zip(context, seq)]), rope)
    k_scale, v_scale = scales(draw, k, v, kv_type) if options.get("scales") else (None, None)
    new_k = new_v = cached_lens = None
    if kv_type == q_type and draw.chance(0.2):
        own = np.concatenate([np.arange(n) >= c for n, c in zip(seq, context)])
        new_k, new_v, cached_lens = k[own].astype(TYPES[q_type]), v[own].astype(TYPES[q_type]), context.copy()
    k_cache, v_cache = fill_pages(draw, (num_pages, page_size, kv_heads, dim), table, seq,
                                  quantise(k, kv_type, k_scale), quantise(v, kv_type, v_scale), kv_type)
    batch = Batch(
        geometry=name, layout=layout, q=q.astype(TYPES[q_type]), k_cache=k_cache, v_cache=v_cache,
        query_start_loc=np.concatenate([[0], np.cumsum(query)]).astype(np.int32), seq_lens=seq.astype(np.int32),
        block_table=table_tensor(draw, table, num_pages), k_scale=k_scale, v_scale=v_scale, rope=rope,
        cached_lens=None if cached_lens is None else cached_lens.astype(np.int32), new_k=new_k, new_v=new_v,
        with_lse=draw.chance(0.4), tile=draw.any([32, 64, 128, 256]), splits=draw.any([1, 2, 3, 4]),
        **random_options(draw, options, heads))
    if q_type != "f32" and draw.chance(0.1):
        batch.weight_type = TYPES[q_type]
    if draw.chance(0.5):
        batch.before = stale_output(draw, batch)
    return batch


def share_prefixes(x, table, seq, page_size):
    """Copies the content of shared pages from the first request that holds them."""
    begin = np.concatenate([[0], np.cumsum(seq)])
    owner = {}
    for r, pages in enumerate(table):
        for i, page in enumerate(pages):
            if page in owner:
                source, j = owner[page]
                assert i == j, "a shared page stands at one place in every request"
                a, b = begin[r] + i * page_size, begin[source] + j * page_size
                x[a:a + page_size] = x[b:b + page_size]
            owner.setdefault(page, (r, i))
    return x


def table_tensor(draw, table, num_pages):
    """Makes the block table; entries past the end are never read and hold a page, -1 or a number far outside."""
    width = max(len(pages) for pages in table) + draw.integer(1, 4)
    tail = draw.any(["page", "minus one", "far"])
    out = {"page": lambda s: draw.rng.integers(0, num_pages, s), "minus one": lambda s: np.full(s, -1),
           "far": lambda s: np.full(s, 2147480000)}[tail]((len(table), width)).astype(np.int32)
    for r, pages in enumerate(table):
        out[r, :len(pages)] = pages
    return out


def random_options(draw, options, heads):
    """Draws soft cap, window, slopes, sinks and sometimes a softmax_scale of its own."""
    out = {}
    if "window" in options:
        low, high = options["window"]
        window = draw.integer(low, high)
        out["window"] = window if window >= 8 else None
    if "cap" in options:
        out["cap"] = float(np.float32(round(draw.rng.uniform(*options["cap"]), 1)))
    if options.get("alibi"):
        out["slopes"] = (2.0 ** (-8.0 * (np.arange(heads) + 1) / heads)).astype(np.float32)
    if options.get("sinks"):
        out["sinks"] = (draw.rng.standard_normal(heads) * 1.5 + 2).astype(np.float32)
    if draw.chance(0.2):
        out["softmax_scale"] = float(np.float32(draw.rng.uniform(0.06, 0.16)))
    return out


def stale_output(draw, batch):
    """Makes what the output buffer held before the call: the previous layer's numbers, zeros or NaN."""
    kind = draw.any(["stale", "stale", "zeros", "nan"])
    if kind == "stale":
        size = draw.rng.uniform(0.05, 0.5)
        x = draw.rng.standard_normal(batch.q.shape, dtype=np.float32) * np.float32(size)
    else:
        x = np.full(batch.q.shape, {"zeros": 0.0, "nan": np.nan}[kind], np.float32)
    return x.astype(batch.q.dtype)
