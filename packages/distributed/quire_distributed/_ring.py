# SPDX-License-Identifier: Apache-2.0
"""A ring for prompts in zig-zag order: blocks of keys go from rank to rank, and no rank ever holds all of them.

In step s rank r attends to the block of rank j = (r - s) mod world, while the block travels on. Chunk i of a prompt lies before chunk
i + 1, so

    j = r      causal: the rank's own rows and keys
    j < r      all rows of r see all keys of chunk j, and none of chunk 2 * world - 1 - j
    j > r      the rows of chunk 2 * world - 1 - r see all keys of j, those of chunk r see none

Every step but the first is a call in which a row sees all keys or none, and each costs two squares of a chunk's length on every rank
(Striped and zig-zag ring attention: arXiv 2311.09431, arXiv 2310.01889).
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_f32_like, empty_part_like

from quire_distributed._groups import Group
from quire_distributed._prompt_blocks import PromptCall, on_gpu, packed_block, pages_of, planned
from quire_distributed._zigzag import ZigZag


@dataclasses.dataclass(frozen=True)
class RingCalls:
    """The three calls of a ring, by where the block comes from; their plans serve all steps. partials: "f32", or "query" for the query's
    dtype."""

    own: PromptCall
    earlier: PromptCall
    later: PromptCall
    partials: str

    def of(self, source: int, rank: int) -> PromptCall:
        return self.own if source == rank else self.earlier if source < rank else self.later


def ring_arrays(z: ZigZag, where: str) -> dict[str, np.ndarray]:
    """Lengths and tables of a call: two requests a prompt. where: "own", "earlier" or "later", the rank that the keys come from."""
    rows, keys, tables = [], [], []
    widest = max((2 * z.chunk(prompt) // z.page_size for prompt in range(len(z.lengths))), default=1)
    for prompt, first in enumerate(z.first_pages):
        (late, late_end), (early, early_end) = z.ranges(prompt)
        size = z.chunk(prompt)
        rows += [late_end - late, early_end - early]
        # Chunks before a chunk that has rows are full.
        seen = {"own": (size + late_end - late, early_end - early), "earlier": (size, size), "later": (2 * size, 0)}[where]
        keys += [seen[0] if late_end > late else 0, seen[1] if early_end > early else 0]
        # Keys in the order of their positions: the earlier chunk lies behind the later one.
        pages = np.arange(size // z.page_size)
        table = np.concatenate([first + len(pages) + pages, first + pages])
        tables += 2 * [np.pad(table, (0, widest - len(table)))]
    last_page = max(z.num_pages - 1, 0)
    return {
        "query_start_loc": np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
        "seq_lens": np.array(keys, np.int32),
        "block_table": np.minimum(np.array(tables).reshape(len(rows), widest), last_page).astype(np.int32),
    }


def _without_mask(options: Any) -> Any:
    """Options of a call in which a row sees all keys: a sink is one logit in the denominator, which the rank's own block has."""
    if options is None:
        return _quire.Options(causal=False)
    return _quire.Options(causal=False, softmax_scale=options.softmax_scale, logits_soft_cap=options.logits_soft_cap)


def _empty_part(query: Any, partials: str) -> Any:
    return empty_f32_like(query, tuple(query.shape)) if partials == "f32" else empty_part_like(query, tuple(query.shape))


def ring_calls(query: Any, key: Any, options: Any, z: ZigZag, partials: str, kernel: str | None, batch_invariant: bool) -> RingCalls:
    """Plans the calls of a ring."""
    block = empty_part_like(key, (2, z.num_pages * z.page_size, *key.shape[1:]))
    cache = _quire.KVCache(*pages_of(block, z.num_pages, z.page_size))
    part, lse = _empty_part(query, partials), empty_f32_like(query, tuple(query.shape[:2]))
    calls = {
        where: planned(query, part, lse, cache, seen, ring_arrays(z, where), kernel, batch_invariant)
        for where, seen in (("own", options), ("earlier", _without_mask(options)), ("later", _without_mask(options)))
    }
    return RingCalls(**calls, partials=partials)


class _Road:
    """The blocks on their way: one that is attended to, one that arrives. On a GPU they travel on a stream of their own."""

    def __init__(self, block: Any, group: Group):
        self.block, self._next, self._group = block, None, group
        self._cuda = sys.modules["torch"].cuda if on_gpu(block) else None
        self._side = self._cuda.Stream() if self._cuda else None
        self._wait: Any = None

    def send(self) -> None:
        """Sends the block on, and begins to receive the next one. What the caller's stream has so far may still read its memory."""
        if self._next is None:
            self._next = empty_part_like(self.block, tuple(self.block.shape))
        if self._side is not None:
            self._side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._side) if self._cuda else contextlib.nullcontext():
            self._wait = self._group.shift(self.block, self._next)
            if self._side is not None:
                self._wait()
                arrived = self._side.record_event()
                self._wait = lambda: self._cuda.current_stream().wait_event(arrived)

    def arrive(self) -> None:
        self._wait()
        self.block, self._next = self._next, self.block


class _Sum:
    """Partial results of a rank's rows, merged one after the other into f32; the last one into the output."""

    def __init__(self, query: Any, output: Any, partials: str, world: int):
        self._output = output
        self._lse = empty_f32_like(query, tuple(query.shape[:2]))
        self._own = output if partials == "query" else _empty_part(query, "f32")
        self._part = _empty_part(query, partials) if world > 1 else None
        self._part_lse = empty_f32_like(query, tuple(query.shape[:2]))
        self._f32 = self._own if partials == "f32" or world <= 2 else _empty_part(query, "f32")
        self._sum = self._own

    def place(self, first: bool) -> tuple[Any, Any]:
        """(output, lse) of the next partial result."""
        return (self._own, self._lse) if first else (self._part, self._part_lse)

    def merge(self, last: bool) -> None:
        """Takes in the partial result that place(False) named."""
        out = self._output if last else self._f32
        _quire.merge(self._sum, self._lse, self._part, self._part_lse, out, self._lse)
        self._sum = out


def attend_ring(
    query: Any, key: Any, value: Any, options: Any, z: ZigZag, calls: RingCalls, slots: Any, workspace: Any, group: Group, output: Any
) -> None:
    """Attends to every block of the ring, and writes ``output``."""
    with group.guard():
        road = _Road(packed_block(key, value, z.num_pages * z.page_size, slots), group)
        total = _Sum(query, output, calls.partials, z.world)
    for s in range(z.world):
        source, last = (z.rank - s) % z.world, s + 1 == z.world
        if not last:
            road.send()
        with group.guard():
            call = calls.of(source, z.rank)
            out, lse = total.place(s == 0)
            batch = _quire.Batch(query=query, output=out, lse=lse, **call.indices)
            cache = _quire.KVCache(*pages_of(road.block, z.num_pages, z.page_size))
            _quire.attend(batch, cache, options if s == 0 else _without_mask(options), plan=call.local, workspace=workspace)
            if s > 0:
                total.merge(last)
        if not last:
            road.arrive()
