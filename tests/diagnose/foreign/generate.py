# SPDX-License-Identifier: Apache-2.0
"""Writes captures with planted faults, and the truth of each beside it.

    python generate.py --out FOLDER --count 1000 [--part development|later|held_out] [--first 0]

Capture i of a part is the same whatever else is generated. Names: PART-00042.safetensors, PART-00042.truth.json.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from attention import run
from batches import random_batch
from capture_file import write_capture
from draw import Draw
from mechanisms import FAMILIES, draw_fault
from outside import plant_outside
from reference import reference
from scopes import dims_of, random_scope

PER_BATCH = 4    # captures that share a batch, as making one and its reference costs more than a fault
CLASSES = ["inside"] * 15 + ["outside"] * 2 + ["two"] * 3
SURE, CLEAR = 2.0, 0.5    # error / tolerance from which a cell is wrong, and to which it is right


class Right:
    """A batch with its right answer, its tolerance and what a right kernel writes."""

    def __init__(self, batch):
        self.batch = batch
        self.out, self.lse, self.tol, self.lse_tol = reference(batch)
        self.base, self.base_lse = run(batch)
        self.exact, self.exact_lse = run(batch, dtype=np.float64) if batch.weight_type else (self.out, self.lse)

    def ratio(self, out, lse):
        """Gives error / tolerance of each (token, head, dim) and of each lse; a mismatch of class is infinite."""
        def of(x, right, tol):
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(x.astype(np.float64) - right) / tol
            return np.where(np.isfinite(x) | (x == right), np.where(x == right, 0, error), np.inf)
        out_ratio = of(out, self.out, self.tol)
        lse_ratio = of(lse, self.lse, self.lse_tol) if self.batch.with_lse else np.zeros(lse.shape)
        return out_ratio, lse_ratio


def cells_ratio(ratios, dims=None):
    out_ratio, lse_ratio = ratios
    chosen = out_ratio if dims is None or dims.all() else out_ratio[..., dims]
    part = chosen.max(axis=-1)
    return np.maximum(part, lse_ratio) if dims is None or dims.all() else part


def runs(mask):
    """Encodes the true cells of a mask, flattened, as [first, count] pairs."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask.reshape(-1), [False]]).astype(np.int8)))
    return [[int(a), int(b - a)] for a, b in zip(edges[::2], edges[1::2])]


class Planted:
    """A fault with a scope, and what both do to a batch."""

    def __init__(self, right, fault, scope):
        batch = right.batch
        # fp64 tells what a fault did not touch from what it did not move visibly.
        if fault.edit:
            self.out, self.lse = run(batch, fault, np.float64)
        else:
            self.out, self.lse = fault.output(right.exact.copy(), right.exact_lse.copy())
        self.fault, self.right = fault, right
        self.ratios = right.ratio(self.out, self.lse)
        size = np.abs(right.exact).max(axis=-1) + 1e-30
        self.moved = np.nan_to_num(np.abs(self.out - right.exact), nan=np.inf) / size[..., None]
        self.narrow(scope)

    def narrow(self, scope):
        """Evaluates another scope without computing again."""
        self.scope = scope
        batch = self.right.batch
        self.dims = dims_of(scope, batch.dim)
        whole = bool(self.dims.all())
        self.ratio = cells_ratio(self.ratios, None if whole else self.dims)
        moved = (self.moved if whole else self.moved[..., self.dims]).max(axis=-1)
        if batch.with_lse and whole:
            moved = np.maximum(moved, np.nan_to_num(np.abs(self.lse - self.right.exact_lse), nan=np.inf))
        self.touched = moved > 1e-6
        self.cells = batch.cells.select(scope)

    def shows(self):
        """Gives the share of the scope's touched cells that are clearly wrong."""
        here = self.cells & self.touched
        return float((self.cells & (self.ratio > SURE)).sum() / max(1, here.sum()))

    def wrong(self):
        return self.cells & (self.ratio > SURE)

    def truth(self):
        f, wrong = self.fault, self.wrong()
        return {"mechanism": f.family, "variant": f.variant, "parameters": f.parameters, "scope": self.scope,
                "home": f.home, "cells": int(self.cells.sum()), "wrong_cells": int(wrong.sum()), "shows": self.shows(),
                "effect": runs(self.ratio > SURE), "wrong": runs(wrong), "same_as": same_as(self)}


