# SPDX-License-Identifier: Apache-2.0
"""Random valid batches: make(seed) is one, with every field of docs/reference/fields.md now and then.

Only what some row sees is there: pages that no row needs have wild entries in the table, and slots, new rows and scales that no row sees
are NaN. Stages draw from generators of their own, so that leaving out a field (`without`) changes nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import oracle
from elements import EIGHT_BITS, FOUR_BITS, bits_type, draw, not_a_number
from views import Arena, Form

CACHE_TYPES = ("f16", "bf16", *EIGHT_BITS, "nvfp4", "mxfp4")
LAYOUTS = ("nhd", "hnd", "packed")
AXES = {"nhd": (0, 1, 2, 3), "hnd": (0, 2, 1, 3)}  # axes of [pages, page_size, heads, head_dim]
MOST_KEYS = 9000  # most keys that a batch's oracle looks at; rows of longer requests see none beyond
FAMILIES = (("any", 0.42), ("tuned", 0.26), ("masked", 0.12), ("latent", 0.1), ("fp8_query", 0.1))
FIELDS = ("window", "window_right", "chunk", "prefix", "spans", "tree", "q_begin", "key_begin", "causal", "fresh", "alibi", "sinks", "cap",
          "lse", "padding", "scale", "k_scale", "v_scale", "q_scale", "out_type", "views", "i64", "wild", "huge", "shared_pages")  # fmt: skip


@dataclasses.dataclass
class Sides:
    """Types and sizes."""

    q: str = "f32"
    k: str = "f32"
    v: str = "f32"
    out: str = "f32"
    q_heads: int = 1
    kv_heads: int = 1
    dim: int = 8
    v_dim: int = 8
    page: int = 8
    layout: str = "nhd"
    latent: bool = False  # V is the first dims of K's rows
    k_scale: str = "none"  # none, scalar, one, head, token
    v_scale: str = "none"


@dataclasses.dataclass
class Batch:
    seed: int
    sides: Sides
    q_lens: list[int]
    seq_lens: list[int]
    cached_lens: list[int]
    q_begin: list[int]  # positions, whether given or not
    key_begin: list[int]
    causal: list[bool]
    tree_lens: list[int]
    prefix_lens: list[int]
    spans: list[list[tuple[int, int]]]
    options: dict[str, Any]  # fields of quire.Options that are no tensors
    given: dict[str, Any]  # fields that are in the call, and their form
    tree: np.ndarray | None = None  # bool [tokens, bits]
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # tensors as bits, in the order of "nhd"
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    pages: list[np.ndarray] = dataclasses.field(default_factory=list)  # pages of each request; -1 where none is needed
    arena: Arena | None = None
    outputs: Arena | None = None

    @property
    def tokens(self) -> int:
        return int(sum(self.q_lens))

    @property
    def rows(self) -> int:
        """Of the query, padding included."""
        return self.tokens + int(self.given.get("padding_rows", 0))

    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.q_lens)]).astype(np.int64)

    def fields(self) -> list[str]:
        """Names of the fields that are not as by default."""
        named = [name for name, value in {**self.options, **self.given}.items() if value not in (None, False, 0, "none", "refused")]
        s = self.sides
        return [f"q={s.q} k={s.k} v={s.v} out={s.out} heads={s.q_heads}:{s.kv_heads} d={s.dim} dv={s.v_dim} page={s.page} {s.layout}",
                f"k_scale={s.k_scale} v_scale={s.v_scale}", f"rows={self.q_lens} keys={self.seq_lens} cached={self.cached_lens}",
                *sorted(named)]  # fmt: skip


def chance(random: np.random.Generator, rate: float) -> bool:
    return bool(random.random() < rate)


def pick(random: np.random.Generator, values: Any) -> Any:
    return values[int(random.integers(0, len(values)))]


# --- types and sizes ----------------------------------------------------------------------------------------------------------------


def scale_form(random: np.random.Generator, dtype: str) -> str:
    forms = ["none", "scalar", "one", "head"] if dtype != "i8" else ["scalar", "one", "head", "token"]
    return pick(random, [*forms, "token", "token"] if dtype in EIGHT_BITS else forms)


def dim_for(random: np.random.Generator, dtype: str, layout: str, is_key: bool) -> int:
    if dtype in FOUR_BITS:
        return FOUR_BITS[dtype] * pick(random, [1, 1, 2, 3, 4, 6])
    if layout == "packed" and is_key:
        return {"f32": 4, "f16": 8, "bf16": 8}.get(dtype, 16) * pick(random, [1, 2, 4, 5, 8])
    return pick(random, [1, 3, 8, 16, 20, 32, 40, 64, 64, 80, 96, 128, 128, 192, 256])


def any_sides(random: np.random.Generator) -> Sides:
    q = pick(random, ["f32", "f16", "bf16"])
    types = (*CACHE_TYPES, *(["f32"] * 4 if q == "f32" else [q] * 4))
    k, v = pick(random, types), pick(random, types)
    v = k if chance(random, 0.5) else v
    layout = pick(random, LAYOUTS if k not in FOUR_BITS and v not in FOUR_BITS else LAYOUTS[:2])
    dim = dim_for(random, k, layout, True)
    v_dim = dim if chance(random, 0.7) and dim % FOUR_BITS.get(v, 1) == 0 else dim_for(random, v, layout, False)
    kv_heads, group = pick(random, [1, 1, 2, 3, 4]), pick(random, [1, 1, 2, 3, 4, 5, 8])
    return Sides(q, k, v, q, kv_heads * group, kv_heads, dim, v_dim, pick(random, [1, 2, 3, 5, 8, 16, 16, 32, 64]), layout,
                 k_scale=scale_form(random, k), v_scale=scale_form(random, v))  # fmt: skip


def tuned_sides(random: np.random.Generator) -> Sides:
    """What the kernels for tensor cores take: 16-bit queries, head_dims 64 to 256, 16-bit and fp8 caches."""
    q = pick(random, ["f16", "bf16"])
    k = pick(random, [q, q, q, "fp8_e4m3fn", "fp8_e5m2"])
    kv_heads, group = pick(random, [1, 2, 2, 3, 8]), pick(random, [1, 2, 3, 4, 5, 6, 7, 8, 8, 12, 16])
    kv_heads = kv_heads if kv_heads * group <= 32 else 1
    dim, layout = pick(random, [64, 64, 128, 128, 256]), pick(random, LAYOUTS)
    page = pick(random, [16, 16, 32, 48, 64, 128] + ([] if layout == "packed" else [8, 24]))
    forms = [pick(random, ["none", "scalar", "one", "head"]) for _ in range(2)]
    return Sides(q, k, k, q, kv_heads * group, kv_heads, dim, dim, page, layout, k_scale=forms[0], v_scale=forms[1])


def masked_sides(random: np.random.Generator) -> Sides:
    """What Hopper's prefill takes with masks: 16-bit rows, wide head_dims too."""
    sides = tuned_sides(random)
    sides.k = sides.v = sides.q
    sides.dim, sides.v_dim = pick(random, [(64, 64), (128, 128), (256, 256), (192, 128), (512, 512)])
    sides.layout, sides.page = pick(random, LAYOUTS[:2]), pick(random, [16, 32, 64])
    sides.k_scale = sides.v_scale = "none"
    return sides


