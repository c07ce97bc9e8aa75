# SPDX-License-Identifier: Apache-2.0
"""Hooks of the audit in vLLM: around a worker's step, a backend's metadata builder, its cache write and its attention.

Backends are wrapped through vLLM's registry, whose paths then name attributes of :mod:`quire_vllm.audit.wrapped`. An audited backend
takes no part in full CUDA graphs, in which no Python runs; vLLM then replays the model in pieces around it.

What a hook does for the audit stands in ``with _boundary(kind):``; what it does for vLLM stands outside, once, whatever the audit did.
"""

from __future__ import annotations

import functools
import multiprocessing.util
from typing import Any

import numpy as np
import torch

from quire_vllm import calls, settings
from quire_vllm.audit import rows as fp64
from quire_vllm.audit.boundary import Boundary
from quire_vllm.audit.plant import Plant
from quire_vllm.audit.statement import Tables
from quire_vllm.audit.watch import Auditor, Call

_PREFIX = "quire_vllm.audit.wrapped."
_MARK = "_quire_tables"
_state: dict[str, Any] = {}


def install() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.worker.gpu_worker import Worker

    for name, member in AttentionBackendEnum.__members__.items():
        if "MLA" in name or "SPARSE" in name:
            continue  # another cache and another interface
        try:
            path = member.get_path()
        except ValueError:
            continue  # a slot that nobody has taken
        if path and not path.startswith(_PREFIX):
            _state.setdefault("paths", {})[name] = path
            register_backend(member, _PREFIX + name)
    _around(Worker, "execute_model", _step)
    _around(Worker, "sample_tokens", _finish_quarantined)


def boundary() -> Boundary:
    """The process's boundary between audit and engine."""
    if "boundary" not in _state:
        _state["boundary"] = Boundary()
    return _state["boundary"]


def _boundary(kind: str) -> Any:
    return boundary()(kind)


def auditor() -> Auditor:
    """The process's auditor. The first step makes it, or none does: one that comes late knows nothing of the requests that run."""
    if "auditor" not in _state:
        if not _state.setdefault("may make", True):
            raise RuntimeError("there is no auditor in this process, because the first step could not make it")
        _state["may make"] = False
        chosen = settings.read()
        _state["plant"] = Plant.named(chosen.plant)
        _state["auditor"] = made = Auditor(chosen, boundary=boundary())
        # Finalizers of multiprocessing also run in the processes that it starts, in which atexit functions do not.
        multiprocessing.util.Finalize(None, made.report.write, exitpriority=1)
    return _state["auditor"]


def _inside() -> Auditor | None:
    """The auditor in a step that it follows; None in a warm-up and behind a failure. Raises nothing."""
    made = _state.get("auditor")
    return made if made is not None and made.inside else None


def _around(cls: type, name: str, wrapper: Any) -> None:
    original = getattr(cls, name, None)
    if original is None or getattr(original, "_quire", False):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    wrapped._quire = True  # type: ignore[attr-defined]
    setattr(cls, name, wrapped)


