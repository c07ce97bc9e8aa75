# SPDX-License-Identifier: Apache-2.0
"""One rank of test_distributed_processes.py: distributed_worker.py gloo|mpi SCENARIO. Writes RANKS_SAY/RANK.json."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from dense import make_job
from sharded import rank_batch, rank_cache, shard_of

import quire
from quire_distributed import Group, ZigZag, attend, plan, prefill, prefill_plan

LENGTHS = dict(query_lens=[1, 7, 0, 20, 1], context_lens=[0, 30, 5, 0, 61])
LIMIT = 6.0  # seconds: longer than the ranks need to start one after the other on a busy machine, once connected


def right(group, world):
    """Digests of outputs: equal on all ranks, whatever the exchange."""
    digests = {}
    for dtype, run, contiguous in (("bf16", 1, False), ("f32", 8, False), ("f16", 20, True)):
        job = make_job(**LENGTHS, dtype=dtype)
        shard = shard_of(group.rank, world, run, contiguous)
        kv, table = rank_cache(job, shard)
        kinds = ["all_gather"] + ["all_to_all"] * (4 % world == 0)
        for exchange in kinds:
            out = attend(rank_batch(job, table), kv, group=group, shard=shard, exchange=exchange)
            job.judge(out)
            digests[f"{dtype} {run} {exchange}"] = hashlib.sha256(out.tobytes()).hexdigest()[:12]
    return digests


def torch_tensors(group, world):
    import torch

    job = make_job(**LENGTHS, dtype="f32")
    shard = shard_of(group.rank, world, 2)
    kv, table = rank_cache(job, shard)
    cache = quire.KVCache(torch.from_numpy(kv.k), torch.from_numpy(kv.v))
    arrays = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=table)
    batch = quire.Batch(**{name: torch.from_numpy(a) for name, a in arrays.items()})
    out = attend(batch, cache, group=group, shard=shard)
    assert isinstance(out, torch.Tensor)
    job.judge(out.numpy())
    return hashlib.sha256(out.numpy().tobytes()).hexdigest()[:12]


def prefills(group, world):
    """This rank's rows of prompts in zig-zag order."""
    lengths = (1, 37, 0, 100)
    for dtype in ("f32", "bf16"):
        job = make_job(lengths, [0] * len(lengths), dtype=dtype)
        z = ZigZag(group.rank, world, lengths, 8)
        prompts, positions = z.rows
        mine = job.query_start_loc[prompts] + positions
        for how in (dict(exchange="gather", head_chunks=2), dict(exchange="ring")):
            out = prefill(job.q[mine], job.new_k[mine], job.new_v[mine], group=group, zigzag=z, **how)
            expected, tolerance = job.expected()
            error = np.abs(out.astype(np.float64) - expected[mine])
            assert (error <= tolerance[mine]).all(), (how, error.max())
    return len(mine)


def copies(group, world):
    """Host memory of processes is not copied."""
    z = ZigZag(group.rank, world, (64,), 8)
    job = make_job((64,), [0], dtype="f32")
    _, mine = z.rows
    prefill_plan(job.q[mine], job.new_k[mine], job.new_v[mine], zigzag=z, group=group, exchange="copy")


def step(group, world, **different):
    job = make_job([1, 2], [20, 9], dtype="f16")
    shard = shard_of(group.rank, world, 1)
    kv, table = rank_cache(job, shard, page=different.pop("page", None))
    return attend(rank_batch(job, table), kv, group=group, shard=shard, **different)


def page_size(group, world):
    step(group, world, page=16 if group.rank == 1 else 8)


def throws(group, world):
    """Rank 1 leaves before the exchange, and says nothing."""
    if group.rank == 1:
        time.sleep(1.5 * LIMIT + 3)  # the rank's process lives on
        raise ValueError("no pages left")
    step(group, world)


def throws_guarded(group, world):
    if group.rank == 1:
        with group.guard():
            raise ValueError("no pages left")
    step(group, world)


def dies(group, world):
    """Rank 1 is killed between two steps."""
    step(group, world)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step(group, world)


def first_dies(group, world):
    """Rank 0 keeps the mailbox of torch."""
    step(group, world)
    if group.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    step(group, world)


def dies_in_attention(group, world):
    """After the check of the plan, before the exchange of results."""
    job = make_job([1, 2], [20, 9], dtype="f16")
    shard = shard_of(group.rank, world, 1)
    kv, table = rank_cache(job, shard)
    made = plan(rank_batch(job, table), kv, group=group, shard=shard)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    attend(rank_batch(job, table), kv, group=group, plan=made)


def dies_in_a_ring(group, world):
    """Rank 1 is killed after the plan, before it sends its block."""
    z = ZigZag(group.rank, world, (100,), 8)
    job = make_job((100,), [0], dtype="f16")
    _, mine = z.rows
    arrays = job.q[mine], job.new_k[mine], job.new_v[mine]
    made = prefill_plan(*arrays, zigzag=z, group=group, exchange="ring")
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    prefill(*arrays, group=group, plan=made)


def main(transport, scenario):
    if transport == "gloo":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        group = Group.from_torch(timeout=LIMIT)
    else:
        group = Group.from_mpi(timeout=LIMIT)
    said = {"rank": group.rank, "name": group.name}
    started = time.monotonic()
    try:
        said["result"] = globals()[scenario](group, group.world)
    except quire.Error as error:
        said.update(error=type(error).__name__, text=str(error), rule=error.rule, ranks=list(getattr(error, "ranks", ())))
    except ValueError as error:
        said.update(error=type(error).__name__, text=str(error))
    said["seconds"] = time.monotonic() - started
    # A file for each rank: mpiexec mixes what ranks print at the same time.
    Path(os.environ["RANKS_SAY"], f"{group.rank}.json").write_text(json.dumps(said), encoding="utf-8")
    if "error" in said:
        os._exit(3)  # ranks of a broken group do not wait for each other


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(*sys.argv[1:])
