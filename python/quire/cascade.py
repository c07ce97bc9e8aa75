# SPDX-License-Identifier: Apache-2.0
"""Shared prefixes ("cascade"): requests that begin with the same pages read them once.

Plan once per step, attend for every layer::

    step = quire.cascade.plan(batch, cache, options)
    print(step)                                        # what is shared, and why or why not
    for layer in layers:
        out = quire.cascade.attend(batch_of_layer, cache_of_layer, options, plan=step)

Requests next to each other share a run of pages if their block tables hold the same pages in the same columns. Runs form a tree: all
requests may share a system prompt, and some of them a document behind it. Keys fall into disjoint ranges. Each range is a batch of
its own, and partial results are merged by lse, front to back::

    level l    the rows of all requests of a run, over the keys of its pages; every row sees every key
    own keys   the batch without the pages that runs hold: masks, sinks and this step's keys count here alone
    out        = sum_i out_i exp(lse_i - lse)          lse = log sum_i exp(lse_i)

The idea: Ye et al. 2024, https://flashinfer.ai/2024/02/02/cascade-inference.html; Juravsky et al. 2024, arXiv:2402.05099.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire import _quire
from quire._quire import Cascade

__all__ = ["Cascade", "attend", "plan", "prepare"]


def plan(
    batch: Any, cache: Any, options: Any = None, *, runs: Iterable[tuple[int, int, int, int]] | None = None, always: bool = False,
    kernel: str | None = None, batch_invariant: bool = False, exact_weights: bool = False, num_threads: int = 0,
    partials: str | None = None,
) -> Cascade:  # fmt: skip
    """Plans a step: checks metadata and tables, finds the runs, and plans each level.

    runs: ``(req_begin, req_end, page_begin, page_end)`` each, in any order: the prefix tree of an engine that knows its own. None =
    found in equal columns of ``block_table``, as far as reading keys once saves more bytes than partial results cost. Requests are
    not moved: those that share should stand next to each other. always: share whatever can be shared.

    A run holds full, cached pages whose every key all rows of its requests see. So nothing is shared with ALiBi, nor where a sliding
    window hides the first key.

    kernel, batch_invariant, exact_weights, num_threads: of every level, as for :func:`quire.plan`. With batch_invariant only named
    runs are shared: what is found depends on other requests. A request whose runs begin and end at the same pages has the same bits
    then, whoever shares them. partials: dtype of partial outputs, "f32" or the query's; None = the query's for 16-bit queries on a
    GPU, otherwise f32.

    On a GPU, lengths and tables are copied to the host, after waiting for it: once per step.

    Raises ContractError (a broken rule; Q-P01 to Q-P03 for runs), ArgumentError or UnsupportedError, as :func:`quire.plan` does.
    """
    settings = dict(
        runs=runs, always=always, kernel=kernel or "", batch_invariant=batch_invariant, exact_weights=exact_weights, num_threads=num_threads,
        partials=partials or "",
    )  # fmt: skip
    return _quire.plan_cascade(batch, cache, options, settings)


def attend(
    batch: Any, cache: Any, options: Any = None, *, plan: Cascade, workspace: Any = None, stream: Any = None, wait: bool | None = None,
    prepared: bool = False,
) -> Any:  # fmt: skip
    """:func:`quire.attend` that reads shared pages once; returns the output. Equal to it but for rounding.

    The batch is the planned one but for its addresses: ArgumentError if lengths or tables differ on a CPU; on a GPU they are not
    looked at. workspace: at least ``plan.workspace_bytes`` bytes, 64-byte aligned, where the batch is; None uses one that the thread
    keeps, or on a GPU one from the library of the query. wait: as for :func:`quire.attend`. prepared: :func:`prepare` came before, with
    this workspace: the call copies nothing, and can be captured in a CUDA graph.
    """
    return _quire.attend_cascade(batch, cache, options, plan=plan, workspace=workspace, stream=stream, wait=wait, prepared=prepared)


def prepare(batch: Any, cache: Any, options: Any = None, *, plan: Cascade, workspace: Any = None, stream: Any = None) -> None:
    """Does once what the layers of a step share: on a GPU, index tensors of the levels go to ``workspace`` and work lists are made.

    ``attend(..., workspace=workspace, prepared=True)`` follows for each layer. On a CPU it checks what :func:`attend` would check.
    """
    _quire.prepare_cascade(batch, cache, options, plan=plan, workspace=workspace, stream=stream)
