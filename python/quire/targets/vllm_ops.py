# SPDX-License-Identifier: Apache-2.0
"""Functions with the signatures of vLLM's attention ops: chunked_prefill_paged_decode, context_attention_fwd, unified_attention.

``provider`` is the module that holds the function: vLLM's own, which needs a GPU, or quire_vllm.ops of the package quire-vllm. Tensors are torch tensors on ``device``;
with device None they stay NumPy arrays. The caches are built as each op wants them: packed or [pages, page_size, heads, dim].
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np

from quire import _quire
from quire.errors import ArgumentError
from quire.targets import LSE_SKIP, Target, refuse_if
from quire.targets import _paged as paged
from quire.targets import _torch as th

MODULES = {
    "chunked_prefill_paged_decode": "chunked_prefill_paged_decode",
    "context_attention_fwd": "prefix_prefill",
    "unified_attention": "triton_unified_attention",
}
PACKAGES = ("vllm.v1.attention.ops", "vllm.attention.ops")
_KV = {"fp8_e4m3fn": "fp8_e4m3", "fp8_e4m3fnuz": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_SKIP = {**LSE_SKIP, "HugeOffsets": "the cache is copied into the op's layout"}


def _from_vllm(op: str) -> Any:
    """vLLM's function, wherever this version of vLLM keeps it."""
    for package in PACKAGES:
        module = f"{package}.{MODULES[op]}"
        try:
            return getattr(importlib.import_module(module), op)
        except ModuleNotFoundError as error:
            if not module.startswith(str(error.name)):
                raise
    raise ImportError(f"no {op} in {' or '.join(PACKAGES)}")


_FP8_PER_TENSOR = 1  # value of vLLM's KVQuantMode
_SEGMENTS = 16  # segments of keys in vLLM's backend


