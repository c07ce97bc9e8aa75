# SPDX-License-Identifier: Apache-2.0
"""Model, paged cache and scheduler in one: `step()` computes one mixed batch and hands out one token per finished row."""

from __future__ import annotations

import dataclasses
import time

from model import Llama
from paged import PagedKV
from scheduler import Request, Scheduler


@dataclasses.dataclass(frozen=True)
class StepReport:
    new_tokens: list[tuple[Request, int]]
    done: list[Request]
    prefill_rows: int
    decode_rows: int
    requests: int
    seconds: float
    attend_seconds: float  # of these, inside quire.attend(), all layers together


class Engine:
    def __init__(self, llama: Llama, *, num_pages: int, page_size: int = 16, dtype="f32", sharing=True, verify_every=0, **limits):
        self.llama = llama
        self.kv = PagedKV(llama.config, num_pages, page_size, dtype=dtype, sharing=sharing, verify_every=verify_every)
        self.scheduler = Scheduler(self.kv.pool, num_pages, **limits)

    def submit(self, request: Request) -> None:
        if len(request.prompt) + request.max_new_tokens > self.llama.config.context:
            raise ValueError(
                f"request {request.id}: {len(request.prompt)} + {request.max_new_tokens} tokens, expected at most "
                f"the model's context of {self.llama.config.context}"
            )
        self.scheduler.submit(request)

    def step(self) -> StepReport:
        """One forward pass over the rows the scheduler picked; greedy sampling."""
        start, attend_before = time.perf_counter(), self.kv.audit.seconds["attend"]
        chunks = self.scheduler.schedule()
        step = self.kv.begin_step(chunks)
        hidden = self.llama.forward(step.tokens, step.positions, step.attend)
        last_rows = [int(row) - 1 for row, c in zip(step.query_start_loc[1:], chunks, strict=True) if c.yields_token]
        yielding = [c.request for c in chunks if c.yields_token]
        tokens = self.llama.logits(hidden[last_rows]).argmax(-1).tolist() if yielding else []
        decode = sum(c.is_decode for c in chunks)
        done = self.scheduler.finish_step(chunks, {r.id: t for r, t in zip(yielding, tokens, strict=True)})
        return StepReport(
            new_tokens=list(zip(yielding, tokens, strict=True)),
            done=done,
            prefill_rows=len(step.tokens) - decode,
            decode_rows=decode,
            requests=len(chunks),
            seconds=time.perf_counter() - start,
            attend_seconds=self.kv.audit.seconds["attend"] - attend_before,
        )

    def run(self, requests: list[Request]) -> None:
        """Submits everything at once and works until all of it is done."""
        for request in requests:
            self.submit(request)
        while self.scheduler.has_work():
            self.step()
