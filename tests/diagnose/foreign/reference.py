# SPDX-License-Identifier: Apache-2.0
"""Computes the right answer in fp64 with two passes, and the tolerance of docs/reference/numerics.md, from the equations there."""
import numpy as np

UNIT = 2.0 ** -24
OUTPUT = {"float32": (2.0 ** -24, 2.0 ** -149), "float16": (2.0 ** -11, 2.0 ** -24), "bfloat16": (2.0 ** -8, 2.0 ** -133)}


def chain(n):
    """Bounds the relative error of n roundings (gamma with a tilde in docs/reference/numerics.md)."""
    return np.exp(8 * np.sqrt(n) * UNIT + n * UNIT ** 2 / (1 - UNIT)) - 1


def scores_of(view, heads, kv):
    """Gives scores [h, R, S] and the magnitude of all terms that make up their error, but |s - m|."""
    q, k = view.q[:, heads].transpose(1, 0, 2), view.k[:, kv]
    scale, slope = view.scale[heads][:, None, None], view.slope[heads][:, None, None]
    distance = view.k_pos[None, :] - view.q_pos[:, None]
    s = np.matmul(q, k.T) * scale
    magnitude = np.matmul(np.abs(q), np.abs(k).T) * np.abs(scale)
    if np.isfinite(view.cap):
        s = view.cap * np.tanh(s / view.cap)
        magnitude += view.cap / 4
    return s + slope * distance, magnitude + np.abs(slope * distance)


def reference(batch):
    """Gives out, lse and their tolerances, all fp64."""
    shape = batch.q.shape
    out, tol = np.zeros(shape), np.zeros(shape)
    lse, lse_tol = np.zeros(shape[:2]), np.zeros(shape[:2])
    for r in range(batch.num_requests):
        rows = batch.rows(r)
        if rows.stop == rows.start:
            continue
        view = batch.view(r, np.float64)
        seen = view.visible(view.q_pos[:, None], view.k_pos[None, :])
        used = seen.any(axis=0)
        view.k, view.v, view.k_pos, seen = view.k[used], view.v[used], view.k_pos[used], seen[:, used]
        for kv in range(batch.num_kv_heads):
            heads = np.flatnonzero(view.kv_head == kv)
            o, l, t, lt = one_kv_head(view, heads, kv, seen, batch)
            at = (rows, heads)
            out[at], lse[at], tol[at], lse_tol[at] = o.transpose(1, 0, 2), l.T, t.transpose(1, 0, 2), lt.T
    return out, lse, tol, lse_tol


def one_kv_head(view, heads, kv, seen, batch):
    type_name = batch.q.dtype.name
    s, magnitude = scores_of(view, heads, kv)
    s = np.where(seen, s, -np.inf)
    sink = view.sink[heads][:, None]
    m = np.maximum(s.max(axis=-1), sink)
    p = np.exp(s - m[..., None])
    p_sink = np.exp(sink - m)
    den = p.sum(axis=-1) + p_sink
    p, p_sink = p / den[..., None], p_sink / den
    v = view.v[:, kv]
    out, lse = np.matmul(p, v), m + np.log(den)
    dim, n = view.q.shape[-1], seen.sum(axis=-1)
    weighted = p * np.where(seen, magnitude + np.abs(np.where(seen, s, 0) - m[..., None]), 0)
    sink_part = np.where(np.isneginf(sink), 0, p_sink * (np.abs(np.where(np.isneginf(sink), 0, sink)) +
                                                        np.abs(np.where(np.isneginf(sink), 0, sink - m))))
    score_mag = weighted.sum(axis=-1) + sink_part
    score_error, sum_error = chain(dim) + 16 * UNIT, chain(7 * (n + 1))
    least = 2.0 ** -102 if type_name == "float32" else 2.0 ** -39 / (UNIT * (8 + 8 * np.sqrt(7 * (n + 1))))
    floor = np.abs(v).sum(axis=0) * (least if np.isscalar(least) else least[:, None])
    u_out, smallest = OUTPUT[type_name]
    abs_pv = np.matmul(p, np.abs(v)) + floor
    rounded = 0 if batch.weight_type is None else OUTPUT[np.dtype(batch.weight_type).name][0]
    tol = ((sum_error[:, None] + 8 * UNIT + rounded) * abs_pv + score_error * np.matmul(weighted, np.abs(v)) +
           (sum_error + score_error * score_mag)[..., None] * np.abs(out) + u_out * np.abs(out)) * 1.0625 + smallest
    lse_tol = (score_error * score_mag + sum_error + 4 * UNIT * (np.abs(lse) + np.log(n + 1))) * 1.0625
    return out, lse, tol, lse_tol
