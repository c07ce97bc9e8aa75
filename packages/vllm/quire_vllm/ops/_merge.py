# SPDX-License-Identifier: Apache-2.0
"""vLLM's op that merges two partial results."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import on_device
from quire._arrays import empty_f32_like
from quire.errors import ArgumentError

from quire_vllm.ops._caches import one_scale


def _log_sums(lse: Any, name: str) -> np.ndarray:
    """[num_heads, num_tokens] as [num_tokens, num_heads]; +inf, FlashAttention 2's mark for an empty side, becomes -inf."""
    if on_device(lse):
        torch = sys.modules["torch"]
        return torch.where(torch.isposinf(lse), -torch.inf, lse).T
    values, dtype = _quire.bits(lse, name)
    if dtype != "f32" or values.ndim != 2:
        raise ArgumentError(f"{name}: {dtype} {list(values.shape)}, expected f32 [num_heads, num_tokens]")
    values = values.T
    return np.where(np.isposinf(values), np.float32(-np.inf), values) if np.isposinf(values).any() else values


def merge_attn_states(
    output: Any,
    prefix_output: Any,
    prefix_lse: Any,
    suffix_output: Any,
    suffix_lse: Any,
    output_lse: Any = None,
    prefill_tokens_with_context: int | None = None,
    output_scale: Any = None,
) -> None:
    """Combines attention over two disjoint key sets into ``output`` [num_tokens, num_heads, head_dim].

    ``*_lse`` [num_heads, num_tokens] f32, natural logarithm; -inf or +inf marks an empty side. Rows that are empty on both sides become 0
    with lse -inf (vLLM copies prefix_output). Tokens from ``prefill_tokens_with_context`` on take the suffix as it is.

    ``output_scale`` (one value) goes with an fp8_e4m3fn ``output``: stored = round to nearest even of value / scale, +-448 beyond.
    """
    scale = one_scale(output_scale, "output_scale")
    a, b = _log_sums(prefix_lse, "prefix_lse"), _log_sums(suffix_lse, "suffix_lse")
    n = output.shape[0] if prefill_tokens_with_context is None else int(prefill_tokens_with_context)
    if not 0 <= n <= output.shape[0]:
        raise ArgumentError(f"prefill_tokens_with_context: {n} outside [0, {output.shape[0]}]")
    lse = empty_f32_like(output, (output.shape[0], output.shape[1])) if output_lse is None else output_lse.T
    if n == output.shape[0]:
        _quire.merge(prefix_output, a, suffix_output, b, output, lse, output_scale=scale)
        return
    _quire.merge(prefix_output[:n], a[:n], suffix_output[:n], b[:n], output[:n], lse[:n], output_scale=scale)
    if scale is None:
        output[n:] = suffix_output[n:]
    else:  # the suffix beside an empty set, so that it is rounded by the same rule
        rest, none = suffix_output[n:], empty_f32_like(output, (output.shape[0] - n, output.shape[1]))
        none[:] = -np.inf
        _quire.merge(rest, none, rest, b[n:], output[n:], empty_f32_like(output, none.shape), output_scale=scale)
    if output_lse is not None:
        output_lse[:, n:] = suffix_lse[:, n:]
