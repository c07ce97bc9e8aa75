# SPDX-License-Identifier: Apache-2.0
"""A call of an op as Quire understands it: the arguments of ``_quire.attend_arrays``, and objects made of them.

Each op has one reader, in ``_attention`` or ``_decode``, which returns the arguments as a tuple; the op runs the tuple, and quire.hooks
makes objects of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from quire import _quire
from quire._inputs import Inputs, Lengths, lengths_of, on_device

from quire_vllm.ops._caches import as_bits

Arguments = tuple[Any, ...]
"""The arguments of one call, in the order of :class:`Request`. Engines make a call for each layer: a plain tuple is the quickest."""


class Request(NamedTuple):
    """Names of :data:`Arguments`: the first of ``_quire.attend_arrays``, in its order."""

    query: Any
    output: Any
    k: Any
    v: Any
    query_start_loc: Any
    seq_lens: Any
    block_table: Any
    layout: str
    cache_dtype: str
    cached_lens: Any
    key: Any
    value: Any
    lse: Any
    k_scale: Any
    v_scale: Any
    softmax_scale: float | None
    sliding_window: int | None
    logits_soft_cap: float | None
    alibi_slopes: Any
    sinks: Any
    padding: str | None
    max_query_len: int | None
    max_seq_len: int | None
    stream: Any
    wait: bool
    remember: bool
    q_scale: Any
    output_scale: Any
    workspace: Any
    part: str
    causal: Any
    q_begin: Any
    key_begin: Any
    window_right: int | None
    spans: Any = None
    prefix_lens: Any = None
    tree_mask: Any = None
    tree_lens: Any = None
    attention_chunk: int | None = None
    prefix_len: int | None = None
    spans_beyond_window: bool = False

    def cache(self) -> _quire.KVCache:
        return _quire.KVCache(*as_bits(self.k, self.v, self.cache_dtype), self.layout, self.k_scale, self.v_scale, self.cache_dtype)

    def options(self) -> _quire.Options:
        names = ("softmax_scale", "sliding_window", "logits_soft_cap", "alibi_slopes", "sinks", "window_right", "spans_beyond_window")
        return _quire.Options(causal=self.causal is not False, **{name: getattr(self, name) for name in names})

    def batch(self) -> _quire.Batch:
        names = ("query", "output", "query_start_loc", "seq_lens", "block_table", "cached_lens", "key", "value", "padding", "q_scale",
                 "output_scale", "spans", "prefix_lens")  # fmt: skip
        return _quire.Batch(causal=self.flags(), **{name: getattr(self, name) for name in names})

    def flags(self) -> Any:
        """One flag a request; None = one for all, which the options hold."""
        return None if isinstance(self.causal, bool) else self.causal

    def lengths(self) -> Lengths:
        return lengths_of(self.query_start_loc, self.seq_lens)


@functools.cache
def _on_cuda() -> bool:
    """Devices of this process' torch are NVIDIA's."""
    return sys.modules["torch"].version.hip is None


def cached_lens(query_start_loc: Any, seq_lens: Any, whole_decode: bool) -> Any:
    """Number of cached tokens of each request, in the memory of the lengths; None if lengths on the host are invalid.

    seq_len - query_len; with ``whole_decode`` seq_len where query_len is 1, which one kernel of Quire's finds on CUDA ("decode"). Does
    not wait for a device.
    """
    if on_device(query_start_loc) and on_device(seq_lens):
        if whole_decode and _on_cuda():
            return "decode"
        new = query_start_loc.diff().to(seq_lens.dtype)
        return seq_lens - (new * (new != 1) if whole_decode else new)
    lengths = lengths_of(query_start_loc, seq_lens)
    if not lengths.sound:
        return None
    context = lengths.seq_lens - lengths.query_lens
    return np.where(lengths.query_lens == 1, lengths.seq_lens, context) if whole_decode else context


def inputs_by(
    read: Callable[..., Arguments], answered_by: Callable[[Lengths], np.ndarray | None] | None = None, only_if: str = ""
) -> Callable[..., Inputs]:
    """A function with the signature of ``read`` that returns :class:`Inputs`. ``answered_by``: which requests the op answers, of calls
    whose argument ``only_if`` is set, or of all."""

    @functools.wraps(read)
    def inputs(**arguments: Any) -> Inputs:
        request = Request(*read(**arguments))
        lengths = request.lengths()
        asked = answered_by is not None and (not only_if or arguments.get(only_if, False))
        answered = answered_by(lengths) if answered_by is not None and asked else None
        return Inputs(request.batch(), request.cache(), request.options(), lengths, answered)

    return inputs