class VllmOp(Target):
    """An op of vLLM. The kernels round softmax weights to the type of V. ``split``: unified_attention gets room for partial results, so that
    decode rows share their keys among blocks."""

    skip = _SKIP
    rounded_weights = True
    strides = "none"  # the adapter copies every tensor: what strides would test is the copy

    def __init__(self, op: str, provider: Any = None, device: str | None = "cuda", split: bool = False):
        if op not in MODULES:
            raise ArgumentError(f'op "{op}" is none of {", ".join(MODULES)}')
        self._op, self._device, self._split = op, device, split
        self._function = getattr(provider, op) if provider is not None else _from_vllm(op)
        self._torch = th.torch_module() if device is not None else None
        if device is not None and device.startswith("cuda") and not th.torch_module().cuda.is_available():
            raise RuntimeError(f"{op} of vLLM needs a GPU, and torch finds none")
        self._parameters = set(inspect.signature(self._function).parameters)
        self.name = f"{getattr(self._function, '__module__', 'vllm').split('.')[0]}.{op}{'_split' if split else ''}"

    def supports(self, p: Any) -> bool:
        """Whether quire.verify may run a problem; the op refuses more, case by case. f32 queries are left out: their products are TF32."""
        unified, scaled = self._op == "unified_attention", p.kv.startswith("fp8")
        types = p.query in ("f16", "bf16") and (p.kv == p.query or p.kv == "fp8_e4m3fn" or (p.kv == "fp8_e5m2" and not unified))
        scales = {p.k_scale, p.v_scale} <= ({"none", "tensor"} if scaled else {"none"})
        uncached = any(cached != context + query for query, context, cached in p.reqs)
        options = (unified or p.logits_soft_cap is None) and not (p.alibi and p.sinks) and not p.lse and not (unified and scaled and uncached)
        return types and scales and options and p.head_dim >= 32 and p.head_dim % 16 == 0

    # --- arrays ---

    def _float(self, bits: np.ndarray, dtype: str) -> Any:
        """fp8 caches go in as uint8, the way vLLM keeps them."""
        if dtype.startswith("fp8"):
            raw = np.ascontiguousarray(bits).view(np.uint8)
            return raw if self._torch is None else self._torch.from_numpy(raw).to(self._device)
        if self._torch is None:
            return _typed(bits, dtype)
        return th.tensor(np.ascontiguousarray(bits), dtype).to(self._device)

    def _index(self, array: Any, name: str) -> Any:
        values = np.ascontiguousarray(array if isinstance(array, np.ndarray) else paged.numbers(array, name))
        return values if self._torch is None else self._torch.from_numpy(values.copy()).to(self._device)

    def _vector(self, array: Any, name: str) -> Any:
        return None if array is None else self._index(paged.numbers(array, name), name)

    def _scale(self, scale: Any, name: str) -> Any:
        value = np.array([paged.one_scale(scale, name)], np.float32)
        return value if self._torch is None else self._torch.from_numpy(value).to(self._device)

    def _empty_like(self, query: Any) -> Any:
        return np.zeros_like(query) if self._torch is None else self._torch.empty_like(query)

    # --- the calls ---

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        n = paged.lengths(batch)
        query = self._float(_quire.bits(batch.query, "query", batch.dtype)[0], batch.dtype)
        out = self._empty_like(query)
        if len(query):
            getattr(self, "_" + self._op)(batch, cache, options, n, query, out)
        return out if self._torch is None else th.bits_of(out)

    def _unified_attention(self, batch: Any, cache: Any, options: Any, n: paged.Lengths, query: Any, out: Any) -> None:
        refuse_if(cache.dtype not in (batch.dtype, "fp8_e4m3fn"), f"kv cache of {cache.dtype}: uint8 is read as e4m3fn")
        refuse_if(options.alibi_slopes is not None and options.sinks is not None, "ALiBi with sinks: relative to the context end")
        filled = paged.fill(batch, cache)
        scaled = cache.dtype.startswith("fp8")
        refuse_if(not scaled and (cache.k_scale is not None or cache.v_scale is not None), "scales need an fp8 cache")
        k, v = self._float(filled.k, cache.dtype), self._float(filled.v, cache.dtype)
        more: dict[str, Any] = {}
        if scaled and "kv_quant_mode" in self._parameters:  # newer versions read the type of the tensor, not uint8
            more["kv_quant_mode"] = _FP8_PER_TENSOR
            k, v = (k, v) if self._torch is None else (k.view(th.dtype_of(cache.dtype)), v.view(th.dtype_of(cache.dtype)))
        if self._split:
            more.update(self._room_for_parts(query))
        self._function(
            q=query, k=k, v=v, out=out,
            cu_seqlens_q=self._index(batch.query_start_loc, "query_start_loc"), max_seqlen_q=int(n.query_lens.max()),
            seqused_k=self._index(batch.seq_lens, "seq_lens"), max_seqlen_k=int(n.seq_lens.max()), softmax_scale=_scale_of(options, query),
            causal=True, window_size=(-1 if options.sliding_window is None else options.sliding_window - 1, 0),
            block_table=self._index(filled.block_table, "block_table"), softcap=options.logits_soft_cap or 0.0, q_descale=None,
            k_descale=self._scale(cache.k_scale, "k_scale") if scaled else None,
            v_descale=self._scale(cache.v_scale, "v_scale") if scaled else None,
            alibi_slopes=self._vector(options.alibi_slopes, "alibi_slopes"), sinks=self._vector(options.sinks, "sinks"), **more,
        )  # fmt: skip

    def _room_for_parts(self, query: Any) -> dict[str, Any]:
        """NaN, so that a part which is merged without having been written shows."""
        tokens, heads, dim = query.shape
        room = lambda *shape: self._torch.full(shape, float("nan"), dtype=self._torch.float32, device=self._device)  # noqa: E731
        return dict(
            seq_threshold_3D=1 << 30, num_par_softmax_segments=_SEGMENTS,
            softmax_segm_output=room(tokens, heads, _SEGMENTS, 1 << (dim - 1).bit_length()),
            softmax_segm_max=room(tokens, heads, _SEGMENTS), softmax_segm_expsum=room(tokens, heads, _SEGMENTS),
        )  # fmt: skip

    def _packed(self, cache: Any, filled: paged.Filled) -> tuple[str, Any, Any]:
        refuse_if(cache.dtype == "fp8_e5m2fnuz", "vLLM has no fp8_e5m2fnuz cache")
        scaled = cache.dtype.startswith("fp8")
        refuse_if(not scaled and (cache.k_scale is not None or cache.v_scale is not None), "scales need an fp8 cache")
        k, v = paged.packed_bits(filled.k, filled.v)
        return _KV.get(cache.dtype, "auto"), self._float(k, cache.dtype), self._float(v, cache.dtype)

    def _rows(self, batch: Any, cache: Any, n: paged.Lengths, filled: paged.Filled, reads: np.ndarray) -> tuple[Any, Any]:
        """The new tokens of the requests that the op reads unrounded: the case's own key and value, or the cache where it holds them."""
        shape = (int(n.query_start_loc[-1]), cache.num_kv_heads, cache.head_dim)
        given = paged.new_rows(batch)
        kind = given[0].dtype if given is not None else _quire.bits(batch.query, "query", batch.dtype)[0].dtype
        key, value = np.zeros(shape, kind), np.zeros(shape, kind)
        for r in np.flatnonzero(reads & (n.query_lens > 0)):
            rows = slice(int(n.query_start_loc[r]), int(n.query_start_loc[r + 1]))
            if given is not None and n.cached_lens[r] == n.context_lens[r]:
                key[rows], value[rows] = given[0][rows], given[1][rows]
                continue
            refuse_if(cache.dtype != batch.dtype, f"new tokens of a {cache.dtype} cache: the op reads them unrounded")
            key[rows], value[rows] = paged.dense(filled, cache.page_size, r, int(n.context_lens[r]), int(n.seq_lens[r]))
        return self._float(key, batch.dtype), self._float(value, batch.dtype)

    def _common(self, batch: Any, cache: Any, options: Any) -> dict[str, Any]:
        refuse_if(options.logits_soft_cap is not None, "logits_soft_cap")
        return dict(
            k_scale=self._scale(cache.k_scale, "k_scale"), v_scale=self._scale(cache.v_scale, "v_scale"),
            alibi_slopes=self._vector(options.alibi_slopes, "alibi_slopes"), sliding_window=options.sliding_window,
            sm_scale=options.softmax_scale, sinks=self._vector(options.sinks, "sinks"),
        )  # fmt: skip

    def _chunked_prefill_paged_decode(
        self, batch: Any, cache: Any, options: Any, n: paged.Lengths, query: Any, out: Any
    ) -> None:
        common = self._common(batch, cache, options)
        prefill = n.query_lens > 1  # rows of one token are read from the cache
        filled = paged.fill(batch, cache, ~prefill | (n.cached_lens > n.context_lens))
        kv, k, v = self._packed(cache, filled)
        key, value = self._rows(batch, cache, n, filled, prefill)
        self._function(
            query=query, key=key, value=value, output=out, kv_cache_dtype=kv, key_cache=k, value_cache=v,
            block_table=self._index(filled.block_table, "block_table"), query_start_loc=self._index(batch.query_start_loc, "query_start_loc"),
            seq_lens=self._index(batch.seq_lens, "seq_lens"), max_seq_len=int(n.seq_lens.max()), max_query_len=int(n.query_lens.max()),
            **common,
        )  # fmt: skip

    def _context_attention_fwd(self, batch: Any, cache: Any, options: Any, n: paged.Lengths, query: Any, out: Any) -> None:
        common = self._common(batch, cache, options)
        filled = paged.fill(batch, cache, n.cached_lens > n.context_lens)
        kv, k, v = self._packed(cache, filled)
        key, value = self._rows(batch, cache, n, filled, n.query_lens > 0)
        self._function(
            q=query, k=key, v=value, o=out, kv_cache_dtype=kv, k_cache=k, v_cache=v, b_loc=self._index(filled.block_table, "block_table"),
            b_start_loc=self._index(batch.query_start_loc, "query_start_loc"), b_seq_len=self._index(batch.seq_lens, "seq_lens"),
            max_seq_len=int(n.seq_lens.max()), max_input_len=int(n.query_lens.max()), **common,
        )  # fmt: skip


def _scale_of(options: Any, query: Any) -> float:
    return float(query.shape[-1]) ** -0.5 if options.softmax_scale is None else float(options.softmax_scale)


def _typed(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bits as the NumPy (or ml_dtypes) type of a 16-bit or 32-bit float."""
    from quire._arrays import typed_view

    plain = {"f32": np.float32, "f16": np.float16}.get(dtype)
    return bits.view(plain) if plain is not None else typed_view(np.ascontiguousarray(bits), dtype)