def latent_sides(random: np.random.Generator) -> Sides:
    """MLA's latent rows: V is the first 512 dims of K."""
    q, page = pick(random, ["f16", "bf16"]), pick(random, [16, 32, 64, 64])
    k = pick(random, [q, q, "fp8_ds_mla", "fp8_ds_mla", "fp8_e4m3fn"])
    q = pick(random, [q, q, q, "f32"]) if k == "fp8_ds_mla" else q
    return Sides(q, k, k, q, pick(random, [1, 4, 8, 16, 16]), 1, 576, 512, page, pick(random, LAYOUTS[:2]), latent=True)


def fp8_sides(random: np.random.Generator) -> Sides:
    sides = tuned_sides(random)
    sides.q, sides.k, sides.v = ["fp8_e4m3fn"] * 3
    sides.out = pick(random, ["f32", "f16", "bf16", "bf16"])
    return sides


def make_sides(random: np.random.Generator, family: str, without: frozenset[str]) -> Sides:
    makers = {"any": any_sides, "tuned": tuned_sides, "masked": masked_sides, "latent": latent_sides, "fp8_query": fp8_sides}
    sides = makers[family](random)
    other = pick(random, ["f32", "fp8_e4m3fn"])
    if chance(random, 0.12) and "out_type" not in without:
        sides.out = other
    for side, dtype in (("k_scale", sides.k), ("v_scale", sides.v)):
        if side in without:
            setattr(sides, side, "scalar" if dtype == "i8" else "none")
    return sides


