# SPDX-License-Identifier: Apache-2.0
"""Computes paged attention from the equations as a kernel does: tiles of keys, a running softmax, splits that are merged.

A `View` holds what one request reads; a mechanism edits it. `Numerics` holds each step at which a kernel's arithmetic
can go wrong; a mechanism overrides it. Without a mechanism both give the right answer.
"""
from dataclasses import dataclass
from typing import Callable

import numpy as np


@dataclass
class View:
    """View of one request's inputs. H query heads, S keys, R rows."""
    request: int
    q: np.ndarray           # [R, H, D]
    k: np.ndarray           # [S, KVH, D], dequantised
    v: np.ndarray           # [S, KVH, D]
    q_pos: np.ndarray       # [R]
    k_pos: np.ndarray       # [S]
    kv_head: np.ndarray     # [H]
    scale: np.ndarray       # [H]
    cap: float              # inf = none
    slope: np.ndarray       # [H]
    sink: np.ndarray        # [H], -inf = none
    window: int | None
    tile: int
    splits: int
    mask: Callable = None           # (q_pos [R, 1], k_pos [1, t]) -> bool [R, t]
    weight_type: type = None        # type to which weights are rounded before the product with V; none = not at all

    def visible(self, q_pos, k_pos):
        if self.mask is not None:
            return self.mask(q_pos, k_pos)
        seen = k_pos <= q_pos
        if self.window is not None:
            seen = seen & (q_pos - k_pos < self.window)
        return seen


class Numerics:
    """The arithmetic of a right kernel; each method is a point where a mechanism may be planted."""

    def ranges(self, view):
        """Cuts the keys into splits."""
        edges = np.linspace(0, len(view.k_pos), view.splits + 1).astype(int)
        return list(zip(edges[:-1], edges[1:]))

    def start(self, shape, dtype):
        """Gives maximum, denominator and accumulator before the first key."""
        rows = shape[:-1]
        return np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros(shape, dtype)

    def dot(self, s):
        return s

    def capped(self, s, cap):
        return s if np.isinf(cap) else cap * np.tanh(s / cap)

    def scores(self, s, q_pos, k_pos):
        return s

    def weights(self, p):
        """Weights as the product with V sees them; the denominator sums the others."""
        return p

    def rescale(self, acc, den, alpha):
        return acc * alpha[..., None], den * alpha

    def accumulated(self, acc):
        return acc

    def with_sink(self, m, den, acc, sink):
        top = np.maximum(m, sink)
        base = finite(top)
        alpha = np.exp(m - base)
        return top, den * alpha + np.exp(sink - base), acc * alpha[..., None]

    def merge(self, partials):
        """Merges (m, den, acc) over disjoint sets of keys."""
        top = np.maximum.reduce([m for m, _, _ in partials])
        base = finite(top)
        factors = [np.exp(m - base) for m, _, _ in partials]
        den = sum(d * f for (_, d, _), f in zip(partials, factors))
        acc = sum(a * f[..., None] for (_, _, a), f in zip(partials, factors))
        return top, den, acc

    def finish(self, m, den, acc, keys):
        """Normalises; keys [R] counts what a row sees."""
        with np.errstate(divide="ignore", invalid="ignore"):
            out = np.where(den[..., None] == 0, 0, acc / den[..., None])
            lse = m + np.log(den)
        return out, np.where(den == 0, -np.inf, lse)


def finite(m):
    """Replaces -inf, the maximum of no key, so that exp(-inf - m) is 0."""
    return np.where(np.isneginf(m), 0, m).astype(m.dtype)


def fold(view, numerics, q, kv, heads, begin, end):
    """Folds the keys [begin, end) of one KV head into (m, den, acc) for its query heads: a running softmax over tiles."""
    dtype = q.dtype
    m, den, acc = numerics.start(q.shape, dtype)
    scale, slope = view.scale[heads].astype(dtype), view.slope[heads].astype(dtype)
    for first in range(begin, end, view.tile):
        part = slice(first, min(first + view.tile, end))
        k_pos = view.k_pos[part]
        seen = view.visible(view.q_pos[:, None], k_pos[None, :])
        if not seen.any():
            continue
        s = numerics.dot(np.matmul(q, view.k[part, kv].T)) * scale[:, None, None]
        s = numerics.capped(s, view.cap)
        if slope.any():
            s = s + slope[:, None, None] * (k_pos[None, :] - view.q_pos[:, None]).astype(dtype)
        s = np.where(seen, numerics.scores(s, view.q_pos[:, None], k_pos[None, :]), dtype.type(-np.inf))
        new = np.maximum(m, s.max(axis=-1))
        base = finite(new)
        p = np.exp(s - base[..., None])
        acc, den = numerics.rescale(acc, den, np.exp(m - base))
        den = den + p.sum(axis=-1)
        # A tile's hidden keys have weight 0 and may hold NaN, which 0 * NaN would let through.
        v = view.v[part, kv]
        hidden = ~seen.any(axis=0)
        if hidden.any():
            v = np.where(hidden[:, None], 0, v)
        p = numerics.weights(p if view.weight_type is None else p.astype(view.weight_type).astype(dtype))
        acc = numerics.accumulated(acc + np.matmul(p, v))
        m = new
    return m, den, acc


def attend(view, numerics=None):
    """Gives out [R, H, D] and lse [R, H] of one request."""
    numerics = numerics or Numerics()
    rows, num_heads, dim = view.q.shape
    out = np.zeros(view.q.shape, view.q.dtype)
    lse = np.zeros((rows, num_heads), view.q.dtype)
    keys = view.visible(view.q_pos[:, None], view.k_pos[None, :]).sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        for kv in np.unique(view.kv_head):
            heads = np.flatnonzero(view.kv_head == kv)
            q = np.ascontiguousarray(view.q[:, heads].transpose(1, 0, 2))
            partials = [fold(view, numerics, q, kv, heads, b, e) for b, e in numerics.ranges(view)]
            m, den, acc = numerics.merge(partials)
            m, den, acc = numerics.with_sink(m, den, acc, view.sink[heads].astype(q.dtype)[:, None])
            o, l = numerics.finish(m, den, acc, keys)
            out[:, heads], lse[:, heads] = o.transpose(1, 0, 2), l.T
    return out, lse


def run(batch, mechanism=None, dtype=np.float32):
    """Gives out [T, H, D] and lse [T, H] of a batch, as a kernel with the mechanism planted would."""
    out = np.zeros(batch.q.shape, dtype)
    lse = np.full(batch.q.shape[:2], -np.inf, dtype)
    for r in range(batch.num_requests):
        rows = batch.rows(r)
        if rows.stop == rows.start:
            continue
        view = batch.view(r, dtype)
        numerics = mechanism.edit(view) if mechanism and mechanism.edit else None
        out[rows], lse[rows] = attend(view, numerics)
    return mechanism.output(out, lse) if mechanism and mechanism.output else (out, lse)
