# SPDX-License-Identifier: Apache-2.0
"""Findings of a look at a layer, and their messages: tokens just written, slots that no one should have written, values that are not
finite, rows against fp64. :mod:`quire_vllm.audit.watch` decides which of these looks a step takes. No vLLM is imported here.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from quire_vllm.audit import rows as fp64
from quire_vllm.audit.layout import Layout
from quire_vllm.audit.ledger import Ledger
from quire_vllm.audit.memory import Memory
from quire_vllm.audit.report import Alarm, Report
from quire_vllm.audit.sample import Held, Written, held_slots, window_begin
from quire_vllm.audit.statement import Request
from quire_vllm.audit.values import not_finite


@dataclasses.dataclass
class Watched:
    """A layer that has been seen."""

    name: str
    index: int
    group: int
    spec: fp64.Layer
    layout: Layout | None
    memory: Memory
    kv_cache: torch.Tensor  # as the layer had it last


@dataclasses.dataclass
class Rows:
    """Rows of a call, kept until they are judged: ``tokens`` are indices into ``query``, ``end`` is one behind the last row's position."""

    request: Request
    query: torch.Tensor
    output: torch.Tensor
    tokens: list[int]
    first: int  # of ``query`` in the step's rows
    end: int
    heads: range  # KV heads


class Judge:
    """Looks at contents and reports what is wrong. ``ledgers``: of each KV cache group, the auditor's own."""

    def __init__(self, report: Report, ledgers: dict[int, Ledger]):
        self.report, self.ledgers = report, ledgers
        self.step = 0
        self._traced: set[int] = set()  # numbers of the requests for which the first layer with a NaN is known

    def written(self, layer: Watched, written: Written, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor) -> None:
        """Tokens of this step, right behind their write, against their source."""
        assert layer.layout is not None
        places, heads = written.places, layer.layout.num_kv_heads
        stored = layer.layout.read_slots(kv_cache, places.pages, places.offsets).cpu()
        wrong = fp64.written_wrong(layer.spec, stored, fp64.taken(key, written.rows, heads), fp64.taken(value, written.rows, heads))
        self.report.counts["tokens"] += len(written.requests)
        for request, i in {written.requests[int(i)].name: int(i) for i in wrong[::-1]}.items():  # the first of each request
            text = f"slot {int(places.slots[i])} does not hold the K and V of position {written.positions[i]} right after they were written"
            self.report.alarm(Alarm("write", self.step, layer.name, request, text))

    def memory(self, layer: Watched, held: Held, kv_cache: torch.Tensor, hunted: set[str]) -> None:
        """Slots against what they held at their last look; of the requests ``hunted``, whether all values are finite."""
        assert layer.layout is not None
        every, owner, requests = held.places.slots, held.owner, held.requests
        rows = layer.layout.read_slots(kv_cache, held.places.pages, held.places.offsets)
        before = layer.memory.version[every]
        wrong = layer.memory.changed(every, held.versions, rows)
        self.report.counts["slots"] += len(every)
        for i in np.unique(owner[wrong]) if len(wrong) else ():
            mine, count = wrong[owner[wrong] == i], int((owner == i).sum())
            self._tell_memory(layer, requests[i], rows[mine[0]], int(every[mine[0]]), int(before[mine[0]]), len(mine), count)
        if hunted:
            self._values(layer, held, rows, hunted)

    def lost(self, layers: list[Watched], request: Request) -> None:
        """A request that no step will visit again, before its pages are written by others: the first layer that holds a NaN."""
        for layer in layers:
            if layer.layout is not None and layer.group in self.ledgers:
                held = held_slots([request], self.ledgers[layer.group], layer.group, layer.spec.window, None)
                rows = layer.layout.read_slots(layer.kv_cache, held.places.pages, held.places.offsets)
                self._values(layer, held, rows, {request.name})

    def _values(self, layer: Watched, held: Held, rows: torch.Tensor, names: set[str]) -> None:
        """The first layer whose cache holds what is not finite, request by request."""
        ledger, bad = self.ledgers[layer.group], not_finite(rows, layer.spec.cache_dtype)
        for i in np.unique(held.owner[bad]):
            mine, request = bad[held.owner[bad] == i], held.requests[i]
            if request.name in names and request.number not in self._traced:
                self._traced.add(request.number)
                slot = int(held.places.slots[mine[0]])
                page, offset = divmod(slot, ledger.page_size)
                text = (f"page {page}, offset {offset} (position {int(ledger.position[slot])}), last written in step {int(ledger.step[slot])}, holds "
                        f"a K or V that is not finite; {len(mine)} such slots; no layer before has one")  # fmt: skip
                self.report.alarm(Alarm("values", self.step, layer.name, request.name, text))

    def _tell_memory(self, layer: Watched, request: Request, row: torch.Tensor, slot: int, step: int, wrong: int, count: int) -> None:
        ledger = self.ledgers[layer.group]
        page, offset = divmod(slot, ledger.page_size)
        text = (f"page {page}, offset {offset} (position {int(ledger.position[slot])}), last written in step {step}, has changed, and nobody "
                f"wrote it; so have {wrong} of {count} slots that were read")  # fmt: skip
        values = row.float() if row.dtype.is_floating_point else row
        text += "; it holds only zeros now" if not bool((values != 0).any()) else ""
        self.report.alarm(Alarm("memory", self.step, layer.name, request.name, text))

    def rows(self, layer: Watched, rows: Rows, kv_cache: torch.Tensor) -> None:
        """Rows of an output against fp64 attention over the cache."""
        ledger, request = self.ledgers[layer.group], rows.request
        assert layer.layout is not None
        layout = layer.layout.head(rows.heads.start) if len(rows.heads) == 1 else layer.layout
        size = ledger.page_size
        begin = window_begin(request, layer.spec.window, size)
        pages = ledger.pages(request, layer.group, -(-rows.end // size))[begin // size :]
        offsets = np.tile(np.arange(size), len(pages))
        kv = layout.read_slots(kv_cache, torch.from_numpy(pages.repeat(size)), torch.from_numpy(offsets)).cpu()
        query = rows.query.cpu()
        output = rows.output.reshape(rows.query.shape).cpu()
        kv = kv.reshape(len(pages), size, *kv.shape[1:])
        judged = fp64.judge(layer.spec, query, output, kv, rows.end - begin, rows.tokens, rows.heads)
        self._tell_rows(layer, request, judged, rows.first + rows.tokens[0], len(rows.tokens))

    def _tell_rows(self, layer: Watched, request: Request, judged: fp64.Judged, row: int, count: int) -> None:
        self.report.counts["rows"] += count
        self.report.counts["elements"] += judged.elements
        if judged.rounding:
            self.report.counts["rounding"] += 1
        if judged.ok or judged.rounding:
            self.report.worst = max(self.report.worst, judged.ratio)
            return
        text = f"row {row} is {judged.ratio:.3g} tolerances from fp64 attention over what the cache holds, whose slots are right"
        notes = {"layer": layer.name, "request": request.name, "pages": " ".join(map(str, request.pages[layer.group][:200]))}
        self.report.alarm(Alarm("kernel", self.step, layer.name, request.name, text), judged.problem, notes)
