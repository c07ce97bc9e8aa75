# SPDX-License-Identifier: Apache-2.0
"""Layout of K and V in a backend, found by writing: every layout of every backend can be read, and none is assumed.

The backend's own writer stores rows of ones and twos that spell the number of each element in binary. The stored values tell which
element of a page is which (K or V, token, KV head, dim).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Stores key and value [tokens, kv_heads, head_dim] into a cache by slot_mapping: write(key, value, kv_cache, slot_mapping)."""


class LayoutError(Exception):
    """The writer's pages cannot be read element by element."""


class Layout:
    """``where[token, 0 = K or 1 = V, kv_head, dim]``: index of the element in the flattened page."""

    def __init__(self, where: torch.Tensor):
        self.where = where
        self.page_size, _, self.num_kv_heads, self.head_dim = where.shape
        self._flat = where.reshape(-1)
        self._run = _longest_run(self._flat)
        self._slots: dict[int, torch.Tensor] = {}
        self._heads: dict[int, Layout] = {}

    def part(self, share: float) -> Layout:
        """The first KV heads alone: ``share`` of them, at least one."""
        return Layout(self.where[:, :, : max(1, round(share * self.num_kv_heads))])

    def head(self, kv_head: int) -> Layout:
        """One KV head alone."""
        if kv_head not in self._heads:
            self._heads[kv_head] = Layout(self.where[:, :, kv_head : kv_head + 1])
        return self._heads[kv_head]

    def read(self, kv_cache: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """[pages, page_size, 2, kv_heads, head_dim] in the cache's stored type: a copy."""
        rows = _as_integers(kv_cache)[pages].reshape(len(pages), -1)
        return rows.index_select(1, self._flat).view(kv_cache.dtype).reshape(len(pages), *self.where.shape)

    def read_slots(self, kv_cache: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """[slots, 2, kv_heads, head_dim] in the cache's stored type: a copy of the slots at these offsets of these pages."""
        stored = _as_integers(kv_cache)
        device = stored.device
        if not stored[0].is_contiguous():
            some, back = torch.unique(pages, return_inverse=True)
            return self.read(kv_cache, some.to(device))[back.to(device), offsets.to(device)]
        run = min(self._run, 8 // stored.element_size())
        if stored.stride(0) % run or stored.storage_offset() % run or stored[0].numel() % run:
            run = 1
        words, where, each = _words(stored, run), self._words_of_slots(run), stored.stride(0) // run
        if device.type == "cpu":  # NumPy takes one core and no barrier: torch's threads are the engine's, and busy
            found = torch.from_numpy(words.numpy()[pages.numpy()[:, None] * each + where.numpy()[offsets.numpy()]])
        else:
            found = words[pages.to(device)[:, None] * each + where[offsets.to(device)]]
        return found.view(kv_cache.dtype).reshape(len(pages), *self.where.shape[1:])

    def _words_of_slots(self, run: int) -> torch.Tensor:
        """[page_size, words of a slot]: where in a page each word of ``run`` elements lies."""
        if run not in self._slots:
            self._slots[run] = (self._flat.reshape(self.page_size, -1)[:, ::run] // run).contiguous()
        return self._slots[run]


def probe(write: Write, kv_cache: torch.Tensor, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> Layout:
    """The layout of ``kv_cache``, whose first dim is pages. Writes to a scratch cache of two pages only. Raises LayoutError."""
    scratch = torch.zeros((2, *kv_cache.shape[1:]), dtype=kv_cache.dtype, device=kv_cache.device)
    count = page_size * 2 * num_kv_heads * head_dim
    number = torch.arange(count, device=kv_cache.device).reshape(page_size, 2, num_kv_heads, head_dim)
    slots = torch.arange(page_size, 2 * page_size, device=kv_cache.device)  # page 1: page 0 is vLLM's null page

    def stored(values: torch.Tensor) -> torch.Tensor:
        rows = (values.to(dtype) + 1).contiguous()
        write(rows[:, 0].contiguous(), rows[:, 1].contiguous(), scratch, slots)
        return _as_integers(scratch)[1].reshape(-1).clone()

    ones, twos = stored(torch.zeros_like(number)), stored(torch.ones_like(number))
    code = torch.zeros_like(ones, dtype=torch.int64)
    for bit in range(max(1, (count - 1).bit_length())):
        code |= (stored((number >> bit) & 1) == twos).to(torch.int64) << bit
    data = torch.nonzero(ones != twos).reshape(-1)
    if len(data) != count or not torch.equal(code[data].sort().values, number.reshape(-1)):
        raise LayoutError(f"a page of {page_size} tokens keeps {len(data)} readable elements, expected {count}")
    where = torch.empty(count, dtype=torch.int64, device=kv_cache.device)
    where[code[data]] = data
    return Layout(where.reshape(number.shape))


def _as_integers(cache: torch.Tensor) -> torch.Tensor:
    """torch cannot index every fp8 type, and must not change the bits of a NaN."""
    return cache.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.element_size()])


def _longest_run(where: torch.Tensor) -> int:
    """The most elements (8, 4, 2 or 1) that always lie side by side, aligned: they are read as one word."""
    for run in (8, 4, 2):
        groups = where.reshape(-1, run) if where.numel() % run == 0 else where[:0]
        if len(groups) and bool((groups[:, 0] % run == 0).all()) and bool((groups == groups[:, :1] + torch.arange(run, device=where.device)).all()):
            return run
    return 1


def _words(stored: torch.Tensor, run: int) -> torch.Tensor:
    """A cache of integers, from its first element to its last, as words of ``run`` elements."""
    row = stored.as_strided(((len(stored) - 1) * stored.stride(0) + stored[0].numel(),), (1,))
    return row if run == 1 else row.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[stored.element_size() * run])
