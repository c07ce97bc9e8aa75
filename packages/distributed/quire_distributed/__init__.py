# SPDX-License-Identifier: Apache-2.0
"""Attention whose heads or contexts are spread over processes: torch.distributed (NCCL, gloo), MPI, or threads for tests.

::

    import quire_distributed

    group = quire_distributed.Group.from_torch()                          # or .from_mpi(), .local(4)
    shard = quire_distributed.ContextShard(group.rank, group.world, interleave=16)
    slots = shard.slots(positions, requests, block_table, page_size)      # -1 where another rank holds the token
    quire.append(cache, key, value, slots)
    out = quire_distributed.attend(batch, cache, options, group=group, shard=shard)

Each rank attends to the keys that it holds, in f32 with lse; one exchange follows, and :func:`quire.merge_many` combines the partial
results in rank order: every rank has the same bits. A rank that fails, or does not come in time, makes every rank raise
:class:`quire_distributed.RankError`, which names it. Heads (tensor parallel, :class:`HeadShard`) need no exchange at all.
"""

from quire_distributed._attend import ShardedPlan, attend, plan
from quire_distributed._capture import RankDiagnosis, diagnose
from quire_distributed._exchange import Exchange
from quire_distributed._groups import Group, RankError
from quire_distributed._prefill import PrefillPlan, prefill, prefill_plan
from quire_distributed._shards import ContextShard, HeadShard, shards
from quire_distributed._zigzag import ZigZag

__all__ = [
    "ContextShard", "Exchange", "Group", "HeadShard", "PrefillPlan", "RankDiagnosis", "RankError", "ShardedPlan", "ZigZag", "attend", "diagnose",
    "plan", "prefill", "prefill_plan", "shards",
]  # fmt: skip