# --- requests, masks and options ----------------------------------------------------------------------------------------------------


def request_lens(random: np.random.Generator, family: str) -> tuple[list[int], list[int]]:
    """query_lens and numbers of earlier keys."""
    count = 0 if chance(random, 0.02) else int(random.integers(1, 7))
    long_rows = [17, 33, 64, 65, 130] if family in ("tuned", "masked") else [9, 17, 33]
    rows = [pick(random, [0, 1, 1, 1, 1, 2, 3, 5, 8, *long_rows]) for _ in range(count)]
    if chance(random, 0.35):
        rows = [1] * count
    keys = [pick(random, [0, 1, 7, 15, 16, 31, int(random.integers(0, 80)), int(random.integers(0, 300))]) for _ in range(count)]
    if count and chance(random, 0.04):
        keys[0], rows[0] = int(random.integers(1000, 5000)), min(rows[0], 3)
    return rows, keys


def make_options(random: np.random.Generator, masks: bool, without: frozenset[str]) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "sliding_window": pick(random, [1, 2, 7, 16, 33, 100, 1 << 40]) if chance(random, 0.3) else None,
        "window_right": pick(random, [0, 1, 5, 40]) if masks and chance(random, 0.4) else None,
        "attention_chunk": pick(random, [1, 3, 8, 16, 50]) if masks and chance(random, 0.15) else None,
        "prefix_len": pick(random, [0, 1, 4, 20, 100]) if masks and chance(random, 0.12) else None,
        "logits_soft_cap": pick(random, [1.5, 5.0, 30.0]) if chance(random, 0.2) else None,
        "softmax_scale": float(np.float32(random.uniform(0.02, 1.5))) if chance(random, 0.2) else None,
        "causal": not (masks and chance(random, 0.12)),  # unless requests have their own
        "spans_beyond_window": masks and chance(random, 0.4),
    }
    off = {"sliding_window": "window", "attention_chunk": "chunk", "prefix_len": "prefix", "logits_soft_cap": "cap", "softmax_scale": "scale"}
    for name in drawn:
        if off.get(name, name) in without:
            drawn[name] = True if name == "causal" else None
    drawn["spans_beyond_window"] = bool(drawn["spans_beyond_window"])
    return drawn


def make_given(random: np.random.Generator, query: str, masks: bool, without: frozenset[str]) -> dict[str, Any]:
    """Which optional fields the call has, and their forms. `query`: its type."""
    given: dict[str, Any] = {
        name: chance(random, rate) and (masks or name not in ("spans", "tree", "q_begin", "key_begin", "causal"))
        for name, rate in {"spans": 0.25, "tree": 0.3, "q_begin": 0.25, "key_begin": 0.2, "causal": 0.25, "fresh": 0.35, "alibi": 0.2,
                           "sinks": 0.25, "lse": 0.6, "shared_pages": 0.2, "huge": 0.12, "wild": 0.9}.items()
    }  # fmt: skip
    given["prefix"] = masks and chance(random, 0.15)
    given["padding"] = pick(random, ["left", "zero"]) if chance(random, 0.15) else None
    given["padding_rows"] = int(random.integers(0, 5))
    given["views"] = pick(random, [0, 0, 1, 2])
    given["i64"] = int(random.integers(0, 1 << 10)) if chance(random, 0.5) else 0  # a bit for each index tensor
    given["narrow"] = chance(random, 0.5)
    given["q_scale"] = pick(random, ["none", "scalar", "one", "head"]) if query == "fp8_e4m3fn" else "none"
    for name in without & set(given):
        given[name] = "none" if name == "q_scale" else 0 if name in ("views", "i64") else None
    if given["padding"] is None:
        given["padding_rows"] = 0
    given["fresh"] = given["fresh"] and query != "fp8_e4m3fn"  # Q-M26: new rows have the query's type
    return given


