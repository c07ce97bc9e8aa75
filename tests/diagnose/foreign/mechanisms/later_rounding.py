# SPDX-License-Identifier: Apache-2.0
"""Plants weights and operands in few integer steps, and sums and partial results of low precision."""
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, plants
from mechanisms.rounded import arithmetic, rounded, types_coarser
from mechanisms.split import splits


@plants("rounded", later=True)
def weights_as_integers(draw, batch):
    """Weights of [0, 1] are multiples of a step, as 4 to 8 bits hold them."""
    n = draw.any([15, 31, 63, 127, 255])
    return arithmetic({"weights": lambda self, p: np.round(p * n) / n}, steps=n)


@plants("rounded", later=True)
def operands_as_integers(draw, batch):
    """Queries, keys or values of a row are multiples of a step, from the row's largest element."""
    which, n = draw.any(["q", "k", "v"]), draw.any([7, 15, 31, 63])

    def edit(view):
        x = getattr(view, which)
        step = np.maximum(np.abs(x).max(axis=-1, keepdims=True), 1e-30) / n
        setattr(view, which, np.round(x / step) * step)
    return Fault({"of": which, "steps": n}, edit=edit)


@plants("rounded", later=True)
def denominator_rounded(draw, batch):
    """The sum of the weights is kept in a narrow type from tile to tile."""
    name = types_coarser(draw, batch)

    def rescale(self, acc, den, alpha):
        return acc * alpha[..., None], rounded(den * alpha, name)

    def merge(self, partials):
        return Numerics.merge(self, [(m, rounded(den, name), acc) for m, den, acc in partials])
    return arithmetic({"rescale": rescale, "merge": merge}, type=name)


@plants("rounded", later=True)
def partials_rounded(draw, batch):
    """Outputs of splits pass through a workspace of a narrow type."""
    name = types_coarser(draw, batch)

    def through(m, den, acc):
        some = np.where(den > 0, den, 1)[..., None]
        return m, den, rounded(acc / some, name) * some

    def merge(self, partials):
        return Numerics.merge(self, [through(*part) for part in partials])
    return splits(draw, {"merge": merge}, type=name)
