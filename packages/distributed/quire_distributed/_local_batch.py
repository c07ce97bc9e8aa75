# SPDX-License-Identifier: Apache-2.0
"""The lengths of one rank's batch: the rows of the whole batch, over the keys that the rank holds (shards.hpp, LocalLengths)."""

from __future__ import annotations

import dataclasses

import numpy as np

from quire import _quire

from quire_distributed._shards import ContextShard


@dataclasses.dataclass(frozen=True)
class LocalLengths:
    """Index arrays in host memory. request[s] is the request of the whole batch that segment s belongs to. Masks that say what holds
    anyway are None."""

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    request: np.ndarray
    causal: np.ndarray | None = None
    q_begin: np.ndarray | None = None
    key_begin: np.ndarray | None = None


def local_lengths(
    shard: ContextShard, query_start_loc: np.ndarray, seq_lens: np.ndarray, sliding_window: int | None = None
) -> LocalLengths:
    """query_start_loc [num_reqs + 1] and seq_lens [num_reqs] are those of the whole batch, in tokens. Requests are causal."""
    made = _quire.local_lengths(shard.rank, shard.world, shard.interleave, shard.span, query_start_loc, seq_lens, sliding_window)
    starts, lengths, request, causal, q_begin, key_begin = (np.array(values, np.int64) for values in made)
    return LocalLengths(
        query_start_loc=starts,
        seq_lens=lengths,
        request=request,
        causal=causal.astype(np.uint8) if len(causal) else None,
        q_begin=q_begin if len(q_begin) else None,
        key_begin=key_begin if len(key_begin) else None,
    )
