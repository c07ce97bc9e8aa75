# SPDX-License-Identifier: Apache-2.0
"""Planted faults: QUIRE_AUDIT_PLANT=name@step does to a running engine what bugs do, so that the audit can be seen to find it.

Faults of tables and of kernels stay from that step on. Faults of memory happen once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

FAULTS = {
    "wrong_table_entry": "the first page of one request is another request's",
    "foreign_write": "somebody writes zeros over a page of a live request, in one layer",
    "stale_block": "one request's table names a page that an earlier request left behind",
    "dropped_slot": "one token of each step is not written, in one layer",
    "wrong_scale": "one layer multiplies scores by 1.25 times the scale",
    "wrong_seq_len": "one request is one token shorter than it is",
    "swapped_kv_block": "K and V of one page change places, in one layer",
    "late_write": "one layer attends before its cache is written",
    "nan_block": "one element of a live page becomes NaN, in one layer",
    "head_offset": "one layer reads the KV heads of its neighbours",
    "double_free": "a page of a live request is given to another one, which writes it",
    "wrong_mask": "one layer sees 8 keys only",
}


class Plant:
    def __init__(self, name: str, step: int):
        self.name, self.step = name, step
        self.done = 0  # the step in which the fault came to be
        self._late: Callable[[], None] = lambda: None
        self._broken: list[tuple[Any, str, Any]] = []  # objects, attributes and what they held

    def heal(self) -> None:
        """Undoes what a kernel's fault changed in its layer."""
        for owner, name, value in reversed(self._broken):
            setattr(owner, name, value)
        self._broken = []

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._broken.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    @staticmethod
    def named(text: str) -> Plant | None:
        """ "name@step", or "" for none. Raises ValueError."""
        if not text:
            return None
        name, _, step = text.partition("@")
        if name not in FAULTS or not (step or "20").isdecimal():
            raise ValueError(f'QUIRE_AUDIT_PLANT: "{text}", expected NAME@STEP with a name of: {", ".join(FAULTS)}')
        return Plant(name, int(step or 20))

    def _due(self, a: Any, once: bool = False) -> bool:
        return a.statement.step >= self.step and not (once and self.done)

    def _happened(self, a: Any) -> None:
        if not self.done:
            self.done = a.statement.step
            a.report.facts["planted"] = f"{self.name}@{self.done}"

    def _layer(self, a: Any, name: str) -> bool:
        """One layer of the model: a third of the way down."""
        names = list(a.layers) or [name]
        return name == names[len(names) // 3]

    # Where the hooks ask.

    def on_scheduler(self, a: Any, output: Any) -> None:
        """double_free: before the worker and the audit read the scheduler's message, as both believe it."""
        cached = output.scheduled_cached_reqs
        if self.name != "double_free" or a.statement.step + 1 < self.step or self.done:
            return
        for i, name in enumerate(cached.req_ids):
            victims = [r for r in a.statement.scheduled if r.name != name and len(r.pages[0]) > 1 and r.name in output.num_scheduled_tokens]
            if cached.new_block_ids[i] and cached.new_block_ids[i][0] and victims:
                cached.new_block_ids[i][0][-1] = victims[0].pages[0][0]
                self.done = a.statement.step + 1
                a.report.facts["planted"] = f"{self.name}@{self.done}"
                return

    def on_tables(self, a: Any, common: Any) -> Any:
        change = {"wrong_table_entry": self._wrong_entry, "stale_block": self._stale, "wrong_seq_len": self._short}.get(self.name)
        if change is None or not self._due(a) or len(a.statement.scheduled) < 2:
            return common
        changed = change(a, common)
        if changed:
            self._happened(a)
        return dataclasses.replace(common, **changed) if changed else common

    def on_write(self, a: Any, name: str, write: Callable[..., None]) -> Callable[..., None]:
        """The layer's cache write, with the fault in it."""
        if self.name not in ("dropped_slot", "late_write") or not self._due(a) or not self._layer(a, name):
            return write
        self._happened(a)
        last = sum(request.scheduled for request in a.statement.scheduled) - 1

        def dropped(layer: Any, key: Any, value: Any, kv_cache: Any, slots: Any) -> None:
            changed = slots.clone()
            changed[last] = -1
            write(layer, key, value, kv_cache, changed)

        def later(*args: Any) -> None:
            self._late = lambda: write(*args)

        return dropped if self.name == "dropped_slot" else later

    def on_attention(self, a: Any, name: str, impl: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The layer's attention, with the fault in or around it."""
        if not self._due(a) or not self._layer(a, name):
            return forward
        if self.name in ("foreign_write", "swapped_kv_block", "nan_block"):
            return self._with_memory(a, name, forward)
        if self.name == "late_write" and self.done:
            return self._then_write(forward)
        if self.name == "head_offset":
            self._happened(a)
            return lambda layer, query, *rest, **more: forward(layer, query.roll(impl.num_heads // impl.num_kv_heads, 1), *rest, **more)
        if self.name in ("wrong_scale", "wrong_mask") and not self.done:
            self._happened(a)
            self._break(impl)
        return _masked(forward) if self.name == "wrong_mask" else forward

    # What they do.

    def _wrong_entry(self, a: Any, common: Any) -> dict[str, Any]:
        table = common.block_table_tensor.clone()
        if int(table[0, 0]) == int(table[1, 0]):
            return {}
        table[0, 0] = table[1, 0]
        return {"block_table_tensor": table}

    def _stale(self, a: Any, common: Any) -> dict[str, Any]:
        if not a.ledgers:
            return {}
        ledger = a.ledgers[0]
        live = {page for request in a.statement.requests.values() for page in request.pages[0]}
        owners = ledger.owner.reshape(-1, ledger.page_size)[:, 0]
        old = [int(page) for page in np.flatnonzero(owners >= 0) if int(page) not in live]
        if not old:
            return {}
        table = common.block_table_tensor.clone()
        table[0, 0] = old[0]
        return {"block_table_tensor": table}

    def _short(self, a: Any, common: Any) -> dict[str, Any]:
        rows = int(common.query_start_loc_cpu[1])
        if int(common.seq_lens[0]) <= rows:
            return {}
        seq_lens = common.seq_lens.clone()
        seq_lens[0] -= 1
        return {"seq_lens": seq_lens}

    def _with_memory(self, a: Any, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def with_fault(layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, *rest: Any, **more: Any) -> Any:
            if not self.done and name in a.layers and a.layers[name].layout is not None:
                where = a.layers[name].layout.where
                page = self._full_page(a, a.layers[name])
                if page is not None:
                    self._happened(a)
                    _spoil(self.name, kv_cache, page, where)
            return forward(layer, query, key, value, kv_cache, *rest, **more)

        return with_fault

    def _break(self, impl: Any) -> None:
        scale, window = impl.scale * 1.25, getattr(impl, "sliding_window", None)
        if self.name == "wrong_scale":
            self._set(impl, "scale", scale)
        elif not hasattr(impl, "call"):
            self._set(impl, "sliding_window", (7, 0) if isinstance(window, tuple) else 8)
        if hasattr(impl, "call"):  # Quire's own backend
            changed = ("scale", scale) if self.name == "wrong_scale" else ("window", 8)
            self._set(impl.call, *changed)
            self._set(impl.call, "kind", ("planted", *impl.call.kind))

    def _full_page(self, a: Any, watched: Any) -> int | None:
        """A page of a live request that no step writes any more, and that the audit has had a chance to see."""
        ledger = a.ledgers[watched.group]
        for request in a.statement.scheduled:
            pages = ledger.pages(request, watched.group, request.computed // ledger.page_size)
            seen = [int(p) for p in pages if (watched.memory.version.reshape(-1, ledger.page_size)[p] >= 0).any()]
            if seen:
                return seen[0]
        return None

    def _then_write(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def late(*args: Any, **more: Any) -> Any:
            result = forward(*args, **more)
            self._late()
            return result

        return late


def _masked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """FlashAttention takes the window of its metadata before that of its layer (vLLM 0.26)."""

    def masked(layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(getattr(metadata, "sliding_window", None), tuple):
            metadata = copy.copy(metadata)
            metadata.sliding_window = (7, 0)
        return forward(layer, query, key, value, kv_cache, metadata, *rest, **more)

    return masked


def _spoil(name: str, kv_cache: torch.Tensor, page: int, where: torch.Tensor) -> None:
    if name == "foreign_write":
        kv_cache[page].zero_()
        return
    flat = kv_cache[page].reshape(-1).clone()
    if name == "nan_block":
        spot = where[where.shape[0] // 2, 0, 0, where.shape[3] // 2]
        flat[spot] = float("nan") if flat.dtype.is_floating_point else 0x7F
    else:
        flat[where[:, 0].reshape(-1)], flat[where[:, 1].reshape(-1)] = flat[where[:, 1].reshape(-1)], flat[where[:, 0].reshape(-1)]
    kv_cache[page].copy_(flat.reshape(kv_cache[page].shape))
