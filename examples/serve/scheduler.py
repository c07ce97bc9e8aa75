# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: which rows of which requests the next step computes. All page decisions are quire.PagePool's.

Every step has a budget of rows. Running requests come first, oldest first: one row for a request that decodes, up to `chunk`
rows for one that still reads its prompt. The rest of the budget admits waiting requests. If pages run out, the youngest request gives
its pages back and waits; what it had computed is recomputed later, or found again if nobody took its pages.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import enum

import quire


class State(enum.Enum):
    NEW = "new"
    RUNNING = "running"
    PREEMPTED = "preempted"
    DONE = "done"


@dataclasses.dataclass
class Request:
    id: int
    prompt: list[int]
    max_new_tokens: int
    stop: frozenset[int] = frozenset()
    arrival: float = 0.0
    generated: list[int] = dataclasses.field(default_factory=list)
    state: State = State.NEW
    computed: int = 0  # leading tokens whose K and V are in the cache
    prefix_hits: int = 0  # tokens found in the cache instead of computed
    preemptions: int = 0
    order: int = -1  # of admission

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.generated)

    def token(self, position: int) -> int:
        n = len(self.prompt)
        return self.prompt[position] if position < n else self.generated[position - n]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokens [begin, end) of a request are the rows it has in one step."""

    request: Request
    begin: int
    end: int

    @property
    def is_decode(self) -> bool:
        return self.end == self.request.num_tokens and self.end - self.begin == 1 and self.begin >= len(self.request.prompt)

    @property
    def yields_token(self) -> bool:
        return self.end == self.request.num_tokens


class Scheduler:
    def __init__(self, pool: quire.PagePool, num_pages: int, *, budget: int = 256, chunk: int = 128, max_running: int = 64):
        if min(budget, chunk, max_running) < 1:
            raise ValueError(f"budget, chunk, max_running: got {budget}, {chunk}, {max_running}, expected at least 1 each")
        self.pool, self.num_pages = pool, num_pages
        self.budget, self.chunk, self.max_running = budget, chunk, max_running
        self.waiting: collections.deque[Request] = collections.deque()
        self.running: list[Request] = []  # in the order of admission
        self.admitted = 0

    def submit(self, request: Request) -> None:
        most = self._pages(len(request.prompt) + request.max_new_tokens)
        if not request.prompt:
            raise ValueError(f"request {request.id}: 0 prompt tokens, expected at least 1")
        if most > self.num_pages:
            raise ValueError(
                f"request {request.id}: up to {most} pages for {len(request.prompt)} prompt and {request.max_new_tokens} "
                f"new tokens, expected at most the {self.num_pages} there are"
            )
        self.waiting.append(request)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> list[Chunk]:
        """The rows of the next step, requests in running order; their pages are reserved."""
        chunks: list[Chunk] = []
        left = self.budget
        preempted = False
        for request in list(self.running):
            if left == 0 or request.state is not State.RUNNING:
                continue
            count = min(request.num_tokens - request.computed, self.chunk, left)
            preempted |= not self._reserve_or_preempt(request, request.computed + count)
            if request.state is State.RUNNING:
                chunks.append(Chunk(request, request.computed, request.computed + count))
                left -= count
        while not preempted and left and self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if not self._admit(request):
                break
            count = min(request.num_tokens - request.computed, self.chunk, left)
            self.pool.reserve(request.id, request.computed + count)
            chunks.append(Chunk(request, request.computed, request.computed + count))
            left -= count
        return chunks

    def finish_step(self, chunks: list[Chunk], next_tokens: dict[int, int]) -> list[Request]:
        """The rows are computed and `next_tokens` (request id -> token) sampled; returns the requests that are done."""
        done = []
        for c in chunks:
            r = c.request
            r.computed = c.end
            self.pool.commit(r.id, c.end)
            if c.yields_token:
                r.generated.append(next_tokens[r.id])
                self.pool.push_token(r.id, r.generated[-1])
                if r.generated[-1] in r.stop or len(r.generated) == r.max_new_tokens:
                    done.append(r)
        for r in done:
            r.state = State.DONE
            self.running.remove(r)
            self.pool.release(r.id)
        return done

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.page_size)

    def _reserve_or_preempt(self, request: Request, num_tokens: int) -> bool:
        """Makes room, taking pages from the youngest requests if it must, at last from this one. True if nobody lost any."""
        nobody = True
        while request.state is State.RUNNING:
            try:
                self.pool.reserve(request.id, num_tokens)
                return nobody
            except quire.errors.OutOfPagesError:
                victim = self.pool.victim()
                self._preempt(next(r for r in self.running if r.id == victim))
                nobody = False
        return nobody

    def _preempt(self, request: Request) -> None:
        self.pool.preempt(request.id)
        request.state, request.computed = State.PREEMPTED, 0
        request.preemptions += 1
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _admit(self, request: Request) -> bool:
        """Lets the first waiting request in if all its known tokens fit beside what is in use now."""
        free = self.num_pages - self.pool.stats.pages_in_use
        if self._pages(request.num_tokens + 1) > free and self.running:
            return False
        self.waiting.popleft()
        if request.state is State.PREEMPTED:
            request.computed = self.pool.resume(request.id)
        else:
            request.order = self.admitted
            self.admitted += 1
            request.computed = self.pool.add(request.id, [request.token(i) for i in range(request.num_tokens)])
        request.prefix_hits += request.computed
        request.state = State.RUNNING
        # The pool picks its victim by the order of add(): with the same order here, a victim never has rows in this step yet.
        bisect.insort(self.running, request, key=lambda r: r.order)
        return True
