"""The auditor: which layer, request and row is looked at in which step, and what follows. No vLLM is imported here.

A step has three parts. The scheduler's words and the ledger are kept up to date always. The tables of as many rows as the budget allows
are judged. One layer (all of them at full budget) is visited: what was just written, what nobody should have written, and some rows.
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

_ROWS = 2  # rows of each request that a visit at full budget compares with fp64
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
        self.inside = False  # a step of the engine, not a warm-up
        self._random = np.random.default_rng(settings.seed)
        self._visits = 0
        self._due: set[str] = set()  # the layers that are visited in this step
        self._rows_turn = False  # this visit compares rows; else it reads memory
        self._next_row = 0

    def begin_step(self, scheduler_output: Any) -> None:
        self.budget.begin_step()
        begun = self.budget.now()
        self.statement.begin_step(scheduler_output)
        self.inside = bool(self.statement.scheduled)
        self._choose_layers()
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
        some = 0 if self.budget.full or not names else self.budget.affordable("visit", len(names))
        if some:
            turn, first = divmod(self._visits, len(names))
            self._rows_turn = turn % 2 == 1
            self._due = set(names[first : first + some])
            self._visits += len(self._due)

    def wants(self, layer: str) -> bool:
        return self.inside and (self.budget.full or layer in self._due or layer not in self.layers)

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
        """What the cache holds right behind a write, before attention: some tokens of this step."""
        if layer.layout is None or (self._rows_turn and not self.budget.full):
            return
        begun = self.budget.now()
        ledger = self.ledgers[layer.group]
        for row in self._some_requests(tables, "token written"):
            request = tables.rows[row]
            if request is not None:
                self._judge_written(layer, request, int(tables.query_start_loc[row]), key, value, kv_cache, ledger)
        self.budget.pay("token written", begun, len(tables.rows))

    def _judge_written(
        self, layer: Watched, request: Request, first: int, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, ledger: Ledger
    ) -> None:
        assert layer.layout is not None
        tokens = self._some_tokens(request, 4 if self.budget.full else 1)
        slots = ledger.slots(request, layer.group, request.computed, request.seq_len)[tokens]
        pages, offsets = torch.from_numpy(slots // ledger.page_size), slots % ledger.page_size
        stored = layer.layout.read(kv_cache, pages.to(kv_cache.device))[torch.arange(len(slots)), torch.from_numpy(offsets)].cpu()
        taken = torch.from_numpy(np.asarray(tokens) + first).to(key.device)
        heads = layer.layout.num_kv_heads
        wrong = fp64.written_wrong(layer.spec, stored, key[taken, :heads].cpu(), value[taken, :heads].cpu())
        self.report.counts["tokens"] += len(tokens)
        if len(wrong):
            position = request.computed + tokens[int(wrong[0])]
            text = f"slot {int(slots[int(wrong[0])])} does not hold the K and V of position {position} right after they were written"
            self.report.alarm(Alarm("write", self.statement.step, layer.name, request.name, text))

    def visit(self, layer: Watched, call: Call) -> None:
        """Memory and rows of some requests, behind the layer's attention."""
        begun = self.budget.now()
        if layer.layout is not None:
            some = self._some_requests(call.tables, "row" if self._rows_turn else "slot")
            for row in some:
                self._visit_request(layer, call, row)
            if some:
                self.report.counts["visits"] += 1
        self.budget.pay("visit", begun)

    def _some_requests(self, tables: Tables, kind: str) -> list[int]:
        """All rows at full budget; else as many as were affordable, from a random one on: at least one."""
        count = len(tables.rows)
        if self.budget.full or count == 0:
            return list(range(count))
        first = int(self._random.integers(count))
        most = 1 if kind == "row" else count
        return [(first + i) % count for i in range(max(1, min(most, self.budget.affordable(kind, count))))]

    def _visit_request(self, layer: Watched, call: Call, row: int) -> None:
        request, tables, ledger = call.tables.rows[row], call.tables, self.ledgers[layer.group]
        if request is None or request.scheduled == 0:
            return
        assert layer.layout is not None
        begun = self.budget.now()
        window = layer.spec.window
        first = 0 if window is None else max(0, request.computed + 1 - window) // ledger.page_size
        pages = ledger.pages(request, layer.group, -(-request.seq_len // ledger.page_size))[first:]
        kv = layer.layout.read(call.kv_cache, torch.from_numpy(pages).to(call.kv_cache.device))
        if self.budget.full or not self._rows_turn:
            self._judge_memory(layer, request, ledger, kv, first * ledger.page_size)
            self.budget.pay("slot", begun)
        if self.budget.full or self._rows_turn:
            begun = self.budget.now()
            self._judge_rows(layer, call, request, tables, row, kv.cpu(), first * ledger.page_size)
            self.budget.pay("row", begun)

    def _judge_memory(self, layer: Watched, request: Request, ledger: Ledger, kv: torch.Tensor, begin: int) -> None:
        slots = ledger.slots(request, layer.group, begin, request.seq_len)
        rows = kv.reshape(-1, *kv.shape[2:])[: len(slots)]
        before = layer.memory.version[slots]
        wrong = layer.memory.changed(slots, ledger.step[slots], rows)
        self.report.counts["slots"] += len(slots)
        if len(wrong):
            i = int(wrong[0])
            page, offset = divmod(int(slots[i]), ledger.page_size)
            text = (f"page {page}, offset {offset} (position {begin + i}), last written in step {int(before[i])}, has changed, and nobody "
                    f"wrote it; so have {len(wrong)} of the request's {len(slots)} slots")  # fmt: skip
            values = rows[i].float() if rows.dtype.is_floating_point else rows[i]
            text += "; it holds only zeros now" if not bool((values != 0).any()) else ""
            self.report.alarm(Alarm("memory", self.statement.step, layer.name, request.name, text))

    def _judge_rows(self, layer: Watched, call: Call, request: Request, tables: Tables, row: int, kv: torch.Tensor, begin: int) -> None:
        first = int(tables.query_start_loc[row])
        part = slice(first, first + request.scheduled)
        query, output = call.query[part].cpu(), call.output[part].reshape(call.query[part].shape).cpu()
        tokens = self._some_tokens(request, _ROWS)[: _ROWS if self.budget.full else 1]
        heads = range(kv.shape[3])
        if not self.budget.full:
            one = int(self._random.integers(kv.shape[3]))
            heads = range(one, one + 1)
        judged = fp64.judge(layer.spec, query, output, kv, request.seq_len - begin, tokens, heads)
        self.report.counts["rows"] += len(tokens)
        self.report.counts["elements"] += judged.elements
        if judged.rounding:
            self.report.counts["rounding"] += 1
        if judged.ok or judged.rounding:
            self.report.worst = max(self.report.worst, judged.ratio)
            return
        text = f"row {first + tokens[0]} is {judged.ratio:.3g} tolerances from fp64 attention over what the cache holds, whose slots are right"
        notes = {"layer": layer.name, "request": request.name, "pages": " ".join(map(str, request.pages[layer.group][:200]))}
        self.report.alarm(Alarm("kernel", self.statement.step, layer.name, request.name, text), judged.problem, notes)

    def _some_tokens(self, request: Request, count: int) -> list[int]:
        """The last row of the step, and others at random."""
        last = request.scheduled - 1
        if last == 0 or count == 1:
            return [last if self.budget.full or self._random.random() < 0.5 else int(self._random.integers(last + 1))]
        return sorted({last, *(int(i) for i in self._random.integers(last + 1, size=count - 1))})
