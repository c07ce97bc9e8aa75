# SPDX-License-Identifier: Apache-2.0
"""The ledger of one KV cache group: for every slot who wrote it, for which position, in which step; and what follows for the tables.

Two questions, of numbers alone (no K, no V): are the tables what the scheduler said, and does every slot that a row will see hold the
token of that request and position?
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quire_vllm.audit.statement import Request, Tables

_NOBODY = -1


@dataclasses.dataclass(frozen=True)
class TableFinding:
    request: str
    text: str


class Ledger:
    def __init__(self, num_pages: int, page_size: int, ratio: int = 1):
        """``ratio``: pages of attention for each page of the scheduler."""
        self.page_size, self.ratio = page_size, ratio
        slots = num_pages * page_size
        self._owner = np.full(slots, _NOBODY, np.int64)
        self._position = np.full(slots, -1, np.int32)
        self._step = np.zeros(slots, np.int32)
        self._new: tuple[list[int], ...] = ([], [], [], [])  # slots, owners, positions, steps that the arrays do not have yet

    @property
    def owner(self) -> np.ndarray:
        """[slots] number of the request that wrote the slot last, or -1."""
        self._bring_up_to_date()
        return self._owner

    @property
    def position(self) -> np.ndarray:
        """[slots] for which position."""
        self._bring_up_to_date()
        return self._position

    @property
    def step(self) -> np.ndarray:
        """[slots] in which step."""
        self._bring_up_to_date()
        return self._step

    def pages(self, request: Request, group: int, count: int) -> np.ndarray:
        """The first ``count`` pages that the scheduler gave the request."""
        first = -(-count // self.ratio)
        given = np.asarray(request.pages[group][:first], np.int64)
        return (given[:, None] * self.ratio + np.arange(self.ratio)).reshape(-1)[:count]

    def slots(self, request: Request, group: int, begin: int, end: int) -> np.ndarray:
        """Slots in which the scheduler wants positions [begin, end)."""
        if end <= begin:
            return np.empty(0, np.int64)
        pages = self.pages(request, group, -(-end // self.page_size))
        positions = np.arange(begin, min(end, len(pages) * self.page_size))
        return pages[positions // self.page_size] * self.page_size + positions % self.page_size

    def slot(self, request: Request, group: int, position: int) -> int:
        """Slot in which the scheduler wants one position."""
        page, offset = divmod(position, self.page_size)
        given, part = divmod(page, self.ratio)
        return (request.pages[group][given] * self.ratio + part) * self.page_size + offset

    def record(self, requests: list[Request], group: int, step: int) -> None:
        """A step's writes, as the scheduler wants them."""
        slots, owners, positions, steps = self._new
        for request in requests:
            if request.scheduled == 1 and self.ratio == 1:  # decode: a step has hundreds of these, and NumPy costs more than it saves
                page, offset = divmod(request.computed, self.page_size)
                new = [request.pages[group][page] * self.page_size + offset] if page < len(request.pages[group]) else []
            else:
                new = self.slots(request, group, request.computed, request.seq_len).tolist()
            slots += new
            owners += [request.number] * len(new)
            positions += range(request.computed, request.computed + len(new))
            steps += [step] * len(new)

    def _bring_up_to_date(self) -> None:
        """Most steps look at nothing; their writes are kept as numbers, and a slot that was written twice keeps the last."""
        slots, owners, positions, steps = self._new
        if slots:
            self._owner[slots], self._position[slots], self._step[slots] = owners, positions, steps
            self._new = ([], [], [], [])

    def judge(self, tables: Tables, group: int, row: int, exact: bool = True, window: int | None = None) -> list[TableFinding]:
        """Row ``row`` of the tables against the scheduler's words and the ledger; call it after :meth:`record`."""
        request = tables.rows[row]
        if request is None:
            return []
        found = self._lengths(tables, row, request, exact) or self._table(tables, group, row, request)
        return found or self._mapping(tables, group, row, request) or self._owners(group, request, window)

    def _lengths(self, tables: Tables, row: int, request: Request, exact: bool) -> list[TableFinding]:
        rows, seq_len = int(tables.query_start_loc[row + 1] - tables.query_start_loc[row]), int(tables.seq_lens[row])
        if rows != request.scheduled and exact:
            return [TableFinding(request.name, f"query_start_loc[{row + 1}]: {rows} rows, the scheduler said {request.scheduled}")]
        if seq_len != request.seq_len and (exact or seq_len > request.seq_len):
            return [TableFinding(request.name, f"seq_lens[{row}]: {seq_len}, the scheduler said {request.seq_len}")]
        return []

    def _table(self, tables: Tables, group: int, row: int, request: Request) -> list[TableFinding]:
        expected = self.pages(request, group, -(-request.seq_len // self.page_size))
        found = tables.block_table[row, : len(expected)]
        wrong = np.flatnonzero(found != expected[: len(found)])
        if not len(wrong):
            return []
        j = int(wrong[0])
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return [TableFinding(request.name, f"block_table[{row}][{j}]: page {found[j]}, the scheduler gave page {expected[j]}{more}")]

    def _mapping(self, tables: Tables, group: int, row: int, request: Request) -> list[TableFinding]:
        if tables.slot_mapping is None:
            return []
        begin = int(tables.query_start_loc[row])
        expected = self.slots(request, group, request.computed, request.seq_len)
        found = tables.slot_mapping[begin : begin + len(expected)]
        wrong = np.flatnonzero(found != expected[: len(found)])
        if not len(wrong):
            return []
        j = int(wrong[0])
        return [
            TableFinding(
                request.name,
                f"slot_mapping[{begin + j}]: {found[j]}, expected slot {expected[j]} = page {expected[j] // self.page_size}, "
                f"offset {expected[j] % self.page_size}",
            )
        ]

    def _owners(self, group: int, request: Request, window: int | None) -> list[TableFinding]:
        begin = 0 if window is None else max(0, request.computed + 1 - window)
        slots = self.slots(request, group, begin, request.seq_len)
        positions = np.arange(begin, begin + len(slots))
        owner, step = self.owner[slots], self.step[slots]
        shared = (positions < request.prefix) & ((step <= request.started) if not request.trusted else True)
        unknown = (positions < request.prefix) & (owner == _NOBODY) & request.trusted
        right = (self.position[slots] == positions) & ((owner == request.number) | shared) | unknown
        wrong = np.flatnonzero(~right)
        if not len(wrong):
            return []
        i = int(wrong[0])
        slot = int(slots[i])
        where = f"slot {slot} (page {slot // self.page_size}, offset {slot % self.page_size}) of position {int(positions[i])}"
        if owner[i] == _NOBODY:
            what = "was never written"
        else:
            writer = "this request" if owner[i] == request.number else f"request number {int(owner[i])}"
            what = f"was last written by {writer} for position {int(self.position[slot])} in step {int(step[i])}"
        return [TableFinding(request.name, f"{where} {what}; {len(wrong)} such slots")]