def place_requests(batch: Batch, random: np.random.Generator) -> None:
    """Positions, caches' lengths, and requests with fewer keys than rows."""
    given, options = batch.given, batch.options
    for r, rows in enumerate(batch.q_lens):
        context = batch.seq_lens[r]  # seq_lens holds the context until it is set below
        batch.causal.append(bool(options["causal"]))
        if given["causal"]:
            batch.causal[r] = chance(random, 0.5)
        begin = pick(random, [0, 1, 16, 100, 1000]) if given["key_begin"] else 0
        keys = context + rows
        fresh = given["fresh"] and chance(random, 0.7)
        free = given["q_begin"] and not fresh
        if (free or not batch.causal[r]) and not fresh and chance(random, 0.3):
            keys = int(random.integers(0, keys + 1))
        at_end = begin + keys - rows
        start = max(0, pick(random, [at_end, 0, begin, begin + keys, int(random.integers(0, begin + keys + 60))])) if free else at_end
        if given["huge"] and free and r == 0 and batch.causal[r]:
            keys, start = 2**31 - 1 - begin, int(random.integers(0, 200))
        batch.seq_lens[r] = keys
        batch.key_begin.append(begin)
        batch.q_begin.append(start)
        batch.cached_lens.append(int(random.integers(max(0, keys - rows), keys + 1)) if fresh else keys)
        if given["q_begin"] and start < 0:
            batch.q_begin[r] = 0  # has no rows at the end: keys < rows is for those that are not causal


def make_spans(batch: Batch, random: np.random.Generator) -> list[list[tuple[int, int]]]:
    found = []
    for r in range(len(batch.q_lens)):
        ends = np.sort(random.integers(0, batch.key_begin[r] + min(batch.seq_lens[r], 400) + 20, 2 * int(random.integers(0, 4))))
        pairs = list(zip(ends[::2].tolist(), ends[1::2].tolist()))
        found.append([pair for pair in pairs if pair[0] < pair[1]])
    return found


def make_tree(batch: Batch, random: np.random.Generator, width: int) -> None:
    """Bits of all rows. A row at a key of the tree sees itself, and a causal one nothing behind it (Q-V09, Q-V10)."""
    bits = random.random((batch.rows, 8 * width)) < pick(random, [0.0, 0.0, 0.2, 0.5, 0.9])
    for r, rows in enumerate(batch.q_lens):
        keys = batch.seq_lens[r]
        length = min(keys, 8 * width, pick(random, [0, 0, 1, 3, 8, 15, 60, 256]))
        length = 0 if keys > MOST_KEYS else length
        batch.tree_lens[r] = length
        first = int(batch.starts()[r])
        for i in range(rows if length else 0):
            own = batch.q_begin[r] - batch.key_begin[r] + i - (keys - length)
            if 0 <= own < length:
                bits[first + i, own] = True
            if batch.causal[r]:
                bits[first + i, max(0, own + 1) : length] = False
    batch.tree = bits


# --- what rows see, and the tensors that hold it ------------------------------------------------------------------------------------


