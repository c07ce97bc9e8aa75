# SPDX-License-Identifier: Apache-2.0
"""Captures of a sharded call, one per rank, for ``quire diagnose rank0.safetensors rank1.safetensors ...``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import is_torch
from quire._messages import keywords_checked, shown
from quire.distributed._shards import ContextShard
from quire.errors import ArgumentError, UnsupportedError


def on_host(array: Any) -> Any:
    return array.detach().cpu() if is_torch(array) else array


def rank_note(shard: ContextShard, heads: str) -> str:
    """The note "context_shard" of a capture (capture.md)."""
    order = f"span={shard.span}" if shard.span else f"interleave={shard.interleave}"
    return f"rank={shard.rank} world={shard.world} {order}{' heads=own' if heads == 'own' else ''}"


def _all_heads(own: Any, batch: Any, shard: ContextShard) -> Any:
    """A rank's share of the heads among NaN: captures have outputs of all heads."""
    heads = batch.query.shape[1]
    shape = (*batch.query.shape[:2], own.shape[-1])
    first = shard.rank * heads // shard.world
    if is_torch(own):
        whole = own.new_full(shape, float("nan"))
    else:
        whole = np.empty(shape, own.dtype)
        whole.view(np.uint8)[...] = 0xFF  # NaN in every floating type
    whole[:, first : first + own.shape[1]] = own
    return whole


def write_rank(folder: Any, batch: Any, cache: Any, options: Any, *, shard: ContextShard, heads: str, part: tuple[Any, Any], result: Any) -> str:
    """Writes ``rank<k>.safetensors`` into a folder that it makes. part: (out, lse) of the rank alone; result: what it has after the exchange."""
    if batch.output_scale is not None:
        raise UnsupportedError("capture: an output_scale is given; captures of ranks hold outputs of 16 or 32 bits")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.fsdecode(folder), f"rank{shard.rank}.safetensors")
    arrays = {name: on_host(getattr(batch, name)) for name in ("query", "query_start_loc", "seq_lens", "block_table", "q_scale")}
    out, lse = (on_host(a) for a in part)
    out, lse = (a.contiguous() if is_torch(a) else np.ascontiguousarray(a) for a in (out, lse))
    seen = _quire.Batch(**arrays, output=out, lse=lse)
    held = _quire.KVCache(on_host(cache.k), on_host(cache.v), cache.layout, on_host(cache.k_scale), on_host(cache.v_scale), dtype=cache.dtype)
    observed = on_host(_all_heads(result, batch, shard) if heads == "own" else result)
    notes = {"producer": "quire.distributed.attend", "context_shard": rank_note(shard, heads)}
    _quire.write_capture(path, seen, held, options, observed, None, notes, batch.dtype)
    return path


@keywords_checked
def diagnose(captures: Iterable[Any], *, full: bool = False, seconds: float = 1.0) -> _quire.RankDiagnosis:
    """Finds what is wrong with the result of ranks that share a context, on which rank, and why.

        quire.distributed.diagnose(["bad/rank0.safetensors", "bad/rank1.safetensors"])

    captures: one of every rank, in any order: paths, or :class:`quire.Case` objects, as ``attend(..., capture=folder)`` writes them.
    full: compare every row; else about ``seconds`` are spent on attention in fp64.

    Each recorded part is compared with attention over the keys of its rank, and each result with the merge of the parts; every fault of
    ``quire verify --matrix shards`` is asked whether it explains all elements. Raises ArgumentError if a rank is missing, ParseError or
    FileError for a bad file. The GIL is released.
    """
    if isinstance(captures, (str, bytes, os.PathLike)):
        raise ArgumentError(f"captures: {shown(captures)}, expected a list with one capture for each rank")
    cases = [c if isinstance(c, _quire.Case) else _quire.read_capture(c) for c in captures]
    return _quire.diagnose_ranks(cases, full, seconds)
