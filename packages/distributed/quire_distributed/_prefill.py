# SPDX-License-Identifier: Apache-2.0
"""Prompts whose rows and keys are spread over ranks in zig-zag order: keys are gathered, or go round a ring."""

from __future__ import annotations

import dataclasses
import platform
import zlib
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_bytes_like, empty_like, is_torch
from quire._messages import keywords_checked, shown
from quire.errors import ArgumentError

from quire_distributed._copies import SharedKeys, share_keys
from quire_distributed._exchange import Exchange
from quire_distributed._gather import attend_gathered, gather_call
from quire_distributed._groups import Group
from quire_distributed._prefill_choice import PrefillWork, choose_prefill
from quire_distributed._prompt_blocks import PromptCall, beside, on_gpu
from quire_distributed._ring import RingCalls, attend_ring, ring_calls
from quire_distributed._zigzag import ZigZag


@dataclasses.dataclass(frozen=True)
class PrefillPlan:
    """Plan of a rank for the prompts of one step; made by :func:`prefill_plan`, used for every layer. str() describes the plan."""

    zigzag: ZigZag
    exchange: Exchange  # kind: "gather", "ring" or "copy"
    head_chunks: int
    slots: Any  # None: rows fill their pages without a gap
    calls: PromptCall | RingCalls
    workspace: Any
    shared: SharedKeys | None = None  # of "copy": the keys of all ranks

    @property
    def local(self) -> Any:
        """The plan of the rank's causal call; in a ring, of its own block."""
        return self.calls.own.local if isinstance(self.calls, RingCalls) else self.calls.local

    def __str__(self) -> str:
        z = self.zigzag
        chunks = f" in {self.head_chunks} chunks of heads" if self.head_chunks > 1 else ""
        parts = f", partial results in {self.calls.partials}" if isinstance(self.calls, RingCalls) else ""
        return (
            f"rank {z.rank} of {z.world}: {z.num_rows} of {sum(z.lengths)} rows in zig-zag order{parts}\n"
            f"{self.exchange.kind}{chunks}: {self.exchange.reason}\n{self.local}"
        )


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


def _agree(group: Group, z: ZigZag, query: Any, key: Any, options: Any, plan: PrefillPlan) -> None:
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
        "exchange (digest)": digest(plan.exchange.kind),
        "head_chunks": plan.head_chunks,
        **({"host (digest)": digest(platform.node())} if plan.exchange.kind == "copy" else {}),
    })  # fmt: skip


@keywords_checked
def prefill_plan(
    query: Any, key: Any, value: Any, options: Any = None, *, zigzag: ZigZag, group: Group, exchange: str = "auto",
    head_chunks: int | None = None, check: bool = True, kernel: str | None = None, batch_invariant: bool = False, partials: str = "auto",
) -> PrefillPlan:  # fmt: skip
    """Plans this rank's work on the prompts of a step; arguments as for :func:`prefill`. All ranks of the group call it.

    exchange: "gather": every rank receives the keys of all. "ring": blocks of keys go from rank to rank, and two of them are on a rank at
        a time; no sliding window and no ALiBi (Q-D07). "copy": a gather by copy engines between GPUs of one host, in memory that the plan
        keeps; attention then has all multiprocessors. The bits of a gather. "auto": a gather or a ring, whichever is predicted to take
        less time; str(plan) says why.
    head_chunks: of a gather or copies: chunks of KV heads, a divisor of num_kv_heads; while one is computed, the next one's keys travel (on GPUs).
        None: 4, or the largest divisor below it, on GPUs with more than one rank; else 1.
    check: lengths, sizes, types, options and exchange are compared over the ranks (Q-D05).
    kernel: by name; None chooses.
    batch_invariant: as for :func:`quire.plan`: with a gather every row has the bits that one process gives it with such a plan. In a ring
        it has the bits that one process gives it which attends to the blocks of ranks r, r - 1, ..., r + 1 (mod world, r the row's rank)
        with such plans, and merges each into an f32 sum in that order; what else is in the step, and which block comes late, changes no
        bit.
    partials: of a ring: dtype of partial results, "f32" or "query", as for :func:`quire_distributed.plan`; their sum is f32. "auto":
        "query" for a 16-bit query on a GPU, else "f32".

    Raises on every rank: ContractError (Q-D05, Q-D07), RankError; ArgumentError, and what :func:`quire.plan` raises.
    """
    error: Exception | None = None
    plan: PrefillPlan | None = None
    try:
        _require(query, key, value, zigzag, group)
        plan = _planned(query, key, options, zigzag, group, exchange, head_chunks, kernel, batch_invariant, partials)
    except Exception as failure:
        error = failure
    if check or error is not None:
        try:
            if error is None:
                assert plan is not None
                _agree(group, zigzag, query, key, options, plan)
            else:
                group.agree({}, error) if check else group.fail(error)
        finally:
            if error is not None:
                raise error
    assert plan is not None
    if plan.exchange.kind == "copy":
        return dataclasses.replace(plan, shared=share_keys(key, zigzag, plan.head_chunks, group))
    return plan


