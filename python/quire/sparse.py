# SPDX-License-Identifier: Apache-2.0
"""Key lists ("sparse attention"): each row sees the cached keys of a list, and no others.

A list names pages (the top-k blocks of Quest, NSA or MSA) or slots (the top-k tokens of DeepSeek sparse attention). The batch stays the
ordinary one, with the lengths and the block table of the whole context::

    lists = quire.sparse.key_lists(topk)                               # [num_tokens, 2048] slots, -1 behind the last
    step = quire.sparse.plan(batch, cache, options, lists=lists)
    print(step)                                                        # which kernel serves it, and why others do not
    out = quire.sparse.attend(batch, cache, options, lists=lists, plan=step)

    out = sum_{k in list} exp(s(k) - m) V_k / (sum_{k in list} exp(s(k) - m) + exp(sink_h - m))       lse = m + log(denominator)

An empty list gives 0 and lse -inf. Order does not matter, but for rounding, and for a page that is partly visible, which stands last.
Tang et al. 2024, arXiv:2406.10774; Yuan et al. 2025, arXiv:2502.11089; DeepSeek-AI 2025, DeepSeek-V3.2.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from quire import _quire
from quire._arrays import is_cupy, is_torch
from quire._quire import KeyLists, Sparse

__all__ = ["KeyLists", "Sparse", "attend", "check", "key_lists", "plan", "prepare"]


def key_lists(
    ids: Any, num_keys: Any = None, *, unit: Literal["slot", "page"] = "slot", owner: Literal["row", "request"] = "row",
    row_starts: Any = None,
) -> KeyLists:  # fmt: skip
    """Lists of the keys that rows see: ``ids[i]`` of row i, or of request i.

    ids: int32 or int64 ``[n, width]`` for all KV heads, or ``[n, num_kv_heads, width]``; n is num_tokens (owner="row") or num_reqs
    (owner="request": every row of a request sees the list). Where the batch is. unit: "slot", ``page * page_size + offset``, or "page".

    num_keys: int32 or int64 ``[n]``, or ``[n, num_kv_heads]`` beside lists of KV heads: the keys that a list holds. Its first num_keys
    slots count, or its first ``ceil(num_keys / page_size)`` pages, of which the last may be partly filled; entries behind hold anything.
    None = all entries in front of the first negative one (slots only; counted by the array's library on a GPU).

    row_starts: for lists of rows on a GPU with padding rows, int32 ``[num_tokens + 1]``: 0, 1, 2, ..., but never more than the last of
    query_start_loc. None = no padding rows.
    """
    on_gpu = (is_torch(ids) and ids.device.type == "cuda") or is_cupy(ids)
    if on_gpu:
        library = sys.modules["torch" if is_torch(ids) else "cupy"]
        where = {"device": ids.device} if is_torch(ids) else {}
        if num_keys is None and unit == "slot":
            num_keys = (ids >= 0).sum(-1, dtype=library.int32)
        if row_starts is None and owner == "row":
            row_starts = library.arange(ids.shape[0] + 1, dtype=library.int32, **where)
    return KeyLists(ids, num_keys, unit=unit, owner=owner, row_starts=row_starts)


def check(batch: Any, cache: Any, options: Any = None, *, lists: KeyLists) -> Any:
    """:func:`quire.check` at depth tables, and rules Q-K01 to Q-K10 for the lists: Findings.

    On a GPU, lists and tables are copied to the host, after waiting for it. Keys that are listed twice, or that a row may not see, are
    found here, and on a CPU by every :func:`attend`.
    """
    return _quire.check_sparse(batch, cache, options, lists=lists)


def plan(
    batch: Any, cache: Any, options: Any = None, *, lists: KeyLists, kernel: str | None = None, batch_invariant: bool = False,
    exact_weights: bool = False, num_threads: int = 0, max_query_len: int = 0, max_keys: int = 0, empty_lists: bool = False,
) -> Sparse:  # fmt: skip
    """Plans a call. On a GPU nothing is read: one plan serves all layers and steps of the same shapes. On a CPU the rules are checked, and
    the plan serves lists of the same lengths.

    kernel, batch_invariant, exact_weights, num_threads, max_query_len: as for :func:`quire.plan`. max_keys: most keys of a list, on a
    GPU; 0 = the width of the lists. empty_lists: lists may be empty on a GPU, which tuned kernels refuse to plan for; otherwise an empty
    list is a broken rule there. On a CPU lists may always be empty.

    Windows, ALiBi, q_begin, key_begin, cached_lens, key and value go with no list (Q-K03); sinks and the soft cap do. Slots need an nhd
    or hnd cache, on a GPU with tokens evenly spaced over the whole of it (Q-K04): nhd, or one KV head.

    Raises ContractError (a broken rule), ArgumentError or UnsupportedError, as :func:`quire.plan` does.
    """
    settings = dict(
        kernel=kernel or "", batch_invariant=batch_invariant, exact_weights=exact_weights, num_threads=num_threads,
        max_query_len=max_query_len, max_keys=max_keys, empty_lists=empty_lists,
    )  # fmt: skip
    return _quire.plan_sparse(batch, cache, options, lists, settings)


def attend(
    batch: Any, cache: Any, options: Any = None, *, lists: KeyLists, plan: Sparse, workspace: Any = None, stream: Any = None,
    wait: bool | None = None, prepared: bool = False,
) -> Any:  # fmt: skip
    """:func:`quire.attend` over the keys of lists; returns the output.

    workspace: at least ``plan.workspace_bytes`` bytes, 64-byte aligned, where the batch is; None uses one that the thread keeps, or on a
    GPU one from the library of the query. wait: as for :func:`quire.attend`. On a GPU with a workspace the call copies nothing and waits
    for nothing, and can be captured in a CUDA graph. prepared: :func:`prepare` came before with these lists.
    """
    return _quire.attend_sparse(
        batch, cache, options, lists=lists, plan=plan, workspace=workspace, stream=stream, wait=wait, prepared=prepared
    )  # fmt: skip


def prepare(
    batch: Any, cache: Any, options: Any = None, *, lists: KeyLists, plan: Sparse, workspace: Any = None, stream: Any = None
) -> None:  # fmt: skip
    """Does once what layers with the same lists share, as work lists on a GPU: ``attend(..., workspace=workspace, prepared=True)`` follows
    for each. Layers with lists of their own are not prepared."""
    _quire.prepare_sparse(batch, cache, options, lists=lists, plan=plan, workspace=workspace, stream=stream)
