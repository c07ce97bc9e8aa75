# SPDX-License-Identifier: Apache-2.0
"""Runs a call that was read: all of its requests at once, or those that an op answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import Lengths, lengths_of, on_device
from quire.errors import ArgumentError

from quire_vllm.ops._request import Arguments, Request
from quire_vllm.ops._tensors import beside

Bound = tuple[int | None, str]
"""A bound that the caller gave, None = none, and its name."""


def bound(given: Any) -> int | None:
    """A bound for the plan. 0 says nothing to plan(), so a bound of no token at all is one."""
    return None if given is None else max(int(given), 1)


def attend(arguments: Arguments, query_len: Bound, seq_len: Bound = (None, "")) -> None:
    """Attends all requests. The bounds are in the arguments, too; for lengths on the host they are looked at before."""
    if getattr(arguments["query_start_loc"], "is_cpu", True):
        _check_limits(arguments, query_len, seq_len)
    _quire.attend_arrays(arguments)


def _at_least(given: int | None, needed: int, name: str) -> None:
    if given is not None and given < needed:
        raise ArgumentError(f"{name}: {given}, but the batch has {needed}; vLLM would leave rows unwritten")


def _check_limits(arguments: Arguments, query_len: Bound, seq_len: Bound) -> None:
    """A rule that is broken is raised first: a limit means nothing then."""
    lengths = lengths_of(arguments["query_start_loc"], arguments["seq_lens"])
    longest = int(lengths.query_lens.max(initial=0)), int(lengths.seq_lens.max(initial=0)) if lengths.sound else 0
    short = [name for (given, name), needed in zip((query_len, seq_len), longest) if given is not None and given < needed]
    if not short and lengths.sound:
        return
    Request(arguments).check()
    for (given, name), needed in zip((query_len, seq_len), longest):
        _at_least(given, needed, name)


def attend_answered(request: Request, lengths: Lengths, answered: np.ndarray, limit: tuple[int | None, int, str], **bounds: int) -> None:
    """Attends the answered requests, each run of neighbours as a batch of its own. limit: (given, needed, name) of a bound.

    Every batch is planned, and so checked, before the first one writes.
    """
    cache, options = request.cache(), request.options()
    table = request.block_table if on_device(request.block_table) else _quire.bits(request.block_table, "block_table")[0]
    batches = [_batch_of_run(run, request, lengths, table) for run in _runs(answered)]
    plans = [_quire.plan(batch, cache, options, **bounds) for batch in batches]
    _at_least(*limit)
    for batch, plan in zip(batches, plans):
        _quire.attend(batch, cache, options, plan, wait=request.wait)
    if request.padding == "zero":
        request.output[int(lengths.query_start_loc[-1]) :] = 0


def _runs(keep: np.ndarray) -> Sequence[tuple[int, int]]:
    """Half-open ranges of consecutive kept requests."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])]


def _batch_of_run(run: tuple[int, int], request: Request, lengths: Lengths, table: Any) -> _quire.Batch:
    """Requests [a, b) as a batch of their own, on views of the same rows."""
    a, b = run
    rows = slice(int(lengths.query_start_loc[a]), int(lengths.query_start_loc[b]))
    flags = request.causal_per_request
    return _quire.Batch(
        query=request.query[rows],
        output=request.output[rows],
        query_start_loc=beside(lengths.query_start_loc[a : b + 1] - lengths.query_start_loc[a], request.query),
        seq_lens=beside(lengths.seq_lens[a:b], request.query),
        block_table=table[a:b],
        cached_lens=None if request.cached_lens is None else beside(request.cached_lens[a:b], request.query),
        key=None if request.key is None else request.key[rows],
        value=None if request.value is None else request.value[rows],
        output_scale=request.output_scale,
        causal=None if flags is None else flags[a:b],
        spans=None if request.spans is None else request.spans[a:b],
        prefix_lens=None if request.prefix_lens is None else request.prefix_lens[a:b],
    )
