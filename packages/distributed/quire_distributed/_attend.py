# SPDX-License-Identifier: Apache-2.0
"""attend() over a context that several ranks hold."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_bytes_like, empty_part_like, is_torch, typed_view
from quire._fields import MASKS
from quire._messages import keywords_checked, shown
from quire.errors import ArgumentError, UnsupportedError

from quire_distributed._capture import write_rank
from quire_distributed._exchange import Exchange, Layout, bits_of, choose_exchange, empty_stack, join_heads
from quire_distributed._groups import Group
from quire_distributed._local_batch import LocalLengths, local_lengths
from quire_distributed._parts import ContextPart, check_parts, empty_parts, gathered_parts, shards_of_rank, table_of, workspace_for
from quire_distributed._shards import ContextShard


@dataclasses.dataclass(frozen=True)
class ShardedPlan:
    """Plan of a rank for one step; made by :func:`plan`, used for every layer. str() describes the plan."""

    shard: ContextShard
    heads: str
    exchange: Exchange
    layout: Layout
    lengths: LocalLengths  # of the rank's whole shard
    indices: dict[str, Any]  # index arrays of the rank's batch, where the query is; with parts, each part has its own
    local: Any  # quire.Plan of the rank's own attention; with parts, that of the first
    workspace: Any  # workspace of the local plan, on a GPU
    whole: dict[str, np.ndarray]  # lengths of the whole requests, as far as they are in host memory
    part: Any = None  # on a GPU: the buffer of the rank's part, for every layer; the exchange of a layer ends before the next one writes
    parts: tuple[ContextPart, ...] = ()  # parts of the context that the rank holds, if there are more of them than ranks

    def __str__(self) -> str:
        s = self.shard
        order = f"contiguous, span {s.span}" if s.span else f"interleaved by {s.interleave}"
        return (
            f"rank {s.rank} of {s.world}, {order}: {len(self.lengths.seq_lens)} requests over {int(self.lengths.seq_lens.sum())} of the "
            f"keys; {self.exchange}{f', {len(self.parts)} of {self.parts[0].shard.world} parts' if self.parts else ''}\n{self.local}"
        )


def _host(array: Any) -> np.ndarray:
    return array.detach().cpu().numpy() if is_torch(array) else np.asarray(array)


def _dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _host_lengths(batch: Any) -> dict[str, np.ndarray]:
    """Copies of the lengths in host memory: reading those of a GPU would wait."""
    arrays = {name: getattr(batch, name) for name in ("query_start_loc", "seq_lens")}
    return {name: _host(array).astype(np.int64) for name, array in arrays.items() if not _on_gpu(array)}


def _require_same_lengths(batch: Any, plan: ShardedPlan) -> None:
    for name, now in _host_lengths(batch).items():
        planned = plan.whole.get(name, now)
        if planned.shape != now.shape:
            raise ArgumentError(f"plan: made for {len(planned)} values of {name}, but the batch has {len(now)}; plan again for this step")
        for i in np.flatnonzero(planned != now)[:1]:
            raise ArgumentError(f"plan: made for {name}[{i}] = {planned[i]}, but the batch has {now[i]}; plan again for this step")


def _refuse(batch: Any, options: Any, shard: ContextShard, group: Group) -> None:
    """Refuses arguments that this call cannot express."""
    if (shard.rank, shard.world) != (group.rank, group.world):
        raise ArgumentError(
            f"shard: rank {shard.rank} of {shard.world}, expected rank {group.rank} of {group.world} as the group; with fewer "
            "ranks to a context, pass their group"
        )
    for name in MASKS:
        if getattr(batch, name, None) is not None:
            raise UnsupportedError(
                f"{name}: given; a sharded call places causal rows at the end of their requests, and the shard says where keys stand: "
                "leave it out"
            )
    if batch.output is not None and batch.output_scale is None and _dtype_name(batch.output) != _dtype_name(_query(batch)):
        raise ArgumentError(f"Q-M12 output: {_dtype_name(batch.output)}, expected {_dtype_name(_query(batch))} as query")
    for name in ("key", "value", "cached_lens", "slot_mapping"):
        if getattr(batch, name, None) is not None:
            raise UnsupportedError(
                f"{name}: given; a sharded call reads every key from the cache of the rank that holds it: append first, then leave it out"
            )
    if batch.padding is not None:
        raise UnsupportedError(f"padding: {batch.padding!r}; a sharded call takes batches without padding rows")
    if options is not None and not getattr(options, "causal", True):
        raise UnsupportedError("options.causal: False; a sharded call takes causal requests")
    for name in ("attention_chunk", "prefix_len"):
        if getattr(options, name, None) is not None:
            raise UnsupportedError(f"options.{name}: given; a sharded call takes an order and a window alone")
    if options is not None and options.alibi_slopes is not None and shard.world > 1 and not shard.span:
        raise UnsupportedError(
            "alibi_slopes: the distances between interleaved keys are not those of their places in the cache; shard contiguously "
            "(ContextShard.contiguous)"
        )


def _facts(batch: Any, cache: Any, options: Any, step: ShardedPlan, contents: bool) -> dict[str, int]:
    """Numbers that all ranks must agree on. Texts and tensors are digests."""
    shard = step.shard

    def digest(value: Any) -> int:
        return -1 if value is None else zlib.crc32(str(value).encode())

    def number(value: float | None) -> int:
        return -1 if value is None else int.from_bytes(struct.pack("<f", value), "little")

    def values(array: Any) -> int:
        return -1 if array is None else zlib.crc32(np.ascontiguousarray(_host(array), np.float32).tobytes())

    k, v = cache.k, cache.v
    tokens_axis, heads_axis = {"nhd": (1, 2), "hnd": (2, 1), "packed": (3, 1)}[cache.layout]
    facts = {
        "world": shard.world,
        "interleave": shard.interleave,
        "span": shard.span,
        "num_tokens": int(batch.query.shape[0]),
        "num_q_heads": int(batch.query.shape[1]),
        "head_dim": int(batch.query.shape[2]),
        "v_head_dim": int(cache.v_head_dim),
        "num_reqs": int(batch.seq_lens.shape[0]),
        "query_start_loc (digest)": bits_of(batch.query_start_loc),
        "seq_lens (digest)": bits_of(batch.seq_lens),
        "query dtype (digest)": digest(batch.dtype),
        "cache dtype (digest)": digest(k.dtype),
        "cache dtype of V (digest)": digest(v.dtype),
        "cache layout (digest)": digest(cache.layout),
        "page_size": int(k.shape[tokens_axis]),
        "num_kv_heads": int(k.shape[heads_axis]),
        "exchange (digest)": digest(step.exchange.kind),
        "heads (digest)": digest(step.heads),
        "bytes of a partial result's element": step.layout.itemsize,
        "parts": step.parts[0].shard.world if step.parts else shard.world,
        "batch_invariant": int(step.local.batch_invariant),
    }
    o = _quire.Options() if options is None else options
    facts["softmax_scale (bits)"] = number(o.softmax_scale)
    facts["sliding_window"] = -1 if o.sliding_window is None else o.sliding_window
    facts["logits_soft_cap (bits)"] = number(o.logits_soft_cap)
    facts["sinks (digest)"] = values(o.sinks)
    facts["alibi_slopes (digest)"] = values(o.alibi_slopes)
    if contents:
        bits, _ = _quire.bits(batch.query if not is_torch(batch.query) else batch.query.detach().cpu(), "query")
        facts["query (digest)"] = zlib.crc32(np.ascontiguousarray(bits).tobytes())
    return facts


def _own_options(options: Any, shard: ContextShard) -> Any:
    """A sink is one logit in the denominator: one rank counts it."""
    if options is None or options.sinks is None or shard.rank == 0:
        return options
    return _quire.Options(
        softmax_scale=options.softmax_scale,
        sliding_window=options.sliding_window,
        logits_soft_cap=options.logits_soft_cap,
        alibi_slopes=options.alibi_slopes,
    )


def _where(array: np.ndarray | None, like: Any) -> Any:
    """An index array beside the batch."""
    if array is None or not is_torch(like) or like.device.type == "cpu":
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)


def _indices(batch: Any, lengths: LocalLengths, table: Any) -> dict[str, Any]:
    arrays = {
        name: _where(getattr(lengths, name), batch.query)
        for name in ("query_start_loc", "seq_lens", "causal", "q_begin", "key_begin")
        if getattr(lengths, name) is not None
    }
    same = len(lengths.request) == len(table) and (lengths.request == np.arange(len(table))).all()
    return {**arrays, "block_table": table if same else table[_where(lengths.request, table)]}


def _query(batch: Any) -> Any:
    """The query with its type: raw bits of NumPy arrays would name one type for partial results as well."""
    query = batch.query
    if is_torch(query) or str(query.dtype) not in ("uint16", "uint8"):
        return query
    return query.view(np.float16) if batch.dtype == "f16" else typed_view(query, batch.dtype)


def _partial_batch(batch: Any, indices: dict[str, Any], out: Any, lse: Any) -> Any:
    return _quire.Batch(query=_query(batch), output=out, lse=lse, q_scale=batch.q_scale, **indices)


def _on_gpu(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


def _prepare(
    batch: Any, cache: Any, options: Any, shard: ContextShard, group: Group, exchange: str, heads: str, kernel: str | None, partials: str,
    batch_invariant: bool, parts: int | None,
) -> ShardedPlan:  # fmt: skip
    _refuse(batch, options, shard, group)
    num_tokens, num_q_heads, _ = batch.query.shape
    itemsize = 4 if batch.dtype == "f32" else 2
    if partials == "auto":
        partials = "query" if _on_gpu(batch.query) and batch.dtype in ("f16", "bf16") else "f32"
    layout = Layout(int(num_tokens), int(num_q_heads), int(cache.v_head_dim), itemsize if partials == "query" else 4)
    page_size = int(cache.k.shape[{"nhd": 1, "hnd": 2, "packed": 3}[cache.layout]])
    several = parts is not None and check_parts(parts, shard, page_size, exchange) > shard.world
    if several:
        exchange = "all_gather"
    chosen = choose_exchange(layout, group, heads, exchange, itemsize)
    window = None if options is None else options.sliding_window
    part = layout.empty(batch.query)

    def planned(of: ContextShard, table: Any) -> tuple[LocalLengths, dict[str, Any], Any]:
        lengths = local_lengths(of, _host(batch.query_start_loc), _host(batch.seq_lens), window)
        indices = _indices(batch, lengths, table)
        mine = _partial_batch(batch, indices, *layout.views(part, _query(batch).dtype))
        longest = dict(
            max_query_len=int(np.diff(lengths.query_start_loc).max(initial=1)), max_seq_len=max(int(lengths.seq_lens.max(initial=1)), 1)
        )
        made = _quire.plan(mine, cache, _own_options(options, of), kernel=kernel, batch_invariant=batch_invariant, **longest)
        return lengths, indices, made

    if several:
        mine = shards_of_rank(shard, int(parts))
        held = tuple(ContextPart(of, *planned(of, table_of(of, shard, batch.block_table, page_size))) for of in mine)
        kept = empty_parts(layout, batch.query, len(held)) if _on_gpu(batch.query) else None
        space = workspace_for(batch.query, held) if _on_gpu(batch.query) else None
        whole = local_lengths(shard, _host(batch.query_start_loc), _host(batch.seq_lens), window)
        return ShardedPlan(shard, heads, chosen, layout, whole, {}, held[0].local, space, _host_lengths(batch), kept, held)
    lengths, indices, local = planned(shard, batch.block_table)
    workspace = empty_bytes_like(batch.query, max(local.workspace_bytes, 1)) if _on_gpu(batch.query) else None
    kept = part if _on_gpu(batch.query) else None
    return ShardedPlan(shard, heads, chosen, layout, lengths, indices, local, workspace, _host_lengths(batch), kept)


@keywords_checked
def plan(
    batch: Any, cache: Any, options: Any = None, *, group: Group, shard: ContextShard, exchange: str = "auto", heads: str = "all",
    check: bool | str = True, kernel: str | None = None, partials: str = "auto", batch_invariant: bool = False, parts: int | None = None,
) -> ShardedPlan:  # fmt: skip
    """Plans a rank's work for one step. All ranks of the group call it once per step; :func:`attend` uses the plan for every layer.

    batch: query_start_loc and seq_lens of the whole requests; block_table [num_reqs, pages] of this rank's own cache, whose page j holds
        local indices [j * page_size, (j + 1) * page_size). Every key is in the cache of its rank (append first).
    exchange: "auto", "all_gather", "all_to_all" (:class:`Exchange`).
    heads: "all": every rank gets the results of all query heads. "own": rank k gets heads [k, k + 1) * num_q_heads / world.
    check: True: lengths, options, types and sizes are compared over the ranks, by one small exchange. "contents": so are the
        queries. False: nothing is exchanged here.
    kernel: of the rank's own attention, by name; None chooses.
    partials: dtype of partial results. "f32"; or "query": that of the query, which rounds them once more, by half a unit in the last
        place of the largest weighted part, sends half the bytes, and suits kernels that store 16-bit rows alone. "auto": "query" for a
        16-bit query on a GPU, where the tensor-core kernels are three times as fast as the one that stores f32; else "f32".
    batch_invariant: as for :func:`quire.plan`, for the rank's own attention: a row's bits do not depend on the other requests.
    parts: the context is cut as for so many ranks, a multiple of those of the group; None: as many as ranks. Rank k attends to parts k,
        k + world, ... one by one, and all parts are merged in their order. With batch_invariant, every number of ranks that divides
        ``parts``, 1 among them, gives the same bits, if interleave, page size, options, kernel and dtype of partial results are the
        same. Interleaved by whole pages (Q-D04), exchanged by all_gather.

    Raises on every rank: ContractError (Q-D05: ranks disagree), RankError (another rank failed, or did not come in time); and what
    :func:`quire.plan` raises for this rank's batch.
    """
    if check not in (True, False, "contents"):
        raise ArgumentError(f"check: {shown(check)}, expected True, False or \"contents\"")
    if not isinstance(group, Group) or not isinstance(shard, ContextShard):
        raise ArgumentError(f"group, shard: {shown(group)}, {shown(shard)}, expected a Group and a ContextShard of quire_distributed")
    if partials not in ("auto", "f32", "query") or (partials == "query" and batch.dtype == "fp8_e4m3fn"):
        raise ArgumentError(f"partials: {shown(partials)}, expected \"auto\", \"f32\", or \"query\" with a query of 16 or 32 bits")
    step: ShardedPlan | None = None
    facts: dict[str, int] = {}
    error: Exception | None = None
    try:
        step = _prepare(batch, cache, options, shard, group, exchange, heads, kernel, partials, batch_invariant, parts)
        facts = _facts(batch, cache, options, step, check == "contents") if check else {}
    except Exception as failure:
        error = failure
    if check:
        group.agree(facts, error)
    if error is not None:
        group.fail(error)
        raise error
    assert step is not None
    return step


_plan = plan  # the name under which attend(), which has an argument `plan`, calls it


@keywords_checked
def attend(
    batch: Any, cache: Any, options: Any = None, *, group: Group, shard: ContextShard | None = None, plan: ShardedPlan | None = None,
    exchange: str = "auto", heads: str = "all", check: bool | str = True, partials: str = "auto", capture: Any = None,
) -> Any:  # fmt: skip
    """Softmax attention for every request of the batch, whose keys are spread over the ranks of a group; returns the output.

        o_k, lse_k = attention over the keys of rank k         f32, natural logarithm; no key: 0, -inf
        out        = sum_k o_k exp(lse_k - lse)                lse = log sum_k exp(lse_k), in rank order

    Equal to :func:`quire.attend` over all keys within the tolerance of numerics.md, and the same bits on every rank.

    batch: as :func:`plan` says. batch.output and batch.lse, if given, are written: [num_tokens, num_q_heads, v_head_dim], or
        with heads="own" [num_tokens, num_q_heads / world, v_head_dim].
    plan: of :func:`plan`, for a step of many layers: ranks are not compared, and nothing but results is exchanged; lengths in host
        memory are those of the plan. None: plans now, with
        shard, exchange, heads, check and partials.
    capture: a folder; the rank writes its own attention to ``rank<k>.safetensors`` there, as any call is captured, and its result
        to ``rank<k>.npz``, for :func:`diagnose`. It copies cache and results to the host, and is not for CUDA graphs.

    Raises on every rank: as :func:`plan`; RankError if another rank fails or does not come in time.
    """
    if plan is not None:
        if (shard, exchange, heads, check, partials) != (None, "auto", "all", True, "auto"):
            raise ArgumentError(
                "shard, exchange, heads, check, partials: given beside plan, which was made with its own; leave them out"
            )
        _require_same_lengths(batch, plan)
    else:
        if shard is None:
            raise ArgumentError("attend(): argument shard is missing, and so is plan")
        plan = _plan(
            batch, cache, options, group=group, shard=shard, exchange=exchange, heads=heads, check=check, partials=partials
        )
    if plan.parts:
        if capture is not None:
            raise UnsupportedError("capture: a plan with parts has several of them on a rank; plan without it")
        return _attend_parts(batch, cache, options, group=group, plan=plan)
    with group.guard():
        buffer = plan.layout.empty(batch.query) if plan.part is None else plan.part
        mine = _partial_batch(batch, plan.indices, *plan.layout.views(buffer, _query(batch).dtype))
        _quire.attend(mine, cache, _own_options(options, plan.shard), plan=plan.local, workspace=plan.workspace)
    result = merge_across(buffer, batch, group=group, plan=plan)
    if capture is not None:
        with group.guard():
            write_rank(capture, mine, cache, _own_options(options, plan.shard), plan=plan, result=result, dtype=batch.dtype)
    return result


def _attend_parts(batch: Any, cache: Any, options: Any, *, group: Group, plan: ShardedPlan) -> Any:
    """attend() of a plan with more parts than ranks."""
    with group.guard():
        buffers = empty_parts(plan.layout, batch.query, len(plan.parts)) if plan.part is None else plan.part
        for part, buffer in zip(plan.parts, buffers):
            mine = _partial_batch(batch, part.indices, *plan.layout.views(buffer, _query(batch).dtype))
            _quire.attend(mine, cache, _own_options(options, part.shard), plan=part.local, workspace=plan.workspace)
    outs, lses = plan.layout.views(gathered_parts(buffers, group), _query(batch).dtype)
    return _merged_heads(outs, lses, batch, group=group, plan=plan)


def _merged_heads(outs: Any, lses: Any, batch: Any, *, group: Group, plan: ShardedPlan) -> Any:
    """Merges the parts of all heads, or of this rank's."""
    if plan.heads == "own":
        count = plan.layout.num_q_heads // group.world
        own = slice(group.rank * count, (group.rank + 1) * count)
        outs, lses = outs[:, :, own], lses[:, :, own]
    return _merged(outs, lses, batch, batch.output, batch.lse)


