# SPDX-License-Identifier: Apache-2.0
"""Prompts whose rows and keys are spread over ranks: keys travel by chunks of KV heads, and every call is plain causal attention.

Zig-zag order: a prompt is cut into 2 * world chunks, and rank k holds chunks k and 2 * world - 1 - k. The causal work of all ranks is
then equal: chunk i costs i + 1/2 squares of its length, so each rank has world of them, twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_bytes_like, empty_like, empty_part_like, is_torch
from quire._messages import keywords_checked, shown
from quire.distributed._groups import Group
from quire.distributed._heads import options_of_heads
from quire.errors import ArgumentError


def _on_gpu(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


@dataclasses.dataclass(frozen=True)
class ZigZag:
    """The rows of whole prompts that a rank holds: pure data.

    lengths: tokens of each prompt (>= 0). A chunk is ceil(length / (2 * world)) tokens, rounded up to whole pages; the last chunks may be
    short or empty. Rows of a rank: prompt by prompt, chunk ``rank`` before chunk ``2 * world - 1 - rank``.
    """

    rank: int
    world: int
    lengths: tuple[int, ...]
    page_size: int = 16

    def __post_init__(self) -> None:
        lengths = tuple(int(n) for n in self.lengths)
        object.__setattr__(self, "lengths", lengths)
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ArgumentError(f"ZigZag: rank {self.rank} of {self.world}, expected 0 <= rank < world")
        if self.page_size < 1:
            raise ArgumentError(f"ZigZag: page_size: {self.page_size}, expected at least 1")
        for i, n in enumerate(lengths):
            if n < 0:
                raise ArgumentError(f"ZigZag: lengths[{i}]: {n}, expected at least 0")

    def of_rank(self, rank: int) -> ZigZag:
        return dataclasses.replace(self, rank=rank)

    def chunk(self, prompt: int) -> int:
        """Tokens of one chunk of a prompt, a multiple of page_size."""
        pages = -(-self.lengths[prompt] // (2 * self.world * self.page_size))
        return pages * self.page_size

    def ranges(self, prompt: int) -> list[tuple[int, int]]:
        """Positions [begin, end) of the two chunks that this rank holds."""
        size, length = self.chunk(prompt), self.lengths[prompt]
        chunks = (self.rank, 2 * self.world - 1 - self.rank)
        return [(min(i * size, length), min((i + 1) * size, length)) for i in chunks]

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(prompt, position) of every row of this rank, int64, in their order."""
        prompts, positions = [], []
        for prompt in range(len(self.lengths)):
            for begin, end in self.ranges(prompt):
                positions.append(np.arange(begin, end))
                prompts.append(np.full(end - begin, prompt))
        none = [np.zeros(0, np.int64)]
        return np.concatenate(none + prompts).astype(np.int64), np.concatenate(none + positions).astype(np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of this rank."""
        return sum(end - begin for prompt in range(len(self.lengths)) for begin, end in self.ranges(prompt))

    @property
    def num_pages(self) -> int:
        """Pages that the keys of a rank take, the same on every rank."""
        return sum(2 * self.chunk(prompt) // self.page_size for prompt in range(len(self.lengths)))

    @property
    def slots(self) -> np.ndarray:
        """The place of each row's key among the pages of its rank: chunks begin with a page."""
        slots, first = [np.zeros(0, np.int64)], 0
        for prompt in range(len(self.lengths)):
            for begin, end in self.ranges(prompt):
                slots.append(first + np.arange(end - begin))
                first += self.chunk(prompt)
        return np.concatenate(slots)

    def block_table(self, pages_between_ranks: int) -> np.ndarray:
        """[2 * prompts, pages]: where every page of a prompt lies after the exchange, once for each of the rank's two chunks."""
        widest = max((-(-n // self.page_size) for n in self.lengths), default=0)
        table = np.zeros((2 * len(self.lengths), max(widest, 1)), np.int32)
        first = 0
        for prompt, length in enumerate(self.lengths):
            size = self.chunk(prompt) // self.page_size
            for page in range(-(-length // self.page_size)):
                chunk, within = divmod(page, size)
                owner = min(chunk, 2 * self.world - 1 - chunk)
                table[2 * prompt : 2 * prompt + 2, page] = owner * pages_between_ranks + first + (chunk >= self.world) * size + within
            first += 2 * size
        return table


@dataclasses.dataclass(frozen=True)
class PrefillPlan:
    """Plan of a rank for the prompts of one step; made by :func:`prefill_plan`, used for every layer."""

    zigzag: ZigZag
    head_chunks: int
    slots: Any  # None: rows fill their pages without a gap
    indices: dict[str, Any]
    local: Any
    workspace: Any

    def __str__(self) -> str:
        z = self.zigzag
        return (
            f"rank {z.rank} of {z.world}: {z.num_rows} of {sum(z.lengths)} rows in zig-zag order, keys exchanged in "
            f"{self.head_chunks} chunk{'s' if self.head_chunks > 1 else ''} of heads\n{self.local}"
        )


def _pages(buffer: Any, plan_pages: int, page_size: int) -> tuple[Any, Any]:
    """(k, v) of what was gathered, [world, 2, rows, heads, dim]: pages of v lie ``plan_pages`` behind those of k, so one id serves both."""
    heads, dim = buffer.shape[-2:]
    pages = buffer.reshape(-1, page_size, heads, dim)
    return pages[: pages.shape[0] - plan_pages], pages[plan_pages:]


def _to(array: np.ndarray, like: Any) -> Any:
    if not is_torch(like):
        return array
    torch = sys.modules["torch"]
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)


def _sent(key: Any, value: Any, rows: int, slots: Any) -> Any:
    """[2, rows, heads, dim]: a rank's keys and values in its pages. Tails of chunks travel, too, and are zero."""
    made = empty_part_like(key, (2, rows, *key.shape[1:]))
    if slots is None:
        made[0], made[1] = key, value
        return made
    made[...] = 0
    made[0, slots], made[1, slots] = key, value
    return made


def _require(query: Any, key: Any, value: Any, z: ZigZag, group: Group) -> None:
    if (z.rank, z.world) != (group.rank, group.world):
        raise ArgumentError(f"zigzag: rank {z.rank} of {z.world}, expected rank {group.rank} of {group.world} as the group")
    rows = z.num_rows
    for name, array in (("query", query), ("key", key), ("value", value)):
        if len(array.shape) != 3 or array.shape[0] != rows:
            raise ArgumentError(f"{name}: {list(array.shape)}, expected [{rows}, heads, head_dim]: the rows of this rank (ZigZag.rows)")
        if str(array.dtype) != str(query.dtype):
            raise ArgumentError(f"{name}: {array.dtype}, expected {query.dtype} as query")
    if tuple(key.shape) != tuple(value.shape) or query.shape[1] % key.shape[1] or query.shape[2] != key.shape[2]:
        raise ArgumentError(
            f"key, value: {list(key.shape)}, {list(value.shape)}, expected one shape with a divisor of {query.shape[1]} heads and "
            f"head_dim {query.shape[2]}"
        )


def _agree(group: Group, z: ZigZag, query: Any, key: Any, options: Any, chunks: int) -> None:
    import zlib

    def digest(what: Any) -> int:
        return zlib.crc32(str(what).encode())

    o = _quire.Options() if options is None else options
    host = [None if a is None else np.asarray(a.detach().cpu() if is_torch(a) else a).tolist() for a in (o.sinks, o.alibi_slopes)]
    group.agree({
        "lengths (digest)": digest(z.lengths),
        "page_size": z.page_size,
        "num_q_heads": int(query.shape[1]),
        "num_kv_heads": int(key.shape[1]),
        "head_dim": int(query.shape[2]),
        "query dtype (digest)": digest(str(query.dtype).removeprefix("torch.")),
        "options (digest)": digest((o.softmax_scale, o.sliding_window, o.logits_soft_cap, host)),
        "head_chunks": chunks,
    })  # fmt: skip


@keywords_checked
def prefill_plan(
    query: Any, key: Any, value: Any, options: Any = None, *, zigzag: ZigZag, group: Group, head_chunks: int | None = None,
    check: bool = True, kernel: str | None = None, batch_invariant: bool = False,
) -> PrefillPlan:  # fmt: skip
    """Plans this rank's work on the prompts of a step; arguments as for :func:`prefill`. All ranks of the group call it.

    head_chunks: chunks of KV heads, a divisor of num_kv_heads; while one is computed, the next one's keys travel (on GPUs). None: 4, or
        the largest divisor below it, on GPUs with more than one rank; else 1.
    check: lengths, sizes, types and options are compared over the ranks (Q-D05).
    kernel: by name; None chooses.
    batch_invariant: as for :func:`quire.plan`: every row has the bits that one process gives it with such a plan.
    """
    error: Exception | None = None
    plan, chunks = None, 1
    try:
        _require(query, key, value, zigzag, group)
        heads = int(key.shape[1])
        wanted = head_chunks or (4 if _on_gpu(query) and group.world > 1 else 1)
        chunks = head_chunks or max(n for n in range(1, wanted + 1) if heads % n == 0)
        if isinstance(chunks, bool) or heads % chunks:
            raise ArgumentError(f"head_chunks: {shown(chunks)}, expected a divisor of {heads} KV heads")
        plan = _planned(query, key, options, zigzag, chunks, kernel, batch_invariant)
    except Exception as failure:
        error = failure
    if check or error is not None:
        try:
            if error is None:
                _agree(group, zigzag, query, key, options, chunks)
            else:
                group.agree({}, error) if check else group.fail(error)
        finally:
            if error is not None:
                raise error
    assert plan is not None
    return plan


def _planned(query: Any, key: Any, options: Any, z: ZigZag, chunks: int, kernel: str | None, batch_invariant: bool) -> PrefillPlan:
    lens, ends = [], []
    for prompt in range(len(z.lengths)):
        for begin, end in z.ranges(prompt):
            lens.append(end - begin)
            ends.append(end)
    arrays = dict(
        query_start_loc=np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        # A chunk without rows attends to nothing: it has no keys, either.
        seq_lens=np.array([e if n else 0 for n, e in zip(lens, ends)], np.int32),
        block_table=z.block_table(2 * z.num_pages),
    )
    indices = {name: _to(array, query) for name, array in arrays.items()}
    q_heads, kv_heads, dim = query.shape[1] // chunks, key.shape[1] // chunks, query.shape[2]
    buffer = empty_part_like(key, (z.world, 2, z.num_pages * z.page_size, kv_heads, dim))
    k, v = _pages(buffer, z.num_pages, z.page_size)
    part = query[:, :q_heads]
    batch = _quire.Batch(query=part, output=empty_like(query)[:, :q_heads], **indices)
    longest = dict(max_query_len=max(lens, default=1) or 1, max_seq_len=max(ends, default=1) or 1)
    local = _quire.plan(batch, _quire.KVCache(k, v), options_of_heads(options, slice(0, q_heads)), kernel=kernel, batch_invariant=batch_invariant, **longest)
    workspace = empty_bytes_like(query, max(local.workspace_bytes, 1)) if _on_gpu(query) else None
    slots = None if z.num_rows == z.num_pages * z.page_size else _to(z.slots, query)
    return PrefillPlan(z, chunks, slots, indices, local, workspace)


class _Exchange:
    """Gathers of keys, one chunk of heads after the other. On a GPU they run on a stream of their own, ahead of attention."""

    def __init__(self, key: Any, value: Any, plan: PrefillPlan, group: Group):
        self._group, self._plan = group, plan
        self._cuda = sys.modules["torch"].cuda if _on_gpu(key) else None
        self._side = self._cuda.Stream() if self._cuda else None
        self._events: list[Any] = []
        z, chunks = plan.zigzag, plan.head_chunks
        heads = key.shape[1] // chunks
        rows = z.num_pages * z.page_size
        self.received = []
        if self._side is not None:
            self._side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._side) if self._cuda else contextlib.nullcontext():
            for chunk in range(chunks):
                mine = slice(chunk * heads, (chunk + 1) * heads)
                sent = _sent(key[:, mine], value[:, mine], rows, plan.slots)
                received = empty_part_like(key, (z.world, *sent.shape))
                group.all_gather(sent, received)
                self.received.append(received)
                if self._cuda:
                    self._events.append(self._cuda.Event())
                    self._events[-1].record(self._side)

    def wait(self, chunk: int) -> Any:
        if self._cuda:
            self._events[chunk].wait(self._cuda.current_stream())
            self.received[chunk].record_stream(self._cuda.current_stream())
        return self.received[chunk]


@keywords_checked
def prefill(
    query: Any, key: Any, value: Any, options: Any = None, *, group: Group, zigzag: ZigZag | None = None,
    plan: PrefillPlan | None = None, output: Any = None, head_chunks: int | None = None, check: bool = True,
) -> Any:  # fmt: skip
    """Causal attention of whole prompts whose rows and keys are spread over the ranks of a group; returns this rank's rows.

        out_i = sum_j<=i softmax(scale q_i k_j) v_j           over all positions of a prompt, whichever rank holds them

    query: [rows, num_q_heads, head_dim] f32 | f16 | bf16; key, value: [rows, num_kv_heads, head_dim] of the same dtype. Rows are those of
        ``zigzag.rows``. Contiguous. output: like query, or None.
    zigzag: :class:`ZigZag` of this rank. plan: of :func:`prefill_plan`, for a step of many layers; then nothing is compared.
    head_chunks, check: as for :func:`prefill_plan`.

    Every rank receives the keys of all, chunk by chunk of KV heads (Llama 3's context parallelism, arXiv 2407.21783 section 3.3.2, in
    zig-zag order), and attends with plain causal calls, which the tuned kernels take; no partial result is merged. Memory: the keys of one layer on every rank. Raises on every rank: ContractError
    (Q-D05), RankError; ArgumentError, and what :func:`quire.plan` raises.
    """
    if plan is None:
        if zigzag is None:
            raise ArgumentError("prefill(): argument zigzag is missing, and so is plan")
        plan = prefill_plan(query, key, value, options, zigzag=zigzag, group=group, head_chunks=head_chunks, check=check)
    z = plan.zigzag
    with group.guard():
        _require(query, key, value, z, group)
        output = empty_like(query) if output is None else output
    exchange = _Exchange(key, value, plan, group)
    heads = query.shape[1] // plan.head_chunks
    for chunk in range(plan.head_chunks):
        k, v = _pages(exchange.wait(chunk), z.num_pages, z.page_size)
        mine = slice(chunk * heads, (chunk + 1) * heads)
        with group.guard():
            batch = _quire.Batch(query=query[:, mine], output=output[:, mine], **plan.indices)
            _quire.attend(batch, _quire.KVCache(k, v), options_of_heads(options, mine), plan=plan.local, workspace=plan.workspace)
    return output
