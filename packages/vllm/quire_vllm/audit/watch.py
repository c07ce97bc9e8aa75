# SPDX-License-Identifier: Apache-2.0
"""The auditor: which layer, request and row is looked at in which step. :mod:`quire_vllm.audit.judge` looks. No vLLM is imported here.

The scheduler's words and the ledger are kept up to date in every step. Everything else has its turn when the budget has saved up for it:
rows of the tables; some layers at once, of which one turn reads what was just written and what nobody should have written, and the next
compares rows with fp64. Memory is read, and rows are compared, when the step has ended: together they stay in the processor's caches. At
full budget all of it has its turn in every step, behind its layer. Every few steps the last layer's output is asked to be finite;
a request whose output is not is hunted: whatever the budget, the next step looks at all of its slots and rows in every layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quire_vllm.audit import rows as fp64
from quire_vllm.audit.boundary import Boundary
from quire_vllm.audit.budget import Budget
from quire_vllm.audit.judge import Judge, Rows, Watched
from quire_vllm.audit.layout import Layout, LayoutError, Write, probe
from quire_vllm.audit.ledger import Ledger
from quire_vllm.audit.memory import Memory
from quire_vllm.audit.report import Alarm, Report
from quire_vllm.audit.sample import Held, held_slots, requests_in_turn, some_tokens, written_tokens
from quire_vllm.audit.statement import Statement, Tables
from quire_vllm.audit.values import Values

_ROWS = 2  # rows of each request that a visit at full budget compares with fp64
_LAYERS_AT_ONCE = 8  # that a step visits within a budget; more make single steps longer, fewer make each visit dearer
_TABLE_ROWS_AT_ONCE = 8  # that a step judges within a budget; fewer make each dearer, because the tables are read for them
_VALUES_EVERY = 4  # steps; a NaN in a cache stays, so that it is seen that much later
_REPORT_SECONDS = 2.0  # between two reports, which a thread writes; vLLM kills its workers, and so many seconds of steps are lost then


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
    def __init__(self, settings: Any, clock: Callable[[], float] | None = None, boundary: Boundary | None = None):
        self.settings = settings
        self.boundary = boundary or Boundary()
        self.budget = Budget(settings.budget, *([clock] if clock else []))
        self.boundary.charge_to(self.budget.charge)
        self.statement = Statement()
        self.report = Report(settings.folder, settings.captures, settings.action, self.boundary)
        self.ledgers: dict[int, Ledger] = {}
        self.judge = Judge(self.report, self.ledgers)
        self.layers: dict[str, Watched] = {}
        self.values = Values()
        self.unread: set[str] = set()  # layers that cannot be looked at
        self.inside = False  # a step of the engine, not a warm-up
        self._lost = ""  # why no step can be judged any more
        self._random = np.random.default_rng(settings.seed)
        self._visits = 0
        self._due: set[str] = set()  # the layers that are visited in this step
        self._rows_turn = False  # these visits compare rows; else they read memory
        self._table_rows = 0  # that are judged in this step
        self._next_row = 0
        self._values_turn = False
        self._last = ""  # the last layer's name
        self._samples: dict[tuple[int, int | None, str], Any] = {}  # of this step, by group, window and what it is
        self._written_seconds = 0.0  # of the layer that is being visited
        self._waiting: list[tuple[Watched, torch.Tensor, Held | None, Rows | None]] = []  # visits whose judgement waits for the step's end
        self._hunted: set[str] = set()  # requests of which all is looked at in this step

    @property
    def _everything(self) -> bool:
        return self.budget.full or bool(self._hunted)

    def begin_step(self, scheduler_output: Any) -> None:
        self.budget.begin_step()
        begun = self.budget.now()
        self._samples, self._due, self._hunted, self._waiting, self._table_rows = {}, set(), set(), [], 0
        if self._lost:
            raise RuntimeError(self._lost)
        self.statement.begin_step(scheduler_output)
        self.judge.step = self.statement.step
        with self.boundary("values"):
            self._choose_requests()
        for group, ledger in self.ledgers.items():
            ledger.record(self.statement.scheduled, group, self.statement.step)
        with self.boundary("turns"):
            self._take_turns()
        self.inside = bool(self.statement.scheduled)
        self.budget.pay("statement", begun)

    def lose_count(self) -> None:
        """:meth:`begin_step` has failed. Books rest on those of the step before: behind a gap, right tables would look wrong."""
        self.inside = False
        if not self._lost:
            self._lost = self.report.facts["lost"] = f"from step {self.statement.step} on no step is looked at, until this process starts again"

    def end_step(self) -> None:
        try:
            if self.inside:
                self._judge_waiting()
        finally:
            self.inside = False
            self.budget.end_step()
            report = self.report
            report.counts["steps"] = self.statement.step
            report.facts.update(share=self.budget.used, seconds=self.budget.seconds, audit_seconds=self.budget.spent, budget=self.budget.share)
            report.write(_REPORT_SECONDS)

    def give_up(self, layer: str) -> None:
        """Another try in every step would take time that no budget counts."""
        self.unread.add(layer)
        self.report.facts[f"layer {layer}"] = "is not looked at: the log says why"

    def _take_turns(self) -> None:
        """Chooses the work of this step: values, rows of tables, and the next layers, in turn for their memory and for rows."""
        names = list(self.layers)
        self._last = names[-1] if names else ""
        self._values_turn = self.budget.full or self.statement.step % _VALUES_EVERY == 0
        scheduled = len(self.statement.scheduled)
        self._table_rows = self.budget.batch("row of a table", scheduled if self.budget.full else min(scheduled, _TABLE_ROWS_AT_ONCE))
        self._due = set()
        if names and not self.budget.full:
            turn, first = divmod(self._visits, len(names))
            self._rows_turn = turn % 2 == 1
            kind = "rows" if self._rows_turn else "memory"
            some = self.budget.batch(kind, min(_LAYERS_AT_ONCE, len(names) - first), kind + " judged")
            self._due = set(names[first : first + some])
            self._visits += some

    def _choose_requests(self) -> None:
        """Chooses requests whose output of the step before was not finite. A request that this step does not schedule
        (ended or preempted) is traced at once: its pages may get new owners, who have written nothing yet."""
        broken = sorted(self.values.read(), key=lambda request: request.name)
        scheduled = {request.number for request in self.statement.scheduled}
        self._hunted = {request.name for request in broken if request.number in scheduled}
        for request in broken:
            hunted = request.name in self._hunted
            when = "in the next step" if hunted else "now, because the next step does not schedule it"
            text = f"the row of its last token is not finite; all of the request is looked at {when}"
            self.report.alarm(Alarm("values", self.statement.step - 1, self._last, request.name, text))
            if not hunted:
                with self.boundary("values"):  # the other requests are told of all the same
                    self.judge.lost(list(self.layers.values()), request)

    def looks(self) -> bool:
        """Whether this step needs its tables."""
        return self.inside and bool(self._everything or self._due or self._table_rows or self._values_turn or not (self.layers or self.unread))

    def wants(self, layer: str) -> bool:
        return self.inside and layer not in self.unread and (self._everything or layer in self._due or layer not in self.layers)

    # Values.

    def see_output(self, layer: str, output: torch.Tensor, tables: Tables) -> None:
        """Keeps whether the last layer's output is finite; other layers' outputs are not looked at."""
        if layer == self._last and self._values_turn:
            with self.boundary("values"):
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
            ledger = self._open_ledger(group, Ledger(num_pages, tables.page_size, ratio))
        self.budget.pay("tables of a visit" if self._due else "tables", begun)
        self._judge_tables(tables, group, ledger, window)
        return tables

    def _open_ledger(self, group: int, ledger: Ledger) -> Ledger:
        """Begins with the first request. A ledger that misses writes would call them foreign, also in prefixes of requests that start later."""
        if self.statement.begun < self.statement.step:
            raise RuntimeError(f"the first tables of KV cache group {group} were missed, so that its slots are not known")
        ledger.record(self.statement.scheduled, group, self.statement.step)
        self.ledgers[group] = ledger
        return ledger

    def _judge_tables(self, tables: Tables, group: int, ledger: Ledger, window: int | None) -> None:
        count = len(tables.rows)
        some = min(self._table_rows, count)
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
            layout = self._layout(name, spec, write, kv_cache, page_size, dtype)
            self.layers[name] = Watched(name, index, group, spec, layout, memory, kv_cache)
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
        """Looks at the cache right after a write, before attention: some tokens of this step's requests."""
        if layer.layout is None or (self._rows_turn and not self._everything):
            return
        begun = self.budget.now()
        written = self._sample("written", layer, tables)
        if written is not None:
            self.judge.written(layer, written, key, value, kv_cache)
        self._written_seconds = self.budget.now() - begun  # paid with the visit

    def _sample(self, what: str, layer: Watched, tables: Tables) -> Any:
        """Sample of this step for layers of that group and window: Held, Written, or, for "rows", table rows; None if there is none."""
        key = layer.group, layer.spec.window, what
        if key not in self._samples:
            first = 0 if self._everything or not tables.rows else int(self._random.integers(len(tables.rows)))
            hunted = self._hunted if self._hunted and not self.budget.full else None
            rows = requests_in_turn(tables, first, hunted)
            self._samples[key] = self._choose(what, layer, tables, rows) if rows else None
        return self._samples[key]

    def _choose(self, what: str, layer: Watched, tables: Tables, rows: list[int]) -> Any:
        ledger = self.ledgers[layer.group]
        if what == "written":
            return written_tokens(tables, rows, ledger, layer.group, self._random, limited=not self._everything)
        if what == "held":
            turn = None if self._everything else self._visits // (2 * max(1, len(self.layers)))
            return held_slots([tables.rows[row] for row in rows], ledger, layer.group, layer.spec.window, turn)
        return rows

    def visit(self, layer: Watched, call: Call) -> None:
        """Behind the layer's attention. At full budget or in a hunt memory and rows are judged here; else one of both waits for the step's end."""
        begun = self.budget.now() - self._written_seconds
        self._written_seconds = 0.0
        layer.kv_cache = call.kv_cache
        rows = self._sample("rows", layer, call.tables) if layer.layout is not None else None
        if rows and self._everything:
            self.judge.memory(layer, self._sample("held", layer, call.tables), call.kv_cache, self._hunted)
            for row in rows:
                self.judge.rows(layer, self._all_rows(layer, call, row), call.kv_cache)
        elif rows and self._rows_turn:
            self._waiting.append((layer, call.kv_cache, None, self._one_row(layer, call, rows[layer.index % len(rows)])))
        elif rows:
            self._waiting.append((layer, call.kv_cache, self._sample("held", layer, call.tables), None))
        self.report.counts["visits"] += 1 if rows else 0
        self.budget.pay("hunt" if self._hunted else "rows" if self._rows_turn else "memory", begun)

    def _judge_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        begun = self.budget.now()
        for layer, kv_cache, held, rows in waiting:
            with self.boundary("judgement"):
                if held is not None:
                    self.judge.memory(layer, held, kv_cache, self._hunted)
                if rows is not None:
                    self.judge.rows(layer, rows, kv_cache)
        if waiting:
            self.budget.pay("rows judged" if self._rows_turn else "memory judged", begun, len(waiting))

    def _all_rows(self, layer: Watched, call: Call, row: int) -> Rows:
        """A request's rows of this step, some of which are judged, and all KV heads."""
        request, first = call.tables.rows[row], int(call.tables.query_start_loc[row])
        assert request is not None and layer.layout is not None
        part = slice(first, first + request.scheduled)
        tokens = some_tokens(request, _ROWS, self._random)
        return Rows(request, call.query[part], call.output[part], tokens, first, request.seq_len, range(layer.layout.num_kv_heads))

    def _one_row(self, layer: Watched, call: Call, row: int) -> Rows:
        """A copy of one row and the query heads of one KV head."""
        request, first = call.tables.rows[row], int(call.tables.query_start_loc[row])
        assert request is not None and layer.layout is not None
        tokens, head = some_tokens(request, _ROWS, self._random), int(self._random.integers(layer.layout.num_kv_heads))
        token = tokens[int(self._random.integers(len(tokens)))]
        part = slice(first + token, first + token + 1)
        query, output = call.query[part].clone(), call.output[part].clone()
        return Rows(request, query, output, [0], part.start, request.computed + token + 1, range(head, head + 1))
