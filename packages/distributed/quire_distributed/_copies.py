# SPDX-License-Identifier: Apache-2.0
"""A gather whose keys travel by copies from one GPU's memory to another's, which copy engines make.

NCCL's kernels take multiprocessors, or wait for one, while attention runs. Copy engines need none: once every rank's keys are in memory
that the other ranks can address, only copies are left, and chunks of heads arrive beside attention.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

from quire._arrays import empty_part_like

from quire_distributed._groups import Group
from quire_distributed._prompt_blocks import on_gpu, pack_block
from quire_distributed._zigzag import ZigZag


@dataclasses.dataclass(frozen=True)
class SharedKeys:
    """Memory of a plan for the keys of one layer, on every rank: [head_chunks, world, 2, rows, heads of a chunk, head_dim].

    ranks: element k is the memory of rank k, which every rank addresses. A plan has it for all layers: a layer ends on all ranks before
    the next one writes.
    """

    ranks: list[Any]
    mapping: Any  # what keeps the others' memory addressed
    side: Any  # the stream of copies; None in host memory
    flag: Any  # a number for barriers: what a rank sends, and what it receives
    flags: Any


def share_keys(key: Any, z: ZigZag, chunks: int, group: Group) -> SharedKeys:
    """Makes the memory. All ranks of the group call it."""
    shape = (chunks, z.world, 2, z.num_pages * z.page_size, key.shape[1] // chunks, key.shape[2])
    side = sys.modules["torch"].cuda.Stream(key.device) if on_gpu(key) else None
    flag, flags = empty_part_like(key, (4,)), empty_part_like(key, (z.world, 4))
    flag[:] = 0
    return SharedKeys(*group.share(key, shape), side, flag, flags)


class Copies:
    """Copies of all ranks' keys, one chunk of heads after the other; on a GPU on a stream of their own, ahead of attention."""

    def __init__(self, key: Any, value: Any, z: ZigZag, chunks: int, slots: Any, group: Group, shared: SharedKeys):
        self._cuda = sys.modules["torch"].cuda if on_gpu(key) else None
        self._mine, self._events = shared.ranks[z.rank], []
        heads = key.shape[1] // chunks
        if self._cuda:
            shared.side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(shared.side) if self._cuda else contextlib.nullcontext():
            group.all_gather(shared.flag, shared.flags)  # every rank has what it copies from the layer before
            for chunk in range(chunks):
                own = slice(chunk * heads, (chunk + 1) * heads)
                pack_block(self._mine[chunk, z.rank], key[:, own], value[:, own], slots)
            group.all_gather(shared.flag, shared.flags)  # the keys of every rank are there
            for chunk in range(chunks):
                for step in range(1, z.world):
                    source = (z.rank + step) % z.world
                    self._copy(self._mine[chunk, source], shared.ranks[source][chunk, source])
                if self._cuda:
                    self._events.append(shared.side.record_event())

    def _copy(self, to: Any, source: Any) -> None:
        if self._cuda:
            to.copy_(source, non_blocking=True)  # contiguous, of one type: a copy by a copy engine
        else:
            to[...] = source

    def wait(self, chunk: int) -> Any:
        """The keys of all ranks, in order of the ranks."""
        if self._cuda:
            self._cuda.current_stream().wait_event(self._events[chunk])
        return self._mine[chunk]