def kept_nan(planted, wrong):
    """Says whether the wrong cells are NaN in all they have, as a buffer is that held NaN and was never written."""
    before = planted.right.batch.before
    held = before is None or np.isnan(before[wrong].astype(np.float32)).all()
    lse = planted.lse[wrong]
    return bool(held and np.isnan(planted.out[wrong]).all() and (not planted.right.batch.with_lse or np.isnan(lse).all()))


def same_as(planted):
    """Names mechanisms that predict the same on this batch: a factor per head, zeros, or NaN that was there before."""
    wrong, right = planted.wrong(), planted.right
    t, h = np.nonzero(wrong)
    if not planted.dims.all() or len(t) == 0:
        return []
    if kept_nan(planted, wrong):
        return ["not_written"]
    if not np.isfinite(planted.out[t, h]).all():
        return []
    a, b, tol = planted.out[t, h].astype(np.float64), right.out[t, h], right.tol[t, h]
    if planted.right.batch.with_lse and (right.ratio(planted.out, planted.lse)[1][t, h] > 1).any():
        return []
    names = []
    if (np.abs(a) <= tol).all():
        names.append("not_written")
    # One factor per head, from the cells' least squares.
    up, down = np.zeros(right.batch.num_heads), np.zeros(right.batch.num_heads)
    np.add.at(up, h, (a * b).sum(axis=-1))
    np.add.at(down, h, (b * b).sum(axis=-1))
    c = up / np.maximum(down, 1e-300)
    if (np.abs(a - c[h][:, None] * b) <= tol * np.maximum(1, np.abs(c[h]))[:, None]).all():
        names.append("factor_out")
    return names


def wrong_dims(right, out, lse, wrong):
    """Lists the dims that are wrong in some wrong cell; -1 alone where only the lse is wrong."""
    dims = np.flatnonzero((right.ratio(out, lse)[0][wrong] > SURE).any(axis=0))
    return dims.tolist() or [-1]


def families(batch):
    """Lists families as often as they shall be drawn: those with many variants and those that few batches allow more often."""
    names = sorted(FAMILIES) + ["key_range", "key_range", "page_contents", "rope", "rounded", "split"]
    for name, there in (("soft_cap", batch.cap), ("alibi_slope", batch.slopes), ("sink", batch.sinks),
                        ("factor_out", batch.v_scale), ("factor_scores", batch.k_scale)):
        names += [] if there is None else [name] * 2
    return names


def draw_planted(draw, right, tries=16):
    """Draws mechanisms and scopes until one shows in most of its scope."""
    for _ in range(tries):
        fault = draw_fault(draw, right.batch, draw.any(families(right.batch)))
        if fault is None:
            continue
        planted = Planted(right, fault, list(fault.home))
        if not planted.wrong().any() or planted.shows() < 0.5:
            continue
        for _ in range(6):
            planted.narrow(random_scope(draw, right.batch, fault))
            if planted.wrong().sum() >= 2 and planted.shows() >= 0.6:
                return planted
    return None


def apply(planted, out, lse):
    where = planted.cells[..., None] & planted.dims
    out = np.where(where, planted.out, out)
    return out, np.where(planted.cells, planted.lse, lse) if planted.dims.all() else lse


def draw_two(draw, right):
    """Draws two faults whose wrong cells are apart."""
    first = draw_planted(draw, right)
    for _ in range(10):
        second = draw_planted(draw, right)
        if first and second and not (first.cells & second.cells).any() and first.fault.variant != second.fault.variant:
            return [first, second]
    return None


