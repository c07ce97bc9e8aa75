# SPDX-License-Identifier: Apache-2.0
"""Calls of a signature that Quire does not know: the user's adapter turns their arguments into Quire's.

Results of an adapter become arguments by name: calls of any signature are then copied, cut and judged like calls of known ops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quire import _quire
from quire._calls import Op
from quire._fields import FIELDS, MASKS
from quire._inputs import Inputs, lengths_of
from quire._messages import shown, unknown_argument
from quire.errors import ArgumentError

Adapter = Callable[..., Any]
EXPECTED = "(batch, cache), (batch, cache, options) or a dict of their arguments"


def own_inputs(
    *, query: Any, query_start_loc: Any, seq_lens: Any, block_table: Any, k: Any, v: Any, output: Any = None, cached_lens: Any = None,
    key: Any = None, value: Any = None, dtype: Any = None, layout: str = "nhd", k_scale: Any = None, v_scale: Any = None,
    cache_dtype: Any = None, softmax_scale: float | None = None, sliding_window: int | None = None,
    logits_soft_cap: float | None = None, alibi_slopes: Any = None, sinks: Any = None, padding: str | None = None,
) -> Inputs:  # fmt: skip
    """The arguments of Batch, KVCache and Options; ``cache_dtype`` is KVCache's dtype."""
    batch = _quire.Batch(
        query=query, output=output, query_start_loc=query_start_loc, seq_lens=seq_lens, block_table=block_table,
        cached_lens=cached_lens, key=key, value=value, dtype=dtype, padding=padding,
    )  # fmt: skip
    cache = _quire.KVCache(k, v, layout, k_scale, v_scale, cache_dtype)
    options = _quire.Options(softmax_scale, sliding_window, logits_soft_cap, alibi_slopes, sinks)
    return Inputs(batch, cache, options, lengths_of(batch.query_start_loc, batch.seq_lens))


OWN = Op(own_inputs, "output", ("k", "v"), "block_table")
_PARAMETERS = inspect.signature(own_inputs).parameters
_LISTS = ("query_start_loc", "seq_lens", "block_table", "cached_lens")


def binder(adapter: Adapter) -> Callable[..., Mapping[str, Any]]:
    """A function from (args, kwargs) of a call to the arguments of :func:`own_inputs`."""
    if not callable(adapter):
        raise ArgumentError(f"adapter: {shown(adapter)}, expected a function that returns {EXPECTED}")

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            result = adapter(*args, **kwargs)
        except Exception as error:
            raise ArgumentError(f"adapter: {type(error).__name__}: {error}") from error
        return _named(result) if isinstance(result, Mapping) else _spread(result)

    return bind


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if name not in _PARAMETERS:
            raise ArgumentError(f"adapter: {unknown_argument(str(name), _PARAMETERS)}")
    missing = [p.name for p in _PARAMETERS.values() if p.default is p.empty and arguments.get(p.name) is None]
    if missing:
        raise ArgumentError(f"adapter: {', '.join(missing)}: missing in the dict that it returned")
    found = {name: arguments.get(name, p.default) for name, p in _PARAMETERS.items()}
    lists = {name: np.asarray(found[name]) for name in _LISTS if isinstance(found[name], (list, tuple))}
    return {**found, **lists}


def _spread(result: Any) -> dict[str, Any]:
    """The attributes of (batch, cache, options). Slots are left out: pages may be renumbered, and a call that reads needs none."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise ArgumentError(f"adapter: returned {shown(result)}, expected {EXPECTED}")
    batch, cache, options = result if len(result) == 3 else (*result, None)
    options = _quire.Options() if options is None else options
    for name, value, kind in (("batch", batch, "Batch"), ("cache", cache, "KVCache"), ("options", options, "Options")):
        if not isinstance(value, getattr(_quire, kind)):
            raise ArgumentError(f"adapter: returned {name} {shown(value)}, expected a quire.{kind}")
    given = [name for name in MASKS if getattr(batch, name) is not None]
    given += [f.name for f in FIELDS if f.owner == "Options" and f.name not in _PARAMETERS and getattr(options, f.name) != f.otherwise]
    if given:  # calls are cut by request, and nothing may be dropped in silence
        raise ArgumentError(f"adapter: {given[0]} is given, but calls with masks of their own cannot be captured by hooks yet")
    renamed = {"dtype": batch.dtype, "cache_dtype": cache.dtype}
    found = {}
    for name in _PARAMETERS:
        holder = next(part for part in (batch, cache, options) if hasattr(part, name)) if name not in renamed else None
        found[name] = getattr(holder, name) if holder is not None else renamed[name]
    return found