def _head_chunks(asked: int | None, heads: int, query: Any, world: int) -> int:
    if asked is not None and (isinstance(asked, bool) or not hasattr(asked, "__index__") or asked < 1 or heads % asked):
        raise ArgumentError(f"head_chunks: {shown(asked)}, expected a divisor of {heads} KV heads")
    if asked is not None:
        return int(asked)
    wanted = 4 if on_gpu(query) and world > 1 else 1
    return max(n for n in range(1, wanted + 1) if heads % n == 0)


def _planned(
    query: Any, key: Any, options: Any, z: ZigZag, group: Group, exchange: str, head_chunks: int | None, kernel: str | None,
    batch_invariant: bool, partials: str,
) -> PrefillPlan:  # fmt: skip
    itemsize = query.element_size() if is_torch(query) else query.dtype.itemsize
    if partials not in ("auto", "f32", "query"):
        raise ArgumentError(f'partials: {shown(partials)}, expected "auto", "f32" or "query"')
    if group.world == 1 or (partials == "auto" and on_gpu(query) and itemsize < 4):
        partials = "query"  # one rank has no partial results
    elif partials == "auto":
        partials = "f32"
    chunks = _head_chunks(head_chunks, int(key.shape[1]), query, group.world)
    if exchange == "copy":
        group.require_share(key)
    work = PrefillWork(z, int(query.shape[1]), int(key.shape[1]), int(query.shape[2]), itemsize, on_gpu(query))
    chosen = choose_prefill(work, group, options, exchange, chunks, head_chunks is not None)
    calls: PromptCall | RingCalls
    if chosen.kind == "ring":
        chunks = 1
        calls = ring_calls(query, key, options, z, partials, kernel, batch_invariant)
        space = max(call.local.workspace_bytes for call in (calls.own, calls.earlier, calls.later))
    else:
        calls = gather_call(query, key, options, z, chunks, kernel, batch_invariant)
        space = calls.local.workspace_bytes
    workspace = empty_bytes_like(query, max(space, 1)) if on_gpu(query) else None
    slots = None if z.num_rows == z.num_pages * z.page_size else beside(z.slots, query)
    return PrefillPlan(z, chosen, chunks, slots, calls, workspace)


@keywords_checked
def prefill(
    query: Any, key: Any, value: Any, options: Any = None, *, group: Group, zigzag: ZigZag | None = None,
    plan: PrefillPlan | None = None, output: Any = None, exchange: str = "auto", head_chunks: int | None = None, check: bool = True,
) -> Any:  # fmt: skip
    """Causal attention of whole prompts whose rows and keys are spread over the ranks of a group; returns this rank's rows.

        out_i = sum_j<=i softmax(scale q_i k_j) v_j           over all positions of a prompt, whichever rank holds them

    query: [rows, num_q_heads, head_dim] f32 | f16 | bf16; key, value: [rows, num_kv_heads, head_dim] of the same dtype. Rows are those of
        ``zigzag.rows``. Contiguous. output: like query, or None.
    zigzag: :class:`ZigZag` of this rank. plan: of :func:`prefill_plan`, for a step of many layers; then nothing is compared.
    exchange, head_chunks, check: as for :func:`prefill_plan`.

    With a gather every rank receives the keys of all (Llama 3's context parallelism, arXiv 2407.21783 section 3.3.2), attends with plain
    causal calls, and merges nothing. In a ring (arXiv 2310.01889) it attends to one block after the other, while the next one travels, and
    merges partial results by their natural lse in an order that the ring fixes. Raises on every rank: ContractError (Q-D05, Q-D07),
    RankError; ArgumentError, and what :func:`quire.plan` raises.
    """
    if plan is None:
        if zigzag is None:
            raise ArgumentError("prefill(): argument zigzag is missing, and so is plan")
        plan = prefill_plan(
            query, key, value, options, zigzag=zigzag, group=group, exchange=exchange, head_chunks=head_chunks, check=check
        )
    z = plan.zigzag
    with group.guard():
        _require(query, key, value, z, group)
        output = empty_like(query) if output is None else output
    if isinstance(plan.calls, RingCalls):
        attend_ring(query, key, value, options, z, plan.calls, plan.slots, plan.workspace, group, output)
    else:
        attend_gathered(query, key, value, options, z, plan.calls, plan.head_chunks, plan.slots, plan.workspace, group, output,
                        plan.shared)  # fmt: skip
    return output
