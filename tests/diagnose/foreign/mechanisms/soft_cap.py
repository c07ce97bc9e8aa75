# SPDX-License-Identifier: Apache-2.0
"""Plants faults of the soft cap: missing, another layer's, at the wrong place."""
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, away_from_one, plants


@plants("soft_cap", classic=True)
def cap_missing(draw, batch):
    def edit(view):
        view.cap = np.inf
    return Fault({}, edit=edit) if batch.cap else None


@plants("soft_cap")
def cap_of_another_layer(draw, batch):
    cap = (batch.cap or 0) * away_from_one(draw)

    def edit(view):
        view.cap = cap
    return Fault({"cap": cap}, edit=edit) if batch.cap else None


@plants("soft_cap")
def cap_where_none_is_asked(draw, batch):
    cap = draw.uniform(2, 12)

    def edit(view):
        view.cap = cap
    return None if batch.cap else Fault({"cap": cap}, edit=edit)


class NotMultipliedBack(Numerics):
    def capped(self, s, cap):
        return np.tanh(s / cap)


@plants("soft_cap")
def cap_not_multiplied_back(draw, batch):
    return Fault({}, edit=lambda view: NotMultipliedBack()) if batch.cap else None


@plants("soft_cap")
def cap_clamps(draw, batch):
    """A hard limit where tanh was meant."""
    class Clamps(Numerics):
        def capped(self, s, cap):
            return np.clip(s, -cap, cap)
    return Fault({}, edit=lambda view: Clamps()) if batch.cap else None


@plants("soft_cap")
def cap_before_the_scale(draw, batch):
    """The unscaled dot product is capped, then scaled."""
    class BeforeScale(Numerics):
        def dot(self, s):
            return batch.cap * np.tanh(s / batch.cap)

        def capped(self, s, cap):
            return s
    return Fault({}, edit=lambda view: BeforeScale()) if batch.cap else None


@plants("soft_cap")
def cap_after_alibi(draw, batch):
    """The slopes' terms are capped together with the score."""
    class AfterAlibi(Numerics):
        def capped(self, s, cap):
            return s

        def scores(self, s, q_pos, k_pos):
            return batch.cap * np.tanh(s / batch.cap)
    return Fault({}, edit=lambda view: AfterAlibi()) if batch.cap and batch.slopes is not None else None
