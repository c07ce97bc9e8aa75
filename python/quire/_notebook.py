# SPDX-License-Identifier: Apache-2.0
"""Display of objects in a notebook: `_repr_html_` for objects that have a text for people, or a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from types import ModuleType
from typing import Any


def _text(thing: Any) -> str:
    return f"<pre>{escape(str(thing))}</pre>"


def _table(numbers: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], str]:
    def html(thing: Any) -> str:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in numbers(thing).items())
        return f"<table><caption>quire.{type(thing).__name__}</caption>{rows}</table>"

    return html


def _pool(pool: Any) -> dict[str, Any]:
    stats = pool.stats
    names = ("num_pages", "pages_in_use", "pages_shared", "prefix_hit_tokens", "preemptions", "evictions")
    return {"page_size": pool.page_size, **{name: getattr(stats, name) for name in names}}


def _ledger(ledger: Any) -> dict[str, Any]:
    return {name: getattr(ledger, name) for name in ("slots_written", "slots_read")}


def _reference(reference: Any) -> dict[str, Any]:
    return {name: getattr(reference, name) for name in ("num_tokens", "num_q_heads", "head_dim", "profile")}


def _case(case: Any) -> dict[str, Any]:
    observed = case.observed is not None
    return {"batch": case.batch, "cache": case.cache, "options": case.options, "observed output": "yes" if observed else "no", **case.notes}


def show_in_notebooks(module: ModuleType) -> None:
    """module: the compiled one, which has the classes below, or stand-ins in a build with attention only."""
    for name in ("Comparison", "Explanation", "Verdict", "Findings"):
        getattr(module, name)._repr_html_ = _text
    for name, numbers in (("PagePool", _pool), ("SlotLedger", _ledger), ("Reference", _reference), ("Case", _case)):
        getattr(module, name)._repr_html_ = _table(numbers)
