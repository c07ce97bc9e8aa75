# SPDX-License-Identifier: Apache-2.0
"""The auditor: which layer, request and row is looked at in which step, and what follows. No vLLM is imported here.

A step has three parts. The scheduler's words and the ledger are kept up to date always, and the last layer's output is asked to be finite.
The tables of as many rows as the budget allows are judged. Some layers (all of them at full budget) are visited: what was just written,
what nobody should have written, and some rows. A request whose output is not finite is hunted: whatever the budget, the next step looks at
all of its slots and rows in every layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quire_vllm.audit import rows as fp64
from quire_vllm.audit.budget import Budget
from quire_vllm.audit.layout import Layout, LayoutError, Write, probe
from quire_vllm.audit.ledger import Ledger
from quire_vllm.audit.memory import Memory
from quire_vllm.audit.report import Alarm, Report
from quire_vllm.audit.statement import Request, Statement, Tables
from quire_vllm.audit.values import Values, not_finite

_ROWS = 2  # rows of each request that a visit at full budget compares with fp64
_PAGE_STRIDE = 5  # tokens by which the slot that stands for a page moves from page to page; odd, so that every offset takes part
_REPORT_SECONDS = 10.0


@dataclasses.dataclass
class Watched:
    """A layer that has been seen."""

    name: str
    index: int
    group: int
    spec: fp64.Layer
    layout: Layout | None
    memory: Memory


@dataclasses.dataclass
class Call:
    """One call of a layer's attention. ``key`` and ``value`` are this step's rows, or None if another layer writes the cache."""

    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    kv_cache: torch.Tensor
    output: torch.Tensor
    tables: Tables


class Auditor:
    def __init__(self, settings: Any, clock: Callable[[], float] | None = None):
        self.settings = settings
        self.budget = Budget(settings.budget, *([clock] if clock else []))
        self.statement = Statement()
        self.report = Report(settings.folder, settings.captures, settings.action)
        self.ledgers: dict[int, Ledger] = {}
        self.layers: dict[str, Watched] = {}
        self.values = Values()
        self.inside = False  # a step of the engine, not a warm-up
        self._random = np.random.default_rng(settings.seed)
        self._visits = 0
        self._due: set[str] = set()  # the layers that are visited in this step
        self._rows_turn = False  # this visit compares rows; else it reads memory
        self._next_row = 0
        self._last = ""  # the last layer's name
        self._hunted: set[str] = set()  # requests of which all is looked at in this step
        self._found: set[int] = set()  # numbers of those for which the first layer with a NaN is known

    @property
    def _everything(self) -> bool:
        return self.budget.full or bool(self._hunted)

    def begin_step(self, scheduler_output: Any) -> None:
        self.budget.begin_step()
        begun = self.budget.now()
        self.statement.begin_step(scheduler_output)
        self.inside = bool(self.statement.scheduled)
        self._choose_layers()
        self._choose_requests()
        self.budget.pay("statement", begun)

    def end_step(self) -> None:
        self.inside = False
        self.budget.end_step()
        report = self.report
        report.counts["steps"] = self.statement.step
        report.facts.update(share=self.budget.used, seconds=self.budget.seconds, audit_seconds=self.budget.spent, budget=self.budget.share)
        report.write(_REPORT_SECONDS)

    def _choose_layers(self) -> None:
        """The next ones in turn, as many as the budget allows; one visit to each reads memory, the next compares rows."""
        self._due = set()
        names = list(self.layers)
        self._last = names[-1] if names else ""
        some = 0 if self.budget.full or not names else self.budget.affordable("visit", len(names))
        if some:
            turn, first = divmod(self._visits, len(names))
            self._rows_turn = turn % 2 == 1
            self._due = set(names[first : first + some])
            self._visits += len(self._due)

    def _choose_requests(self) -> None:
        """Those whose output of the step before was not finite."""
        broken = self.values.read()
        self._hunted = {request.name for request in broken}
        for name in sorted(self._hunted):
            text = "the row of its last token is not finite; all of the request is looked at in the next step"
            self.report.alarm(Alarm("values", self.statement.step - 1, self._last, name, text))

    def wants(self, layer: str) -> bool:
        return self.inside and (self._everything or layer in self._due or layer not in self.layers)

    # Values.

    def see_output(self, layer: str, output: torch.Tensor, tables: Tables) -> None:
        """Of the last layer, in every step."""
        if layer == self._last:
            begun = self.budget.now()
            self.values.see(output, tables)
            self.budget.pay("statement", begun)

    # Tables.

    def see_tables(self, group: int, num_pages: int, ratio: int, read: Callable[[], Tables], names: list[str] | None, window: int | None) -> Tables:
        """A KV cache group's tables of this step. ``read`` brings them to the host, which may wait for a device."""
        begun = self.budget.now()
        tables = read()
        tables.step = self.statement.step
        tables.rows = self.statement.in_order(names, tables, group)
        ledger = self.ledgers.get(group)
        if ledger is None:
            ledger = self.ledgers[group] = Ledger(num_pages, tables.page_size, ratio)
        ledger.record(tables, group)
        self.budget.pay("tables", begun)
        self._judge_tables(tables, group, ledger, window)
        return tables

    def _judge_tables(self, tables: Tables, group: int, ledger: Ledger, window: int | None) -> None:
        count = len(tables.rows)
        some = self.budget.affordable("row of a table", count)
        begun = self.budget.now()
        for i in range(some):
            row = (self._next_row + i) % count
            for finding in ledger.judge(tables, group, row, self.statement.exact_lengths, window):
                self.report.alarm(Alarm("tables", self.statement.step, "", finding.request, finding.text))
        if some:
            self._next_row = (self._next_row + some) % count
            self.report.counts["table rows"] += some
            self.budget.pay("row of a table", begun, some)

    # Layers.

    def know(self, name: str, group: int, spec: fp64.Layer, write: Write, kv_cache: torch.Tensor, page_size: int, dtype: torch.dtype) -> Watched:
        """The layer of that name; its layout is found by writing to a scratch cache, the first time."""
        if name not in self.layers:
            index = len(self.layers)
            copied = int((index + 1) * self.settings.shadow) > int(index * self.settings.shadow)
            memory = Memory(kv_cache.shape[0] * page_size, copied)
            self.layers[name] = Watched(name, index, group, spec, self._layout(name, spec, write, kv_cache, page_size, dtype), memory)
        return self.layers[name]

    def _layout(self, name: str, spec: fp64.Layer, write: Write, kv_cache: torch.Tensor, page_size: int, dtype: torch.dtype) -> Layout | None:
        for other in self.layers.values():
            if other.layout is not None and other.spec.num_kv_heads == spec.num_kv_heads and other.layout.page_size == page_size:
                return other.layout
        try:
            return probe(write, kv_cache, page_size, spec.num_kv_heads, spec.head_dim, dtype).part(self.settings.heads)
        except LayoutError as error:
            self.report.facts[f"layout of {name}"] = f"contents are not read: {error}"
            return None

    def see_written(self, layer: Watched, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, tables: Tables) -> None:
        """What the cache holds right behind a write, before attention: some tokens of every request of this step."""
        if layer.layout is None or (self._rows_turn and not self._everything):
            return
        begun = self.budget.now()
        chosen = self._requests(tables)
        if not self._everything:
            chosen = chosen[: max(1, self.budget.affordable("request written", len(chosen)))]
        if chosen:
            self._judge_written(layer, [(r, t) for r in chosen for t in self._some_tokens(tables.rows[r], 4)], key, value, kv_cache, tables)
        self.budget.pay("request written", begun, len(chosen))

    def _judge_written(
        self, layer: Watched, tokens: list[tuple[int, int]], key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, tables: Tables
    ) -> None:
        """``tokens``: row of the tables, token of that request's part of the step."""
        assert layer.layout is not None
        ledger, size = self.ledgers[layer.group], self.ledgers[layer.group].page_size
        positions = [tables.rows[row].computed + token for row, token in tokens]
        slots = np.array([ledger.slot(tables.rows[row], layer.group, at) for (row, _), at in zip(tokens, positions)])
        taken = np.array([int(tables.query_start_loc[row]) + token for row, token in tokens])
        stored = layer.layout.read_slots(kv_cache, torch.from_numpy(slots // size), torch.from_numpy(slots % size)).cpu()
        heads = layer.layout.num_kv_heads
        wrong = fp64.written_wrong(layer.spec, stored, fp64.taken(key, taken, heads), fp64.taken(value, taken, heads))
        self.report.counts["tokens"] += len(tokens)
        for row, i in {tokens[int(i)][0]: int(i) for i in wrong[::-1]}.items():  # the first of each request
            text = f"slot {int(slots[i])} does not hold the K and V of position {positions[i]} right after they were written"
            self.report.alarm(Alarm("write", self.statement.step, layer.name, tables.rows[row].name, text))

    def visit(self, layer: Watched, call: Call) -> None:
        """Memory or rows of some requests, behind the layer's attention; both, of all or of those that are hunted, at full budget or in a hunt."""
        begun = self.budget.now()
        chosen = self._requests(call.tables) if layer.layout is not None else []
        if chosen:
            if self._everything or not self._rows_turn:
                self._visit_memory(layer, call, chosen)
            for row in chosen if self._everything else chosen[:1] if self._rows_turn else []:
                self._visit_rows(layer, call, row)
            self.report.counts["visits"] += 1
        self.budget.pay("visit", begun)

    def _requests(self, tables: Tables) -> list[int]:
        """Rows of the tables that take part in this step, from a random one on; in a hunt those of the hunted."""
        count = len(tables.rows)
        first = 0 if self._everything or count == 0 else int(self._random.integers(count))
        order = ((first + i) % count for i in range(count))
        some = [row for row in order if tables.rows[row] is not None and tables.rows[row].scheduled]
        return some if self.budget.full or not self._hunted else [row for row in some if tables.rows[row].name in self._hunted]

    def _visit_memory(self, layer: Watched, call: Call, chosen: list[int]) -> None:
        """The slots of these requests in one reading; where they cost too much, two of each page, of as many requests as are affordable."""
        begun = self.budget.now()
        ledger, requests = self.ledgers[layer.group], [call.tables.rows[row] for row in chosen]
        slots = [ledger.slots(r, layer.group, self._begin(layer, r), r.seq_len) for r in requests]
        count = sum(len(s) for s in slots)
        some = count if self._everything else self.budget.affordable("slot", count)
        if some < count:
            slots = [self._two_of_each_page(layer, s) for s in slots]
        ends = np.cumsum([len(s) for s in slots])
        taken = max(1, int(np.searchsorted(ends, some, "right")))
        self._judge_memory(layer, requests[:taken], slots[:taken], call.kv_cache)
        self.budget.learn("slot", begun, int(ends[taken - 1]))

    def _two_of_each_page(self, layer: Watched, slots: np.ndarray) -> np.ndarray:
        """One that is the same in all visits, so that a page that changes as a whole shows at the second; one that moves on by turns."""
        size = self.ledgers[layer.group].page_size
        page, offset = np.divmod(slots, size)
        moved = (offset - _PAGE_STRIDE * page - layer.index) % size
        return slots[(moved == 0) | (moved == 1 + layer.memory.visits % max(1, size - 1))]

    def _begin(self, layer: Watched, request: Request) -> int:
        """The first position of a page that a window of the layer leaves in sight."""
        page_size = self.ledgers[layer.group].page_size
        return 0 if layer.spec.window is None else max(0, request.computed + 1 - layer.spec.window) // page_size * page_size

    def _judge_memory(self, layer: Watched, requests: list[Request], slots: list[np.ndarray], kv_cache: torch.Tensor) -> None:
        assert layer.layout is not None
        ledger, owner = self.ledgers[layer.group], np.repeat(np.arange(len(slots)), [len(s) for s in slots])
        every = np.concatenate(slots)
        offsets = torch.from_numpy(every % ledger.page_size)
        rows = layer.layout.read_slots(kv_cache, torch.from_numpy(every // ledger.page_size), offsets)
        before = layer.memory.version[every]
        wrong = layer.memory.changed(every, ledger.step[every], rows)
        layer.memory.visits += 1
        self.report.counts["slots"] += len(every)
        for i in np.unique(owner[wrong]) if len(wrong) else ():
            mine = wrong[owner[wrong] == i]
            self._tell_memory(layer, requests[i], rows[mine[0]], int(every[mine[0]]), int(before[mine[0]]), len(mine), len(slots[i]))
        if self._hunted:
            self._judge_values(layer, requests, every, owner, rows)

    def _judge_values(self, layer: Watched, requests: list[Request], slots: np.ndarray, owner: np.ndarray, rows: torch.Tensor) -> None:
        """In a hunt: the first layer whose cache holds what is not finite, request by request."""
        ledger, bad = self.ledgers[layer.group], not_finite(rows, layer.spec.cache_dtype)
        for i in np.unique(owner[bad]):
            mine = bad[owner[bad] == i]
            if requests[i].name in self._hunted and requests[i].number not in self._found:
                self._found.add(requests[i].number)
                slot = int(slots[mine[0]])
                page, offset = divmod(slot, ledger.page_size)
                text = (f"page {page}, offset {offset} (position {int(ledger.position[slot])}), last written in step {int(ledger.step[slot])}, holds "
                        f"a K or V that is not finite; {len(mine)} such slots; no layer before has one")  # fmt: skip
                self.report.alarm(Alarm("values", self.statement.step, layer.name, requests[i].name, text))

    def _tell_memory(self, layer: Watched, request: Request, row: torch.Tensor, slot: int, step: int, wrong: int, count: int) -> None:
        ledger = self.ledgers[layer.group]
        page, offset = divmod(slot, ledger.page_size)
        text = (f"page {page}, offset {offset} (position {int(ledger.position[slot])}), last written in step {step}, has changed, and nobody "
                f"wrote it; so have {wrong} of the request's {count} slots")  # fmt: skip
        values = row.float() if row.dtype.is_floating_point else row
        text += "; it holds only zeros now" if not bool((values != 0).any()) else ""
        self.report.alarm(Alarm("memory", self.statement.step, layer.name, request.name, text))

    def _visit_rows(self, layer: Watched, call: Call, row: int) -> None:
        """Some rows of a request and all KV heads at full budget or in a hunt, else one row and one KV head."""
        request, ledger = call.tables.rows[row], self.ledgers[layer.group]
        assert request is not None and layer.layout is not None
        begun = self.budget.now()
        first, end, tokens = int(call.tables.query_start_loc[row]), request.seq_len, self._some_tokens(request, _ROWS)
        part, layout, heads = slice(first, first + request.scheduled), layer.layout, range(layer.layout.num_kv_heads)
        if not self._everything:
            token, one = tokens[int(self._random.integers(len(tokens)))], int(self._random.integers(len(heads)))
            part, end, tokens = slice(first + token, first + token + 1), request.computed + token + 1, [0]
            layout, heads = layout.head(one), range(one, one + 1)
        begin, size = self._begin(layer, request), ledger.page_size
        pages = ledger.pages(request, layer.group, -(-end // size))[begin // size :]
        offsets = np.tile(np.arange(size), len(pages))
        kv = layout.read_slots(call.kv_cache, torch.from_numpy(pages.repeat(size)), torch.from_numpy(offsets)).cpu()
        query = call.query[part].cpu()
        output = call.output[part].reshape(call.query[part].shape).cpu()
        judged = fp64.judge(layer.spec, query, output, kv.reshape(len(pages), size, *kv.shape[1:]), end - begin, tokens, heads)
        self._judge_rows(layer, request, judged, part.start + tokens[0], len(tokens))
        self.budget.learn("row", begun)

    def _judge_rows(self, layer: Watched, request: Request, judged: fp64.Judged, row: int, count: int) -> None:
        self.report.counts["rows"] += count
        self.report.counts["elements"] += judged.elements
        if judged.rounding:
            self.report.counts["rounding"] += 1
        if judged.ok or judged.rounding:
            self.report.worst = max(self.report.worst, judged.ratio)
            return
        text = f"row {row} is {judged.ratio:.3g} tolerances from fp64 attention over what the cache holds, whose slots are right"
        notes = {"layer": layer.name, "request": request.name, "pages": " ".join(map(str, request.pages[layer.group][:200]))}
        self.report.alarm(Alarm("kernel", self.statement.step, layer.name, request.name, text), judged.problem, notes)

    def _some_tokens(self, request: Request, count: int) -> list[int]:
        """The last row of the step, and others at random."""
        last = request.scheduled - 1
        if last == 0:
            return [0]
        return sorted({last, *(int(i) for i in self._random.integers(last + 1, size=count - 1))})
