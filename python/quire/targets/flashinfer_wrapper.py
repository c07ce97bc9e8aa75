# SPDX-License-Identifier: Apache-2.0
"""BatchPrefillWithPagedKVCacheWrapper and BatchDecodeWithPagedKVCacheWrapper of FlashInfer; for the first, decode rows are prefills of
one row, and the second is asked batches in which every request has one row.

Not run against the real library by this project's tests, which have no GPU: they use a module with the same class that records its
arguments and computes through Quire.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quire import _quire
from quire.targets import Target, refuse_if
from quire.targets import _paged as paged
from quire.targets import _torch as th

_WORKSPACE_BYTES = 128 << 20


class FlashInferPrefill(Target):
    """``module``: flashinfer, or one like it. FlashInfer's lse is in base 2; it is converted. ``backend``: "fa2" or "fa3"; None: its own
    choice."""

    name = "flashinfer"
    skip = {"HugeOffsets": "the cache is copied to the GPU"}
    rounded_weights = True
    strides = "none"  # the adapter copies every tensor: what strides would test is the copy
    wrapper = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self, module: Any = None, device: str = "cuda", backend: str | None = None):
        self._torch = th.torch_module()
        if module is None:
            import flashinfer as module  # type: ignore[import-not-found]
        self._device = device
        workspace = self._torch.zeros(_WORKSPACE_BYTES, dtype=self._torch.uint8, device=device)
        self._wrapper = getattr(module, self.wrapper)(workspace, "NHD", **({} if backend is None else {"backend": backend}))

    def supports(self, p: Any) -> bool:
        """Whether quire.verify may run a problem. Each combination of types, head_dim, window and soft cap is compiled when it is first asked."""
        scales = {"none", "tensor"} if p.kv.startswith("fp8") else {"none"}
        return (
            p.query in ("f16", "bf16") and p.kv in (p.query, "fp8_e4m3fn", "fp8_e5m2") and {p.k_scale, p.v_scale} <= scales and not p.alibi
            and not p.sinks and p.head_dim in (64, 128, 256)
        )  # fmt: skip

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        refuse_if(options.sinks is not None, "attention sinks")
        refuse_if(options.alibi_slopes is not None, "ALiBi with slopes of one's own")
        refuse_if(batch.dtype == "f32", "f32")
        refuse_if(cache.dtype not in (batch.dtype, "fp8_e4m3fn", "fp8_e5m2"), f"kv cache of {cache.dtype} with {batch.dtype} queries")
        torch, n, filled = self._torch, paged.lengths(batch), paged.fill(batch, cache)
        scales = {name: paged.one_scale(getattr(cache, name), name) for name in ("k_scale", "v_scale")}
        self._refuse_rows(n)
        if not n.query_start_loc[-1]:
            return None
        pages = -(-n.seq_lens // cache.page_size)
        indices = [filled.block_table[r][: pages[r]] for r in range(len(pages))]
        last = np.where(n.seq_lens > 0, n.seq_lens - (np.maximum(pages, 1) - 1) * cache.page_size, 0)
        index = lambda values: torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(self._device)  # noqa: E731
        data = lambda bits, dtype: th.tensor(np.ascontiguousarray(bits), dtype).to(self._device)  # noqa: E731
        query = data(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype)
        tables = index(np.concatenate(([0], np.cumsum(pages)))), index(np.concatenate(indices)), index(last)
        self._plan(
            index(n.query_start_loc), tables, (query.shape[1], cache.num_kv_heads, cache.head_dim, cache.page_size),
            window_left=-1 if options.sliding_window is None else options.sliding_window - 1,
            logits_soft_cap=options.logits_soft_cap, sm_scale=options.softmax_scale,
            q_data_type=query.dtype, kv_data_type=th.dtype_of(cache.dtype),
        )  # fmt: skip
        kv = data(filled.k, cache.dtype), data(filled.v, cache.dtype)
        given = {name: value for name, value in scales.items() if value != 1.0}
        try:
            made = self._wrapper.run(query, kv, return_lse=batch.lse is not None, **given)
        except RuntimeError as error:
            refuse_if("Unsupported group_size" in str(error), str(error).rpartition(": ")[2] or "Unsupported group_size")
            raise
        if batch.lse is None:
            return th.bits_of(made)
        return th.bits_of(made[0]), th.bits_of(made[1] * math.log(2.0))

    def _refuse_rows(self, n: paged.Lengths) -> None:
        pass

    def _plan(self, starts: Any, tables: tuple[Any, Any, Any], sizes: tuple[int, int, int, int], **options: Any) -> None:
        self._wrapper.plan(starts, *tables, *sizes, causal=True, **options)


class FlashInferDecode(FlashInferPrefill):
    """Batches in which every request has one row."""

    name = "flashinfer_decode"
    wrapper = "BatchDecodeWithPagedKVCacheWrapper"

    def supports(self, p: Any) -> bool:
        return super().supports(p) and all(query == 1 for query, _, _ in p.reqs)

    def _refuse_rows(self, n: paged.Lengths) -> None:
        refuse_if(bool(np.any(n.query_lens != 1)), "requests of other than one row")

    def _plan(self, starts: Any, tables: tuple[Any, Any, Any], sizes: tuple[int, int, int, int], **options: Any) -> None:
        self._wrapper.plan(*tables, *sizes, **options)
