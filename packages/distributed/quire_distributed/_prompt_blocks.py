# SPDX-License-Identifier: Apache-2.0
"""Keys and values of a rank as pages that travel, and calls of attention over them."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from quire import _quire
from quire._arrays import empty_part_like, is_torch


@dataclasses.dataclass(frozen=True)
class PromptCall:
    """A planned call of attention: a rank's rows and the keys that it has at one time. Each prompt is two requests, a chunk of rows each."""

    indices: dict[str, Any]  # index arrays, where the query is
    local: Any  # quire.Plan


def on_gpu(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


def beside(array: np.ndarray, like: Any) -> Any:
    """An index array where ``like`` is."""
    if not is_torch(like):
        return array
    torch = sys.modules["torch"]
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)


def packed_block(key: Any, value: Any, rows: int, slots: Any) -> Any:
    """[2, rows, heads, dim]: a rank's keys and values in its pages."""
    made = empty_part_like(key, (2, rows, *key.shape[1:]))
    pack_block(made, key, value, slots)
    return made


def pack_block(block: Any, key: Any, value: Any, slots: Any) -> None:
    """Writes a rank's keys and values to their pages. Tails of chunks travel, too, and are zero. slots None: no tails."""
    if slots is None:
        block[0], block[1] = key, value
        return
    block[...] = 0
    block[0, slots], block[1, slots] = key, value


def pages_of(blocks: Any, plan_pages: int, page_size: int) -> tuple[Any, Any]:
    """(k, v) of blocks [..., 2, rows, heads, dim]: pages of v lie ``plan_pages`` behind those of k, so one id serves both."""
    heads, dim = blocks.shape[-2:]
    pages = blocks.reshape(-1, page_size, heads, dim)
    return pages[: pages.shape[0] - plan_pages], pages[plan_pages:]


def planned(
    part: Any, output: Any, lse: Any, cache: Any, options: Any, arrays: dict[str, np.ndarray], kernel: str | None, batch_invariant: bool
) -> PromptCall:
    """Plans attention of ``part`` of the query, whose lengths and tables ``arrays`` holds."""
    indices = {name: beside(array, part) for name, array in arrays.items()}
    batch = _quire.Batch(query=part, output=output, lse=lse, **indices)
    longest = dict(
        max_query_len=max(int(np.diff(arrays["query_start_loc"]).max(initial=1)), 1),
        max_seq_len=max(int(arrays["seq_lens"].max(initial=1)), 1),
    )
    local = _quire.plan(batch, cache, options, kernel=kernel, batch_invariant=batch_invariant, **longest)
    return PromptCall(indices, local)
