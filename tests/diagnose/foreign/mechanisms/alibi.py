# SPDX-License-Identifier: Apache-2.0
"""Plants faults of ALiBi slopes: missing, another head's, another sign or number of heads."""
import numpy as np

from mechanisms.fault import Fault, plants


def slopes(batch, change, **parameters):
    def edit(view):
        view.slope = change(view.slope)
    return Fault(parameters, edit=edit) if batch.slopes is not None else None


@plants("alibi_slope", classic=True)
def slopes_missing(draw, batch):
    return slopes(batch, np.zeros_like)


@plants("alibi_slope")
def slopes_of_another_head(draw, batch):
    shift = draw.integer(1, batch.num_heads - 1)
    return slopes(batch, lambda s: np.roll(s, shift), shift=shift)


@plants("alibi_slope")
def slopes_of_another_number_of_heads(draw, batch):
    n = batch.num_heads * draw.any([2, 4])
    return slopes(batch, lambda s: 2.0 ** (-8.0 * (np.arange(len(s)) + 1) / n), heads=n)


@plants("alibi_slope")
def slopes_negated(draw, batch):
    return slopes(batch, np.negative)


@plants("alibi_slope")
def slopes_times_a_number(draw, batch):
    f = draw.choice([0.5, 2.0, batch.scale(), 1.4426950408889634])
    return slopes(batch, lambda s: s * f, factor=f)


@plants("alibi_slope")
def slopes_reversed(draw, batch):
    return slopes(batch, lambda s: s[::-1])
