# SPDX-License-Identifier: Apache-2.0
"""Plants denominators of too few keys or of another row, and wrong functions in the softmax."""
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, plants
from mechanisms.normalisation import arithmetic, finish


def other_denominator(methods, tile, **parameters):
    """Divides by self.kept, where that is not 0, in place of the denominator."""
    def merge(self, partials):
        (m, den, acc), = partials
        return m, np.where(self.kept > 0, self.kept, den), acc
    return arithmetic({**methods, "merge": merge}, tile, **parameters)


@plants("normalisation", later=True)
def denominator_without_the_last_tile(draw, batch):
    """The loop ends before the last tile's weights are summed."""
    def rescale(self, acc, den, alpha):
        self.kept = den * alpha
        return acc * alpha[..., None], self.kept
    return other_denominator({"rescale": rescale}, draw.any([16, 32, 64, 128]))


@plants("normalisation", later=True)
def denominator_of_some_lanes(draw, batch):
    """The sum over a warp stops early, so that one lane's keys alone are in it."""
    lanes = draw.any([2, 4, 8])
    lane = draw.integer(0, lanes - 1)

    def start(self, shape, dtype):
        self.kept = np.zeros(shape[:-1], dtype)
        return Numerics.start(self, shape, dtype)

    def rescale(self, acc, den, alpha):
        self.kept = self.kept * alpha
        return Numerics.rescale(self, acc, den, alpha)

    def weights(self, p):
        self.kept = self.kept + p[..., lane::lanes].sum(axis=-1)
        return p
    return other_denominator({"start": start, "rescale": rescale, "weights": weights}, draw.any([32, 64, 128]),
                             lanes=lanes, lane=lane)


@plants("normalisation", later=True)
def denominator_of_a_neighbour(draw, batch):
    """Each row divides by the sum of the next row, or of the next head of its group."""
    of = draw.any(["row"] + ["head"] * (batch.group > 1))

    def divide(acc, den, keys):
        return acc / np.roll(den, -1, axis=0 if of == "head" else 1)[..., None]
    return arithmetic(finish(divide), of=of)


@plants("normalisation", later=True)
def rescaled_in_another_base(draw, batch):
    """Weights are powers of e, but what is rescaled to a new maximum is so by powers of 2; or the other way round."""
    f, of = draw.any([float(np.log(2)), float(1 / np.log(2))]), draw.any(["both", "accumulator", "denominator"])

    def rescale(self, acc, den, alpha):
        for_acc = alpha if of == "denominator" else alpha ** f
        return acc * for_acc[..., None], den * (alpha if of == "accumulator" else alpha ** f)
    return arithmetic({"rescale": rescale}, draw.any([16, 32, 64, 128]), factor=f, of=of)


@plants("sink", later=True)
def sink_without_the_maximum(draw, batch):
    """The sink's weight is exp(sink), where all others are relative to the maximum."""
    class Absolute(Numerics):
        def with_sink(self, m, den, acc, sink):
            return m, den + np.exp(sink), acc
    return Fault({}, edit=lambda view: Absolute()) if batch.sinks is not None else None


@plants("soft_cap", later=True)
def tanh_is_a_quotient(draw, batch):
    """A quotient of polynomials stands for tanh: right near 0, clamped at 3."""
    class Quotient(Numerics):
        def capped(self, s, cap):
            x = np.clip(s / cap, -3, 3)
            return cap * x * (27 + x * x) / (27 + 9 * x * x)
    return Fault({}, edit=lambda view: Quotient()) if batch.cap else None
