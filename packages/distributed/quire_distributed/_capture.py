# SPDX-License-Identifier: Apache-2.0
"""Captures of a sharded call: each rank's own attention as any call is captured, and its result; and whose fault a wrong result is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import quire
from quire import _quire
from quire._arrays import is_torch, typed_view
from quire._messages import keywords_checked
from quire.errors import ArgumentError, UnsupportedError
from quire.results import Diagnosis

# Roundings of docs/reference/numerics.md: half an ulp of a type and its smallest number; f32 sums; products of errors.
_STORED = {"f32": (2.0**-24, 2.0**-149), "f16": (2.0**-11, 2.0**-24), "bf16": (2.0**-8, 2.0**-133)}
_F32, _SECOND_ORDER = 2.0**-24, 1.0625
_WEIGHT_STEPS = 8  # roundings of one weight exp(lse_k - max) / sum: two of exp, the sum, the division, the product; doubled


def _on_host(array: Any) -> Any:
    return array.detach().cpu() if is_torch(array) else array


def _f32(array: Any, dtype: str) -> np.ndarray:
    """Values of 16 or 32 bits, exactly. dtype: what raw bits are."""
    host = _on_host(array)
    bits, found = _quire.bits(host, "result", dtype if str(host.dtype) == "uint16" else None)
    return typed_view(bits, found).astype(np.float32) if found == "bf16" else bits.view({"f16": np.float16, "f32": np.float32}[found]).astype(np.float32)


def write_rank(folder: Any, mine: Any, cache: Any, options: Any, *, plan: Any, result: Any, dtype: str) -> None:
    """mine: the batch of the rank's own attention, which holds its part. result: what the rank has after the exchange."""
    if mine.output_scale is not None or dtype not in _STORED:
        raise UnsupportedError("capture: queries or outputs of 8 bits; captures of ranks hold rows of 16 or 32 bits")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.fsdecode(folder), f"rank{plan.shard.rank}")
    names = ("query", "query_start_loc", "seq_lens", "block_table", "causal", "q_begin", "key_begin")
    arrays = {name: _on_host(getattr(mine, name)) for name in names if getattr(mine, name) is not None}
    held = _quire.KVCache(_on_host(cache.k), _on_host(cache.v), cache.layout, _on_host(cache.k_scale), _on_host(cache.v_scale), dtype=cache.dtype)
    part = [a.contiguous() if is_torch(a) else np.ascontiguousarray(a) for a in (_on_host(mine.output), _on_host(mine.lse))]
    out, lse = (_f32(array, dtype) for array in part)
    notes = {"producer": "quire_distributed.attend", "rank": str(plan.shard.rank), "world": str(plan.shard.world)}
    _quire.write_capture(path + ".safetensors", _quire.Batch(**arrays, dtype=dtype), held, options, *part, notes)
    first = plan.shard.rank * out.shape[1] // plan.shard.world if plan.heads == "own" else 0
    np.savez(path + ".npz", out=out, lse=lse, result=_f32(result, dtype), first_head=first, dtype=dtype, world=plan.shard.world)


