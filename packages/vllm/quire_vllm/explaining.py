# SPDX-License-Identifier: Apache-2.0
"""One line at start for each kind of layer: which kernel of Quire serves it, for prefill and for decode."""

from __future__ import annotations

import logging
from typing import Any

import quire
import torch

from quire_vllm.calls import FP8

_log = logging.getLogger("vllm.quire")
_said: set[str] = set()
_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def lines_of(kv_cache_spec: Any, impls: dict[str, Any], dtype: torch.dtype, device: str | None = None) -> list[str]:
    """A line for each kind of layer among ``impls``: layer name -> impl."""
    kinds: dict[str, list[str]] = {}
    for name, impl in impls.items():
        kinds.setdefault(_problem(kv_cache_spec, impl, dtype), []).append(name)
    return [f"quire: {_span(names)}: {_served(problem, device)}; {problem}" for problem, names in kinds.items()]


def log_once(kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
    try:
        layers = vllm_config.compilation_config.static_forward_context
        impls = {name: layers[name].impl for name in layer_names if hasattr(getattr(layers.get(name), "impl", None), "call")}
        lines = lines_of(kv_cache_spec, impls, vllm_config.model_config.dtype, _device_name(device))
    except Exception as error:  # what cannot be explained (a device without a table, say) still runs
        lines = [f"quire: explain: {error}"]
    for line in lines:
        if line not in _said:
            _said.add(line)
            _log.warning(line) if "generic" in line else _log.info(line)


def _device_name(device: torch.device) -> str | None:
    if device.type == "cpu":
        return None
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def _problem(spec: Any, impl: Any, dtype: torch.dtype) -> str:
    q = _TYPES[dtype]
    kv = FP8.get(impl.kv_cache_dtype) or {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(impl.kv_cache_dtype, q)
    words = [f"q={q}", f"kv={kv}", f"heads={impl.num_heads}:{impl.num_kv_heads}", f"d={impl.head_size}", f"page={spec.block_size}", "layout=hnd"]
    if impl.call.window is not None:
        words.append(f"window={impl.call.window}")
    if impl.call.cap is not None:
        words.append(f"cap={impl.call.cap:g}")
    words += [f"{name}=1" for name, given in (("alibi", impl.call.slopes), ("sinks", impl.sinks)) if given is not None]
    return " ".join(words)


def _served(problem: str, device: str | None) -> str:
    chosen = {what: quire.explain(f"{problem} reqs={reqs}", device) for what, reqs in (("prefill", "512@512"), ("decode", "16x1@1024"))}
    return ", ".join(f"{what} on {explanation.chosen}" for what, explanation in chosen.items())


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} layers, {names[0]} to {names[-1]}"