def observed(batch, out):
    with np.errstate(over="ignore"):
        return out.astype(batch.q.dtype)


def unsure_cells(right, out, lse, moved):
    """Adds to cells within the margin those that are wrong only together with the rounding of the output."""
    return moved | (cells_ratio(right.ratio(observed(right.batch, out).astype(np.float64), lse)) > 0.97)


def make(draw, right, kind):
    """Gives (observed out, lse, truth) of one capture in f32, or None where nothing showed."""
    batch = right.batch
    if kind == "outside":
        out, lse, name, parameters = plant_outside(draw, batch, right.base, right.base_lse)
        ratio = cells_ratio(right.ratio(out, lse))
        wrong = ratio > SURE
        truth = {"faults": [], "outside": name, "parameters": parameters, "wrong": runs(wrong),
                 "unsure": runs(unsure_cells(right, out, lse, ratio > CLEAR) & ~wrong), "hidden": [],
                 "dims": wrong_dims(right, out, lse, wrong)}
        return (out, lse, truth) if wrong.any() else None
    faults = [draw_planted(draw, right)] if kind == "inside" else draw_two(draw, right)
    if not faults or faults[0] is None:
        return None
    out, lse = right.base, right.base_lse
    for planted in faults:
        out, lse = apply(planted, out, lse)
    inside = [p.cells & p.touched for p in faults]
    wrong = np.logical_or.reduce([p.wrong() for p in faults])
    unsure = np.logical_or.reduce([p.cells & (p.ratio > CLEAR) for p in faults])
    unsure = unsure_cells(right, out, lse, unsure) & ~wrong
    hidden = np.logical_or.reduce(inside) & ~wrong & ~unsure
    return out, lse, {"faults": [p.truth() for p in faults], "wrong": runs(wrong), "unsure": runs(unsure), "hidden": runs(hidden),
                      "dims": wrong_dims(right, out, lse, wrong)}


def plain(x):
    """Turns NumPy scalars into what JSON knows."""
    return x.item() if isinstance(x, np.generic) else x.tolist()


def write(folder, name, batch, out, lse, truth):
    write_capture(folder / f"{name}.safetensors", batch, observed(batch, out), lse if batch.with_lse else None, {"producer": "foreign"})
    (folder / f"{name}.truth.json").write_text(json.dumps(truth, default=plain))


def generate(folder, part, first, count):
    """Writes captures first .. first + count - 1 of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    right, number = None, None
    for i in range(first, first + count):
        if i // PER_BATCH != number:
            number = i // PER_BATCH
            right = Right(random_batch(Draw([number, 0], part)))
        draw = Draw([i, 1], part)
        for _ in range(4):
            kind = draw.any(CLASSES)
            made = make(draw, right, kind)
            if made:
                break
        else:
            print(f"{part}-{i:05d}: nothing showed", file=sys.stderr)
            continue
        out, lse, truth = made
        batch = right.batch
        truth = {"class": kind, "part": part, "number": i, "geometry": batch.geometry, "query_type": batch.q.dtype.name,
                 "cache_type": batch.k_cache.dtype.name, "shape": [batch.num_tokens, batch.num_heads, batch.dim],
                 "lse": batch.with_lse, "profile": batch.weight_type and np.dtype(batch.weight_type).name, "before": batch.before is not None, **truth}
        write(folder, f"{part}-{i:05d}", batch, out, lse, truth)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", choices=["development", "later", "held_out"], default="development")
    arguments = parser.parse_args()
    begin = time.process_time()
    with np.errstate(all="ignore"):
        generate(arguments.out, arguments.part, arguments.first, arguments.count)
    print(f"{arguments.count} captures of {arguments.part} in {time.process_time() - begin:.1f} s")


if __name__ == "__main__":
    main()
