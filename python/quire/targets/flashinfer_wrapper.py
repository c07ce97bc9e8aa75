"""BatchPrefillWithPagedKVCacheWrapper of FlashInfer; decode rows are prefills of one row.

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
    """``module``: flashinfer, or one like it. FlashInfer's lse is in base 2; it is converted."""

    name = "flashinfer"
    skip = {"HugeOffsets": "the cache is copied to the GPU"}
    rounded_weights = True

    def __init__(self, module: Any = None, device: str = "cuda"):
        self._torch = th.torch_module()
        if module is None:
            import flashinfer as module  # type: ignore[import-not-found]
        self._device = device
        workspace = self._torch.zeros(_WORKSPACE_BYTES, dtype=self._torch.uint8, device=device)
        self._wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        refuse_if(options.sinks is not None, "attention sinks")
        refuse_if(options.alibi_slopes is not None, "ALiBi with slopes of one's own")
        refuse_if(batch.dtype == "f32", "f32")
        refuse_if(cache.dtype not in (batch.dtype, "fp8_e4m3fn", "fp8_e5m2"), f"kv cache of {cache.dtype} with {batch.dtype} queries")
        torch, n, filled = self._torch, paged.lengths(batch), paged.fill(batch, cache)
        scales = {name: paged.one_scale(getattr(cache, name), name) for name in ("k_scale", "v_scale")}
        if not n.query_start_loc[-1]:
            return None
        pages = -(-n.seq_lens // cache.page_size)
        indices = [filled.block_table[r][: pages[r]] for r in range(len(pages))]
        last = np.where(n.seq_lens > 0, n.seq_lens - (np.maximum(pages, 1) - 1) * cache.page_size, 0)
        index = lambda values: torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(self._device)  # noqa: E731
        data = lambda bits, dtype: th.tensor(np.ascontiguousarray(bits), dtype).to(self._device)  # noqa: E731
        query = data(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype)
        self._wrapper.plan(
            index(n.query_start_loc), index(np.concatenate(([0], np.cumsum(pages)))), index(np.concatenate(indices)), index(last),
            query.shape[1], cache.num_kv_heads, cache.head_dim, cache.page_size, causal=True,
            window_left=-1 if options.sliding_window is None else options.sliding_window - 1,
            logits_soft_cap=options.logits_soft_cap, sm_scale=options.softmax_scale,
            q_data_type=query.dtype, kv_data_type=th.dtype_of(cache.dtype),
        )  # fmt: skip
        kv = data(filled.k, cache.dtype), data(filled.v, cache.dtype)
        given = {name: value for name, value in scales.items() if value != 1.0}
        if batch.lse is None:
            return th.bits_of(self._wrapper.run(query, kv, **given))
        out, lse = self._wrapper.run(query, kv, return_lse=True, **given)
        return th.bits_of(out), th.bits_of(lse * math.log(2.0))