def _weighted(outs: np.ndarray, lses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The merge of parts [ranks, rows, heads, dims] in fp64, and how far an f32 merge of them may be from it."""
    top = lses.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(lses - top)
    total = weights.sum(axis=0)
    weights = (weights / np.where(total > 0, total, 1.0))[..., None]
    argument = np.where(np.isfinite(lses), np.abs(lses - top), 0.0) + np.abs(top) + _WEIGHT_STEPS + len(lses)
    return (weights * outs).sum(axis=0), _F32 * (weights * argument[..., None] * np.abs(outs)).sum(axis=0)


def _without(rank: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda outs, lses: _weighted(np.delete(outs, rank, 0), np.delete(lses, rank, 0))[0]


def _mistakes(world: int) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """What became of right parts, by what ranks did with them."""
    return {
        **{f"rank {k}'s part is missing": _without(k) for k in range(world if world > 1 else 0)},
        **{f"the result is rank {k}'s part alone": lambda outs, lses, k=k: outs[k] for k in range(world)},
        "parts are added without weights": lambda outs, lses: outs.sum(axis=0),
        "parts are averaged without weights": lambda outs, lses: outs.mean(axis=0),
        "natural lse are merged as those of base 2": lambda outs, lses: _weighted(outs, lses * np.log(2.0))[0],
        "lse of base 2 are merged as natural ones": lambda outs, lses: _weighted(outs, lses / np.log(2.0))[0],
        "a rank without keys has the lse 0": lambda outs, lses: _weighted(outs, np.where(np.isneginf(lses), 0.0, lses))[0],
    }


@dataclasses.dataclass(frozen=True)
class RankDiagnosis:
    """What :func:`diagnose` found. True if every part and every result is right; str() is the report."""

    parts: tuple[Diagnosis, ...]
    """Of each rank's own attention."""
    results: tuple[str, ...]
    """What is wrong with each rank's result; "" = it is the merge of the parts."""
    cause: str
    """What ranks did with the parts, where it explains every element of every wrong result; else ""."""

    def __bool__(self) -> bool:
        return all(self.parts) and not any(self.results)

    def __str__(self) -> str:
        lines = []
        for k, part in enumerate(self.parts):
            lines.append(f"part     rank {k}: {'right' if part else 'wrong'}")
            lines += [] if part else ["         " + line for line in str(part).splitlines()]
        lines += [f"result   rank {k}: {wrong or 'the merge of the parts'}" for k, wrong in enumerate(self.results)]
        return "\n".join(lines + ([f"cause    {self.cause}"] if self.cause else []))


class _Judged:
    """A rank's result beside a merge of all parts, of the heads that it has."""

    def __init__(self, saved: Any, slack: np.ndarray):
        self.seen, first = saved["result"].astype(np.float64), int(saved["first_head"])
        self.heads = slice(first, first + self.seen.shape[1])
        self._roundoff, self._smallest = _STORED[str(saved["dtype"])]
        self._slack = slack[:, self.heads]

    def wrong(self, expected: np.ndarray) -> str:
        expected = expected[:, self.heads]
        tolerance = _SECOND_ORDER * (self._slack + self._roundoff * np.abs(expected)) + self._smallest
        bad = ~(np.abs(self.seen - expected) <= tolerance)  # NaN is bad
        if not bad.any():
            return ""
        row, head, dim = (int(i) for i in np.argwhere(bad)[0])
        return (f"wrong in {int(bad.sum())} of {bad.size} elements; row {row} head {head + self.heads.start} dim {dim}: "
                f"{self.seen[row, head, dim]:.6g}, expected {expected[row, head, dim]:.6g}")  # fmt: skip


@keywords_checked
def diagnose(folder: Any, *, seconds: float = 1.0) -> RankDiagnosis:
    """Says whose fault a wrong result of :func:`attend` is: a rank's own attention, or what became of the parts.

        quire_distributed.attend(batch, cache, group=group, plan=step, capture="wrong")       # on every rank
        print(quire_distributed.diagnose("wrong"))

    folder: where every rank wrote its captures. seconds: for :func:`quire.diagnose` of each rank's own attention.
    Raises ArgumentError if a rank's files are missing, FileError or ParseError for a bad file.
    """
    folder = os.fsdecode(folder)
    try:
        saved = [np.load(os.path.join(folder, "rank0.npz"))]
        saved += [np.load(os.path.join(folder, f"rank{k}.npz")) for k in range(1, int(saved[0]["world"]))]
    except FileNotFoundError as error:
        raise ArgumentError(f"folder: {error.filename} is missing, expected the files of every rank") from error
    parts = tuple(quire.diagnose(os.path.join(folder, f"rank{k}.safetensors"), seconds=seconds) for k in range(len(saved)))
    outs, lses = (np.stack([each[name] for each in saved]).astype(np.float64) for name in ("out", "lse"))
    merged, slack = _weighted(outs, lses)
    judged = [_Judged(each, slack) for each in saved]
    results = tuple(each.wrong(merged) for each in judged)
    blamed = [each for each, wrong in zip(judged, results) if wrong]
    explains = (text for text, mistake in _mistakes(len(saved)).items() if not any(each.wrong(mistake(outs, lses)) for each in blamed))
    return RankDiagnosis(parts, results, next(explains, "") if blamed else "")
