# SPDX-License-Identifier: Apache-2.0
"""Plants faults of sinks: missing, another head's, counted again by every split, in the wrong unit."""
import numpy as np

from mechanisms.fault import Fault, plants


def sinks(batch, change, **parameters):
    def edit(view):
        view.sink = change(view.sink)
    return Fault(parameters, edit=edit) if batch.sinks is not None else None


@plants("sink", classic=True)
def sink_missing(draw, batch):
    return sinks(batch, lambda s: np.full_like(s, -np.inf))


@plants("sink")
def sink_of_another_head(draw, batch):
    shift = draw.integer(1, batch.num_heads - 1)
    return sinks(batch, lambda s: np.roll(s, shift), shift=shift)


@plants("sink")
def sink_in_every_split(draw, batch):
    n = draw.integer(2, 6)
    return sinks(batch, lambda s: s + np.log(n), times=n)


@plants("sink")
def sink_in_base_2(draw, batch):
    return sinks(batch, lambda s: s * np.log(2))


@plants("sink")
def sink_times_softmax_scale(draw, batch):
    return sinks(batch, lambda s: s * batch.scale())


@plants("sink")
def sink_negated(draw, batch):
    return sinks(batch, np.negative)
