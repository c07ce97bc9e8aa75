# SPDX-License-Identifier: Apache-2.0
"""One layer's calls of Quire: what a step shares is made once (on a CPU a plan and a bound call, on a GPU work lists and checks).

No vLLM is imported here: metadata is any object with the fields of ``QuireMetadata``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import quire
import quire.torch  # defines torch.ops.quire
import torch

FP8 = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
"""vLLM's names of fp8 caches and Quire's types."""
FNUZ = {"fp8_e4m3fn": "fp8_e4m3fnuz", "fp8_e5m2": "fp8_e5m2fnuz"}
"""The types that gfx94x means by the same names."""
_append = quire.append.__wrapped__  # without the words for a wrong argument, which take a call of Python


def cache_dtype(name: str, kv_cache: torch.Tensor) -> str | None:
    """Quire's type of a cache that vLLM calls ``name``; None: the tensor's own type says it."""
    if name not in FP8 or kv_cache.dtype is not torch.uint8:
        return None
    fnuz = torch.version.hip is not None and kv_cache.is_cuda and _arch(kv_cache).startswith("gfx94")
    return FNUZ[FP8[name]] if fnuz else FP8[name]


def _arch(tensor: torch.Tensor) -> str:
    return str(torch.cuda.get_device_properties(tensor.device).gcnArchName)


def use_threads_of_torch() -> None:
    """Quire's threads: as many as torch's, on every core that the process may use, though vLLM binds the calling thread to one."""
    bound = os.sched_getaffinity(0)
    cores = set().union(*(os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")))
    os.sched_setaffinity(0, cores)
    try:
        quire.set_num_threads(torch.get_num_threads())
        _start_threads()
    finally:
        os.sched_setaffinity(0, bound)


def _start_threads() -> None:
    """Threads inherit the cores of the thread that starts them, and start with the first call."""
    n = 64
    batch = quire.Batch(
        query=torch.ones(n, 1, 16), query_start_loc=torch.arange(n + 1, dtype=torch.int32),
        seq_lens=torch.ones(n, dtype=torch.int32), block_table=torch.zeros(n, 1, dtype=torch.int32),
    )  # fmt: skip
    quire.attend(batch, quire.KVCache(torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1, 16), "hnd"))


class LayerCall:
    """Appends and attends for one layer. ``window``: keys visible to a row, its own included; None = all."""

    def __init__(
        self, scale: float, head_dim: int, window: int | None, cap: float | None, slopes: torch.Tensor | None, kv_cache_dtype: str
    ):
        self.scale, self.head_dim, self.window, self.cap, self.slopes = scale, head_dim, window, cap, slopes
        self.kv_cache_dtype = kv_cache_dtype
        self.kind = (scale, head_dim, window, cap, slopes is not None)
        self._address = 0
        self._view: Any = None
        self._strides: tuple[int, ...] = ()
        self._sinks: torch.Tensor | None = None

    def view(self, layer: Any, kv_cache: torch.Tensor) -> Any:
        """The layer's cache as Quire names it; made again when vLLM has moved the cache."""
        if self._address != kv_cache.data_ptr():
            self.dtype = cache_dtype(self.kv_cache_dtype, kv_cache)
            self.k, self.v = kv_cache[..., : self.head_dim], kv_cache[..., self.head_dim :]
            fp8 = self.kv_cache_dtype in FP8
            self.k_scale = layer._k_scale.reshape(-1) if fp8 else None
            self.v_scale = layer._v_scale.reshape(-1) if fp8 else None
            self._view = quire.KVCache(self.k, self.v, "hnd", self.k_scale, self.v_scale, dtype=self.dtype)
            self._strides = self.k.stride()
            self._address = kv_cache.data_ptr()
        return self._view

    def append(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
        given, wanted = key.shape[0], slots.shape[0]
        if given > wanted:
            key, value = key[:wanted], value[:wanted]
        elif given < wanted:
            slots = slots[:given]
        _append(self.view(layer, kv_cache), key, value, slots)

    def attend(
        self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, m: Any, output: torch.Tensor, sinks: torch.Tensor | None
    ) -> None:
        if sinks is not None and self._sinks is None:  # they are weights, loaded after the layer was made
            self._sinks = sinks.float().contiguous()
        view = self.view(layer, kv_cache)
        if query.is_cpu:  # a quarter of what query.device.type takes
            self._on_cpu(query, view, m, output)
        else:
            self._on_gpu(query, m, output)

    def _on_cpu(self, query: torch.Tensor, view: Any, m: Any, output: torch.Tensor) -> None:
        kind = (self.kind, self._strides)
        bound = m.bound.get(kind)
        if bound is not None:
            try:
                return self._call(bound, query, output)
            except quire.ArgumentError:  # rows of other strides than the layer's that bound the call: asking takes longer than 1 us
                pass
        bound = m.bound[kind] = self._bind(query, view, m, output)
        self._call(bound, query, output)

    def _bind(self, query: torch.Tensor, view: Any, m: Any, output: torch.Tensor) -> Callable[..., Any]:
        batch = quire.Batch(
            query=query, output=output, query_start_loc=m.query_start_loc, seq_lens=m.seq_lens, block_table=m.block_table, padding="left",
        )  # fmt: skip
        options = quire.Options(
            softmax_scale=self.scale, sliding_window=self.window, logits_soft_cap=self.cap, alibi_slopes=self.slopes, sinks=self._sinks,
        )  # fmt: skip
        return quire.bind(batch, view, options)

    def _call(self, bound: Callable[..., Any], query: torch.Tensor, output: torch.Tensor) -> None:
        if self.k_scale is None and self.slopes is None and self._sinks is None:
            bound(query, self.k, self.v, output)
        else:
            bound(query, self.k, self.v, output, k_scale=self.k_scale, v_scale=self.v_scale, alibi_slopes=self.slopes, sinks=self._sinks)

    def _on_gpu(self, query: torch.Tensor, m: Any, output: torch.Tensor) -> None:
        if self.slopes is not None and self.slopes.device != query.device:
            self.slopes = self.slopes.to(query.device)
        first = (query, output, self.k, self.v, m.query_start_loc, m.seq_lens, m.block_table)
        shared = {
            "k_scale": self.k_scale, "v_scale": self.v_scale, "alibi_slopes": self.slopes, "sinks": self._sinks, "layout": "hnd",
            "cache_dtype": self.dtype or "", "softmax_scale": self.scale, "sliding_window": self.window, "logits_soft_cap": self.cap,
            "max_query_len": m.max_query_len, "max_seq_len": m.max_seq_len, "padding": "left",
        }  # fmt: skip
        kind = (self.window, self.k.shape, self.k.stride(), self.k.dtype, query.shape, query.stride(), output.stride())
        workspace = self._prepared(m.bound, kind)
        if workspace is None:
            size = quire.torch.workspace_bytes(*first, **shared)
            workspace = torch.empty(size, dtype=torch.uint8, device=query.device)
            torch.ops.quire.prepare(*first, **shared, workspace=workspace)
            m.bound[kind] = (workspace, {id(self)})
        torch.ops.quire.attend(*first, **shared, workspace=workspace, prepared=True)

    def _prepared(self, steps: dict[Any, Any], kind: Any) -> torch.Tensor | None:
        """The workspace that an earlier layer of this pass has prepared. A layer that comes again begins another pass: a capture after a
        warm-up, or a draft model's next token, where lengths may be others."""
        workspace, seen = steps.get(kind, (None, set()))
        if id(self) in seen:
            return None
        seen.add(id(self))
        return workspace

