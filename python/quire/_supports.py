# SPDX-License-Identifier: Apache-2.0
"""Problems that an implementation takes, in words of its author: types by name, and attributes of a problem as a dict or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Union

from quire.errors import ArgumentError

__all__ = ["ATTRIBUTES", "TypePairs", "as_function", "from_words", "strides_of", "type_pairs"]

TypePairs = Iterable[Union[str, tuple[str, str]]]

ATTRIBUTES = (
    "query", "kv", "v", "layout", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "latent", "page_size", "reqs", "sliding_window", "logits_soft_cap",
    "softmax_scale", "alibi", "sinks", "lse", "k_scale", "v_scale", "index", "padding",
    "num_padding_rows", "shared_pages", "causal", "q_begin", "key_begin", "window_right",
    "attention_chunk", "prefix", "spans", "tree", "line",
)  # fmt: skip
_COLLECTIONS = (list, tuple, set, frozenset, range)
_CACHES = ("f32", "f16", "bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz", "i8", "nvfp4", "mxfp4")
_VALUES = {
    "query": ("f32", "f16", "bf16", "fp8_e4m3fn"), "kv": _CACHES, "v": _CACHES, "layout": ("nhd", "hnd", "packed"), "index": ("i32", "i64"),
    "padding": (None, "left", "zero"), "alibi": (False, True), "sinks": (False, True), "lse": (False, True),
    "causal": (False, True), "q_begin": (False, True), "key_begin": (False, True), "prefix": (False, True), "spans": (False, True),
    "tree": (False, True),
    "latent": (False, True), "k_scale": ("none", "tensor", "head", "token"), "v_scale": ("none", "tensor", "head", "token"),
}  # fmt: skip
"""Attributes with few values: another one would exclude every case without a word."""


def type_pairs(given: TypePairs) -> list[tuple[str, str]]:
    """("bf16", "f16:fp8_e4m3fn", ("f32", "f16")) -> pairs of query and cache; one name stands for both."""
    if isinstance(given, str):
        raise ArgumentError(f'types: expected a list, as ["{given}"], got one text')
    pairs = []
    for item in given:
        query, colon, cache = item.partition(":") if isinstance(item, str) else (item[0], ":", item[1])
        pairs.append((query, cache if colon else query))
    return pairs


def as_function(supports: Any) -> Callable[[dict[str, Any]], bool] | None:
    """A function of the attributes as a dict; None for None."""
    if supports is None:
        return None
    if isinstance(supports, Mapping):
        of_problems = {name: wanted for name, wanted in supports.items() if name != "strides"}
        return _of_dict(of_problems) if of_problems or not supports else None
    if not callable(supports):
        raise ArgumentError(f"supports: expected a dict or a function, got {type(supports).__name__}")
    return lambda attributes: bool(supports(SimpleNamespace(**attributes)))


_KEYS = {
    "q": "query", "kv": "kv", "kscale": "k_scale", "vscale": "v_scale", "window": "sliding_window", "cap": "logits_soft_cap",
    "scale": "softmax_scale", "d": "head_dim", "dv": "v_head_dim", "page": "page_size", "wright": "window_right", "chunk": "attention_chunk",
    "pad": "padding", "qbegin": "q_begin", "kbegin": "key_begin", "share": "shared_pages",
}  # fmt: skip
"""Keys of problem lines that are not called as the attribute is."""


def _value(name: str, text: str) -> Any:
    """A word of the command line as the value of an attribute: 0 and 1 of flags, numbers, "none" of what may be absent."""
    values = _VALUES.get(name, ())
    if text in values:
        return text
    if False in values and text in ("0", "1"):
        return text == "1"
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        return text


def from_words(texts: Iterable[str]) -> dict[str, Any] | None:
    """``["kscale=none vscale=none", "layout=nhd,hnd"]`` as a dict of attributes, which may also have their keys in problem lines."""
    given: dict[str, Any] = {}
    for word in " ".join(texts).split():
        key, equals, values = word.partition("=")
        if not equals or not values:
            raise ArgumentError(f"--supports {word}: expected NAME=VALUE or NAME=VALUE,VALUE, as kscale=none or layout=nhd,hnd")
        name = _KEYS.get(key, key)
        given[name] = values if name == "strides" else [_value(name, value) for value in values.split(",")]
    return given or None


def strides_of(supports: Any) -> str:
    """``strides`` of a dict, which is a property of the implementation and not of a problem; "" if it says none."""
    return str(supports.get("strides", "")) if isinstance(supports, Mapping) else ""


def _check_values(name: str, wanted: Any) -> None:
    if callable(wanted) or name not in _VALUES:
        return
    for value in wanted if isinstance(wanted, _COLLECTIONS) else [wanted]:
        if value not in _VALUES[name]:
            raise ArgumentError(f"supports: {name} is never {value!r}; it is one of {', '.join(map(repr, _VALUES[name]))}")


def _of_dict(allowed: Mapping[str, Any]) -> Callable[[dict[str, Any]], bool]:
    for name in allowed:
        if name not in ATTRIBUTES:
            raise ArgumentError(f'supports: no attribute is called "{name}"; there are {", ".join(ATTRIBUTES)}')
        _check_values(name, allowed[name])

    def accepts(value: Any, wanted: Any) -> bool:
        if callable(wanted):
            return bool(wanted(value))
        return value in wanted if isinstance(wanted, _COLLECTIONS) else bool(value == wanted)

    return lambda attributes: all(accepts(attributes[name], wanted) for name, wanted in allowed.items())
