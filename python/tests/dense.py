# SPDX-License-Identifier: Apache-2.0
"""An oracle of its own: dense fp64 attention in NumPy, and paged batches whose dense keys and values are known."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

FP8 = {
    "fp8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
DTYPES = {**FLOATS, **FP8}
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # unit roundoff of the output
SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}  # half the spacing of its subnormals


def attention(q, k, v, context, *, scale=None, window=None, cap=None, slopes=None, sinks=None, causal=True, right=None):
    """One request: q [n, Hq, D], k and v [context + n, Hkv, D], all f64. Returns out, lse, sum p|v|, and a bound on
    the terms of a score: max over visible keys of scale * sum |q k|, plus ALiBi and sink."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    scale = dim**-0.5 if scale is None else scale
    out, abs_pv = np.zeros_like(q), np.zeros_like(q)
    lse, magnitude = np.zeros((n, heads)), np.zeros((n, heads))
    pos = context + np.arange(n)[:, None]
    key = np.arange(k.shape[0])[None, :]
    visible = key <= pos if causal else key <= pos + (k.shape[0] if right is None else right)
    if window is not None:
        visible &= pos - key < window
    for h in range(heads):
        s = scale * (q[:, h] @ k[:, h // group].T)
        if cap is not None:
            s = cap * np.tanh(s / cap)
        if slopes is not None:
            s = s + float(slopes[h]) * (key - pos)
        terms = scale * (np.abs(q[:, h]) @ np.abs(k[:, h // group]).T)
        if slopes is not None:
            terms = terms + abs(float(slopes[h])) * np.abs(pos - key)
        magnitude[:, h] = np.max(np.where(visible, terms, 0), axis=1, initial=0) + (0 if sinks is None else abs(float(sinks[h])))
        s = np.where(visible, s, -np.inf)
        extra = np.full((n, 1), -np.inf if sinks is None else float(sinks[h]))
        m = np.maximum(s.max(axis=1, keepdims=True, initial=-np.inf), extra)
        p = np.exp(s - m)
        total = p.sum(axis=1, keepdims=True) + np.exp(extra - m)
        out[:, h] = (p / total) @ v[:, h // group]
        abs_pv[:, h] = (p / total) @ np.abs(v[:, h // group])
        lse[:, h] = (m + np.log(total))[:, 0]
    return out, lse, abs_pv, magnitude


@dataclass
class Job:
    """A paged batch in NumPy. dense_k/dense_v hold what attention should read, per request, in f64."""

    q: np.ndarray
    new_k: np.ndarray
    new_v: np.ndarray
    k: np.ndarray
    v: np.ndarray
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: np.ndarray
    slots: np.ndarray
    dtype: str
    kv: str
    k_scale: float
    v_scale: float
    dense_k: list = field(default_factory=list)
    dense_v: list = field(default_factory=list)

    @property
    def query_lens(self):
        return np.diff(self.query_start_loc)

    def expected(self, rows=slice(None), causal=True, **options):
        """(out, tolerance) over all tokens, causal: one flag, or one a request: rounding of the output plus f32 sums, whose error grows as the square root of
        their length (Higham and Mary 2019, probabilistic bound with lambda = 8)."""
        outs, tols = [], []
        flags = np.broadcast_to(causal, len(self.query_lens))
        for r, n in enumerate(self.query_lens):
            a = self.query_start_loc[r]
            q = self.q[a : a + n].astype(np.float64)
            context = int(self.seq_lens[r]) - int(n)
            out, _, abs_pv, magnitude = attention(q, self.dense_k[r], self.dense_v[r], context, causal=bool(flags[r]), **options)
            work = self.q.shape[2] + self.dense_k[r].shape[0]  # terms of the two sums, both kept in f32
            f32 = 2.0**-24 * (32 + 8 * np.sqrt(work) * (1 + magnitude[:, :, None])) * abs_pv
            outs.append(out)
            tols.append(1.01 * UNIT[self.dtype] * np.abs(out) + f32 + SUBNORMAL[self.dtype])
        return np.concatenate(outs)[rows], np.concatenate(tols)[rows]

    def judge(self, output, rows=slice(None), expected=None, **options):
        expected, tolerance = expected or self.expected(rows, **options)
        error = np.abs(np.asarray(output).astype(np.float64)[rows] - expected)
        bad = ~(error <= tolerance)
        assert not bad.any(), (
            f"{bad.sum()} of {bad.size} elements wrong, worst {np.nanmax(error):.3g}, first at {np.argwhere(bad)[0]}"
        )


def make_job(query_lens, context_lens, *, heads=4, kv_heads=2, dim=32, page=8, dtype="f16", kv=None, seed=0, spread=1.0,
             k_scale=1.0, v_scale=1.0, new_from="cache", scale_of_data=None):  # fmt: skip
    """N(0,1) data (times `spread`). new_from="cache": every token is read back from the cache; "rows": a request's new tokens count as
    given in key and value; "mixed": rows of query_len 1 from the cache, the others as given (vLLM's chunked op)."""
    rng = np.random.default_rng(seed)
    kv = kv or dtype
    stored = DTYPES[kv]
    query_lens, context_lens = np.asarray(query_lens), np.asarray(context_lens)
    seq_lens = (query_lens + context_lens).astype(np.int32)
    qsl = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
    tokens = int(qsl[-1])
    pages_needed = -(-seq_lens // page)
    table = np.full((len(seq_lens), int(pages_needed.max()) + 1), 2**31 - 1, np.int32)  # huge past the end
    num_pages = int(pages_needed.sum()) + 3
    order = rng.permutation(num_pages)

    def draw(*shape):
        data = rng.standard_normal(shape) if scale_of_data is None else rng.uniform(-scale_of_data, scale_of_data, shape)
        return (spread * data).astype(FLOATS[dtype])

    q, new_k, new_v = draw(tokens, heads, dim), draw(tokens, kv_heads, dim), draw(tokens, kv_heads, dim)
    with np.errstate(invalid="ignore"):
        k = np.full((num_pages, page, kv_heads, dim), np.nan).astype(stored)
        v = np.full((num_pages, page, kv_heads, dim), np.nan).astype(stored)
    slots = np.zeros(tokens, np.int64)
    job = Job(q, new_k, new_v, k, v, qsl, seq_lens, table, slots, dtype, kv, k_scale, v_scale)
    next_page = 0
    for r, (n, context) in enumerate(zip(query_lens, context_lens)):
        count = int(pages_needed[r])
        table[r, :count] = order[next_page : next_page + count]
        next_page += count
        where = table[r][np.arange(seq_lens[r]) // page].astype(np.int64) * page + np.arange(seq_lens[r]) % page
        a = qsl[r]
        slots[a : a + n] = where[context:]
        for cache, new, dense, unit in ((k, new_k, job.dense_k, k_scale), (v, new_v, job.dense_v, v_scale)):
            rows = np.concatenate([draw(int(context), kv_heads, dim), new[a : a + n]]).astype(np.float32)
            codes = (rows / np.float32(unit)).astype(stored)
            cache.reshape(-1, kv_heads, dim)[where] = codes
            real = codes.astype(np.float64) * unit
            if new_from == "rows" or (new_from == "mixed" and n != 1):
                real[context:] = rows[context:]
            dense.append(real)
    return job


def packed(k, v, x=None):
    """nhd caches in vLLM's packed layout."""
    x = x or 16 // k.itemsize
    pages, page, heads, dim = k.shape
    pk = np.ascontiguousarray(k.reshape(pages, page, heads, dim // x, x).transpose(0, 2, 3, 1, 4))
    return pk, np.ascontiguousarray(v.transpose(0, 2, 3, 1))