def _step(original: Any, worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    with _boundary("books") as books:
        _begin(worker, scheduler_output)
    if books.failed and "auditor" in _state:
        _state["auditor"].lose_count()
    try:
        return _finish_quarantined(original, worker, scheduler_output, *args, **kwargs)
    finally:
        if "auditor" in _state:
            with _boundary("step"):
                _state["auditor"].end_step()


def _begin(worker: Any, scheduler_output: Any) -> None:
    a = auditor()
    _planted("on_scheduler", None, a, scheduler_output)
    with _boundary("tables"):
        _state["runner"] = worker.model_runner
        _around(type(worker.model_runner), "prepare_inputs", _keep_order)
    a.begin_step(scheduler_output)


def _planted(where: str, right: Any, *args: Any) -> Any:
    """What a planted fault makes of it; without one, what is ``right``."""
    if _state["plant"] is not None:
        with _boundary("plant"):
            return getattr(_state["plant"], where)(*args)
    return right


def _keep_order(original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's V2 model runner keeps no batch between steps. Its ``prepare_inputs`` returns one, which has the requests in the tables' order."""
    batch = original(runner, *args, **kwargs)
    a = _inside()
    if a is not None:
        _state["order"] = a.statement.step, getattr(batch, "req_ids", None)
    return batch


def _names() -> list[str] | None:
    """The requests of this step in the order of the tables' rows; None: unknown."""
    step, names = _state.get("order", (0, None))
    if names is not None and step == auditor().statement.step:
        return list(names)
    return getattr(getattr(_state["runner"], "input_batch", None), "req_ids", None)


def _finish_quarantined(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Requests in quarantine get the end-of-sequence token, so that the engine finishes them."""
    output = original(worker, *args, **kwargs)
    bad = _state["auditor"].report.quarantined if "auditor" in _state else None
    if bad and output is not None:
        with _boundary("quarantine"):
            _end_later(output, bad, _end_token(worker))
    return output


def _end_token(worker: Any) -> int | None:
    eos = getattr(worker.model_config.hf_config, "eos_token_id", None)
    return eos[0] if isinstance(eos, list) else eos


def _end_later(output: Any, bad: set[str], end: int | None) -> None:
    """vLLM's asynchronous output has its tokens only when asked."""
    if not hasattr(output, "get_output"):
        _end(output, bad, end)
        return
    get = output.get_output

    def get_output() -> Any:
        tokens = get()
        with _boundary("quarantine"):
            _end(tokens, bad, end)
        return tokens

    output.get_output = get_output


def _end(output: Any, bad: set[str], end: int | None) -> None:
    for name in bad & set(getattr(output, "req_id_to_index", ())):
        tokens = output.sampled_token_ids[output.req_id_to_index[name]]
        if end is not None and len(tokens):
            tokens[:] = [end] * len(tokens)


def audited(backend: type) -> type:
    """A subclass of one of vLLM's backends that is looked at; its name is that of the backend."""
    impl, builder = _audited_impl(backend.get_impl_cls(), backend), _audited_builder(backend.get_builder_cls())
    members = {"get_impl_cls": staticmethod(lambda: impl), "get_builder_cls": staticmethod(lambda: builder)}
    if hasattr(backend.get_impl_cls(), "writes_cache_here"):  # Quire's own writes in its own call, so that a late write could not be seen
        members["forward_includes_kv_cache_update"] = False
        impl.writes_cache_here = staticmethod(lambda: False)
    return type(f"Audited{backend.__name__}", (backend,), members)


def _audited_builder(base: type) -> type:
    from vllm.v1.attention.backend import AttentionCGSupport

    class Builder(base):  # type: ignore[misc, valid-type]
        _cudagraph_support = AttentionCGSupport.NEVER

        def build(self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            a = _inside()
            common = common_attn_metadata if a is None else _planted("on_tables", common_attn_metadata, a, common_attn_metadata)
            metadata = super().build(common_prefix_len, common, *args, **kwargs)
            if a is not None:
                with _boundary("tables"):
                    if a.looks():
                        setattr(metadata, _MARK, _see_tables(a, self.layer_names, self.kv_cache_spec, common))
            return metadata

        @classmethod
        def get_cudagraph_support(cls, *_: Any) -> Any:
            return AttentionCGSupport.NEVER

    return type(f"Audited{base.__name__}", (Builder,), {})


def _audited_impl(base: type, backend: type) -> type:
    class Impl(base):  # type: ignore[misc, valid-type]
        _quire_spec: fp64.Layer | None = None

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._quire_kv_dtype = getattr(self, "kv_cache_dtype", "auto")

        def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
            a, write = _inside(), super().do_kv_cache_update
            if a is None:
                write(layer, key, value, kv_cache, slot_mapping)
                return
            wanted = a.wants(layer.layer_name)
            if wanted:
                with _boundary("layer"):
                    _known(a, self, layer, kv_cache, key.dtype, write)
            _planted("on_write", write, a, layer.layer_name, write)(layer, key, value, kv_cache, slot_mapping)
            if wanted:
                with _boundary("write"):
                    _see_written(a, layer.layer_name, key, value, kv_cache)

        def forward(self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            a, forward = _inside() if attn_metadata is not None else None, super().forward
            if a is not None:
                forward = _planted("on_attention", forward, a, layer.layer_name, self, forward)
            result = forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
            tables = getattr(attn_metadata, _MARK, None) if a is not None else None
            if tables is not None:
                with _boundary("attention"):
                    write = getattr(super(), "do_kv_cache_update", None)
                    _visit(a, self, layer, Call(query, key, value, kv_cache, output, tables), write)
            return result

    return type(f"Audited{base.__name__}", (Impl,), {})


def _see_written(a: Auditor, name: str, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor) -> None:
    tables = _state.get("tables", {}).get(_group(name))
    if name in a.layers and tables is not None and tables.step == a.statement.step:
        a.see_written(a.layers[name], key, value, kv_cache, tables)


def _visit(a: Auditor, impl: Any, layer: Any, call: Call, write: Any) -> None:
    a.see_output(layer.layer_name, call.output, call.tables)
    if a.wants(layer.layer_name):
        watched = _known(a, impl, layer, call.kv_cache, call.query.dtype, write)
        if watched is not None:
            a.visit(watched, call)


def _known(a: Auditor, impl: Any, layer: Any, kv_cache: torch.Tensor, dtype: torch.dtype, write: Any) -> Any:
    """The auditor's entry for a layer, or None: it cannot be looked at."""
    if layer.layer_name not in a.layers:
        with _boundary("layer") as part:
            _get_to_know(a, impl, layer, kv_cache, dtype, write)
        if part.failed:
            a.give_up(layer.layer_name)
    return a.layers.get(layer.layer_name)


def _get_to_know(a: Auditor, impl: Any, layer: Any, kv_cache: torch.Tensor, dtype: torch.dtype, write: Any) -> None:
    if write is None:  # HPC_ATTN of vLLM 0.32
        raise TypeError("the backend writes its cache inside its attention, so that its layout cannot be found")
    page_size = int(kv_cache.shape[2])  # of [blocks, kv_heads, block_size, 2 * head_dim]

    def into(key: torch.Tensor, value: torch.Tensor, scratch: torch.Tensor, slots: torch.Tensor) -> None:
        write(layer, key, value, scratch, slots)

    a.know(layer.layer_name, _group(layer.layer_name), _spec(impl, layer, kv_cache, dtype), into, kv_cache, page_size, dtype)


def _spec(impl: Any, layer: Any, kv_cache: torch.Tensor, dtype: torch.dtype) -> fp64.Layer:
    """Specification of a layer, read from vLLM's layer and from the arguments that every backend keeps."""
    window, cap, slopes, sinks = (getattr(impl, name, None) for name in ("sliding_window", "logits_soft_cap", "alibi_slopes", "sinks"))
    if hasattr(impl, "call"):  # Quire's own
        window, cap, slopes = impl.call.window, impl.call.cap, impl.call.slopes
    if isinstance(window, tuple):  # (left, right) of FlashAttention
        window = window[0] + 1 if window[0] >= 0 else None
    kv_dtype = impl._quire_kv_dtype
    fp8 = kv_dtype in calls.FP8
    scales = [np.asarray(getattr(layer, f"_{x}_scale").detach().float().cpu()).reshape(-1) if fp8 else None for x in "kv"]
    rounded = None if dtype == torch.float32 else {torch.bfloat16: "weights=bf16", torch.float16: "weights=f16"}[dtype]
    return fp64.Layer(
        impl.num_heads, impl.num_kv_heads, impl.head_size, float(impl.scale), int(window) if window and window > 0 else None, cap or None,
        None if slopes is None else np.asarray(torch.as_tensor(slopes).float().cpu()), None if sinks is None else np.asarray(sinks.detach().float().cpu()),
        calls.cache_dtype(kv_dtype, kv_cache), scales[0], scales[1], rounded + ",dequantised" if rounded and fp8 else rounded,
    )  # fmt: skip


def _group(layer_name: str) -> int:
    """The KV cache group of a layer."""
    if "groups" not in _state:
        config = getattr(_state["runner"], "kv_cache_config", None)
        groups = config.kv_cache_groups if config is not None else []
        _state["groups"] = {name: i for i, group in enumerate(groups) for name in group.layer_names}
    return _state["groups"].get(layer_name, 0)


def _see_tables(a: Auditor, layer_names: list[str], spec: Any, common: Any) -> Tables:
    """The step's tables of a KV cache group: read once a step, for the first builder that asks."""
    group = _group(layer_names[0])
    known = _state.setdefault("tables", {}).get(group)
    if known is not None and known.step == a.statement.step:
        return known
    ratio, page_size = _ratio(group, spec.block_size), int(spec.block_size)
    num_pages = _state["runner"].kv_cache_config.num_blocks * ratio
    window = getattr(spec, "sliding_window", None)
    tables = a.see_tables(group, num_pages, ratio, lambda: _read(common, page_size), _names(), window)
    _state["tables"][group] = tables
    return tables


def _ratio(group: int, page_size: int) -> int:
    """vLLM may hand out blocks that attention sees as several pages."""
    config = getattr(_state["runner"], "kv_cache_config", None)
    return 1 if config is None else max(1, config.kv_cache_groups[group].kv_cache_spec.block_size // page_size)


def _read(common: Any, page_size: int) -> Tables:
    n = common.num_reqs
    starts = common.query_start_loc_cpu[: n + 1].numpy().astype(np.int64)
    return Tables(
        starts, common.seq_lens[:n].cpu().numpy().copy(), common.block_table_tensor[:n].cpu().numpy(),
        common.slot_mapping[: int(starts[-1])].cpu().numpy(), page_size,
    )  # fmt: skip


def wrapped_class(name: str) -> type:
    """The audited class of a member of vLLM's registry; the backend itself, if it cannot be audited."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    backend = resolve_obj_by_qualname(_state["paths"][name])
    with _boundary("backend"):
        made = audited(backend)
        # vLLM's CUDA and ROCm platforms ask the class where it is, and look there.
        made.__module__, made.__qualname__ = _PREFIX.rstrip("."), name
        return made
    return backend
