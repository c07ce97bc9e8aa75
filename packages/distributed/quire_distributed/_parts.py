# SPDX-License-Identifier: Apache-2.0
"""A context in more parts than ranks: bits that do not depend on the number of ranks.

Parts are those that ``parts`` ranks would hold: ContextShard(v, parts, interleave) for v in [0, parts). ``parts`` is a multiple of the ranks,
so rank k holds parts k, k + world, k + 2 * world and so on, as whole pages of its cache. It attends to each of them with a plan of its own;
all parts are gathered and merged in their order. With batch-invariant plans a part has the same bits wherever it lies.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from quire import _quire
from quire._arrays import empty_bytes_like, empty_f32_like
from quire._messages import shown
from quire.errors import ArgumentError

from quire_distributed._exchange import Layout
from quire_distributed._groups import Group
from quire_distributed._local_batch import LocalLengths
from quire_distributed._shards import ContextShard


@dataclasses.dataclass(frozen=True)
class ContextPart:
    """A part that this rank holds."""

    shard: ContextShard  # of as many ranks as there are parts
    lengths: LocalLengths
    indices: dict[str, Any]
    local: Any  # quire.Plan


def check_parts(parts: Any, shard: ContextShard, page_size: int, exchange: str) -> int:
    if isinstance(parts, bool) or not hasattr(parts, "__index__") or parts < 1 or parts % shard.world:
        raise ArgumentError(f"parts: {shown(parts)}, expected a multiple of {shard.world} ranks")
    if shard.span or exchange not in ("auto", "all_gather"):
        given = f"span {shard.span}" if shard.span else f'exchange "{exchange}"'
        raise ArgumentError(f"parts: {parts} with {given}, expected interleaved shards and all_gather")
    _quire.check_context_shard(shard.rank, shard.world, shard.interleave, 0, page_size).raise_if_any()
    return int(parts)


def shards_of_rank(shard: ContextShard, parts: int) -> list[ContextShard]:
    """The parts that a rank holds, in order."""
    return [ContextShard(v, parts, shard.interleave) for v in range(shard.rank, parts, shard.world)]


def table_of(part: ContextShard, whole: ContextShard, table: Any, page_size: int) -> Any:
    """The pages of a part: every so many runs of those of its rank. Whole pages."""
    pages, turns = whole.interleave // page_size, part.world // whole.world
    turn = part.rank // whole.world
    return table[:, [j for j in range(table.shape[1]) if j // pages % turns == turn]]


def gathered_parts(buffers: Any, group: Group) -> Any:
    """[parts, heads, block] in order of the parts, from this rank's [parts of a rank, heads, block]."""
    received = empty_f32_like(buffers, (group.world, *buffers.shape))
    group.all_gather(buffers, received)
    turned = received.transpose(0, 1) if hasattr(received, "movedim") else received.swapaxes(0, 1)
    return turned.reshape(-1, *buffers.shape[1:])


def empty_parts(layout: Layout, like: Any, count: int) -> Any:
    """Buffers of a rank's parts; no uninitialised byte travels."""
    buffers = empty_f32_like(like, (count, layout.num_q_heads, layout.block))
    buffers[...] = 0
    return buffers


def workspace_for(like: Any, parts: tuple[ContextPart, ...]) -> Any:
    return empty_bytes_like(like, max(1, *(part.local.workspace_bytes for part in parts)))
