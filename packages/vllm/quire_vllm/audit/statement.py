# SPDX-License-Identifier: Apache-2.0
"""Statement of the scheduler: the pages of each request and its number of computed tokens, read from the scheduler's messages alone.

The tables that reach attention are built by other code from the same messages, so that the two can be compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Request:
    name: str
    number: int  # counts up; what the ledger writes down
    pages: list[list[int]]  # for each KV cache group
    computed: int  # tokens in the cache before this step
    scheduled: int = 0  # tokens of this step
    prefix: int = 0  # of the computed tokens, those that were there when the request started: of a shared prefix or a transfer
    started: int = 0  # step
    trusted: bool = False  # somebody else (a KV connector) may have written its prefix

    @property
    def seq_len(self) -> int:
        return self.computed + self.scheduled


class Statement:
    """The scheduler's requests, step by step."""

    def __init__(self) -> None:
        self.step = 0
        self.requests: dict[str, Request] = {}
        self.scheduled: list[Request] = []
        self.begun = 0  # the step in which the first request started
        self.exact_lengths = True  # False: tokens were speculated, and fewer may have been accepted than the scheduler counts
        self._number = 0

    def begin_step(self, output: Any) -> None:
        """``output``: vLLM's SchedulerOutput."""
        self.step += 1
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        connected = getattr(output, "kv_connector_metadata", None) is not None
        for new in output.scheduled_new_reqs:
            self._start(new.req_id, [list(group) for group in new.block_ids], new.num_computed_tokens, connected)
        self._go_on(output.scheduled_cached_reqs, connected)
        self.scheduled = []
        for name, count in output.num_scheduled_tokens.items():
            if name in self.requests:
                self.requests[name].scheduled = count
                self.scheduled.append(self.requests[name])
        self.exact_lengths = not getattr(output, "scheduled_spec_decode_tokens", None)

    def _go_on(self, cached: Any, connected: bool) -> None:
        resumed = getattr(cached, "resumed_req_ids", None)
        flags = getattr(cached, "resumed_from_preemption", ())  # older versions of vLLM
        for i, name in enumerate(cached.req_ids):
            given, computed = cached.new_block_ids[i], cached.num_computed_tokens[i]
            again = name in resumed if resumed is not None else bool(flags[i]) if flags else False
            if again or name not in self.requests:
                if given is not None:
                    self._start(name, [list(group) for group in given], computed, connected)
                continue
            request = self.requests[name]
            for pages, more in zip(request.pages, given or ()):
                pages.extend(more)
            request.computed = computed

    def _start(self, name: str, pages: list[list[int]], computed: int, trusted: bool) -> None:
        self._number += 1
        self.begun = self.begun or self.step
        self.requests[name] = Request(
            name, self._number, pages, computed, prefix=computed, started=self.step, trusted=trusted and computed > 0
        )

    def in_order(self, names: list[str] | None, tables: Tables, group: int) -> list[Request | None]:
        """The request of each row. ``names``: as the engine orders them; None: found by length and first page."""
        if names is not None:
            return [self.requests.get(name) for name in names[: len(tables.seq_lens)]]
        left = list(self.scheduled)
        rows: list[Request | None] = []
        lens = np.diff(tables.query_start_loc)
        for row, seq_len in enumerate(tables.seq_lens):
            found = [q for q in left if q.scheduled == lens[row]]
            alike = [q for q in found if q.pages[group][:1] == [int(tables.block_table[row, 0])]] or found
            best = min(alike, key=lambda q: abs(q.seq_len - int(seq_len)), default=None)
            rows.append(best)
            if best is not None:
                left.remove(best)
        return rows


@dataclasses.dataclass
class Tables:
    """One step's tables in host memory, as attention gets them. ``slot_mapping`` has a slot for each row of query, or is None."""

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: np.ndarray
    slot_mapping: np.ndarray | None
    page_size: int
    rows: list[Request | None] = dataclasses.field(default_factory=list)
    step: int = 0
