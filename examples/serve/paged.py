# SPDX-License-Identifier: Apache-2.0
"""The paged cache of a whole model and what one step does with it: append, check, plan once, attend, now and then verify.

Every layer has its own K and V pages and its own slot ledger; all layers share the block tables of one quire.PagePool. The
pages start as NaN, so a slot that is read before it is written cannot pass for a number.
"""

from __future__ import annotations

import collections
import dataclasses
import time

import ml_dtypes
import numpy as np
import quire
from gguf_model import Config
from scheduler import Chunk

CACHE_DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_per_token_head": ml_dtypes.float8_e4m3fn,
    "int8_per_token_head": np.int8,
    "nvfp4": np.uint8,
    "mxfp4": np.uint8,
    "int8_per_token_head/nvfp4": np.int8,
    "int8_per_token_head/mxfp4": np.int8,
    "fp8_per_token_head/nvfp4": ml_dtypes.float8_e4m3fn,
    "fp8_per_token_head/mxfp4": ml_dtypes.float8_e4m3fn,
}
BLOCKS = {"nvfp4": (16, ml_dtypes.float8_e4m3fn), "mxfp4": (32, ml_dtypes.float8_e8m0fnu)}


def fits(dtype: str, head_dim: int) -> bool:
    """Whether rows are whole blocks."""
    return all(head_dim % BLOCKS[side][0] == 0 for side in dtype.split("/") if side in BLOCKS)


