# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 with its heads, its contexts or both spread over processes; the text is compared with that of one process.

    torchrun --nproc-per-node 3 examples/distributed/serve_tp.py                 three ranks share the 9 query and 3 KV heads
    torchrun --nproc-per-node 2 examples/distributed/serve_tp.py --contexts 2    two ranks share the positions of every request
    torchrun --nproc-per-node 6 examples/distributed/serve_tp.py --contexts 2    both

Every rank runs the same scheduler on the same requests, and computes the linear layers in full: this example is about attention.
Its model, tokenizer and scheduler are those of examples/serve. Exit status 1 if a token differs.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("examples/serve", "packages/distributed")]
import one_blas_thread  # noqa: E402, F401  (before numpy)
import numpy as np  # noqa: E402
import quire  # noqa: E402
import torch.distributed as dist  # noqa: E402
from engine import Engine  # noqa: E402
from gguf_file import GgufFile  # noqa: E402
from gguf_model import fetch_model, load_weights  # noqa: E402
from model import Llama  # noqa: E402
from quire_distributed import Group, attend, plan, shards  # noqa: E402
from scheduler import Chunk, Request, Scheduler  # noqa: E402
from tokenizer import Tokenizer  # noqa: E402

PAGE_SIZE = 16  # tokens; also the interleave, so a page of the pool is one page on every rank of a context
PROMPTS = ("Why is the sky blue?", "Name three rivers in Europe.", "What is a paged KV cache?")
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Ranks:
    """This rank's heads and positions, and the groups that share each of them."""

    def __init__(self, contexts: int, num_q_heads: int, num_kv_heads: int):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.heads, self.context = shards(rank, world, num_q_heads, num_kv_heads, contexts=contexts, interleave=PAGE_SIZE)
        by_context = [list(range(first, first + contexts)) for first in range(0, world, contexts)]
        by_heads = [list(range(first, world, contexts)) for first in range(contexts)]
        self.context_group, self.heads_group = (self._mine(rank, sets) for sets in (by_context, by_heads))

    @staticmethod
    def _mine(rank: int, sets: list[list[int]]) -> Group:
        """All ranks make all groups, in one order."""
        made = [dist.new_group(members) for members in sets]
        return Group.from_torch(next(group for group, members in zip(made, sets) if rank in members), timeout=60)


class ShardedEngine:
    """One engine for each rank: the same scheduler, and caches that hold the rank's heads and positions."""

    def __init__(self, llama: Llama, ranks: Ranks, num_pages: int):
        self.llama, self.ranks = llama, ranks
        heads = ranks.heads.kv_heads
        shape = (num_pages, PAGE_SIZE, heads.stop - heads.start, llama.config.head_dim)
        self.caches = [
            quire.KVCache(np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32))
            for _ in range(llama.config.num_layers)
        ]
        # A page of the pool stands for one page on every rank of a context.
        pool = quire.PagePool(num_pages, PAGE_SIZE * ranks.context.world, prefix_sharing=True)
        self.scheduler = Scheduler(pool, num_pages)

    def step(self) -> None:
        chunks = self.scheduler.schedule()
        batch = StepBatch(self, chunks)
        hidden = self.llama.forward(batch.tokens, batch.positions, batch.attend)
        last_rows = batch.query_start_loc[1:] - 1
        yielding = [i for i, c in enumerate(chunks) if c.yields_token]
        tokens = self.llama.logits(hidden[last_rows[yielding]]).argmax(-1).tolist() if yielding else []
        self.scheduler.finish_step(chunks, {chunks[i].request.id: t for i, t in zip(yielding, tokens)})

    def run(self, requests: list[Request]) -> None:
        for request in requests:
            self.scheduler.submit(request)
        while self.scheduler.has_work():
            self.step()


class StepBatch:
    def __init__(self, engine: ShardedEngine, chunks: list[Chunk]):
        self.engine, self.ranks, self.plan = engine, engine.ranks, None
        lens = [c.end - c.begin for c in chunks]
        self.tokens = np.array([c.request.token(p) for c in chunks for p in range(c.begin, c.end)], np.int64)
        self.positions = np.concatenate([np.arange(c.begin, c.end) for c in chunks])
        self.query_start_loc = np.cumsum([0, *lens])
        self.seq_lens = np.array([c.end for c in chunks])
        tables = [engine.scheduler.pool.block_table(c.request.id) for c in chunks]
        self.block_table = np.zeros((len(chunks), max(map(len, tables))), np.int64)
        for row, table in zip(self.block_table, tables):
            row[: len(table)] = table
        requests = np.repeat(np.arange(len(chunks)), lens)
        self.slots = self.ranks.context.slots(self.positions, requests, self.block_table, PAGE_SIZE)

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """This rank's heads over the context of all ranks, then the heads of all ranks."""
        ranks, cache = self.ranks, self.engine.caches[layer]
        quire.append(cache, k[:, ranks.heads.kv_heads], v[:, ranks.heads.kv_heads], self.slots)
        batch = quire.Batch(query=q[:, ranks.heads.q_heads], query_start_loc=self.query_start_loc, seq_lens=self.seq_lens,
                            block_table=self.block_table)  # fmt: skip
        if ranks.context.world == 1:
            if self.plan is None:
                self.plan = quire.plan(batch, cache, batch_invariant=True)
            mine = quire.attend(batch, cache, plan=self.plan)
        else:
            if self.plan is None:  # once per step: the ranks of a context compare lengths, options and sizes
                self.plan = plan(batch, cache, group=ranks.context_group, shard=ranks.context)
            mine = attend(batch, cache, group=ranks.context_group, plan=self.plan)
        parts = np.empty((ranks.heads.world, *mine.shape), np.float32)
        ranks.heads_group.all_gather(np.ascontiguousarray(mine), parts)
        return np.concatenate(parts, axis=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, default=1, help="ranks that share the positions of a request (default: 1)")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    a = parser.parse_args()
    dist.init_process_group("gloo")
    file = GgufFile(fetch_model())
    tokenizer, llama = Tokenizer(file), Llama(load_weights(file))
    c = llama.config

    def requests() -> list[Request]:
        return [Request(i, tokenizer.chat(SYSTEM, text), a.max_new_tokens, frozenset({tokenizer.eos})) for i, text in enumerate(PROMPTS)]

    ranks = Ranks(a.contexts, c.num_q_heads, c.num_kv_heads)
    sharded, alone = requests(), requests()
    started = time.perf_counter()
    ShardedEngine(llama, ranks, num_pages=64).run(sharded)
    seconds = time.perf_counter() - started
    same = True
    if dist.get_rank() == 0:
        Engine(llama, num_pages=128, page_size=PAGE_SIZE).run(alone)
        same = [r.generated for r in sharded] == [r.generated for r in alone]
        for r, text in zip(sharded, PROMPTS):
            print(f"{text}\n    {tokenizer.decode(r.generated).strip()}")
        count = sum(len(r.generated) for r in sharded)
        print(f"{count} tokens on {dist.get_world_size()} ranks ({ranks.heads.world} x heads, {a.contexts} x contexts) in {seconds:.1f} s: "
              f"{'the same as' if same else 'NOT those'} of one process")  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
