# SPDX-License-Identifier: Apache-2.0
"""Is this output right? A few rows against the reference, chosen so that a fault shows and the cost stays within a budget."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import Inputs

_NAN_ABOVE = {"f16": 0x7C00, "bf16": 0x7F80}
_SUSPECTS = 8
_OTHERS = 64


def _bits(array: Any, name: str, dtype: str | None = None) -> np.ndarray:
    return _quire.bits(array, name, dtype)[0]


def _optional(array: Any, name: str, dtype: str | None = None) -> np.ndarray | None:
    return None if array is None else _bits(array, name, dtype)


class Part:
    """The requests of a call that its op answers, as a batch of their own. ``rows``: where its rows lie in the call's; None = all."""

    def __init__(self, inputs: Inputs):
        self.batch, self.cache, self.options = inputs.batch, inputs.cache, inputs.options
        self.rows: np.ndarray | None = None
        if inputs.answered is not None and not np.all(inputs.answered):
            self._keep(np.flatnonzero(inputs.answered), inputs.lengths)

    def _keep(self, requests: np.ndarray, lengths: Any) -> None:
        b = self.batch
        starts = np.asarray(lengths.query_start_loc, np.int64)
        counts = np.diff(starts)[requests]
        rows = [np.arange(starts[r], starts[r + 1]) for r in requests]
        self.rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        cached = _optional(b.cached_lens, "cached_lens")
        per_row = {name: _optional(getattr(b, name), name, b.dtype) for name in ("query", "output", "key", "value")}
        self.batch = _quire.Batch(
            query_start_loc=np.concatenate(([0], np.cumsum(counts))).astype(lengths.query_start_loc.dtype),
            seq_lens=lengths.seq_lens[requests],
            block_table=_bits(b.block_table, "block_table")[requests],
            cached_lens=None if cached is None else cached[requests],
            dtype=b.dtype,
            **{name: None if array is None else array[self.rows] for name, array in per_row.items()},
        )

    def rows_of(self, output: Any) -> Any:
        """Cuts the sampled rows from another array like the call's output."""
        return output if output is None or self.rows is None else _bits(output, "output", self.batch.dtype)[self.rows]

    def one_head(self, kv_head: int, group: int) -> tuple[_quire.Batch, _quire.KVCache, _quire.Options]:
        """Views of one KV head and its query heads: the reference costs only what is looked at."""
        b, c, o = self.batch, self.cache, self.options
        mine, kv = slice(kv_head * group, (kv_head + 1) * group), slice(kv_head, kv_head + 1)
        pick = (slice(None),) * {"nhd": 2, "hnd": 1, "packed": 1}[c.layout] + (kv,)
        k_scale, v_scale = (_scale_of(s, kv) for s in (c.k_scale, c.v_scale))
        cache = _quire.KVCache(_bits(c.k, "k", c.dtype)[pick], _bits(c.v, "v", c.v_dtype)[pick], c.layout, k_scale, v_scale, c.dtype, v_dtype=c.v_dtype,
                               **{name: array[:, :, kv] for name in ("k_block_scale", "v_block_scale") if (array := getattr(c, name)) is not None})
        key, value = (_optional(a, "key", b.dtype) for a in (b.key, b.value))
        batch = _quire.Batch(
            query=_bits(b.query, "query", b.dtype)[:, mine],
            output=_bits(b.output, "output", b.dtype)[:, mine],
            query_start_loc=b.query_start_loc,
            seq_lens=b.seq_lens,
            block_table=b.block_table,
            cached_lens=b.cached_lens,
            key=None if key is None else key[:, kv],
            value=None if value is None else value[:, kv],
            dtype=b.dtype,
            padding=b.padding,
        )
        slopes, sinks = _optional(o.alibi_slopes, "alibi_slopes"), _optional(o.sinks, "sinks")
        options = _quire.Options(
            o.softmax_scale,
            o.sliding_window,
            o.logits_soft_cap,
            None if slopes is None else slopes[mine],
            None if sinks is None else sinks[mine],
        )
        return batch, cache, options


