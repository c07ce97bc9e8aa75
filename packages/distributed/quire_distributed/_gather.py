# SPDX-License-Identifier: Apache-2.0
"""A gather for prompts: every rank receives the keys of all, by chunks of KV heads, and each call is plain causal attention.

Llama 3's context parallelism (arXiv 2407.21783 section 3.3.2), in zig-zag order. While one chunk of heads is computed, the next one's
keys travel (on GPUs).
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_like, empty_part_like

from quire_distributed._copies import Copies, SharedKeys
from quire_distributed._groups import Group
from quire_distributed._prompt_blocks import PromptCall, on_gpu, packed_block, pages_of, planned
from quire_distributed._zigzag import ZigZag


def options_of_heads(options: Any, heads: slice) -> Any:
    """The options of some query heads."""
    if options is None or (options.sinks is None and options.alibi_slopes is None):
        return options
    own = {name: None if getattr(options, name) is None else getattr(options, name)[heads] for name in ("sinks", "alibi_slopes")}
    return _quire.Options(
        softmax_scale=options.softmax_scale, sliding_window=options.sliding_window, logits_soft_cap=options.logits_soft_cap, **own
    )


def gather_call(query: Any, key: Any, options: Any, z: ZigZag, chunks: int, kernel: str | None, batch_invariant: bool) -> PromptCall:
    """Plans the call of one chunk of heads, which serves all."""
    lens, ends = [], []
    for prompt in range(len(z.lengths)):
        for begin, end in z.ranges(prompt):
            lens.append(end - begin)
            ends.append(end)
    arrays = dict(
        query_start_loc=np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        # A chunk without rows attends to nothing: it has no keys, either.
        seq_lens=np.array([e if n else 0 for n, e in zip(lens, ends)], np.int32),
        block_table=z.block_table(2 * z.num_pages),
    )
    q_heads, kv_heads, dim = query.shape[1] // chunks, key.shape[1] // chunks, query.shape[2]
    buffer = empty_part_like(key, (z.world, 2, z.num_pages * z.page_size, kv_heads, dim))
    cache = _quire.KVCache(*pages_of(buffer, z.num_pages, z.page_size))
    part, own = query[:, :q_heads], options_of_heads(options, slice(0, q_heads))
    return planned(part, empty_like(query)[:, :q_heads], None, cache, own, arrays, kernel, batch_invariant)


class Gathers:
    """Gathers of keys, one chunk of heads after the other. On a GPU they run on a stream of their own, ahead of attention."""

    def __init__(self, key: Any, value: Any, z: ZigZag, chunks: int, slots: Any, group: Group):
        self._cuda = sys.modules["torch"].cuda if on_gpu(key) else None
        self._side = self._cuda.Stream() if self._cuda else None
        self._events: list[Any] = []
        heads = key.shape[1] // chunks
        rows = z.num_pages * z.page_size
        self.received = []
        if self._side is not None:
            self._side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._side) if self._cuda else contextlib.nullcontext():
            for chunk in range(chunks):
                mine = slice(chunk * heads, (chunk + 1) * heads)
                sent = packed_block(key[:, mine], value[:, mine], rows, slots)
                received = empty_part_like(key, (z.world, *sent.shape))
                group.all_gather(sent, received)
                self.received.append(received)
                if self._cuda:
                    self._events.append(self._cuda.Event())
                    self._events[-1].record(self._side)

    def wait(self, chunk: int) -> Any:
        if self._cuda:
            self._events[chunk].wait(self._cuda.current_stream())
            self.received[chunk].record_stream(self._cuda.current_stream())
        return self.received[chunk]


def attend_gathered(
    query: Any, key: Any, value: Any, options: Any, z: ZigZag, call: PromptCall, chunks: int, slots: Any, workspace: Any, group: Group,
    output: Any, shared: SharedKeys | None = None,
) -> None:  # fmt: skip
    """Attends to the keys of all ranks, chunk by chunk of heads, and writes ``output``. shared: keys travel by copies through it."""
    gathers: Gathers | Copies
    if shared is None:
        gathers = Gathers(key, value, z, chunks, slots, group)
    else:
        gathers = Copies(key, value, z, chunks, slots, group, shared)
    heads = query.shape[1] // chunks
    for chunk in range(chunks):
        k, v = pages_of(gathers.wait(chunk), z.num_pages, z.page_size)
        mine = slice(chunk * heads, (chunk + 1) * heads)
        with group.guard():
            batch = _quire.Batch(query=query[:, mine], output=output[:, mine], **call.indices)
            _quire.attend(batch, _quire.KVCache(k, v), options_of_heads(options, mine), plan=call.local, workspace=workspace)
