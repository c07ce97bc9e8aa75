# SPDX-License-Identifier: Apache-2.0
"""Right attention kernels of other people's numerics, in NumPy: what they round, and nothing else, may differ from the truth.

Written from the equations of docs/design.md; no code is shared with Quire but the decoding of element types by ml_dtypes. Each takes a
:class:`quire.Case` in the nhd layout and returns the output in the type of the query.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Numerics:
    """How a kernel computes. tile 0: all keys at once, the softmax after the last score, as eager code does."""

    tile: int = 64
    weights: str = "f32"  # rounded to this type before they meet V
    normalised: bool = False  # weights are rounded after the division by the denominator
    scores: str = "f32"  # every step of a score is stored in this type
    dequantised: bool = False  # cached K and V times their scale become the query's type
    tf32: bool = False  # factors of both products keep 10 bits behind the point
    backwards: bool = False  # tiles from the last to the first

    def __str__(self):
        words = [f"tile {self.tile}" if self.tile else "eager"]
        words += [f"weights {self.weights}"] if self.weights != "f32" else []
        words += [word for word in ("normalised", "dequantised", "tf32", "backwards") if getattr(self, word)]
        return ", ".join(words + ([f"scores {self.scores}"] if self.scores != "f32" else []))


def rounded(x, dtype):
    return x if dtype == "f32" else x.astype(TYPES[dtype]).astype(np.float32)


def tf32(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return bits.astype(np.uint32).view(np.float32)


def query_type(case):
    return {np.dtype(t): name for name, t in TYPES.items()}[np.asarray(case.batch.query).dtype]


def dense(cache, which, table_row, length, to):
    """[length, kv heads, dims] in f32; `to`: rounded to that type after the product with the scale."""
    positions = np.arange(length)
    stored = np.asarray(getattr(cache, which))[table_row[positions // cache.page_size], positions % cache.page_size]
    scale = getattr(cache, which + "_scale")
    values = stored.astype(np.float32)
    if scale is not None:
        values = values * np.asarray(scale, np.float32).reshape(-1)[:, None]
    return rounded(values, to)


def scores_of(q, k, scale, how, options, distance):
    dot = rounded((tf32(q) @ tf32(k).T) if how.tf32 else q @ k.T, how.scores)
    s = rounded(dot * np.float32(scale), how.scores)
    if options.logits_soft_cap is not None:
        cap = np.float32(options.logits_soft_cap)
        s = rounded(rounded(np.tanh(rounded(s / cap, how.scores)), how.scores) * cap, how.scores)
    return np.where(distance, s, np.float32(-np.inf))


def head(q, k, v, scale, visible, how, options):
    """Rows of one head: q [n, d], k and v [m, d], visible [n, m]."""
    n, m = visible.shape
    tile = how.tile or m
    starts = range(0, m, tile)
    top, total, out = np.full((n, 1), -np.inf, np.float32), np.zeros((n, 1), np.float32), np.zeros((n, v.shape[1]), np.float32)
    for start in reversed(starts) if how.backwards else starts:
        part = slice(start, min(start + tile, m))
        s = scores_of(q, k[part], scale, how, options, visible[:, part])
        new = np.maximum(top, s.max(axis=1, keepdims=True))
        base = np.where(np.isinf(new), np.float32(0), new)
        keep, p = np.exp(top - base), np.exp(s - base)
        total = total * keep + p.sum(axis=1, keepdims=True, dtype=np.float32)
        if how.normalised:
            p = p / total
        p = rounded(p, how.weights)
        out = out * keep + (tf32(p) @ tf32(v[part]) if how.tf32 else p @ v[part])
        top = new
    return out if how.normalised else out / total


def run(case, how, *, scale=None, dropped=None):
    """`scale`: another softmax_scale; `dropped`: this key of every request is left out. Both are faults."""
    if how.normalised and how.tile:
        raise ValueError("weights are normalised after the last key")
    b, c, o = case.batch, case.cache, case.options
    query = np.asarray(b.query).astype(np.float32)
    kind = query_type(case)
    out = np.zeros(query.shape, np.float32)
    if scale is None:
        scale = o.softmax_scale if o.softmax_scale is not None else query.shape[2] ** -0.5
    starts, lengths, table = (np.asarray(a).astype(np.int64) for a in (b.query_start_loc, b.seq_lens, b.block_table))
    for r, length in enumerate(lengths):
        rows = slice(starts[r], starts[r + 1])
        n = starts[r + 1] - starts[r]
        if n == 0:
            continue
        k, v = (dense(c, which, table[r], length, kind if how.dequantised else "f32") for which in "kv")
        distance = (length - n + np.arange(n))[:, None] - np.arange(length)[None, :]
        visible = (distance >= 0) & (distance < (o.sliding_window or length))
        if dropped is not None:
            visible[:, dropped] = False
        unseen = ~visible.any(axis=0)  # may hold anything, NaN included
        k[unseen] = v[unseen] = 0
        for h in range(query.shape[1]):
            kv_head = h * k.shape[1] // query.shape[1]
            out[rows, h] = head(query[rows, h], k[:, kv_head], v[:, kv_head], scale, visible, how, o)
    return out.astype(TYPES[kind])


def cases_of(case):
    """The kernels whose numerics make sense for the types of a case."""
    kind = query_type(case)
    if kind == "f32":
        return [Numerics(), Numerics(tile=1), Numerics(tile=0), Numerics(tile=17, backwards=True), Numerics(tf32=True), Numerics(tile=16, tf32=True)]
    rounding = {"weights": kind}
    list_ = [Numerics(), Numerics(tile=0), Numerics(tile=16, **rounding), Numerics(**rounding), Numerics(tile=32, backwards=True, **rounding),
             Numerics(tile=0, normalised=True, **rounding), Numerics(tile=0, scores=kind), Numerics(tile=0, normalised=True, scores=kind, **rounding)]  # fmt: skip
    if np.asarray(case.cache.k).dtype.itemsize == 1:
        list_ += [Numerics(weights="f16"), Numerics(dequantised=True), Numerics(dequantised=True, **rounding), Numerics(tile=16, dequantised=True, **rounding)]
    return list_


def torch_outputs(case):
    """torch's scaled_dot_product_attention through every backend that takes the case: (name, output)."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind, b, c, o = query_type(case), case.batch, case.cache, case.options
    to = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
    query = torch.from_numpy(np.asarray(b.query).astype(np.float32)).to(to)
    starts, lengths, table = (np.asarray(a).astype(np.int64) for a in (b.query_start_loc, b.seq_lens, b.block_table))

    def attend():
        out = torch.zeros_like(query)
        for r, length in enumerate(lengths):
            n = starts[r + 1] - starts[r]
            if n == 0:
                continue
            distance = (length - n + np.arange(n))[:, None] - np.arange(length)[None, :]
            visible = (distance >= 0) & (distance < (o.sliding_window or length))
            k, v = (dense(c, which, table[r], length, "f32") for which in "kv")
            k[~visible.any(axis=0)] = v[~visible.any(axis=0)] = 0
            group = query.shape[1] // k.shape[1]
            k, v = (torch.from_numpy(x).to(to).repeat_interleave(group, dim=1).transpose(0, 1)[None] for x in (k, v))
            q = query[starts[r] : starts[r + 1]].transpose(0, 1)[None]
            mask = None if visible.all() else torch.from_numpy(visible)
            part = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=o.softmax_scale)
            out[starts[r] : starts[r + 1]] = part[0].transpose(0, 1)
        return out.float().numpy().astype(TYPES[kind])

    yield "torch SDPA", attend()
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                out = attend()
        except RuntimeError:  # the backend does not take it
            continue
        yield f"torch SDPA {backend.name}", out
