# SPDX-License-Identifier: Apache-2.0
"""Quire's calls as operators of torch: ``torch.ops.quire.attend``, ``prepare``, ``append``, ``merge`` and ``merge_many``,
defined when this module is imported.

What they write is declared, and they have fake implementations, so they work in ``torch.compile(fullgraph=True)``, in CUDA graphs and
in exported programs. They are for inference: a tensor that requires grad is refused while grad mode is on. Import of this module needs
torch 2.4 or newer; the rest of Quire does not need it.

On a GPU an operator enqueues on torch's current stream and returns. What the device finds (lengths or tables that break a rule) is
raised by the next call or by :func:`quire.synchronize`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from quire import _quire
from quire._fields import FIELDS, Field
from quire.errors import ArgumentError

__all__ = ["append", "as_tensor", "attend", "merge", "merge_many", "prepare", "workspace_bytes"]

_BITS = {1: np.uint8, 2: np.int16}  # bytes per element -> type whose bits torch takes from NumPy
_NUMPY_LACKS = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")  # torch's names and ml_dtypes'

_library = torch.library.Library("quire", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def _define(schema: str, real: object, fake: object) -> None:
    name = schema.split("(")[0]
    _library.define(schema, tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _library.impl(name, real, key)
    torch.library.register_fake(f"quire::{name}", fake, lib=_library)


_FIRST = ("query", "output", "k", "v", "query_start_loc", "seq_lens", "block_table")
"""What every call has, in the order of the operators. The rest goes by name."""

_TYPES = {"float": "float", "int": "SymInt", "bool": "bool", "typing": "str"}
"""Types of choices in a schema, by the first word of a declaration."""


def _declared(field: Field, written: str) -> str:
    """A field as a schema declares it. ``written``: the mark of a tensor that is."""
    may_be_none = "?" if " | None" in field.declared else ""
    if field.kind != "choice":
        return f"Tensor{written if field.written else ''}{'' if field.name in _FIRST else '?'} {field.argument}"
    return f"{_TYPES[re.match('[a-z]+', field.declared)[0]]}{may_be_none} {field.argument}"


def _schema(name: str, marks: str, more: str) -> str:
    """Schema of an operator that takes the fields of a call. ``marks``: of output and lse, if it writes them."""
    by_name = {f.argument: f for f in FIELDS}
    mark = iter(marks)
    declared = {key: _declared(f, f"({next(mark)}!)" if f.written and marks else "") for key, f in by_name.items()}
    rest = [f"{declared[key]}={f.declared.rpartition(' = ')[2]}" for key, f in by_name.items() if key not in _FIRST]
    return f"{name}({', '.join(declared[key] for key in _FIRST)}, *, {', '.join(rest)}, {more}) -> ()"


def _call(arguments: tuple[Any, ...], named: dict[str, Any], part: str) -> Any:
    # Graphs of torch.compile own their memory, and find who else refers to it.
    return _quire.attend_arrays({**dict(zip(_FIRST, arguments)), **named, "part": part, "wait": False, "remember": False})


def _attend_op(*arguments: Tensor, prepared: bool = False, **named: Any) -> None:
    _call(arguments, named, "layer" if prepared else "call")


def _prepare_op(*arguments: Tensor, **named: Any) -> None:
    _call(arguments, named, "preparation")


def _attend_fake(query: Tensor, output: Tensor, *_: object, **__: object) -> None:
    own_type = output.dtype == query.dtype or torch.float8_e4m3fn in (output.dtype, query.dtype)
    if output.dim() != query.dim() or output.shape[:-1] != query.shape[:-1] or not own_type:
        raise ArgumentError(
            f"output: {output.dtype} {list(output.shape)}, expected {query.dtype} {list(query.shape)} as query, with v's head_dim"
        )


_MORE = "str cache_dtype='', SymInt max_query_len=0, SymInt max_seq_len=0, Tensor(c!)? workspace=None"
_define(_schema("attend", "ab", f"{_MORE}, bool prepared=False"), _attend_op, _attend_fake)
_define(_schema("prepare", "", _MORE), _prepare_op, _attend_fake)


_OF_APPEND = ("k", "v", "key", "value", "slot_mapping", "k_scale", "v_scale", "layout", "cache_dtype")


def _append(*arguments: Any) -> None:
    _quire.append_arrays(dict(zip(_OF_APPEND, arguments)))


def _append_fake(k: Tensor, v: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, *_: object, **__: object) -> None:
    if key.dim() != 3 or value.dim() != 3 or key.shape[:2] != value.shape[:2]:
        raise ArgumentError(f"value: {list(value.shape)}, expected [num_tokens, num_kv_heads, v_head_dim] with the first two of key {list(key.shape)}")


_define(
    "append(Tensor(a!) k, Tensor(b!) v, Tensor key, Tensor value, Tensor slot_mapping, Tensor(c!)? k_scale=None, Tensor(d!)? v_scale=None, "
    "str layout='nhd', str cache_dtype='') -> ()",
    _append,
    _append_fake,
)


def _merged_like(out_a: Tensor, lse_a: Tensor, output_scale: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    dtype = out_a.dtype if output_scale is None else torch.float8_e4m3fn
    return (
        torch.empty(out_a.shape, dtype=dtype, device=out_a.device),
        torch.empty(lse_a.shape, dtype=torch.float32, device=lse_a.device),
    )


def _merge(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, output_scale: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _merged_like(out_a, lse_a, output_scale)
    _quire.merge(out_a, lse_a, out_b, lse_b, out, lse, output_scale=output_scale)
    return out, lse


def _merge_fake(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, output_scale: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _merged_like(out_a, lse_a, output_scale)


_define(
    "merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, Tensor? output_scale=None) -> (Tensor, Tensor)", _merge, _merge_fake
)


def _merged_many_like(outs: Tensor, output_scale: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    dtype = outs.dtype if output_scale is None else torch.float8_e4m3fn
    return (
        torch.empty(outs.shape[1:], dtype=dtype, device=outs.device),
        torch.empty(outs.shape[1:3], dtype=torch.float32, device=outs.device),
    )


def _merge_many(outs: Tensor, lses: Tensor, output_scale: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    out, lse = _merged_many_like(outs, output_scale)
    _quire.merge_many(outs, lses, out, lse, output_scale=output_scale)
    return out, lse


def _merge_many_fake(outs: Tensor, lses: Tensor, output_scale: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    return _merged_many_like(outs, output_scale)


_define("merge_many(Tensor outs, Tensor lses, Tensor? output_scale=None) -> (Tensor, Tensor)", _merge_many, _merge_many_fake)


def _flagged(named: dict[str, Any]) -> dict[str, Any]:
    """``causal`` as an operator takes it: one flag for all requests, or one of each. None is the default."""
    causal = named.pop("causal", None)
    if isinstance(causal, Tensor):
        named["causal_per_request"] = causal
    elif causal is not None and not isinstance(causal, bool):
        raise ArgumentError(f"causal: {causal!r}, expected a bool, or a tensor of one bool a request")
    elif causal is False:
        named["causal"] = False
    return named


def _v_head_dim(v: Tensor, named: dict[str, Any]) -> int:
    """V's head_dim, whatever the bytes of its rows (``cache.hpp``)."""
    cache_dtype = named.get("cache_dtype", "")
    dims = v.shape[2 if named.get("layout", "nhd").lower() == "packed" else 3]
    return 512 if cache_dtype == "fp8_ds_mla" else 2 * dims if cache_dtype in ("nvfp4", "mxfp4") else dims


