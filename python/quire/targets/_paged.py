# SPDX-License-Identifier: Apache-2.0
"""Helpers of adapters: a case's lengths, its cache in another layout, and all values that a request reads, as NumPy bits.

Values move as bits, poison included, without rounding. Values that would need rounding are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quire import _quire
from quire.errors import UnsupportedError


class Lengths(NamedTuple):
    query_start_loc: np.ndarray
    query_lens: np.ndarray
    seq_lens: np.ndarray
    context_lens: np.ndarray
    cached_lens: np.ndarray


def numbers(array: Any, name: str) -> np.ndarray:
    return _quire.bits(array, name)[0]


def lengths(batch: Any) -> Lengths:
    qsl = numbers(batch.query_start_loc, "query_start_loc").astype(np.int64)
    seq = numbers(batch.seq_lens, "seq_lens").astype(np.int64)
    query = np.diff(qsl)
    cached = seq if batch.cached_lens is None else numbers(batch.cached_lens, "cached_lens").astype(np.int64)
    return Lengths(qsl, query, seq, seq - query, cached)


def scale_of(scale: Any, name: str) -> np.ndarray | None:
    """[1] or [num_kv_heads] f32; None if there is none."""
    if scale is None:
        return None
    return np.atleast_1d(np.asarray(scale if isinstance(scale, float) else numbers(scale, name), dtype=np.float32))


def one_scale(scale: Any, name: str) -> float:
    """Scale for implementations with one scale per tensor; refuses scales that differ by head."""
    values = scale_of(scale, name)
    if values is None:
        return 1.0
    if values.size and np.any(values != values[0]):
        raise UnsupportedError(f"{name} per head")
    return float(values[0])


def cache_bits(cache: Any) -> tuple[np.ndarray, np.ndarray]:
    """k and v as [num_pages, page_size, num_kv_heads, their head_dim] bits; views where the layout allows it."""
    k, v = _quire.bits(cache.k, "k", cache.dtype)[0], _quire.bits(cache.v, "v", cache.dtype)[0]
    if cache.layout == "nhd":
        return k, v
    if cache.layout == "hnd":
        return k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    pages, heads, chunks, page, x = k.shape
    return k.transpose(0, 3, 1, 2, 4).reshape(pages, page, heads, chunks * x), v.transpose(0, 3, 1, 2)


def packed_bits(k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[pages, page_size, heads, dim] in vLLM's packed layout, contiguous."""
    x = 16 // k.itemsize
    pages, page, heads, dim = k.shape
    if dim % x:
        raise UnsupportedError(f"head_dim {dim}: the packed layout needs a multiple of {x}")
    packed_k = np.ascontiguousarray(k.reshape(pages, page, heads, dim // x, x).transpose(0, 2, 3, 1, 4))
    return packed_k, np.ascontiguousarray(v.transpose(0, 2, 3, 1))


def new_rows(batch: Any) -> tuple[np.ndarray, np.ndarray] | None:
    if batch.key is None:
        return None
    return _quire.bits(batch.key, "key", batch.dtype)[0], _quire.bits(batch.value, "value", batch.dtype)[0]


class Filled(NamedTuple):
    """A cache that holds all tokens of every request, and the table that finds them."""

    k: np.ndarray
    v: np.ndarray
    block_table: np.ndarray
    """int32, or int64 where the case has that."""


def fill(batch: Any, cache: Any, wanted: np.ndarray | None = None) -> Filled:
    """The cache with the tokens of key and value written into it, for implementations that read everything from the cache.

    ``wanted``: the requests whose tokens must be there, as a mask; None: all. Without such tokens: the case's own bits and table.
    Otherwise copies, with fresh pages behind the others. Refused if the tokens would have to be rounded to the cache's type.
    """
    k, v = cache_bits(cache)
    table = numbers(batch.block_table, "block_table")
    n = lengths(batch)
    fresh_reqs = n.cached_lens < n.seq_lens
    if wanted is not None:
        fresh_reqs &= wanted
    if not fresh_reqs.any():
        return Filled(k, v, table)
    if cache.dtype != batch.dtype:
        raise UnsupportedError(f"new tokens outside a {cache.dtype} cache: it reads everything from the cache, and {batch.dtype} "
                               "rows would have to be rounded")  # fmt: skip
    if cache.k_scale is not None or cache.v_scale is not None:
        raise UnsupportedError("new tokens outside a scaled cache: it reads everything from the cache")
    rows = new_rows(batch)
    assert rows is not None
    page = cache.page_size
    have, need = n.cached_lens // page, -(-n.seq_lens // page)  # full pages stay; a partial one may be shared, so it is copied
    fresh = np.where(fresh_reqs, need - have, 0)
    need = np.where(fresh_reqs, need, -(-n.cached_lens // page))
    k = np.concatenate([k, np.zeros((int(fresh.sum()), *k.shape[1:]), k.dtype)])
    v = np.concatenate([v, np.zeros((int(fresh.sum()), *v.shape[1:]), v.dtype)])
    wide = np.full((table.shape[0], max(table.shape[1], int(need.max(initial=0)))), 2**31 - 1, table.dtype)
    wide[:, : table.shape[1]] = table
    next_page = cache.num_pages
    for r in np.flatnonzero(fresh):
        if n.cached_lens[r] % page:
            old = int(wide[r, have[r]])
            k[next_page], v[next_page] = k[old], v[old]
        wide[r, have[r] : need[r]] = np.arange(next_page, next_page + fresh[r])
        next_page += int(fresh[r])
        where = np.arange(n.cached_lens[r], n.seq_lens[r])
        slots = wide[r][where // page].astype(np.int64), where % page
        tokens = n.query_start_loc[r] + where - n.context_lens[r]
        k[slots], v[slots] = rows[0][tokens], rows[1][tokens]
    return Filled(k, v, wide)


def dense(filled: Filled, page_size: int, request: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of positions [first, last) of a request, [last - first, heads, dim] bits."""
    where = np.arange(first, last)
    slots = filled.block_table[request][where // page_size].astype(np.int64), where % page_size
    return filled.k[slots], filled.v[slots]