def new_side(shape: tuple[int, int, int, int], dtype: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Pages of K or V of one layer, the scales of their tokens and those of their blocks, as far as the type has them."""
    if dtype in BLOCKS:
        size, scale = BLOCKS[dtype]
        blocks = np.full((*shape[:3], shape[3] // size), 0xFF, np.uint8).view(scale)  # NaN: not written
        return np.zeros((*shape[:3], shape[3] // 2), np.uint8), None, blocks
    kind = np.dtype(CACHE_DTYPES[dtype])
    scales = np.full(shape[:3], np.nan, np.float32) if dtype.endswith("_per_token_head") else None
    return np.full(shape, -128 if kind == np.int8 else np.nan, kind), scales, None


def new_cache(shape: tuple[int, int, int, int], dtype: str) -> quire.KVCache:
    """Pages of one layer, [num_pages, page_size, num_kv_heads, head_dim], with their scales. dtype: of K and V, or "K/V"."""
    of_k, _, of_v = dtype.partition("/")
    of_v = of_v or of_k
    (k, k_scale, k_blocks), (v, v_scale, v_blocks) = new_side(shape, of_k), new_side(shape, of_v)
    return quire.KVCache(
        k, v, layout="nhd", k_scale=k_scale, v_scale=v_scale, k_block_scale=k_blocks, v_block_scale=v_blocks,
        dtype=of_k if of_k in BLOCKS else None, v_dtype=of_v if of_v in BLOCKS else None,
    )


@dataclasses.dataclass
class Audit:
    """Counts of checks so far, and their results."""

    checks: int = 0
    checks_with_contents: int = 0
    findings: int = 0
    messages: list[str] = dataclasses.field(default_factory=list)
    verified: int = 0  # attend calls compared with the fp64 reference
    verified_elements: int = 0
    worst_ratio: float = 0.0  # largest error as a fraction of its derived tolerance
    worst_where: str = ""
    mismatches: list[str] = dataclasses.field(default_factory=list)
    seconds: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    kernels: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    @property
    def clean(self) -> bool:
        return self.findings == 0 and not self.mismatches


class _Timer:
    def __init__(self, audit: Audit, name: str):
        self.audit, self.name = audit, name

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.audit.seconds[self.name] += time.perf_counter() - self.start


class PagedKV:
    """`check`: depth for sampled layers, "contents" or "tables"; every other layer gets "tables". Both consult the ledger.
    `verify_every`: steps between comparisons with the fp64 reference, 0 for never."""

    def __init__(
        self, config: Config, num_pages: int, page_size: int, *, dtype="f32", sharing=True, check="contents", verify_every=0
    ):
        self.config, self.check, self.verify_every = config, check, verify_every
        shape = (num_pages, page_size, config.num_kv_heads, config.head_dim)
        self.caches = [new_cache(shape, dtype) for _ in range(config.num_layers)]
        self.ledgers = [quire.SlotLedger(num_pages, page_size) for _ in range(config.num_layers)]
        self.pool = quire.PagePool(num_pages, page_size, prefix_sharing=sharing, ledgers=self.ledgers)
        self.options = quire.Options()
        self.audit = Audit()
        self.steps = 0

    def begin_step(self, chunks: list[Chunk]) -> Step:
        self.steps += 1
        for ledger in self.ledgers:
            ledger.begin_step(self.steps)
        return Step(self, chunks)

    def verifies_now(self) -> bool:
        """One step in `verify_every`, from the middle of the first ones on: short runs have one, too."""
        return self.verify_every > 0 and (self.steps + self.verify_every // 2) % self.verify_every == 0

    @property
    def slots_written(self) -> int:
        return sum(ledger.slots_written for ledger in self.ledgers)

    @property
    def slots_read(self) -> int:
        return sum(ledger.slots_read for ledger in self.ledgers)


class Step:
    """One mixed batch: its index tensors are built once and serve every layer, and so does its plan."""

    def __init__(self, kv: PagedKV, chunks: list[Chunk]):
        self.kv = kv
        ids = [c.request.id for c in chunks]
        lens = [c.end - c.begin for c in chunks]
        self.tokens = np.array([c.request.token(p) for c in chunks for p in range(c.begin, c.end)], np.int64)
        self.positions = np.concatenate([np.arange(c.begin, c.end) for c in chunks])
        self.query_start_loc = np.cumsum([0, *lens], dtype=np.int32)
        self.seq_lens = np.array([c.end for c in chunks], np.int32)
        tables = [kv.pool.block_table(i) for i in ids]
        self.block_table = np.full((len(ids), max(map(len, tables))), -1, np.int32)  # -1: must never be read
        for row, table in zip(self.block_table, tables, strict=True):
            row[: len(table)] = table
        self.slot_mapping = np.concatenate([kv.pool.slots(c.request.id, c.begin, c.end) for c in chunks])
        self.request_ids = np.array(ids, np.int64)
        self.row_requests = np.repeat(self.request_ids, lens)
        self.plan = None
        self.sampled_layer = kv.steps % kv.config.num_layers

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Writes k and v into the pages, then attends over everything each request has there."""
        kv, audit = self.kv, self.kv.audit
        cache, ledger = kv.caches[layer], kv.ledgers[layer]
        with _Timer(audit, "append"):
            quire.append(cache, k, v, self.slot_mapping, ledger=ledger, request_ids=self.row_requests, positions=self.positions)
        out = np.full_like(q, np.nan)
        lse = np.full(q.shape[:2], np.nan, np.float32)
        batch = quire.Batch(
            query=q,
            output=out,
            lse=lse,
            query_start_loc=self.query_start_loc,
            seq_lens=self.seq_lens,
            block_table=self.block_table,
            request_ids=self.request_ids,
        )
        with _Timer(audit, "check"):
            self._check(batch, cache, layer)
        if self.plan is None:
            with _Timer(audit, "plan"):
                self.plan = quire.plan(batch, cache, kv.options, batch_invariant=True)
            audit.kernels[self.plan.kernel] += 1
        with _Timer(audit, "attend"):
            quire.attend(batch, cache, kv.options, plan=self.plan)
        if layer == self.sampled_layer and kv.verifies_now():
            with _Timer(audit, "verify"):
                self._verify(batch, cache, layer, out, lse)
        return out

    def _check(self, batch: quire.Batch, cache: quire.KVCache, layer: int) -> None:
        audit = self.kv.audit
        depth = self.kv.check if layer in (0, self.sampled_layer) else "tables"
        found = quire.check(batch, cache, self.kv.options, depth=depth, ledger=self.kv.ledgers[layer])
        audit.checks += 1
        audit.checks_with_contents += depth == "contents"
        audit.findings += found.total
        audit.messages += [f"step {self.kv.steps} layer {layer}: {f}" for f in found][: max(0, 20 - len(audit.messages))]

    def _verify(self, batch: quire.Batch, cache: quire.KVCache, layer: int, out: np.ndarray, lse: np.ndarray) -> None:
        audit = self.kv.audit
        comparison = quire.compare(out, lse, quire.reference(batch, cache, self.kv.options))
        audit.verified += 1
        audit.verified_elements += comparison.num_elements
        if comparison.worst_ratio >= audit.worst_ratio:
            audit.worst_ratio = comparison.worst_ratio
            audit.worst_where = f"step {self.kv.steps} layer {layer}"
        if not comparison.ok:
            audit.mismatches.append(f"step {self.kv.steps} layer {layer}: {comparison.text}")