def attend(
    query: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, *,
    output: Optional[Tensor] = None, **named: Any,
) -> Tensor:  # fmt: skip
    """Softmax attention for every request of a batch; returns ``output``, or a new tensor like ``query`` (float8_e4m3fn with
    ``output_scale``).

        out = sum_k exp(s(k) - m) V_k / (sum_k exp(s(k) - m) + exp(sink_h - m))       over visible k

    Tensors, shapes and dtypes are those of :class:`quire.Batch`, :class:`quire.KVCache` and :class:`quire.Options`; all on one device.
    ``cache_dtype``: the Quire dtype of raw uint8 caches; "nvfp4" and "mxfp4" have ``k_block_scale`` and ``v_block_scale``.
    ``max_query_len``, ``max_seq_len``: no request is longer (tokens; 0 = not
    said); on a GPU a tight bound makes the call faster, and a longer request breaks it: no row is written. ``workspace``: bytes on the
    device, of :func:`prepare`; None takes new ones. ``prepared``: :func:`prepare` came before with the same arguments but for addresses,
    and the layer only attends. ``causal``: one bool for all requests, or a tensor of one bool a request, [num_reqs] bool or uint8;
    ``q_begin``, ``key_begin``, ``window_right``, ``spans``, ``prefix_lens``, ``tree_mask``, ``tree_lens``, ``attention_chunk``,
    ``prefix_len`` and ``spans_beyond_window`` as in :class:`quire.Batch` and :class:`quire.Options`.

    Raises ContractError (a broken rule; on a GPU those of lengths and tables at the next call or at :func:`quire.synchronize`),
    ArgumentError, UnsupportedError.
    """
    if output is None:
        if query.dtype == torch.float8_e4m3fn:
            raise ArgumentError("output: None, expected a tensor: a float8_e4m3fn query does not say which type")
        dtype = query.dtype if named.get("output_scale") is None else torch.float8_e4m3fn
        output = torch.empty((*query.shape[:-1], _v_head_dim(v, named)), dtype=dtype, device=query.device)
    torch.ops.quire.attend(query, output, k, v, query_start_loc, seq_lens, block_table, **_flagged(named))
    return output


