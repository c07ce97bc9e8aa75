# SPDX-License-Identifier: Apache-2.0
"""One batch through quire: attend(), plan() with each kernel that takes it, bind() and append(), each judged by the oracle."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import appends
import oracle
import quire
from batches import Batch, in_layout
from elements import bits_type, decode
from views import View, in_bits

FILL = 0xA5  # byte that fills outputs before a call
OF_CACHE, OF_OPTIONS = ("k_scale", "v_scale", "k_block_scale", "v_block_scale"), ("alibi_slopes", "sinks")
ELSEWHERE = ("k", "v", *OF_CACHE, *OF_OPTIONS)  # tensors that are not of quire.Batch
Fault = Callable[[str, dict[str, Any]], None]  # changes the arguments of quire.Batch, KVCache or Options: what a broken kernel would do


@dataclasses.dataclass
class Result:
    """What became of one batch. `kernels`: rows by kernel are counted as one batch of each."""

    kernels: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)  # reasons why this backend refused a valid batch
    worst: float = 0.0  # error over tolerance


class Call:
    """The objects of one batch on one library, and outputs for several calls."""

    def __init__(self, batch: Batch, library: Any, fault: Fault | None = None):
        self.batch, self.library, self.fault = batch, library, fault
        self.poison = 0xFF if batch.seed % 3 else 0x7F
        memory = batch.arena.build(self.poison, library.backwards)
        self.inputs = library.place(memory)
        self.tensors = {name: library.view(self.inputs, view) for name, view in batch.arena.views.items()}
        self.outputs: list[Any] = []
        self.keywords = {"cache": self.cache_keywords(), "options": self.option_keywords()}

    def planted(self, what: str, keywords: dict[str, Any]) -> dict[str, Any]:
        if self.fault is not None:
            self.fault(what, keywords)
        return keywords

    def cache_keywords(self) -> dict[str, Any]:
        s = self.batch.sides
        named = {name: self.tensors[name] for name in OF_CACHE if name in self.tensors}
        return self.planted("cache", {"k": self.tensors["k"], "v": self.tensors["v"], "layout": s.layout, "dtype": s.k, "v_dtype": s.v, **named})

    def option_keywords(self) -> dict[str, Any]:
        named = {name: self.tensors[name] for name in OF_OPTIONS if name in self.tensors}
        given = {name: value for name, value in self.batch.options.items() if value is not None}
        return self.planted("options", {**given, **named})

    def objects(self) -> tuple[Any, Any, Any]:
        """Batch, cache and options, with an output of their own."""
        batch = self.batch
        placed = self.library.filled(batch.outputs.bytes(), FILL)
        self.outputs.append(placed)
        made = {name: self.library.view(placed, view) for name, view in batch.outputs.views.items()}
        inputs = {name: tensor for name, tensor in self.tensors.items() if name not in ELSEWHERE}
        keywords = self.planted("batch", {**inputs, **made, "padding": batch.given["padding"]})
        return quire.Batch(**keywords), quire.KVCache(**self.keywords["cache"]), quire.Options(**self.keywords["options"])

    def observed(self, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, bool]:
        """Output in fp64, lse, and whether a byte beside them changed."""
        views = self.batch.outputs.views
        self.planted("memory", {"memory": memory, "views": views, "batch": self.batch})
        found = {name: in_bits(memory, view, self.library.backwards).copy() for name, view in views.items()}
        for view in views.values():
            in_bits(memory, view, False)[...] = filled(view)
        stray = bool((memory != FILL).any())
        return decode(found["output"], self.batch.sides.out), found.get("lse"), stray


def filled(view: View) -> Any:
    """The element whose bytes are FILL."""
    kind = np.dtype(bits_type(view.dtype))
    return np.full(kind.itemsize, FILL, np.uint8).view(kind)[0]


def judge(call: Call, memory: np.ndarray, plan: Any, answer: oracle.Answer, what: str, result: Result) -> None:
    """Compares one call's output with the oracle's. Rows that a plan may round weights of have the wider tolerance."""
    batch, dtype = call.batch, call.batch.sides.out
    out, lse, stray = call.observed(memory)
    tokens = batch.tokens
    tolerance = answer.out_tolerance.copy()
    for r, rows in enumerate(batch.q_lens):
        if rows and plan.rounds_weights(rows):
            first = int(batch.starts()[r])
            tolerance[first : first + rows] += answer.rounded_weights[first : first + rows]
    kept = slice(0, batch.rows if batch.given["padding"] == "zero" else tokens)
    bad = oracle.wrong_elements(out[kept], answer.out[kept], tolerance[kept], dtype)
    if bad.any():
        row, head, dim = map(int, np.argwhere(bad)[0])
        result.wrong.append(f"{what}: {int(bad.sum())} of {bad.size} wrong, first output[{row}][{head}][{dim}] is {out[row, head, dim]:.7g}, "
                            f"expected {answer.out[row, head, dim]:.7g} +- {tolerance[row, head, dim]:.2g}")  # fmt: skip
    elif tokens:
        with np.errstate(invalid="ignore", divide="ignore"):
            result.worst = max(result.worst, float(np.nanmax(np.abs(out[:tokens] - answer.out[:tokens]) / tolerance[:tokens])) if dtype != "fp8_e4m3fn" else 0)
    if lse is not None:
        off = oracle.wrong_elements(lse[kept].astype(np.float64), answer.lse[kept], answer.lse_tolerance[kept], "f32")
        if off.any():
            row, head = map(int, np.argwhere(off)[0])
            result.wrong.append(f"{what}: {int(off.sum())} of {off.size} lse wrong, first [{row}][{head}] is {lse[row, head]:.7g}, expected "
                                f"{answer.lse[row, head]:.7g} +- {answer.lse_tolerance[row, head]:.2g}")  # fmt: skip
    if batch.given["padding"] == "left":
        of_padding = out[tokens:]
        left = decode(np.asarray([filled(batch.outputs.views["output"])]), dtype)[0]
        if not np.array_equal(of_padding, np.full_like(of_padding, left), equal_nan=True):
            result.wrong.append(f"{what}: a padding row was written")
    if stray:
        result.wrong.append(f"{what}: bytes between the rows of output or lse were written")


def run_attend(call: Call, how: str, kernel: str | None, settings: dict[str, Any], result: Result) -> tuple[Any, str]:
    """One way to the same answer: attend (plans for itself), plan (one plan, given), or bind. The plan, and the way in words."""
    b, c, o = call.objects()
    rows: dict[str, int] = {}
    plan = quire.plan(b, c, o, kernel=kernel, **settings)
    if how == "attend":
        quire.attend(b, c, o, rows=rows)
    elif how == "plan":
        quire.attend(b, c, o, plan=plan, rows=rows)
    else:
        bound = quire.bind(b, c, o, plan=plan)
        bound(b.query, call.keywords["cache"]["k"], call.keywords["cache"]["v"], b.output)
        hear(b, c, o, bound, call.library.name)
    result.kernels.update({name: 1 for name, count in rows.items() if count} or {plan.kernel: 1})
    return plan, f"{how} {plan.kernel} {settings or ''}".strip()


def hear(b: Any, c: Any, o: Any, bound: Any, where: str) -> None:
    """What became of a call that nobody waited for. A workspace is asked before it is freed: its memory, which others write to, may
    be the next one's, and an outcome there that nobody has asked for would be told as that one's."""
    try:
        if where != "cpu":
            quire.synchronize()
    finally:
        quire.attend_status(b, c, o, bound.plan, bound.workspace, rows={})


def kernels_that_take(call: Call, backend: str, settings: dict[str, Any]) -> list[str]:
    b, c, o = call.objects()
    call.outputs.pop()
    taken = []
    for kernel in kernels_of(backend):
        with contextlib.suppress(quire.UnsupportedError):
            taken.append(quire.plan(b, c, o, kernel=kernel, **settings).kernel)
    return taken


@functools.lru_cache(None)
def kernels_of(backend: str) -> list[str]:
    return [kernel.name for kernel in quire.info.kernels() if kernel.backend == backend and kernel.runs_here]


def run(batch: Batch, library: Any, backend: str, fault: Fault | None = None, bind: bool = True, all_kernels: bool = True, append: bool = True) -> Result:
    """All ways of a batch, or attend() and append() alone. Errors of a valid batch count as refusals; those of the device come out."""
    result, random = Result(), np.random.default_rng([batch.seed, 77])
    call, done = Call(batch, library, fault), []
    settings = [{}, {}, {"exact_weights": True}, {"batch_invariant": True}][int(random.integers(0, 4))]
    ways: list[tuple[str, str | None, dict[str, Any]]] = [("attend", None, {})] if random.random() < 0.5 else [("plan", None, settings)]
    try:
        taken = kernels_that_take(call, backend, settings) if all_kernels else []
        ways += [("plan", kernel, settings) for kernel in taken]
        ways += [("bind", str(random.choice(taken)), settings)] if bind and taken else []
    except quire.Error as error:
        result.refused.append(f"plan: {type(error).__name__}: {error}")
        return result
    for how, kernel, set_so in ways:
        try:
            done.append((run_attend(call, how, kernel, set_so, result), call.outputs[-1]))
        except quire.errors.DeviceError:
            raise
        except quire.Error as error:
            result.refused.append(f"{how} {kernel or ''}: {type(error).__name__}: {error}")
    answer = oracle.attend(batch)
    for ((plan, what), _), memory in zip(done, library.back([memory for _, memory in done])):
        judge(call, memory, plan, answer, what, result)
    if append:
        run_append(call, library, result)
    return result


def run_append(call: Call, library: Any, result: Result, dtype: str | None = None) -> None:
    """append() into the cache of the batch, which attention has read by now, or not at all where V shares K's memory."""
    batch, s = call.batch, call.batch.sides
    if s.latent and s.k != "fp8_ds_mla":
        return
    rows = appends.Rows(batch, dtype)
    memory = library.place(rows.arena.build(call.poison, library.backwards))
    key, value, slots = (library.view(memory, rows.arena.views[name]) for name in ("key", "value", "slots"))
    call.planted("append", {"key": key, "value": value, "slots": slots, "rows": rows})
    before = library.back([call.inputs])[0]
    try:
        quire.append(quire.KVCache(**call.keywords["cache"]), key, value, slots)
        after = library.back([call.inputs])[0]
    except quire.errors.DeviceError:
        raise
    except quire.Error as error:
        result.refused.append(f"append {rows.dtype}: {type(error).__name__}: {error}")
        return
    result.kernels["append"] += 1
    for name, expected in appends.after(batch, rows).items():
        view = batch.arena.views[name]
        dtype = {"k": s.k, "v": s.v}.get(name, view.dtype)
        logical = in_layout(expected, s.layout, name == "k") if name in ("k", "v") else expected
        observed = in_bits(after, view, library.backwards)
        fine = appends.same_bits(observed, np.ascontiguousarray(logical), dtype)
        if not fine.all():
            at = tuple(map(int, np.argwhere(~fine)[0]))
            result.wrong.append(f"append {rows.dtype} to {s.k}/{s.v}: {int((~fine).sum())} of {fine.size} of {name} differ, first {list(at)} is "
                                f"{observed[at]}, expected {logical[at]}")  # fmt: skip
        observed[...] = in_bits(before, view, library.backwards)
    if (after != before).any():
        result.wrong.append(f"append {rows.dtype} to {s.k}/{s.v}: bytes outside of the cache were written")
