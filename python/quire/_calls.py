# SPDX-License-Identifier: Apache-2.0
"""Inputs of a call of any attention op, read from its arguments, for :mod:`quire.hooks`.

Ops are known by their name: flash_attn_varlen_func, and those that packages add. Arguments are found by name in the op's own signature,
or, for compiled ops, in that of the package's function of the same name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import is_torch
from quire._inputs import Inputs, f32_vector, lengths_of, on_device
from quire.errors import ArgumentError, UnsupportedError


def flash_inputs(
    *, q: Any, k: Any, v: Any, cu_seqlens_q: Any, out: Any = None, cu_seqlens_k: Any = None, seqused_k: Any = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = None, softcap: float = 0.0, alibi_slopes: Any = None,
    block_table: Any = None, dropout_p: float = 0.0, s_aux: Any = None, q_descale: Any = None, k_descale: Any = None,
    v_descale: Any = None, **_: Any,
) -> Inputs:  # fmt: skip
    """flash_attn_varlen_func, paged or dense: dense keys are pages of one token."""
    if not causal:
        raise UnsupportedError("causal=False")
    if dropout_p or q_descale is not None:
        raise UnsupportedError("dropout or fp8 queries")
    if alibi_slopes is not None and len(alibi_slopes.shape) != 1:
        raise UnsupportedError("alibi_slopes per request")
    if seqused_k is None and cu_seqlens_k is None:
        raise UnsupportedError("neither seqused_k nor cu_seqlens_k")
    seq = np.diff(_quire.bits(cu_seqlens_k, "cu_seqlens_k")[0]) if seqused_k is None else seqused_k
    if block_table is None:
        starts = _quire.bits(cu_seqlens_k, "cu_seqlens_k")[0]
        block_table = np.minimum(starts[:-1, None] + np.arange(max(1, int(np.max(seq, initial=1))), dtype=starts.dtype), 2**31 - 1)
        k, v = k[:, None], v[:, None]
    batch = _quire.Batch(query=q, output=out, query_start_loc=cu_seqlens_q, seq_lens=seq, block_table=block_table, padding="left")
    cache = _quire.KVCache(k, v, "nhd", k_descale, v_descale)
    left = -1 if window_size is None else window_size[0]
    options = _quire.Options(
        softmax_scale=None if softmax_scale is None else float(softmax_scale),
        sliding_window=left + 1 if left is not None and left >= 0 else None,
        logits_soft_cap=softcap if softcap is not None and softcap > 0 else None,
        alibi_slopes=f32_vector(alibi_slopes, "alibi_slopes"),
        sinks=f32_vector(s_aux, "sinks"),
    )
    return Inputs(batch, cache, options, lengths_of(cu_seqlens_q, seq))


class Op:
    """Names of the arguments of one op. ``out``: the argument that it writes; ``caches``, ``table``: its cache and block table;
    ``function``: the package's own of that name, as "module:function"."""

    def __init__(self, read: Callable[..., Inputs], out: str, caches: tuple[str, str], table: str, function: str = ""):
        self.read, self.out, self.caches, self.table, self.function = read, out, caches, table, function


OPS: dict[str, Op] = {"flash_attn_varlen_func": Op(flash_inputs, "out", ("k", "v"), "block_table")}


HOW = (
    "for a signature of your own give adapter=f, where f of the call's arguments returns (batch, cache, options); or save one call with "
    "quire.write_capture(path, batch, cache, options, observed=out)"
)


def op_named(name: str) -> Op:
    if name not in OPS:
        raise ArgumentError(
            f'op "{name}" is none of {", ".join(OPS)}; say op="..." if your function has the signature of one of these (import quire_vllm.ops '
            f"adds vLLM's); {HOW}"
        )
    return OPS[name]


def binder(function: Callable[..., Any], name: str) -> Callable[..., Mapping[str, Any]]:
    """A function from (args, kwargs) to arguments by name, defaults included."""
    try:
        signature = inspect.signature(function)
        known = set(signature.parameters)
    except (TypeError, ValueError):
        known = set()
    if OPS[name].table not in known and OPS[name].function:
        module, _, attribute = OPS[name].function.partition(":")
        signature = inspect.signature(getattr(sys.modules[module], attribute))
    reading = inspect.signature(OPS[name].read).parameters.values()
    needed = [p.name for p in reading if p.default is p.empty and p.kind is not p.VAR_KEYWORD]

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        bound = signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        flat = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                flat.update(flat.pop(parameter.name, {}))
        if missing := [argument for argument in needed if argument not in flat]:
            raise ArgumentError(f"the call has no {', '.join(missing)}; it has not the signature of {name}: {HOW}")
        return flat

    return bind


def to_host(array: Any) -> Any:
    """Tensors in device memory as CPU tensors; anything else as it is."""
    return array.detach().cpu() if on_device(array) else array.detach() if is_torch(array) else array


def copy_of(array: Any) -> Any:
    """A private copy in host memory."""
    if is_torch(array):
        return array.detach().cpu() if on_device(array) else array.detach().clone()
    return np.array(array, copy=True) if isinstance(array, np.ndarray) else array


def span(array: Any) -> tuple[int, int]:
    """Addresses that an array covers; (0, 0) if unknown."""
    if is_torch(array):
        if array.numel() == 0:
            return 0, 0
        reach = sum((n - 1) * s for n, s in zip(array.shape, array.stride()))
        return array.data_ptr(), array.data_ptr() + (reach + 1) * array.element_size()
    if isinstance(array, np.ndarray) and array.size:
        low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
        return int(low), int(high)
    return 0, 0


def overlaps(a: Any, b: Any) -> bool:
    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1


def is_capturing() -> bool:
    """Inside a CUDA graph capture nothing may be copied to the host."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def compacted(arguments: Mapping[str, Any], op: Op) -> tuple[dict[str, Any], str]:
    """The arguments with caches cut to the pages that the table names, renumbered; and what was kept, in words."""
    changed = dict(arguments)
    table = changed.get(op.table)
    if table is None:
        return changed, "all pages"
    numbers = np.array(_quire.bits(to_host(table), op.table)[0])
    k, v = (changed[name] for name in op.caches)
    total = int(k.shape[0])
    named = (numbers >= 0) & (numbers < total)
    pages, places = np.unique(numbers[named], return_inverse=True)
    numbers[named] = places
    numbers[~named] = np.where(numbers[~named] < 0, numbers[~named], 2147480000)
    for name, cache in zip(op.caches, (k, v)):
        if is_torch(cache):
            index = sys.modules["torch"].from_numpy(pages.astype(np.int64)).to(cache.device)
            changed[name] = _raw(cache).index_select(0, index).cpu().view(cache.dtype)
        else:
            changed[name] = cache[pages]
    changed[op.table] = numbers
    return changed, f"{len(pages)} of {total}, renumbered; the others are not in this file"


def _raw(tensor: Any) -> Any:
    """The tensor as integers: torch cannot index every fp8 type."""
    torch = sys.modules["torch"]
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def cache_bytes(arguments: Mapping[str, Any], op: Op) -> int:
    total = 0
    for name in op.caches:
        array = arguments[name]
        itemsize = array.element_size() if is_torch(array) else array.dtype.itemsize
        total += int(np.prod(tuple(array.shape), dtype=np.int64)) * itemsize
    return total