def prepare(
    query: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, *,
    output: Optional[Tensor] = None, workspace: Optional[Tensor] = None, **named: Any,
) -> Tensor:  # fmt: skip
    """Does once the work that all layers of a step share: checks lengths and tables and makes work lists. Returns ``workspace``, or a
    new tensor of bytes, for the layers::

        workspace = quire.torch.prepare(q, k, v, starts, lens, table, max_query_len=1)
        for q, k, v, out in layers:
            quire.torch.attend(q, k, v, starts, lens, table, output=out, max_query_len=1, workspace=workspace, prepared=True)

    Arguments: those of :func:`attend` for one layer. The others have the same lengths, tables, bounds and window, and tensors of the same
    shapes, strides and dtypes. Lengths and tables hold the same values until the last layer is done; where they break a rule, no layer
    writes a row. The operator is ``torch.ops.quire.prepare``, which wants ``output`` and ``workspace``; without a workspace this function
    asks for its size, so give one inside ``torch.compile``.

    Raises as :func:`attend` does. A layer without its preparation is raised by the next call or by :func:`quire.synchronize`.
    """
    if output is None:  # its shape and type are asked for, and nothing is written
        output = torch.empty((*query.shape[:-1], _v_head_dim(v, named)), dtype=query.dtype, device=query.device)
    named = _flagged(named)
    if workspace is None:
        size = workspace_bytes(query, output, k, v, query_start_loc, seq_lens, block_table, **named)
        workspace = torch.empty(size, dtype=torch.uint8, device=query.device)
    torch.ops.quire.prepare(query, output, k, v, query_start_loc, seq_lens, block_table, **named, workspace=workspace)
    return workspace


def append(
    k: Tensor, v: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, *, k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None, layout: str = "nhd", cache_dtype: str = "",
) -> None:  # fmt: skip
    """Writes key and value row t into slot slot_mapping[t] of the cache; stored = convert(row / scale). A scale of three axes is written, too.
    As :func:`quire.append`."""
    torch.ops.quire.append(k, v, key, value, slot_mapping, k_scale, v_scale, layout, cache_dtype)


def merge(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, output_scale: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of attention over two disjoint key sets; -inf marks an empty side. As :func:`quire.merge`.

    lse = log(exp(lse_a) + exp(lse_b)), out = out_a * exp(lse_a - lse) + out_b * exp(lse_b - lse); float8_e4m3fn, by the rounding of
    :class:`quire.Batch`, with ``output_scale``.
    """
    return torch.ops.quire.merge(out_a, lse_a, out_b, lse_b, output_scale)


def merge_many(outs: Tensor, lses: Tensor, *, output_scale: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention over the disjoint key sets of a stack, in the order of its first axis. As :func:`quire.merge_many`."""
    return torch.ops.quire.merge_many(outs, lses, output_scale)


def _show(function: Any) -> None:
    """Gives a function that takes the fields of a call by name the signature that call tips show."""
    shown = inspect.signature(function)
    *own, _ = shown.parameters.values()
    by_name = {f.name: f.otherwise for f in FIELDS if f.name not in shown.parameters and f.name not in _FIRST}
    by_name |= {"cache_dtype": "", "max_query_len": 0, "max_seq_len": 0, "workspace": None, "prepared": False}
    rest = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=d) for name, d in by_name.items() if name not in shown.parameters]
    function.__signature__ = shown.replace(parameters=[*own, *rest])


_show(attend)


def workspace_bytes(*arguments: Any, **named: Any) -> int:
    """Bytes of ``workspace`` for the other arguments of an operator."""
    return int(_call(arguments, named, "workspace_bytes"))


def as_tensor(array: Any, device: Any = "cpu") -> Tensor:
    """An array of a :class:`quire.Case` as a tensor: NumPy's, with the types of ml_dtypes (bfloat16 and float8) that torch.from_numpy refuses.

    On the CPU it shares the array's memory and strides. Returns a tensor as it is, but on ``device``.
    """
    if isinstance(array, Tensor):
        return array.to(device)
    array = np.asarray(array)
    if array.dtype.name not in _NUMPY_LACKS:
        return torch.from_numpy(array).to(device)
    return torch.from_numpy(array.view(_BITS[array.dtype.itemsize])).view(getattr(torch, array.dtype.name)).to(device)
