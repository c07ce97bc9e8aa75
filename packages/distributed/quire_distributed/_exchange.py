# SPDX-License-Identifier: Apache-2.0
"""Partial results of a step in one buffer, so that one exchange moves both outputs and log-sum-exps, and the choice of exchange.

    buffer [num_q_heads, block] f32:  a head's outputs [num_tokens, V's head_dim], then its lse [num_tokens], each padded to 16 bytes

Heads come first, so a rank's share of the heads is contiguous: the same buffer serves all-gather and all-to-all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from quire._arrays import empty_f32_like, is_torch
from quire.errors import ArgumentError

from quire_distributed._groups import Group

_ALIGN = 4  # f32 numbers: outputs of every head begin at a multiple of 16 bytes, as vector stores like it


def transposed(array: Any, *axes: int) -> Any:
    return array.permute(*axes) if is_torch(array) else array.transpose(*axes)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the partial results of one step. head_dim: of V. itemsize: bytes of an output element; below 4 outputs have the query's dtype."""

    num_tokens: int
    num_q_heads: int
    head_dim: int
    itemsize: int = 4

    @property
    def out_words(self) -> int:
        """f32 words of one head's outputs."""
        return _rounded_up(-(-self.num_tokens * self.head_dim * self.itemsize // 4))

    @property
    def block(self) -> int:
        """f32 words of one head."""
        return self.out_words + _rounded_up(self.num_tokens)

    @property
    def bytes(self) -> int:
        return 4 * self.num_q_heads * self.block

    def empty(self, like: Any) -> Any:
        """A buffer of the library and on the device of ``like``. Padding is zero: no uninitialised byte travels."""
        buffer = empty_f32_like(like, (self.num_q_heads, self.block))
        if self.num_tokens % _ALIGN or self.num_tokens * self.head_dim * self.itemsize % (4 * _ALIGN):
            buffer[:] = 0
        return buffer

    def views(self, buffer: Any, dtype: Any = None) -> tuple[Any, Any]:
        """(out [..., num_tokens, heads, head_dim], lse [..., num_tokens, heads]) of a buffer [heads, block] or [parts, heads, block].
        dtype: of the outputs, if their itemsize is below 4."""
        out = buffer[..., : self.out_words]
        out = out if self.itemsize == 4 else out.view(dtype)
        out = out[..., : self.num_tokens * self.head_dim].reshape(*buffer.shape[:-1], self.num_tokens, self.head_dim)
        lse = buffer[..., self.out_words : self.out_words + self.num_tokens]
        if buffer.ndim == 2:
            return transposed(out, 1, 0, 2), transposed(lse, 1, 0)
        return transposed(out, 0, 2, 1, 3), transposed(lse, 0, 2, 1)


def _rounded_up(words: int) -> int:
    return -(-words // _ALIGN) * _ALIGN


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Kind of exchange by which partial results become results, or keys come to the rows.

    kind: "all_gather": every rank receives all partial results and merges them. "all_to_all": rank k receives the partial results of its
        share of the heads and merges them; if every rank wants all heads, an all-gather of results follows. Of prompts: "gather", every
        rank receives all keys; "ring", blocks of keys go from rank to rank.
    reason: why, with bytes and predicted time.
    """

    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def choose_exchange(layout: Layout, group: Group, heads: str, asked: str, itemsize: int = 4) -> Exchange:
    """The exchange that is predicted to take less time: exchanges * latency + bytes received / bandwidth.

    asked: "auto", or the kind that the caller wants. heads: "all" or "own". itemsize: bytes of an output element.
    """
    if asked not in ("auto", "all_gather", "all_to_all"):
        raise ArgumentError(f"exchange: {asked!r} is none of auto, all_gather, all_to_all")
    if heads not in ("all", "own"):
        raise ArgumentError(f"heads: {heads!r} is none of all, own")
    others = group.world - 1
    divides = layout.num_q_heads % group.world == 0
    if not divides and (heads == "own" or asked == "all_to_all"):
        raise ArgumentError(
            f"heads: {layout.num_q_heads} query heads on {group.world} ranks: own heads and all_to_all need a multiple of the ranks"
        )
    gathered = others * layout.bytes
    swapped = others * layout.bytes // group.world
    results = others * layout.num_tokens * layout.num_q_heads * layout.head_dim * itemsize // group.world if heads == "all" else 0
    steps = 2 if heads == "all" else 1

    def seconds(exchanges: int, received: int) -> float:
        return exchanges * group.latency + received / group.bandwidth

    by_gather, by_swap = seconds(1, gathered), seconds(steps, swapped + results)
    numbers = (
        f"all_gather receives {_size(gathered)} ({1e6 * by_gather:.0f} us predicted on {group.name}), "
        f"all_to_all {_size(swapped + results)} in {steps} exchange{'s' if steps > 1 else ''} ({1e6 * by_swap:.0f} us)"
    )
    if asked != "auto":
        return Exchange(asked, f"as asked; {numbers if divides else f'all_gather receives {_size(gathered)}'}")
    if not divides:
        return Exchange("all_gather", f"{layout.num_q_heads} query heads do not divide among {group.world} ranks")
    return Exchange("all_gather" if by_gather <= by_swap else "all_to_all", numbers)


def _size(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1e3:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"


def empty_stack(buffer: Any, count: int) -> Any:
    return empty_f32_like(buffer, (count, *buffer.shape))


def join_heads(parts: Any, out: Any) -> None:
    """parts [world, num_tokens, heads of a rank, head_dim] into out [num_tokens, num_q_heads, head_dim]."""
    world, num_tokens, heads, head_dim = parts.shape
    for k in range(world):
        out[:, k * heads : (k + 1) * heads] = parts[k]


def bits_of(array: Any) -> int:
    """A digest of an array's values, whatever integer type it has."""
    import zlib

    host = array.detach().cpu().numpy() if is_torch(array) else np.asarray(array)
    return zlib.crc32(np.ascontiguousarray(host, np.int64).tobytes())
