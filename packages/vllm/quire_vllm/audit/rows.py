# SPDX-License-Identifier: Apache-2.0
"""Rows of an output against fp64 attention over the K and V that the cache holds, and what was just written against its source."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import quire
import torch

ROUNDING = 8.0
"""Errors up to so many tolerances are called rounding: kernels whose profile is not the one that was assumed (docs/reference/numerics.md) stay
under 4. Too large a value hides faults that touch little weight; too small a one calls another rounding a fault."""

_FP8_STEPS = 1  # a cache write that truncates ends one representable number from one that rounds to nearest


@dataclasses.dataclass
class Layer:
    """Attention that a layer should compute. ``cache_dtype``: Quire's type of raw uint8 caches."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    cap: float | None = None
    slopes: np.ndarray | None = None
    sinks: np.ndarray | None = None
    cache_dtype: str | None = None
    k_scale: np.ndarray | None = None
    v_scale: np.ndarray | None = None
    profile: str | None = None

    def options(self, heads: slice) -> Any:
        return quire.Options(
            softmax_scale=self.scale, sliding_window=self.window, logits_soft_cap=self.cap,
            alibi_slopes=None if self.slopes is None else self.slopes[heads].copy(),
            sinks=None if self.sinks is None else self.sinks[heads].copy(),
        )  # fmt: skip


@dataclasses.dataclass
class Judged:
    """``ratio``: the worst error as a multiple of its tolerance."""

    ok: bool
    ratio: float
    elements: int
    text: str
    problem: tuple[Any, Any, Any, torch.Tensor] | None = None  # batch, cache, options, observed: what a capture holds

    @property
    def rounding(self) -> bool:
        return not self.ok and self.ratio <= ROUNDING


def judge(layer: Layer, query: torch.Tensor, output: torch.Tensor, kv: torch.Tensor, seq_len: int, tokens: list[int], kv_heads: range) -> Judged:
    """Rows ``tokens`` of one request, for some of its KV heads.

    query, output: [rows of the request, num_q_heads, head_dim] on the host; kv: [pages, page_size, 2, len(kv_heads), head_dim] as stored.
    """
    group = layer.num_q_heads // layer.num_kv_heads
    heads = slice(kv_heads.start * group, kv_heads.stop * group)
    rows, observed = query[:, heads].contiguous(), output[:, heads].contiguous()
    pages = kv.shape[0]
    batch = quire.Batch(
        query=rows, output=torch.empty_like(rows), query_start_loc=np.array([0, len(rows)], np.int32), seq_lens=np.array([seq_len], np.int32),
        block_table=np.arange(pages, dtype=np.int32)[None],
    )  # fmt: skip
    cache = _cache(layer, kv, kv_heads)
    options = layer.options(heads)
    expected = quire.reference(batch, cache, options, tokens=tokens, profile=layer.profile)
    comparison = quire.compare(observed[tokens].contiguous(), None, expected)
    return Judged(comparison.ok, float(comparison.worst_ratio), comparison.num_elements, str(comparison.text), (batch, cache, options, observed))


def _cache(layer: Layer, kv: torch.Tensor, kv_heads: range) -> Any:
    part = slice(kv_heads.start, kv_heads.stop)
    scales = [None if s is None else (s if len(s) == 1 else s[part].copy()) for s in (layer.k_scale, layer.v_scale)]
    return quire.KVCache(kv[:, :, 0], kv[:, :, 1], "nhd", *scales, dtype=layer.cache_dtype)


def written_wrong(layer: Layer, stored: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> np.ndarray:
    """Indices of tokens whose slots do not hold them. stored: [tokens, 2, kv_heads, head_dim]; key, value: [tokens, kv_heads, head_dim].

    Caches of the key's type must hold the same bits; an fp8 cache may differ by one representable number from rounding to nearest."""
    n = len(stored)
    if layer.cache_dtype is None and stored.dtype == key.dtype:
        found = _bits(stored.contiguous()).numpy()
        same = [found[:, i] == _bits(rows.contiguous()).numpy() for i, rows in enumerate((key, value))]
        return np.flatnonzero(~np.logical_and(*same).reshape(n, -1).all(1))
    expected = torch.stack([key, value], 1).contiguous()
    shadow = torch.zeros((1, n, *expected.shape[1:]), dtype=stored.dtype)
    cache = quire.KVCache(shadow[:, :, 0], shadow[:, :, 1], "nhd", layer.k_scale, layer.v_scale, dtype=layer.cache_dtype)
    quire.append(cache, key.contiguous(), value.contiguous(), np.arange(n))
    apart = (_order(stored) - _order(shadow[0])).abs().reshape(n, -1).amax(1)
    return torch.nonzero(apart > _FP8_STEPS).reshape(-1).numpy()


def taken(x: torch.Tensor, indices: np.ndarray, heads: int) -> torch.Tensor:
    """Rows of [tokens, kv_heads, head_dim], their first heads, in host memory. On a CPU by NumPy, which takes one core and no barrier."""
    if x.device.type != "cpu":
        return x[torch.from_numpy(indices).to(x.device), :heads].cpu()
    return torch.from_numpy(_bits(x).numpy()[indices, :heads]).view(x.dtype)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _order(x: torch.Tensor) -> torch.Tensor:
    """Codes of a sign-magnitude type as integers in the order of their values."""
    codes = _bits(x.contiguous()).to(torch.int64)
    half = 1 << (8 * x.element_size() - 1)
    codes = torch.where(codes < 0, codes + 2 * half, codes)
    return torch.where(codes >= half, half - codes, codes)
