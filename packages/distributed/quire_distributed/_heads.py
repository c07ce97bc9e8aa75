# SPDX-License-Identifier: Apache-2.0
"""Some heads of a call: slices of options and caches."""

from __future__ import annotations

from typing import Any

from quire import _quire


def options_of_heads(options: Any, heads: slice) -> Any:
    """The options of some query heads."""
    if options is None or (options.sinks is None and options.alibi_slopes is None):
        return options
    own = {name: None if getattr(options, name) is None else getattr(options, name)[heads] for name in ("sinks", "alibi_slopes")}
    return _quire.Options(
        softmax_scale=options.softmax_scale, sliding_window=options.sliding_window, logits_soft_cap=options.logits_soft_cap, **own
    )


def _scale_of_heads(scale: Any, heads: slice) -> Any:
    return scale[heads] if len(getattr(scale, "shape", ())) == 1 and scale.shape[0] > 1 else scale


def cache_of_heads(cache: Any, heads: slice) -> Any:
    """Some KV heads of a cache: views, nothing is copied."""
    axis = 2 if cache.layout == "nhd" else 1
    k, v = (array[(slice(None),) * axis + (heads,)] for array in (cache.k, cache.v))
    scales = (_scale_of_heads(scale, heads) for scale in (cache.k_scale, cache.v_scale))
    return _quire.KVCache(k, v, cache.layout, *scales, dtype=cache.dtype)