def _scale_of(scale: Any, kv: slice) -> Any:
    if scale is None or isinstance(scale, float):
        return scale
    values = _bits(scale, "scale")
    if values.ndim == 3:
        return values[:, :, kv]
    return values[kv] if values.size > 1 else values


class Sampler:
    """Compares a few rows of each call, one KV head at a time; learns what a row costs.

    Weights may be rounded to the type of the query, as vLLM's and FlashAttention's kernels do. Rows that look unwritten (one element of each row is compared with what the output held before) or hold NaN come first, then the last
    row of each request in turn, then others. The KV head and the element that is looked at change from call to call.
    """

    def __init__(self, budget: float):
        self._budget = budget
        self._rate = 1e-9  # seconds per multiplication of the reference
        self.checked_rows = 0

    def look(self, part: Part, before: Any, number: int) -> str:
        """Returns the error in the output of the part's batch, or "". ``before``: content of the call's output before the call."""
        findings = _quire.check(part.batch, part.cache, part.options, "tables")
        if findings.total:
            return f"the call breaks the contract: {findings[0].message}"
        output = _bits(part.batch.output, "output", part.batch.dtype)
        output = output[: int(_starts(part)[-1])]  # padding rows belong to no request
        if output.size == 0:
            return ""
        group = output.shape[1] // part.cache.num_kv_heads
        keys = _visible_keys(part)
        deadline, looked = time.perf_counter() + self._budget, False
        for kv_head, token in _candidates(part, output, part.rows_of(before), group, number):
            work = float(keys[token]) * group * output.shape[2] * 2
            if looked and time.perf_counter() + work * self._rate > deadline:
                break
            start, looked = time.perf_counter(), True
            if finding := self._compare(part, output, kv_head, group, token):
                return finding
            self._rate += 0.3 * ((time.perf_counter() - start) / work - self._rate)
        return ""

    def _compare(self, part: Part, output: np.ndarray, kv_head: int, group: int, token: int) -> str:
        """The query heads of one KV head in one row."""
        expected = _quire.reference(*part.one_head(kv_head, group), [token])
        first = kv_head * group
        found = _quire.compare(output[token : token + 1, first : first + group], None, expected, part.batch.dtype, part.batch.dtype)
        self.checked_rows += 1
        if found.ok:
            return ""
        at = found.worst
        return (
            f"output[token {token}, head {first + at.head}, dim {at.dim}]: observed {at.observed:.6g}, expected {at.expected:.6g}, "
            f"tolerance {at.tolerance:.3g}"
        )


def _starts(part: Part) -> np.ndarray:
    return _bits(part.batch.query_start_loc, "query_start_loc").astype(np.int64)


def _visible_keys(part: Part) -> np.ndarray:
    """Per token."""
    starts, seq = _starts(part), _bits(part.batch.seq_lens, "seq_lens").astype(np.int64)
    lengths = np.diff(starts)
    keys = np.repeat(seq - lengths - starts[:-1], lengths) + np.arange(int(starts[-1])) + 1
    window = part.options.sliding_window
    return keys if window is None else np.minimum(keys, window)


def _candidates(part: Part, output: np.ndarray, before: Any, group: int, number: int) -> list[tuple[int, int]]:
    """(KV head, token), the most suspicious first."""
    rng = np.random.default_rng(number)
    tokens, heads, dims = output.shape
    head, dim = int(rng.integers(heads)), int(rng.integers(dims))
    probe = output[:, head, dim]
    dtype = part.batch.dtype
    nan = np.isnan(probe) if dtype == "f32" else (probe & 0x7FFF) > _NAN_ABOVE[dtype]
    suspects = np.flatnonzero(nan)
    if before is not None:
        untouched = np.flatnonzero(_bits(before, "output", dtype)[:tokens, head, dim] == probe)
        suspects = np.concatenate([suspects[:_SUSPECTS], rng.permutation(untouched)[:_SUSPECTS]])
    starts = _starts(part)
    last_rows = np.roll(starts[1:][np.diff(starts) > 0] - 1, 1 - number)
    others = rng.integers(tokens, size=min(_OTHERS, tokens))
    return [(head // group, int(token)) for token in (*suspects, *last_rows, *others)]
