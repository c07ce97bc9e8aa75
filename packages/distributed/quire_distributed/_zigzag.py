# SPDX-License-Identifier: Apache-2.0
"""Zig-zag order: a prompt is cut into 2 * world chunks, and rank k holds chunks 2 * world - 1 - k and k.

The causal work of all ranks is then equal: chunk i costs i + 1/2 squares of its length, so each rank has world of them, twice. The later
chunk comes first: its rows see the most keys, and GPUs draw the work of a call in the order of its rows, so the call ends with light work.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quire.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class ZigZag:
    """The rows of whole prompts that a rank holds: pure data.

    lengths: tokens of each prompt (>= 0). A chunk is ceil(length / (2 * world)) tokens, rounded up to whole pages; the last chunks may be
    short or empty. Rows of a rank: prompt by prompt, chunk ``2 * world - 1 - rank`` before chunk ``rank``.
    """

    rank: int
    world: int
    lengths: tuple[int, ...]
    page_size: int = 16

    def __post_init__(self) -> None:
        lengths = tuple(int(n) for n in self.lengths)
        object.__setattr__(self, "lengths", lengths)
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ArgumentError(f"ZigZag: rank {self.rank} of {self.world}, expected 0 <= rank < world")
        if self.page_size < 1:
            raise ArgumentError(f"ZigZag: page_size: {self.page_size}, expected at least 1")
        for i, n in enumerate(lengths):
            if n < 0:
                raise ArgumentError(f"ZigZag: lengths[{i}]: {n}, expected at least 0")

    def of_rank(self, rank: int) -> ZigZag:
        return dataclasses.replace(self, rank=rank)

    def chunk(self, prompt: int) -> int:
        """Tokens of one chunk of a prompt, a multiple of page_size."""
        pages = -(-self.lengths[prompt] // (2 * self.world * self.page_size))
        return pages * self.page_size

    def ranges(self, prompt: int) -> list[tuple[int, int]]:
        """Positions [begin, end) of the two chunks that this rank holds, the later one first."""
        size, length = self.chunk(prompt), self.lengths[prompt]
        chunks = (2 * self.world - 1 - self.rank, self.rank)
        return [(min(i * size, length), min((i + 1) * size, length)) for i in chunks]

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(prompt, position) of every row of this rank, int64, in their order."""
        prompts, positions = [], []
        for prompt in range(len(self.lengths)):
            for begin, end in self.ranges(prompt):
                positions.append(np.arange(begin, end))
                prompts.append(np.full(end - begin, prompt))
        none = [np.zeros(0, np.int64)]
        return np.concatenate(none + prompts).astype(np.int64), np.concatenate(none + positions).astype(np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of this rank."""
        return sum(end - begin for prompt in range(len(self.lengths)) for begin, end in self.ranges(prompt))

    @property
    def num_pages(self) -> int:
        """Pages that the keys of a rank take, the same on every rank."""
        return sum(2 * self.chunk(prompt) // self.page_size for prompt in range(len(self.lengths)))

    @property
    def slots(self) -> np.ndarray:
        """The place of each row's key among the pages of its rank: chunks begin with a page."""
        slots, first = [np.zeros(0, np.int64)], 0
        for prompt in range(len(self.lengths)):
            for begin, end in self.ranges(prompt):
                slots.append(first + np.arange(end - begin))
                first += self.chunk(prompt)
        return np.concatenate(slots)

    @property
    def first_pages(self) -> list[int]:
        """The first page of each prompt among the pages of a rank: that of its later chunk, which the earlier one follows."""
        pages = [2 * self.chunk(prompt) // self.page_size for prompt in range(len(self.lengths))]
        return [sum(pages[:prompt]) for prompt in range(len(pages))]

    def block_table(self, pages_between_ranks: int) -> np.ndarray:
        """[2 * prompts, pages]: where every page of a prompt lies after the exchange, once for each of the rank's two chunks."""
        widest = max((-(-n // self.page_size) for n in self.lengths), default=0)
        table = np.zeros((2 * len(self.lengths), max(widest, 1)), np.int32)
        first = 0
        for prompt, length in enumerate(self.lengths):
            size = self.chunk(prompt) // self.page_size
            for page in range(-(-length // self.page_size)):
                chunk, within = divmod(page, size)
                owner = min(chunk, 2 * self.world - 1 - chunk)
                table[2 * prompt : 2 * prompt + 2, page] = owner * pages_between_ranks + first + (chunk < self.world) * size + within
            first += 2 * size
        return table
