# SPDX-License-Identifier: Apache-2.0
"""The choice between a gather and a ring, with the numbers that speak for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from quire import _quire
from quire.errors import ArgumentError

from quire_distributed._exchange import Exchange
from quire_distributed._groups import Group
from quire_distributed._zigzag import ZigZag


@dataclasses.dataclass(frozen=True)
class PrefillWork:
    """Sizes of one layer on one rank. itemsize: bytes of an element."""

    zigzag: ZigZag
    q_heads: int
    kv_heads: int
    head_dim: int
    itemsize: int
    on_gpu: bool

    @property
    def block_bytes(self) -> int:
        """Keys and values of one rank."""
        return 2 * self.zigzag.num_pages * self.zigzag.page_size * self.kv_heads * self.head_dim * self.itemsize

    @property
    def step_flops(self) -> float:
        """Operations of one step of a ring: two squares of a chunk's length, two products, a multiplication and a sum each."""
        squares = sum(2.0 * self.zigzag.chunk(prompt) ** 2 for prompt in range(len(self.zigzag.lengths)))
        return 4 * squares * self.q_heads * self.head_dim

    @property
    def merge_bytes(self) -> int:
        """Bytes that one merge reads and writes: the sum twice, in f32, and a partial result. Of full chunks, as ranks choose alike."""
        rows = self.zigzag.num_pages * self.zigzag.page_size
        return rows * self.q_heads * self.head_dim * (4 + 4 + self.itemsize)


#: Operations and bytes a second that attention and a merge reach: (GPU, CPU), and seconds to launch a merge on a GPU. For the choice alone:
#: wrong numbers cost time, never a bit. GPU: two H100, 2026-11-26
#: (bench/results/h100x2-ring.json); CPU: one core's.
_FLOPS = {True: 620e12, False: 50e9}
_BYTES = {True: 1.5e12, False: 5e9}
_LAUNCH = {True: 10e-6, False: 0.0}


def exposed_by_gather(work: PrefillWork, group: Group, chunks: int) -> float:
    """Seconds until the first chunk of heads has arrived: later ones travel while it is computed."""
    received = (group.world - 1) * work.block_bytes
    return group.latency + received / group.bandwidth / chunks if group.world > 1 else 0.0


def exposed_by_ring(work: PrefillWork, group: Group) -> float:
    """Seconds that steps wait for their blocks, and merges take."""
    travel = group.latency + work.block_bytes / group.bandwidth
    merge = _LAUNCH[work.on_gpu] + work.merge_bytes / _BYTES[work.on_gpu]
    return (group.world - 1) * (max(travel - work.step_flops / _FLOPS[work.on_gpu], 0.0) + merge)


def choose_prefill(work: PrefillWork, group: Group, options: Any, asked: str, chunks: int, chunks_asked: bool) -> Exchange:
    """The exchange of a prompt's keys: "gather" or "ring"; "copy" if asked. asked: "auto", or the kind that the caller wants.

    Raises ContractError (Q-D07), ArgumentError.
    """
    if asked not in ("auto", "gather", "ring", "copy"):
        raise ArgumentError(f"exchange: {asked!r} is none of auto, gather, ring, copy")
    if asked == "ring" and chunks_asked:
        raise ArgumentError(f'head_chunks: {chunks} with exchange="ring", expected None: a ring sends all heads of a block at once')
    _quire.check_prompts(options, ring=asked == "ring").raise_if_any()
    if asked != "auto":
        return Exchange(asked, f"as asked; {_numbers(work, group, chunks)}")
    findings = list(_quire.check_prompts(options, ring=True))
    if group.world == 1:
        return Exchange("gather", "one rank holds all keys")
    if findings:
        return Exchange("gather", f"not a ring: {findings[0]}")
    if chunks_asked:
        return Exchange("gather", "head_chunks is given, which a ring does not have")
    kind = "ring" if exposed_by_ring(work, group) < exposed_by_gather(work, group, chunks) else "gather"
    return Exchange(kind, _numbers(work, group, chunks))


def _numbers(work: PrefillWork, group: Group, chunks: int) -> str:
    whole = group.world * work.block_bytes
    return (
        f"beside attention a gather takes {1e6 * exposed_by_gather(work, group, chunks):.0f} us and {whole / 1e6:.1f} MB of keys on every "
        f"rank, a ring {1e6 * exposed_by_ring(work, group):.0f} us and {min(2, group.world) * work.block_bytes / 1e6:.1f} MB (predicted "
        f"on {group.name})"
    )
