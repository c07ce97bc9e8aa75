# SPDX-License-Identifier: Apache-2.0
"""Attention in fp64 from the equations of docs/design.md section 1, and how far a right kernel may be off.

Nothing here calls quire. The tolerance is what docs/reference/numerics.md derives: sums of f32 products with random roundings (Higham and
Mary 2019), errors of scores and weights, the rounding of the output, and, where a plan says so, weights rounded to 16 bits.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from elements import FOUR_BITS, FP8, LARGEST, decode

if TYPE_CHECKING:
    from batches import Batch

U = 2.0**-24  # unit roundoff of f32, in which kernels accumulate
ROUNDOFF = {"f32": (U, 2.0**-149, 2.0**128 * (1 - 2.0**-25)), "f16": (2.0**-11, 2.0**-24, 65520.0),
            "bf16": (2.0**-8, 2.0**-133, 2.0**128 * (1 - 2.0**-9)), "fp8_e4m3fn": (2.0**-4, 2.0**-10, np.inf)}  # fmt: skip
SCORE_ROUNDINGS, WEIGHT_ROUNDINGS, LOG_ROUNDINGS, PER_KEY, SECOND_ORDER = 16, 8, 4, 7, 1.0625


@dataclasses.dataclass
class Seen:
    """Keys of a request that some row sees, and who sees which: bool [rows, keys]."""

    keys: np.ndarray
    by_row: np.ndarray


def candidates(batch: Batch, r: int) -> np.ndarray:
    """Keys that rows can see at all: all, or of a very long request those that lie before its rows' last and its spans' ends."""
    keys = batch.seq_lens[r]
    if keys <= 20000:
        return np.arange(keys)
    end = max([batch.q_begin[r] + batch.q_lens[r], *(end for _, end in batch.spans[r])]) - batch.key_begin[r]
    return np.arange(min(keys, max(0, end)))


def seen(batch: Batch, r: int) -> Seen:
    """The condition of include/quire/batch.hpp for every row and key."""
    o, keys = batch.options, candidates(batch, r)
    k = (batch.key_begin[r] + keys)[None]
    q = (batch.q_begin[r] + np.arange(batch.q_lens[r]))[:, None]
    one_span = np.zeros((len(q), len(keys)), bool)
    for begin, end in batch.spans[r]:
        one_span |= (q >= begin) & (q < end) & (k >= begin) & (k < end)
    right = o["window_right"]
    later = k <= q if batch.causal[r] else (k <= q + right if right is not None else np.ones_like(one_span))
    near = np.ones_like(one_span)
    if o["sliding_window"] is not None:
        near &= q - k < o["sliding_window"]
    if o["attention_chunk"] is not None:
        near &= k // o["attention_chunk"] == q // o["attention_chunk"]
    near |= k < batch.prefix_lens[r]
    if o["spans_beyond_window"]:
        near |= one_span
    visible = (later | one_span) & near
    length = batch.tree_lens[r]
    if length:
        first = int(batch.starts()[r])
        visible[:, batch.seq_lens[r] - length :] = batch.tree[first : first + len(q), :length]
    some = visible.any(axis=0)
    return Seen(keys[some], visible[:, some])


def seen_by_all(batch: Batch) -> list[Seen]:
    return [seen(batch, r) for r in range(len(batch.q_lens))]


def gathered(batch: Batch, r: int, keys: np.ndarray, side: str) -> np.ndarray:
    """Real values [heads, keys, dim] of K or V: of the cache, or of this step's rows."""
    s, arrays = batch.sides, batch.arrays
    dtype, name, dim = (s.k, "key", s.dim) if side == "k" else (s.v, "value", s.v_dim)
    cached = keys < batch.cached_lens[r]
    old, new = keys[cached], keys[~cached]
    where = batch.pages[r][old // s.page], old % s.page
    if dtype == "fp8_ds_mla":
        values = latent_values(arrays["k"][where])[..., :dim]
    else:
        values = decode(arrays[side][where], dtype)
        scale = arrays.get(f"{side}_scale")
        if scale is not None:
            values *= (scale[where] if scale.ndim == 3 else scale)[..., None]
        if dtype in FOUR_BITS:
            blocks = decode(arrays[f"{side}_block_scale"][where], "fp8_e4m3fn" if dtype == "nvfp4" else "e8m0")
            values *= np.repeat(blocks, FOUR_BITS[dtype], axis=-1)
    if len(new):
        rows = int(batch.starts()[r]) + new - (batch.seq_lens[r] - batch.q_lens[r])
        values = np.concatenate([values, decode(arrays[name][rows], s.q)])
    return values.transpose(1, 0, 2)


def latent_values(rows: np.ndarray) -> np.ndarray:
    scales = rows[..., 512:528].copy().view(np.float32).astype(np.float64)
    latent = decode(rows[..., :512], "fp8_e4m3fn") * np.repeat(scales, 128, axis=-1)
    return np.concatenate([latent, decode(rows[..., 528:].copy().view(np.uint16), "bf16")], axis=-1)


@dataclasses.dataclass
class Answer:
    """Of all rows: out [rows, heads, dims] and lse [rows, heads], their tolerances, and what 16-bit weights may add."""

    out: np.ndarray
    lse: np.ndarray
    out_tolerance: np.ndarray
    lse_tolerance: np.ndarray
    rounded_weights: np.ndarray


def gamma(count: np.ndarray | float) -> np.ndarray:
    return np.expm1(8 * np.sqrt(count) * U + np.asarray(count) * U * U / (1 - U))


def attend(batch: Batch) -> Answer:
    s, shape = batch.sides, (batch.rows, batch.sides.q_heads)
    empty = np.full(shape, -np.inf)
    wide = (*shape, s.v_dim)
    answer = Answer(np.zeros(wide), empty, np.full(wide, ROUNDOFF[s.out][1]), np.full(shape, 2.0**-149), np.zeros(wide))
    for r, rows in enumerate(batch.q_lens):
        if rows:
            first = int(batch.starts()[r])
            attend_request(batch, r, seen(batch, r), slice(first, first + rows), answer)
    return answer


def scores(batch: Batch, view: Seen, r: int, rows: slice, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[kv_heads, rows, group, keys]: scores, -inf where unseen, and the sum of magnitudes that errors of scores are relative to."""
    s, o, arrays = batch.sides, batch.options, batch.arrays
    group, count = s.q_heads // s.kv_heads, view.by_row.shape[0]
    q = decode(arrays["query"][rows], s.q).reshape(count, s.kv_heads, group, s.dim).transpose(1, 0, 2, 3)
    if "q_scale" in arrays:
        q = q * np.broadcast_to(arrays["q_scale"], (s.kv_heads,))[:, None, None, None]
    flat = q.reshape(s.kv_heads, count * group, s.dim)
    scale = float(np.float32(o["softmax_scale"])) if o["softmax_scale"] is not None else s.dim**-0.5
    turned = k.transpose(0, 2, 1)
    found = scale * (flat @ turned).reshape(s.kv_heads, count, group, -1)
    sizes = scale * (np.abs(flat) @ np.abs(turned)).reshape(found.shape)
    if "q_scale" in arrays:  # the scaled query is rounded once more
        sizes *= 1 + U / (gamma(s.dim) + SCORE_ROUNDINGS * U)
    cap = o["logits_soft_cap"]
    if cap is not None:
        found, sizes = cap * np.tanh(found / cap), sizes + cap / 4
    if "alibi_slopes" in arrays:
        positions = batch.q_begin[r] + np.arange(count)
        distance = (batch.key_begin[r] + view.keys)[None] - positions[:, None]
        bias = arrays["alibi_slopes"].astype(np.float64).reshape(s.kv_heads, 1, group, 1) * distance[None, :, None, :]
        found, sizes = found + bias, sizes + np.abs(bias)
    return np.where(view.by_row[None, :, None, :], found, -np.inf), sizes


def attend_request(batch: Batch, r: int, view: Seen, rows: slice, answer: Answer) -> None:
    s, arrays = batch.sides, batch.arrays
    k, v = gathered(batch, r, view.keys, "k"), gathered(batch, r, view.keys, "v")
    found, sizes = scores(batch, view, r, rows, k)
    heads, count, group, keys = found.shape
    sink = arrays["sinks"].astype(np.float64).reshape(heads, 1, group) if "sinks" in arrays else np.full((heads, 1, group), -np.inf)
    top = np.maximum(found.max(axis=-1, initial=-np.inf), sink)
    base = np.where(np.isfinite(top), top, 0)
    weights = np.exp(found - base[..., None])
    of_sink = np.exp(sink - base)
    total = weights.sum(axis=-1) + of_sink
    divisor = np.where(total > 0, total, 1)
    p = weights / divisor[..., None]
    visible = view.by_row[None, :, None, :]
    sizes = np.where(visible, sizes + np.abs(np.where(visible, found, 0) - base[..., None]), 0)

    def weighted(w: np.ndarray, values: np.ndarray) -> np.ndarray:
        """[rows, heads, dims]"""
        wide = np.broadcast_to(w, found.shape).reshape(heads, count * group, keys) @ values
        return wide.reshape(heads, count, group, -1).transpose(1, 0, 2, 3).reshape(count, s.q_heads, -1)

    def of_rows(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, (heads, count, group)).transpose(1, 0, 2).reshape(count, s.q_heads)

    seen_keys = np.broadcast_to(view.by_row.sum(axis=1)[:, None], (count, s.q_heads)).astype(np.float64)
    sums, score_error = gamma(PER_KEY * (seen_keys + 1)), gamma(s.dim) + SCORE_ROUNDINGS * U
    least = 2.0**-102 if s.q == "f32" else 2.0**-39 / (U * (8 + 8 * np.sqrt(PER_KEY * (of_count(view) + 1))))[None, :, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.where(total > 0, base + np.log(total), -np.inf)
        sink_size = np.where(np.isfinite(sink), of_sink / divisor * (np.abs(sink) + np.abs(sink - base)), 0)
    out, size = weighted(p, v), np.abs(v)
    pv, spv = weighted(np.where(visible, np.maximum(p, least), 0), size), weighted(p * sizes, size)
    score_size = of_rows((p * sizes).sum(axis=-1) + sink_size)
    roundoff, smallest, _ = ROUNDOFF[s.out]
    scale = float(np.float32(arrays["output_scale"].reshape(-1)[0])) if "output_scale" in arrays else 1.0
    per_pv, per_out = (sums + WEIGHT_ROUNDINGS * U)[..., None], (sums + score_error * score_size)[..., None] + roundoff
    bound = SECOND_ORDER * (per_pv * pv + score_error * spv + per_out * np.abs(out)) / scale + smallest
    unit = 2.0**-8 if s.q == "bf16" else 2.0**-11
    rounded = unit * weighted(p, size)
    if s.q != "bf16" or s.k in FP8 or s.k == "fp8_ds_mla":  # weights below f16's normal numbers
        rounded = rounded + weighted(np.maximum(0, np.minimum(p, 2.0**-25) - 2.0**-11 * p), size)
    answer.out[rows], answer.lse[rows] = out / scale, of_rows(lse)
    answer.out_tolerance[rows], answer.rounded_weights[rows] = bound, SECOND_ORDER * rounded / scale
    with np.errstate(invalid="ignore"):
        logs = np.where(np.isfinite(answer.lse[rows]), np.abs(answer.lse[rows]), 0) + np.log(seen_keys + 1)
    answer.lse_tolerance[rows] = SECOND_ORDER * (score_error * score_size + sums + LOG_ROUNDINGS * U * logs) + 2.0**-149


def of_count(view: Seen) -> np.ndarray:
    return view.by_row.sum(axis=1).astype(np.float64)


def wrong_elements(observed: np.ndarray, expected: np.ndarray, tolerance: np.ndarray, dtype: str) -> np.ndarray:
    """bool: NaN or infinity where none belongs, or too far away. fp8_e4m3fn saturates."""
    overflow = ROUNDOFF[dtype][2]
    if dtype == "fp8_e4m3fn":
        largest = LARGEST[dtype]
        beyond = np.abs(expected) - tolerance > largest
        expected = np.clip(expected, -largest, largest)
        tolerance = np.where(beyond, SECOND_ORDER * 2.0**-4 * largest + 2.0**-10, tolerance)
    with np.errstate(invalid="ignore"):
        fine = np.abs(observed - expected) <= tolerance
        same_infinity = np.isinf(observed) & ((np.abs(expected) + tolerance >= overflow) & (np.sign(observed) == np.sign(expected)))
        must_be_infinite = np.isfinite(observed) & (np.abs(expected) - tolerance >= overflow)
    return ~(fine | same_infinity | (np.isneginf(observed) & np.isneginf(expected))) | must_be_infinite
