# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention on CPU, one call per request.

Pages are gathered into dense keys and values; causal limit and window become a boolean mask, ALiBi an f32 one. fp8 caches are
converted to the query's type, which is exact; with k_scale or v_scale, or a cache of another 16-bit type, the call is made in f32 and its output rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _quire
from quire.targets import LSE_SKIP, Target, refuse_if
from quire.targets import _paged as paged
from quire.targets import _torch as th


class TorchSdpa(Target):
    """``whole_pages``: gather every page that the table names to its end, and let the mask hide the rest; the way most code does it."""

    skip = LSE_SKIP
    rounded_weights = True
    v_head_dim = True

    def __init__(self, whole_pages: bool = False):
        self._torch = th.torch_module()
        self._whole_pages = whole_pages
        self.name = "torch_sdpa_masked" if whole_pages else "torch_sdpa"

    def _mask(self, options: Any, q_pos: Any, key_pos: Any) -> Any:
        distance = q_pos[:, None] - key_pos[None, :]
        visible = distance >= 0
        if options.sliding_window is not None:
            visible &= distance < options.sliding_window
        if options.alibi_slopes is None:
            return visible
        slopes = self._torch.from_numpy(paged.numbers(options.alibi_slopes, "alibi_slopes").copy())
        bias = slopes[:, None, None] * -distance[None].float()
        return bias.masked_fill(~visible, float("-inf"))

    def _range(self, options: Any, context: int, seq_len: int, page_size: int) -> tuple[int, int]:
        """Key positions to gather."""
        if self._whole_pages:
            return 0, -(-seq_len // page_size) * page_size
        return max(0, context + 1 - options.sliding_window) if options.sliding_window is not None else 0, seq_len

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        torch = self._torch
        refuse_if(options.sinks is not None, "attention sinks")
        refuse_if(options.logits_soft_cap is not None, "logits_soft_cap")
        n = paged.lengths(batch)
        filled = paged.fill(batch, cache)
        scales = paged.scale_of(cache.k_scale, "k_scale"), paged.scale_of(cache.v_scale, "v_scale")
        exact = cache.dtype == batch.dtype or cache.dtype.startswith("fp8")  # every fp8 number is an f16 and a bf16
        work = th.dtype_of(batch.dtype) if exact and scales[0] is None and scales[1] is None else torch.float32
        self.kernel = "sdpa" if work == th.dtype_of(batch.dtype) else "sdpa in f32"
        query = th.tensor(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype)
        output = torch.empty((*query.shape[:2], cache.v_head_dim), dtype=query.dtype)
        for r in np.flatnonzero(n.query_lens):
            rows = slice(int(n.query_start_loc[r]), int(n.query_start_loc[r + 1]))
            first, last = self._range(options, int(n.context_lens[r]), int(n.seq_lens[r]), cache.page_size)
            k, v = (
                self._real(bits, cache.dtype, scale, work)
                for bits, scale in zip(paged.dense(filled, cache.page_size, r, first, last), scales)
            )
            mask = self._mask(options, torch.arange(int(n.context_lens[r]), int(n.seq_lens[r])), torch.arange(first, last))
            out = torch.nn.functional.scaled_dot_product_attention(
                query[rows].to(work).transpose(0, 1)[None], k, v, attn_mask=mask, scale=options.softmax_scale, enable_gqa=True
            )
            output[rows] = out[0].transpose(0, 1).to(output.dtype)
        return output

    def _real(self, bits: np.ndarray, dtype: str, scale: np.ndarray | None, work: Any) -> Any:
        """[keys, heads, dim] bits as SDPA's [1, heads, keys, dim] in the working type."""
        values = th.tensor(bits, dtype).to(work)
        if scale is not None:
            values = values * self._torch.from_numpy(scale)[None, :, None]
        return values.transpose(0, 1)[None]