def merge_across(buffer: Any, batch: Any, *, group: Group, plan: ShardedPlan) -> Any:
    """The exchange and the merge of :func:`attend`."""
    layout, world = plan.layout, group.world
    if plan.exchange.kind == "all_gather":
        received = empty_stack(buffer, world)
        group.all_gather(buffer, received)
        return _merged_heads(*layout.views(received, _query(batch).dtype), batch, group=group, plan=plan)
    parts = buffer.reshape(world, layout.num_q_heads // world, layout.block)
    received = empty_part_like(parts, tuple(parts.shape))
    group.all_to_all(parts, received)
    outs, lses = layout.views(received, _query(batch).dtype)
    if plan.heads == "own":
        return _merged(outs, lses, batch, batch.output, batch.lse)
    return _all_heads(outs, lses, batch, group)


def _merged(outs: Any, lses: Any, batch: Any, output: Any, lse: Any) -> Any:
    if output is None:
        output = empty_part_like(batch.query, (outs.shape[1], outs.shape[2], outs.shape[3]))
    out, _ = _quire.merge_many(outs, lses, output, lse, output_scale=batch.output_scale)
    return out


def _all_heads(outs: Any, lses: Any, batch: Any, group: Group) -> Any:
    """Each rank has merged its own heads; all ranks receive all of them."""
    _, num_tokens, heads, head_dim = outs.shape
    like = batch.query if batch.output is None else batch.output
    own = empty_part_like(like, (num_tokens, heads, head_dim))
    with group.guard():
        own, lse = _quire.merge_many(outs, lses, own, None, output_scale=batch.output_scale)
    gathered = empty_part_like(own, (group.world, num_tokens, heads, head_dim))
    group.all_gather(own, gathered)
    output = empty_part_like(batch.query, (num_tokens, group.world * heads, head_dim)) if batch.output is None else batch.output
    join_heads(gathered, output)
    if batch.lse is not None:
        gathered_lse = empty_part_like(lse, (group.world, num_tokens, heads))
        group.all_gather(lse, gathered_lse)
        for k in range(group.world):
            batch.lse[:, k * heads : (k + 1) * heads] = gathered_lse[k]
    return output
