# SPDX-License-Identifier: Apache-2.0
"""A target of :func:`quire.verify` as ranks use it: attention on each shard of a context, in f32 with lse, and the merge of the parts.

::

    quire.verify(OverRanks("my_kernels:attend", world=3))                     # is a kernel fit for ranks?
    python -m quire verify --target quire_distributed.over_ranks:OverRanks    # Quire's own attention over three ranks
"""

from __future__ import annotations

from typing import Any

import numpy as np
import quire
from quire import targets
from quire._arrays import typed_view

from quire_distributed._local_batch import local_lengths
from quire_distributed._shards import ContextShard


def _quire_attends(batch: Any, cache: Any, options: Any) -> None:
    quire.attend(batch, cache, options)


def _typed(array: Any, dtype: str) -> Any:
    """Raw bits as values of a type: outputs of f32 have no type of the query's."""
    return array.view(np.float16) if dtype == "f16" else typed_view(array, dtype) if array.dtype == np.uint16 else array


class OverRanks(targets.Target):
    """Whole pages of a context by turns. A kernel that gives lse of another base, an empty shard another lse than -inf, or masks in a
    shard's own positions is wrong here, however right it is alone."""

    masks = True
    skip = {"NaNInAVisibleKey": "merge_many() refuses an lse of NaN"}

    def __init__(self, target: Any = _quire_attends, world: int = 3):
        made = targets.load(target) if isinstance(target, str) else target
        self.name, self.world = f"{world} ranks", world
        self._attend = getattr(made, "attend", made)

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        for name in ("causal", "q_begin", "key_begin", "spans", "prefix_lens", "tree_mask", "cached_lens", "output_scale"):
            targets.refuse_if(getattr(batch, name, None) is not None, f"{name}: ranks have causal requests, whose keys are in their caches")
        targets.refuse_if(batch.padding is not None, "padding: ranks have no padding rows")
        targets.refuse_if(options.alibi_slopes is not None, "alibi_slopes: distances of interleaved keys are not those of their places")
        targets.refuse_if(not options.causal or options.attention_chunk is not None or options.prefix_len is not None, "ranks take an order and a window")
        rows, heads, _ = np.shape(batch.query)
        outs = np.full((self.world, rows, heads, cache.v_head_dim), np.nan, np.float32)
        lses = np.full((self.world, rows, heads), np.nan, np.float32)
        for rank in range(self.world):
            shard = ContextShard(rank, self.world, cache.page_size)
            lengths = local_lengths(shard, np.asarray(batch.query_start_loc), np.asarray(batch.seq_lens), options.sliding_window)
            index = np.asarray(batch.block_table).dtype
            names = ("query_start_loc", "seq_lens", "q_begin")
            arrays = {name: getattr(lengths, name).astype(index) for name in names if getattr(lengths, name) is not None}
            table = np.ascontiguousarray(shard.block_table(np.asarray(batch.block_table), cache.page_size)[lengths.request])
            mine = quire.Batch(query=_typed(batch.query, batch.dtype), output=outs[rank], lse=lses[rank], block_table=table, causal=lengths.causal, **arrays)
            own = options if rank == 0 or options.sinks is None else quire.Options(
                softmax_scale=options.softmax_scale, sliding_window=options.sliding_window, logits_soft_cap=options.logits_soft_cap)
            self._attend(mine, cache, own)
        return quire.merge_many(outs, lses, _typed(batch.output, batch.dtype), batch.lse)
