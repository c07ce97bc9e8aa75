# SPDX-License-Identifier: Apache-2.0
"""Owners of positions and heads, as pure data. Functions take integers, NumPy arrays or torch tensors on any device, and copy nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import is_torch
from quire._messages import shown
from quire.errors import ArgumentError


_MOST = 2**31 - 1  # tokens of a request (Q-T07)


def _integers(of: Any, *names: str) -> None:
    for name in names:
        value = getattr(of, name)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ArgumentError(f"{type(of).__name__}: {name}: {shown(value)}, expected an integer")
        if not -(2**63) <= int(value) < 2**63:
            raise ArgumentError(f"{type(of).__name__}: {name}: {shown(value)}, expected an integer of 64 bits")
        object.__setattr__(of, name, int(value))


def _clip(values: Any, low: int, high: int | None) -> Any:
    """high None: any number above."""
    if not isinstance(values, int):
        return values.clip(low, high)
    return max(values, low) if high is None else min(max(values, low), high)


def _array(values: Any) -> Any:
    return np.asarray(values) if isinstance(values, (list, tuple, int)) else values


def _require_range(values: Any, name: str, low: int, end: int | None) -> None:
    """Checks that all values of an array in host memory are in [low, end)."""
    if is_torch(values) and values.device.type != "cpu":
        return
    host = np.asarray(values).reshape(-1)
    for i in np.flatnonzero((host < low) | (host >= (2**62 if end is None else end)))[:1]:
        expected = f"at least {low}" if end is None else f"in [{low}, {end})"
        raise ArgumentError(f"{name}[{i}]: {host[i]}, expected {expected}")


@dataclasses.dataclass(frozen=True)
class ContextShard:
    """Positions of every request that a rank holds. Positions stay global; a rank counts its positions by a local index.

        owner(p) = p // interleave % world                    interleaved: the order of vLLM's decode context parallel
                 = min(p // span, world - 1)                  contiguous (span > 0): the last rank also holds what follows

    interleave: tokens that lie together before the next rank's begin (1 to 2**31 - 1). A multiple of the page size shards whole
    pages. span: at most 2**31 - 1.
    Raises ContractError (Q-D01, Q-D02), ArgumentError.
    """

    rank: int
    world: int
    interleave: int = 1
    span: int = 0

    def __post_init__(self) -> None:
        _integers(self, "rank", "world", "interleave", "span")
        if self.span > 0 and self.interleave != 1:
            raise ArgumentError(f"ContextShard: interleave {self.interleave} beside span {self.span}, expected one of them")
        _quire.check_context_shard(self.rank, self.world, self.interleave, self.span, 0).raise_if_any()

    @classmethod
    def contiguous(cls, rank: int, world: int, span: int) -> ContextShard:
        """Rank k holds positions [k * span, (k + 1) * span), the last rank also all that follow. span >= 1."""
        if not isinstance(span, bool) and hasattr(span, "__index__") and int(span) < 1:
            raise ArgumentError(f"ContextShard.contiguous: span: {span}, expected at least 1")
        return cls(rank, world, span=span)

    @property
    def run(self) -> int:
        """Tokens of one run."""
        return self.span or self.interleave

    def of_rank(self, rank: int) -> ContextShard:
        """The shard of another rank of the same world."""
        return dataclasses.replace(self, rank=rank)

    def owner(self, positions: Any) -> Any:
        """The rank that holds each position (>= 0)."""
        turn = positions // self.run
        return _clip(turn, 0, self.world - 1) if self.span else turn % self.world

    def holds(self, positions: Any) -> Any:
        """Whether this rank holds each position."""
        return self.owner(positions) == self.rank

    def local_index(self, positions: Any) -> Any:
        """Number of positions below each one that its owner holds: the place in the owner's cache."""
        if self.span:
            return positions - self.owner(positions) * self.span
        return positions // self.interleave // self.world * self.interleave + positions % self.interleave

    def local_length(self, lengths: Any) -> Any:
        """Number of positions in [0, length) that this rank holds."""
        if self.span:
            last = self.rank + 1 == self.world
            return _clip(lengths - min(self.rank * self.span, _MOST), 0, None if last else self.span)
        turn = lengths // self.interleave  # no product of run and world: it may be more than an int32 array holds
        whole, of_round = turn // self.world, turn % self.world
        return (whole + (of_round > self.rank)) * self.interleave + (of_round == self.rank) * (lengths % self.interleave)

    def global_position(self, indices: Any) -> Any:
        """The position that has each local index on this rank."""
        if self.span:
            return self.rank * self.span + indices
        return (indices // self.interleave * self.world + self.rank) * self.interleave + indices % self.interleave

    def slots(self, positions: Any, requests: Any, block_table: Any, page_size: int) -> Any:
        """Slots in this rank's cache for tokens at ``positions`` of requests ``requests`` (rows of ``block_table``), -1 where another
        rank holds the position.

        block_table: [num_reqs, pages]: pages of this rank's cache, in the order of local indices. One table serves all ranks if
        they hand out pages alike: page j of a request then stands for ``world * page_size`` tokens, as in vLLM. Shapes are checked
        everywhere, values in host memory only.

        Raises ArgumentError: positions below 0, requests outside the table, pages below 0 or beyond it.
        """
        positions, requests, block_table = (_array(a) for a in (positions, requests, block_table))
        if isinstance(page_size, bool) or not hasattr(page_size, "__index__") or page_size < 1:
            raise ArgumentError(f"page_size: {shown(page_size)}, expected an integer of at least 1")
        if tuple(positions.shape) != tuple(requests.shape) or block_table.ndim != 2:
            raise ArgumentError(
                f"positions, requests, block_table: shapes {[list(a.shape) for a in (positions, requests, block_table)]}, expected "
                "[n], [n] and [num_reqs, pages]"
            )
        _require_range(positions, "positions", 0, None)
        _require_range(requests, "requests", 0, block_table.shape[0])
        local = self.local_index(positions)
        held = self.holds(positions)
        page = local // page_size * held
        _require_range(page, "page of a position in its request", 0, block_table.shape[1])
        pages = block_table[requests, page]
        _require_range(pages * held, "block_table, pages of these positions", 0, None)
        slots = pages * page_size + local % page_size
        return held * (slots + 1) - 1

    def block_table(self, table: Any, page_size: int) -> Any:
        """The pages of a global table [num_reqs, pages] that this rank holds, in order: columns of the table. Whole pages only.

        Raises ContractError (Q-D04) unless interleave or span is a multiple of page_size."""
        _quire.check_context_shard(self.rank, self.world, self.interleave, self.span, page_size).raise_if_any()
        columns = range(table.shape[1])
        return table[:, [j for j in columns if self.holds(j * page_size)]]

    def check_slots(self, slot_mapping: Any, positions: Any) -> Any:
        """Findings of rule Q-D06: slots are given for the positions that this rank holds, and for no others."""
        return _quire.check_shard_slots(self.rank, self.world, self.interleave, self.span, slot_mapping, positions)

    def check_ledger(self, batch: Any, cache: Any, ledger: Any, options: Any = None) -> Any:
        """Findings of rules Q-L01 to Q-L05: every key that this rank holds and the batch sees was written for its position.

        batch: as :func:`quire_distributed.attend` takes it. ledger: the :class:`quire.SlotLedger` of this rank's cache, which ``append``
        feeds with positions of whole requests: ``quire.append(cache, k, v, shard.slots(...), ledger=ledger, request_ids=..., positions=...)``.
        Call it after this step's append.
        """
        return _quire.check_shard_ledger(self.rank, self.world, self.interleave, self.span, batch, cache, options, ledger)


@dataclasses.dataclass(frozen=True)
class HeadShard:
    """Heads that a rank computes (tensor parallel). Ranks exchange nothing: slices of query, cache and output are enough.

    world divides num_kv_heads, or is a multiple of it: then several ranks hold the same KV head and share its query heads.
    Raises ContractError (Q-D01, Q-D03), ArgumentError.
    """

    rank: int
    world: int
    num_q_heads: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        _integers(self, "rank", "world", "num_q_heads", "num_kv_heads")
        _quire.check_head_shard(self.rank, self.world, self.num_q_heads, self.num_kv_heads).raise_if_any()

    @property
    def q_heads(self) -> slice:
        """This rank's query heads."""
        count = self.num_q_heads // self.world
        return slice(self.rank * count, (self.rank + 1) * count)

    @property
    def kv_heads(self) -> slice:
        """The KV heads that its query heads read."""
        first = self.q_heads.start // (self.num_q_heads // self.num_kv_heads)
        return slice(first, first + max(self.num_kv_heads // self.world, 1))


def shards(rank: int, world: int, num_q_heads: int, num_kv_heads: int, *, contexts: int = 1, interleave: int = 1) -> tuple[HeadShard, ContextShard]:
    """Heads and contexts sharded at once: ``contexts`` neighbouring ranks hold one context together, and the groups of them share
    the heads. Returns (HeadShard, ContextShard) of ``rank`` in [0, world); contexts divides world.

    Rank k is rank k % contexts of its context, and rank k // contexts of the heads.
    """
    if contexts < 1 or world % contexts != 0:
        raise ArgumentError(f"shards: contexts: {contexts}, expected a divisor of world = {world}")
    return (
        HeadShard(rank // contexts, world // contexts, num_q_heads, num_kv_heads),
        ContextShard(rank % contexts, contexts, interleave),
    )
