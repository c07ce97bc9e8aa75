# SPDX-License-Identifier: Apache-2.0
"""Sample of a step in one KV cache group: slots and tokens, chosen once and read in every layer that is visited."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from quire_vllm.audit.ledger import Ledger
from quire_vllm.audit.statement import Request, Tables

_SLOTS = 1024  # that a visit within a budget reads at most; more make its time depend on the load
_TOKENS = 32  # likewise, of those that were just written
_TOKENS_OF_REQUEST = 4
_PAGE_STRIDE = 5  # tokens by which the slot that stands for a page moves from page to page; odd, so that every offset takes part


@dataclasses.dataclass
class Places:
    """Slots, and where ``Layout.read_slots`` finds them."""

    slots: np.ndarray
    pages: torch.Tensor
    offsets: torch.Tensor

    @staticmethod
    def of(slots: np.ndarray, page_size: int) -> Places:
        return Places(slots, torch.from_numpy(slots // page_size), torch.from_numpy(slots % page_size))


@dataclasses.dataclass
class Held:
    """Slots that requests hold: ``owner`` is an index into ``requests``, ``versions`` the steps of their last writes."""

    requests: list[Request]
    places: Places
    owner: np.ndarray
    versions: np.ndarray


@dataclasses.dataclass
class Written:
    """Tokens of this step: whose they are, their positions, their slots, and their rows of key and value."""

    requests: list[Request]
    places: Places
    positions: list[int]
    rows: np.ndarray


def requests_in_turn(tables: Tables, first: int, names: set[str] | None = None) -> list[int]:
    """Rows of the tables that take part in this step, from row ``first`` on; only these ``names``, if given."""
    count = len(tables.rows)
    order = ((first + i) % count for i in range(count))
    some = [row for row in order if tables.rows[row] is not None and tables.rows[row].scheduled]
    return some if names is None else [row for row in some if tables.rows[row].name in names]


def window_begin(request: Request, window: int | None, page_size: int) -> int:
    """The first position of a page that a window leaves in sight."""
    return 0 if window is None else max(0, request.computed + 1 - window) // page_size * page_size


def held_slots(requests: list[Request], ledger: Ledger, group: int, window: int | None, turn: int | None) -> Held:
    """All slots of the requests that a window leaves in sight; with a ``turn`` one or two of each page, of as many requests as fit."""
    slots, count = [], 0
    for request in requests:
        held = ledger.slots(request, group, window_begin(request, window, ledger.page_size), request.seq_len)
        slots.append(held if turn is None else _some_of_each_page(held, ledger.page_size, turn))
        count += len(slots[-1])
        if turn is not None and count >= _SLOTS:
            break
    every, owner = np.concatenate(slots), np.repeat(np.arange(len(slots)), [len(s) for s in slots])
    return Held(requests, Places.of(every, ledger.page_size), owner, ledger.step[every])


def _some_of_each_page(slots: np.ndarray, size: int, turn: int) -> np.ndarray:
    """One that is the same in all turns, so that a page that changes as a whole shows at the next; in every fourth turn another one, too."""
    page, offset = np.divmod(slots, size)
    moved = (offset - _PAGE_STRIDE * page) % size
    other = 1 + turn // 4 % max(1, size - 1) if turn % 4 == 3 else 0
    return slots[(moved == 0) | (moved == other)]


def written_tokens(tables: Tables, rows: list[int], ledger: Ledger, group: int, random: np.random.Generator, limited: bool) -> Written:
    """Some tokens of these rows of the tables: the last of each request, and others."""
    chosen = [(row, token) for row in rows for token in some_tokens(tables.rows[row], _TOKENS_OF_REQUEST, random)]
    chosen = chosen[:_TOKENS] if limited else chosen
    requests = [tables.rows[row] for row, _ in chosen]
    positions = [request.computed + token for request, (_, token) in zip(requests, chosen)]
    slots = np.array([ledger.slot(request, group, at) for request, at in zip(requests, positions)], np.int64)
    starts = tables.query_start_loc
    return Written(requests, Places.of(slots, ledger.page_size), positions, np.array([int(starts[row]) + token for row, token in chosen]))


def some_tokens(request: Request, count: int, random: np.random.Generator) -> list[int]:
    """The last of a request's tokens of this step, and others at random."""
    last = request.scheduled - 1
    return [0] if last == 0 else sorted({last, *(int(i) for i in random.integers(last + 1, size=count - 1))})
