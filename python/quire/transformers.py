# SPDX-License-Identifier: Apache-2.0
"""Quire as an attention implementation of transformers: :func:`register`, then ``attn_implementation="quire"``.

``generate`` runs its decoder layers on Quire. So does ``generate_batch``, over transformers' own paged cache, for a model that was
handed to :func:`page`. This is an example and a test bed: the interface of transformers changes from release to release.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from quire import _quire
from quire.errors import UnsupportedError

__all__ = ["NAME", "TESTED", "attention", "page", "register"]

NAME = "quire"
TESTED = ("5.19.0",)
"""Versions of transformers that the tests ran with."""


def register() -> None:
    """Adds the attention implementation "quire" to transformers. May be called again. Raises ImportError without transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(NAME, attention)
    # No mask if all rows are whole, else the two-dimensional one, which says where a row's tokens lie.
    AttentionMaskInterface.register(NAME, flash_attention_mask)


@contextlib.contextmanager
def page(model: Any) -> Iterator[Any]:
    """``with page(model): model.generate_batch(...)``: continuous batching on Quire.

    transformers lets nobody but its own implementations into continuous batching, by name; inside, the model's name is taken for one
    that it lets pass, and the function behind that name for this model is Quire's.
    """
    from transformers import AttentionInterface

    register()
    passing, names = "paged|eager", [m.config for m in model.modules() if hasattr(m, "config")]
    before = [(config, config._attn_implementation) for config in {id(c): c for c in names}.values()]
    original = AttentionInterface._global_mapping[passing]
    for config, _ in before:
        config._attn_implementation_internal = passing
    AttentionInterface.register(passing, attention)
    try:
        yield model
    finally:
        AttentionInterface.register(passing, original)
        for config, name in before:
            config._attn_implementation_internal = name


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers asks for it: query [batch, num_q_heads, rows, head_dim], key and value [batch, num_kv_heads, keys, head_dim].

    attention_mask: None, or [batch, keys] with zeros where a sequence is padded, on either side. s_aux: sinks. cache: the paged cache
    of continuous batching. Returns the output [batch, rows, num_q_heads, head_dim of value] and no weights; padded rows are 0.

    Raises UnsupportedError: dropout, rows that see later keys, masks of other shapes.
    """
    _refuse(module, query, key, value, attention_mask, dropout, is_causal, cache)
    options = _quire.Options(
        softmax_scale=scaling, sliding_window=sliding_window or None, logits_soft_cap=softcap or None,
        sinks=None if s_aux is None else s_aux.detach().float().contiguous(),
    )  # fmt: skip
    with torch.no_grad():
        if cache is not None:
            return _paged(module, query, key, value, cache, options, kwargs), None
        return _whole(query, key, value, attention_mask, options), None


def _refuse(module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool | None, cache: Any) -> None:
    if dropout:
        raise UnsupportedError(f"dropout: {dropout}, expected 0; Quire is for inference")
    if torch.is_grad_enabled() and query.requires_grad:
        raise UnsupportedError("query: requires grad; Quire is for inference, call it under torch.no_grad()")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal and cache is None and query.shape[2] > 1:  # continuous batching says False where it built a mask, which is causal
        raise UnsupportedError("is_causal: False, expected True; rows that see later keys are not supported")
    if mask is not None and cache is None and mask.dim() != 2:
        raise UnsupportedError(f"attention_mask: {list(mask.shape)}, expected [batch, keys]")


def _whole(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: Any) -> torch.Tensor:
    """A sequence's keys are one page of the cache [batch, num_kv_heads, keys, head_dim], where they are."""
    batch, heads, rows, dim = query.shape
    output = torch.zeros((batch, rows, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
    flat = query.transpose(1, 2)
    if mask is None:
        _attend(flat.reshape(batch * rows, heads, dim), output.view(batch * rows, heads, -1), key, value, rows, options)
        return output
    seen = mask.shape[1]  # a static cache is longer than what was seen of it
    for i, (begin, end) in enumerate(_spans(mask)):
        first = max(0, begin - (seen - rows))  # rows are the last of the keys
        last = rows - (seen - end)
        if last > first:
            k, v = (x[i : i + 1, :, begin:end] for x in (key, value))
            _attend(flat[i, first:last], output[i, first:last], k, v, last - first, options)
    return output


def _spans(mask: torch.Tensor) -> list[tuple[int, int]]:
    """(begin, end) of the ones of each row."""
    ones = mask.bool().cpu()
    spans = []
    for i, row in enumerate(ones):
        where = torch.nonzero(row).reshape(-1)
        begin, end = (int(where[0]), int(where[-1]) + 1) if len(where) else (0, 0)
        if end - begin != len(where):
            raise UnsupportedError(f"attention_mask[{i}]: zeros between ones, expected padding on the left or the right")
        spans.append((begin, end))
    return spans


def _attend(query: torch.Tensor, output: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: int, options: Any) -> None:
    """Requests of ``rows`` rows each; key and value [requests, num_kv_heads, keys, head_dim]."""
    count, keys = key.shape[0], key.shape[2]

    def integers(start: int, end: int, step: int = 1) -> torch.Tensor:
        return torch.arange(start, end, step, dtype=torch.int32, device=query.device)

    batch = _quire.Batch(
        query=query, output=output, query_start_loc=integers(0, count * rows + 1, rows) if rows else integers(0, 1),
        seq_lens=torch.full((count,), keys, dtype=torch.int32, device=query.device), block_table=integers(0, count)[:, None],
    )  # fmt: skip
    _quire.attend(batch, _quire.KVCache(key, value, "hnd"), options)


def _paged(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: Any, options: Any, step: dict[str, Any]) -> torch.Tensor:
    """Continuous batching: all rows in one sequence. The cache stores them and hands back every request's keys, back to back."""
    layer = module.layer_idx
    starts, ends = step["cu_seq_lens_q"], step["cu_seq_lens_k"]
    key, value = _stored(cache, key, value, layer, step)
    if isinstance(ends, dict):
        ends = _of_layer(ends, cache, layer)
    rows, requests = query.shape[2], starts.shape[0] - 1
    keys = key.shape[0]
    output = torch.zeros((1, rows, query.shape[1], value.shape[-1]), dtype=query.dtype, device=query.device)
    table = _tables(step, ends, keys, requests)
    batch = _quire.Batch(
        query=query[0].transpose(0, 1), output=output[0], query_start_loc=starts, seq_lens=ends[1:] - ends[:-1], block_table=table, padding="left",
    )  # fmt: skip
    _quire.attend(batch, _quire.KVCache(key[:, None], value[:, None], "nhd"), options)
    return output


def _tables(step: dict[str, Any], ends: torch.Tensor, keys: int, requests: int) -> torch.Tensor:
    """Pages of one token: the table of all layers with the same ends, made by the first of them."""
    known = step.get("quire_tables")
    if known is not None and known[0] is ends:
        return known[1]
    width = int((ends[1:] - ends[:-1]).max()) if requests else 1
    table = (ends[:-1, None] + torch.arange(max(1, width), device=ends.device)).to(torch.int32).clamp_(max=max(0, keys - 1))
    step["quire_tables"] = (ends, table)
    return table


def _of_layer(ends: dict[str, torch.Tensor], cache: Any, layer: int) -> torch.Tensor:
    if len(ends) == 1:
        return next(iter(ends.values()))
    if hasattr(cache, "layer_to_allocator"):
        return ends[cache.layer_to_allocator[layer].layer_type]
    return ends["sliding_attention" if cache.sliding_windows[layer] > 1 else "full_attention"]


def _stored(cache: Any, key: torch.Tensor, value: torch.Tensor, layer: int, step: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """[keys of all requests, num_kv_heads, head_dim], behind the cache's own write."""
    import inspect

    if "kwargs" in inspect.signature(cache.update).parameters:  # 5.23
        key, value = cache.update(key, value, layer, kwargs=dict(step))
        return tuple(x.squeeze(0).transpose(0, 1) for x in (key, value))  # type: ignore[return-value]
    key, value = cache.update(key, value, layer, step["read_index"], step["write_index"])
    return key, value