def page_tables(batch: Batch, random: np.random.Generator, seen: list[oracle.Seen]) -> tuple[np.ndarray, int]:
    """The block table, with wild entries where no row looks; and the number of pages."""
    size, needed = batch.sides.page, []
    for r, view in enumerate(seen):
        cached = view.keys[view.keys < batch.cached_lens[r]]
        needed.append(np.unique(cached // size))
    width = max((int(columns[-1]) + 1 for columns in needed if len(columns)), default=0)
    width += 0 if batch.given["narrow"] else int(random.integers(0, 4))
    count = sum(map(len, needed))
    spare = 0 if count == 0 and chance(random, 0.5) else int(random.integers(1, 4)) if count == 0 else int(random.integers(0, 3))
    order, at = random.permutation(count + spare), 0
    kind = np.int64 if batch.given["i64"] & 1 else np.int32
    table = wild(random, (len(needed), width), kind) if batch.given["wild"] else np.zeros((len(needed), width), kind)
    for r, columns in enumerate(needed):
        pages = np.full(width, -1)
        pages[columns] = order[at : at + len(columns)]
        at += len(columns)
        if r and batch.given["shared_pages"]:
            same = columns[(columns < width // 2 + 1) & (batch.pages[r - 1][columns] >= 0)]
            pages[same] = batch.pages[r - 1][same]
        table[r, columns] = pages[columns]
        batch.pages.append(pages)
    return table, count + spare


def wild(random: np.random.Generator, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """Entries that would lead anywhere."""
    limits = np.iinfo(kind)
    any_number = random.integers(limits.min, limits.max, shape, kind, endpoint=True)
    odd = random.choice(np.array([-1, -2, 0, limits.max, limits.min, 1 << 20, -(2**31), 2**31 - 1], kind), shape)
    return np.where(random.random(shape) < 0.5, any_number, odd).astype(kind)


def seen_slots(batch: Batch, seen: list[oracle.Seen], num_pages: int) -> np.ndarray:
    """bool [pages, page_size]: slots that some row sees."""
    slots = np.zeros((num_pages, batch.sides.page), bool)
    for r, view in enumerate(seen):
        cached = view.keys[view.keys < batch.cached_lens[r]]
        slots[batch.pages[r][cached // batch.sides.page], cached % batch.sides.page] = True
    return slots


def latent_rows(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of fp8_ds_mla (include/quire/cache.hpp): codes, four f32 scales, bf16 dims of RoPE."""
    rows = np.zeros((*shape, 656), np.uint8)
    rows[..., :512] = draw(random, "fp8_e4m3fn", (*shape, 512))
    rows[..., 512:528] = random.uniform(0.3, 2, (*shape, 4)).astype(np.float32).view(np.uint8).reshape(*shape, 16)
    rows[..., 528:] = draw(random, "bf16", (*shape, 64)).view(np.uint8).reshape(*shape, 128)
    return rows


def fill_side(batch: Batch, random: np.random.Generator, side: str, slots: np.ndarray) -> None:
    """Codes and scales of K or of V, poisoned where nobody looks."""
    s = batch.sides
    dtype, dim, form = (s.k, s.dim, s.k_scale) if side == "k" else (s.v, s.v_dim, s.v_scale)
    shape = (*slots.shape, s.kv_heads)
    if dtype == "fp8_ds_mla":
        codes = latent_rows(random, shape)
    else:
        codes = draw(random, dtype, (*shape, dim // 2 if dtype in FOUR_BITS else dim), 30.0 if dtype == "i8" else 1.0)
    codes[~slots] = not_a_number(dtype)
    batch.arrays[side], batch.dtypes[side] = codes, dtype
    unit = 1 / 30 if dtype == "i8" else 1.0
    if form == "token":
        scales = (unit * random.uniform(0.3, 2, shape)).astype(np.float32)
        scales[~slots] = np.nan
    elif form != "none":
        scales = (unit * random.uniform(0.3, 2, {"scalar": (), "one": (1,), "head": (s.kv_heads,)}[form])).astype(np.float32)
    if form != "none":
        batch.arrays[f"{side}_scale"] = np.asarray(scales)
    if dtype in FOUR_BITS:
        blocks = (*shape, dim // FOUR_BITS[dtype])
        low, high, nan = (0x28, 0x40, 0x7F) if dtype == "nvfp4" else (124, 129, 255)  # 0.25 to 2; 2^-3 to 2
        scales = random.integers(low, high, blocks).astype(np.uint8)
        scales[~slots] = nan
        batch.arrays[f"{side}_block_scale"] = scales


def fill_rows(batch: Batch, random: np.random.Generator, seen: list[oracle.Seen]) -> None:
    """Query, this step's key and value, scales, slopes and sinks."""
    s, arrays = batch.sides, batch.arrays
    arrays["query"] = draw(random, s.q, (batch.rows, s.q_heads, s.dim), pick(random, [1.0, 1.0, 3.0]))
    arrays["query"][batch.tokens :] = not_a_number(s.q)
    if batch.given["fresh"]:
        read = np.zeros(batch.rows, bool)
        for r, view in enumerate(seen):
            fresh = view.keys[view.keys >= batch.cached_lens[r]]
            read[int(batch.starts()[r]) + fresh - (batch.seq_lens[r] - batch.q_lens[r])] = True
        for name, dim in (("key", s.dim), ("value", s.v_dim)):
            arrays[name] = draw(random, s.q, (batch.rows, s.kv_heads, dim))
            arrays[name][~read] = not_a_number(s.q)
    if batch.given["alibi"]:
        arrays["alibi_slopes"] = (random.uniform(-0.1, 0.3, s.q_heads)).astype(np.float32)
    if batch.given["sinks"]:
        arrays["sinks"] = np.where(random.random(s.q_heads) < 0.1, -np.inf, random.standard_normal(s.q_heads)).astype(np.float32)
    if batch.given["q_scale"] != "none":
        shape = {"scalar": (), "one": (1,), "head": (s.kv_heads,)}[batch.given["q_scale"]]
        arrays["q_scale"] = np.asarray(random.uniform(0.3, 2, shape), np.float32)
    if s.out == "fp8_e4m3fn":
        arrays["output_scale"] = np.asarray(random.uniform(0.005, 0.5, pick(random, [(), (1,)])), np.float32)


def fill_indices(batch: Batch, table: np.ndarray) -> None:
    arrays, wide = batch.arrays, batch.given["i64"]

    def index(name: str, values: Any, bit: int) -> None:
        arrays[name] = np.asarray(values, np.int64 if wide >> bit & 1 else np.int32)

    arrays["block_table"] = table
    index("query_start_loc", batch.starts(), 1)
    index("seq_lens", batch.seq_lens, 2)
    if batch.given["fresh"]:
        index("cached_lens", batch.cached_lens, 3)
    for name, values, bit in (("q_begin", batch.q_begin, 4), ("key_begin", batch.key_begin, 5)):
        if batch.given[name]:
            index(name, values, bit)
    if batch.given["causal"]:
        arrays["causal"] = np.array(batch.causal, np.uint8)
    if batch.given["prefix"]:
        index("prefix_lens", batch.prefix_lens, 6)
    if batch.given["spans"]:
        most = max((len(spans) for spans in batch.spans), default=0) + batch.seed % 2
        padded = [[*spans, *[(spans[-1][1] if spans else 0,) * 2] * (most - len(spans))] for spans in batch.spans]
        index("spans", np.array(padded, np.int64).reshape(len(batch.q_lens), most, 2), 7)
    if batch.tree is not None:
        arrays["tree_mask"] = np.packbits(batch.tree, axis=1, bitorder="little")
        index("tree_lens", batch.tree_lens, 8)


def in_layout(bits: np.ndarray, layout: str, is_key: bool) -> np.ndarray:
    """[pages, page_size, heads, dim] in the order of a layout."""
    if layout != "packed":
        return bits.transpose(AXES[layout])
    if not is_key:
        return bits.transpose(0, 2, 3, 1)
    x = 16 // bits.dtype.itemsize
    return bits.reshape(*bits.shape[:3], bits.shape[3] // x, x).transpose(0, 2, 3, 1, 4)


def lay_out(batch: Batch, random: np.random.Generator) -> None:
    """The arenas of inputs and of outputs."""
    s, form = batch.sides, Form(batch.given["views"], random)
    batch.arena, batch.outputs = Arena(form), Arena(form)
    k, v = (in_layout(batch.arrays[side], s.layout, side == "k") for side in "kv")
    rows_stay = s.k in FOUR_BITS or s.v in FOUR_BITS or s.k == "fp8_ds_mla"
    if s.latent:
        batch.arena.add("k", k, s.k, keep_last=rows_stay, align=16 if s.k == "fp8_ds_mla" else 1)
        batch.arena.share("v", "k", k.shape if s.k == "fp8_ds_mla" else (*k.shape[:-1], s.v_dim))
    elif k.shape == v.shape and s.k == s.v and chance(random, 0.3 if batch.given["views"] else 0.1):
        batch.arena.add_pair(("k", "v"), (k, v), s.k, pick(random, range(k.ndim)), rows_stay)
    else:
        batch.arena.add("k", k, s.k, keep_last=s.k in FOUR_BITS)
        batch.arena.add("v", v, s.v, keep_last=s.v in FOUR_BITS)
    for name, bits in batch.arrays.items():
        if name not in ("k", "v"):
            default = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64", np.dtype(np.uint8): "u8"}.get(bits.dtype, "f32")
            batch.arena.add(name, bits, s.q if name in ("query", "key", "value") else default)
    shape = (batch.rows, s.q_heads, s.v_dim)
    batch.outputs.add("output", np.full(shape, 0, bits_type(s.out)), s.out)
    if batch.given["lse"]:
        batch.outputs.add("lse", np.zeros(shape[:2], np.float32), "f32")


def make(seed: int, without: frozenset[str] = frozenset(), family: str | None = None, sides: Sides | None = None) -> Batch:
    """The batch of a seed, without some of FIELDS. `family`, `sides`: those instead of drawn ones."""
    stages = [np.random.default_rng([seed, stage]) for stage in range(8)]
    family = family or str(stages[0].choice([name for name, _ in FAMILIES], p=[rate for _, rate in FAMILIES]))
    masks = family == "masked" or chance(stages[0], {"any": 0.75, "latent": 0.2, "tuned": 0.15, "fp8_query": 0.1}.get(family, 1))
    sides = sides or make_sides(stages[1], family, without)
    rows, keys = request_lens(stages[2], family)
    options, given = make_options(stages[3], masks, without), make_given(stages[4], sides.q, masks, without)
    options["causal"] = options["causal"] or bool(given["causal"])
    if given["prefix"]:
        options["prefix_len"] = None
    lengths = [[] for _ in range(4)]
    batch = Batch(seed, sides, rows, keys, *lengths, [0] * len(rows), [options["prefix_len"] or 0] * len(rows), [[] for _ in rows], options, given)
    place_requests(batch, stages[5])
    if options["causal"] and not given["causal"]:  # Q-M44: nothing would read it
        options["window_right"] = None
    if given["prefix"]:
        batch.prefix_lens = [pick(stages[5], [0, 1, 5, 30, 1 << 30]) for _ in rows]
    if given["spans"]:
        batch.spans = make_spans(batch, stages[5])
    if given["tree"]:
        make_tree(batch, stages[5], pick(stages[5], [1, 1, 2, 5, 32]))
    seen = oracle.seen_by_all(batch)
    table, num_pages = page_tables(batch, stages[6], seen)
    slots = seen_slots(batch, seen, num_pages)
    fill_rows(batch, stages[7], seen)
    for side in "kv" if not sides.latent else "k":
        fill_side(batch, stages[7], side, slots)
    if sides.latent:
        batch.arrays["v"] = batch.arrays["k"] if sides.k == "fp8_ds_mla" else batch.arrays["k"][..., : sides.v_dim]
    fill_indices(batch, table)
    lay_out(batch, stages[7])
    return batch
