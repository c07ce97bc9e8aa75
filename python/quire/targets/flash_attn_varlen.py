# SPDX-License-Identifier: Apache-2.0
"""flash_attn_varlen_func with a block table: FlashAttention 2, and FlashAttention 3 as vLLM builds it.

Not run against the real libraries by this project's tests, which have no GPU: they use a module with the same function that records its
arguments and computes through Quire.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _quire
from quire.targets import Target, refuse_if
from quire.targets import _paged as paged
from quire.targets import _torch as th


class FlashAttnVarlen(Target):
    """``module``: flash_attn, or one like it. Pages must be multiples of 256 tokens in FlashAttention 2, of 16 in vLLM's fork
    (``page_multiple``). The lse is FlashAttention's own, [heads, tokens] natural log; an empty row's +inf becomes -inf."""

    name = "flash_attn"
    skip = {"HugeOffsets": "the cache is copied to the GPU"}
    rounded_weights = True
    strides = "none"  # the adapter copies every tensor: what strides would test is the copy

    def __init__(self, module: Any = None, device: str = "cuda", page_multiple: int = 256):
        self._torch = th.torch_module()
        if module is None:
            import flash_attn as module  # type: ignore[import-not-found]
        self._function = module.flash_attn_varlen_func
        self._device, self._page_multiple = device, page_multiple

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        refuse_if(options.sinks is not None, "attention sinks")
        refuse_if(batch.dtype == "f32", "f32")
        refuse_if(cache.dtype != batch.dtype, f"kv cache of {cache.dtype} with {batch.dtype} queries")
        refuse_if(cache.k_scale is not None or cache.v_scale is not None, "k_scale, v_scale")
        refuse_if(cache.head_dim > 256 or cache.head_dim % 8 != 0, f"head_dim {cache.head_dim}")
        refuse_if(cache.page_size % self._page_multiple != 0, f"page_size {cache.page_size}: multiples of {self._page_multiple} only")
        slopes = None if options.alibi_slopes is None else paged.numbers(options.alibi_slopes, "alibi_slopes")
        refuse_if(slopes is not None and bool(np.any(slopes < 0)), "negative ALiBi slopes: the bias is -slope * |distance|")
        torch, n, filled = self._torch, paged.lengths(batch), paged.fill(batch, cache)
        if not n.query_start_loc[-1]:
            return None
        index = lambda values: torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(self._device)  # noqa: E731
        data = lambda bits, dtype: th.tensor(np.ascontiguousarray(bits), dtype).to(self._device)  # noqa: E731
        window = -1 if options.sliding_window is None else options.sliding_window - 1
        made = self._function(
            data(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype), data(filled.k, cache.dtype), data(filled.v, cache.dtype),
            cu_seqlens_q=index(n.query_start_loc), cu_seqlens_k=index(np.concatenate(([0], np.cumsum(n.seq_lens)))),
            max_seqlen_q=int(n.query_lens.max()), max_seqlen_k=int(n.seq_lens.max()), dropout_p=0.0, softmax_scale=options.softmax_scale,
            causal=True, window_size=(window, 0 if window >= 0 else -1), softcap=options.logits_soft_cap or 0.0,
            alibi_slopes=None if slopes is None else torch.from_numpy(slopes.copy()).to(self._device),
            return_attn_probs=batch.lse is not None, block_table=index(filled.block_table),
        )  # fmt: skip
        if batch.lse is None:
            return th.bits_of(made)
        lse = made[1].transpose(0, 1)
        return th.bits_of(made[0]), th.bits_of(torch.where(torch.isposinf(lse), -lse, lse))


class VllmFlashAttn3(Target):
    """``module``: vllm.vllm_flash_attn.flash_attn_interface, or one like it, asked for version 3."""

    name = "vllm_flash_attn3"
    skip = {"HugeOffsets": "the cache is copied to the GPU"}
    rounded_weights = True
    strides = "none"  # the adapter copies every tensor: what strides would test is the copy

    def __init__(self, module: Any = None, device: str = "cuda"):
        self._torch = th.torch_module()
        if module is None:
            from vllm.vllm_flash_attn import flash_attn_interface as module  # type: ignore[import-not-found]
        self._function, self._device = module.flash_attn_varlen_func, device

    def supports(self, p: Any) -> bool:
        """Whether quire.verify may run a problem."""
        return (
            p.query in ("f16", "bf16") and p.kv == p.query and p.k_scale == p.v_scale == "none" and not p.alibi
            and not (p.sinks and p.query == "f16") and p.head_dim in (64, 96, 128, 192, 256) and p.index == "i32"
        )  # fmt: skip

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        refuse_if(batch.dtype == "f32", "f32")
        refuse_if(cache.dtype != batch.dtype, f"kv cache of {cache.dtype} with {batch.dtype} queries")
        refuse_if(cache.k_scale is not None or cache.v_scale is not None, "k_scale, v_scale")
        refuse_if(cache.head_dim > 256 or cache.head_dim % 8 != 0, f"head_dim {cache.head_dim}")
        refuse_if(options.alibi_slopes is not None, "ALiBi")
        refuse_if(options.sinks is not None and batch.dtype != "bf16", "sinks are taken in bf16")
        torch, n, filled = self._torch, paged.lengths(batch), paged.fill(batch, cache)
        if not n.query_start_loc[-1]:
            return None
        index = lambda values: torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(self._device)  # noqa: E731
        data = lambda bits, dtype: th.tensor(np.ascontiguousarray(bits), dtype).to(self._device)  # noqa: E731
        sinks = None
        if options.sinks is not None:
            exact = torch.from_numpy(paged.numbers(options.sinks, "sinks").copy())
            sinks = exact.to(torch.bfloat16).to(self._device)
            refuse_if(not torch.equal(sinks.float().cpu(), exact), "sinks that bf16 does not hold")
        window = -1 if options.sliding_window is None else options.sliding_window - 1
        out, lse = self._function(
            data(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype), data(filled.k, cache.dtype), data(filled.v, cache.dtype),
            max_seqlen_q=int(n.query_lens.max()), cu_seqlens_q=index(n.query_start_loc), max_seqlen_k=int(n.seq_lens.max()),
            seqused_k=index(n.seq_lens), softmax_scale=options.softmax_scale, causal=True,
            window_size=[window, 0 if window >= 0 else -1], softcap=options.logits_soft_cap or 0.0, block_table=index(filled.block_table),
            return_softmax_lse=True, fa_version=3, s_aux=sinks,
        )  # fmt: skip
        if batch.lse is None:
            return th.bits_of(out)
        lse = lse.transpose(0, 1)
        return th.bits_of(out), th.bits_of(torch.where(torch.isposinf(lse), -lse, lse))
