# SPDX-License-Identifier: Apache-2.0
"""Chunks of heads: while the parts of one chunk travel, attention of the next one runs.

On a GPU exchanges run on a stream of their own. Buffers belong to the plan, so that a CUDA graph holds both streams.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

from quire import _quire
from quire._arrays import empty_bytes_like, empty_part_like, is_torch
from quire._messages import shown
from quire.errors import ArgumentError

from quire_distributed._exchange import Layout, empty_stack
from quire_distributed._groups import Group
from quire_distributed._heads import cache_of_heads, options_of_heads


@dataclasses.dataclass(frozen=True)
class HeadChunk:
    """Some KV heads and their query heads, with a plan and buffers of their own."""

    q_heads: slice
    kv_heads: slice
    layout: Layout
    local: Any
    workspace: Any
    part: Any  # buffer of this rank's part
    received: Any  # buffer of all ranks' parts
    side: Any  # the stream of exchanges, one for all chunks; None on CPUs


def _on_gpu(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


def _num_kv_heads(cache: Any) -> int:
    return int(cache.k.shape[2 if cache.layout == "nhd" else 1])


def check_overlap(overlap: int, cache: Any, heads: str, exchange: str) -> None:
    count = _num_kv_heads(cache)
    if isinstance(overlap, bool) or not hasattr(overlap, "__index__") or count % int(overlap):
        raise ArgumentError(f"overlap: {shown(overlap)}, expected a divisor of {count} KV heads")
    if heads != "all" or exchange not in ("auto", "all_gather"):
        raise ArgumentError(f'overlap: {overlap} with heads "{heads}" and exchange "{exchange}", expected heads "all" and all_gather')


def head_chunks(
    overlap: int, query: Any, cache: Any, options: Any, indices: dict[str, Any], whole: Layout, group: Group, kernel: str | None,
    longest: dict[str, int],
) -> tuple[HeadChunk, ...]:  # fmt: skip
    q_heads, kv_heads = whole.num_q_heads // overlap, _num_kv_heads(cache) // overlap
    side = sys.modules["torch"].cuda.Stream(query.device) if _on_gpu(query) else None
    chunks = []
    for i in range(overlap):
        mine, held = slice(i * q_heads, (i + 1) * q_heads), slice(i * kv_heads, (i + 1) * kv_heads)
        layout = dataclasses.replace(whole, num_q_heads=q_heads)
        part = layout.empty(query)
        part[:] = 0  # padding travels, too
        out, lse = layout.views(part, query.dtype)
        batch = _quire.Batch(query=query[:, mine], output=out, lse=lse, **indices)
        local = _quire.plan(batch, cache_of_heads(cache, held), options_of_heads(options, mine), kernel=kernel, **longest)
        workspace = empty_bytes_like(query, max(local.workspace_bytes, 1)) if side else None
        chunks.append(HeadChunk(mine, held, layout, local, workspace, part, empty_stack(part, group.world), side))
    return tuple(chunks)


def _attend_chunk(query: Any, batch: Any, cache: Any, options: Any, chunk: HeadChunk, indices: dict[str, Any]) -> None:
    out, lse = chunk.layout.views(chunk.part, query.dtype)
    scale = batch.q_scale
    if len(getattr(scale, "shape", ())) == 1 and scale.shape[0] > 1:
        scale = scale[chunk.kv_heads]
    own = _quire.Batch(query=query[:, chunk.q_heads], output=out, lse=lse, q_scale=scale, **indices)
    held = cache_of_heads(cache, chunk.kv_heads)
    _quire.attend(own, held, options_of_heads(options, chunk.q_heads), plan=chunk.local, workspace=chunk.workspace)


class _Streams:
    """The caller's stream and that of exchanges; on CPUs one after the other."""

    def __init__(self, side: Any):
        self._side, self._cuda = side, sys.modules["torch"].cuda if side else None

    def exchange(self) -> Any:
        """A context whose work waits for what the caller's stream has so far."""
        if self._side is None:
            return contextlib.nullcontext()
        self._side.wait_stream(self._cuda.current_stream())
        return self._cuda.stream(self._side)

    def arrived(self) -> Any:
        return self._side.record_event() if self._side else None

    def wait(self, event: Any) -> None:
        if event is not None:
            self._cuda.current_stream().wait_event(event)


def attend_overlapped(
    query: Any, batch: Any, cache: Any, options: Any, group: Group, chunks: tuple[HeadChunk, ...], indices: dict[str, Any]
) -> Any:
    """attend() of a plan with chunks."""
    streams, arrived = _Streams(chunks[0].side), []
    for chunk in chunks:
        with group.guard():
            _attend_chunk(query, batch, cache, options, chunk, indices)
        with streams.exchange():
            group.all_gather(chunk.part, chunk.received)
            arrived.append(streams.arrived())
    with group.guard():
        shape = (*batch.query.shape[:2], chunks[0].layout.head_dim)
        output = empty_part_like(batch.query, shape) if batch.output is None else batch.output
        for chunk, event in zip(chunks, arrived):
            streams.wait(event)
            outs, lses = chunk.layout.views(chunk.received, query.dtype)
            lse = None if batch.lse is None else batch.lse[:, chunk.q_heads]
            _quire.merge_many(outs, lses, output[:, chunk.q_heads], lse, output_scale=batch.output_scale)
    return output
