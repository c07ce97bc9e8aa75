# SPDX-License-Identifier: Apache-2.0
"""Holds what a planted fault is, and the registry that each mechanism's file adds its variants to."""
from dataclasses import dataclass, field
from typing import Callable

from draw import Draw

FAMILIES = {}    # family -> list of variants
LATER = {}       # family -> list of variants that came after the held-out ones were chosen


@dataclass
class Fault:
    """One mechanism with its parameters, drawn for one batch."""
    parameters: dict
    edit: Callable = None        # (view) -> Numerics or None: what one request reads, and its arithmetic
    output: Callable = None      # (out, lse) -> (out, lse): what happens to all rows afterwards
    home: list = field(default_factory=list)    # conditions that hold where the fault can be at all
    fixed: bool = False          # a fault with a home of its own is not narrowed by rows
    dims: bool = False           # a fault that may be narrowed to some dims
    family: str = ""
    variant: str = ""


def plants(family, classic=False, later=False):
    """Registers draw(batch) functions; a classic slip is never held out, a later one is drawn for the part "later" alone."""
    def register(function):
        function.classic = classic
        (LATER if later else FAMILIES).setdefault(family, []).append(function)
        return function
    return register


def draw_fault(draw: Draw, batch, family):
    """Draws a variant of a family and its parameters; None where the batch has nothing that it could happen to."""
    variants = FAMILIES[family]
    reserved = [v for i, v in enumerate(variants) if i % 3 == 2 and not v.classic]
    open_to_all = [v for v in variants if v not in reserved]
    pool = reserved if reserved and draw.part == "held_out" and draw.chance(0.5) else open_to_all
    if draw.part == "later":
        pool = LATER.get(family, open_to_all)
    variant = draw.any(pool)
    fault = variant(draw, batch)
    if fault is not None:
        fault.family, fault.variant = family, variant.__name__
    return fault


def per_head(batch, scale):
    """Spreads a scale (scalar, [1] or [num_kv_heads]) over query heads."""
    import numpy as np
    return np.repeat(np.broadcast_to(np.asarray(scale, np.float64), batch.num_kv_heads), batch.group)


def away_from_one(draw, low=0.3, high=3.0):
    """Draws a factor that is at least 5 % from 1."""
    while True:
        f = draw.log_uniform(low, high)
        if abs(f - 1) > 0.05:
            return f
