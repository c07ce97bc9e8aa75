# SPDX-License-Identifier: Apache-2.0
"""Plants splits that overlap or leave gaps, are weighted in the wrong unit, or take a neighbour's partial result."""
import numpy as np

from attention import Numerics, finite
from mechanisms.fault import Fault, plants
from mechanisms.split import cut, splits


def cuts(draw, change, methods, **parameters):
    """Draws how the keys are cut; change(self, ranges, number of keys) -> ranges."""
    size, count = draw.any([0, 64, 128, 256]), draw.integer(2, 4)
    base = cut(count, size)
    ranges = {"ranges": lambda self, view: change(self, base.ranges(self, view), len(view.k_pos))}
    numerics = type("Cuts", (base,), {**ranges, **methods})
    return Fault({"size": size, "count": 0 if size else count, **parameters}, edit=lambda view: numerics())


def mixed(self, partials, weights):
    """Adds the splits' normalised outputs by other weights; maximum and denominator stay right."""
    top, den, _ = Numerics.merge(self, partials)
    weights = [np.where(d > 0, w, 0) for w, (_, d, _) in zip(weights, partials)]
    out = sum(w[..., None] * acc / np.where(d > 0, d, 1)[..., None] for w, (_, d, acc) in zip(weights, partials))
    return top, den, out / np.maximum(sum(weights), 1e-30)[..., None] * den[..., None]


@plants("split", later=True)
def weighted_by_number_of_keys(draw, batch):
    """Outputs of splits are averaged by how many keys each split holds."""
    def note(self, ranges, keys):
        self.lengths = [end - begin for begin, end in ranges]
        return ranges
    return cuts(draw, note, {"merge": lambda self, partials: mixed(self, partials, self.lengths)})


@plants("split", later=True)
def merged_by_lse_of_another_base(draw, batch):
    """Splits write the lse in base 2 and the merge takes it for natural, or the other way round."""
    f = draw.any([float(np.log(2)), float(1 / np.log(2))])

    def merge(self, partials):
        lse = [m + np.log(d) for m, d, _ in partials]
        top = finite(np.maximum.reduce(lse))
        return mixed(self, partials, [np.exp(f * (x - top)) for x in lse])
    return splits(draw, {"merge": merge}, factor=f)


@plants("split", later=True)
def splits_overlap(draw, batch):
    """Each split runs some keys into the next one, so that those count twice."""
    n = draw.any([1, 4, 16, 32])
    return cuts(draw, lambda self, cut, keys: [(b, min(e + n, keys)) for b, e in cut], {}, keys=n)


@plants("split", later=True)
def splits_leave_gaps(draw, batch):
    """Each split but the last stops some keys early."""
    n = draw.any([1, 4, 16, 32])
    return cuts(draw, lambda self, cut, keys: [(b, e if e == keys else max(b, e - n)) for b, e in cut], {}, keys=n)


@plants("split", later=True)
def maximum_of_the_split_before(draw, batch):
    """Each partial result is scaled by its neighbour's maximum."""
    def merge(self, partials):
        top = np.maximum.reduce([m for m, _, _ in partials])
        factors = [np.exp(partials[i - 1][0] - finite(top)) for i in range(len(partials))]
        return (top, sum(d * f for (_, d, _), f in zip(partials, factors)),
                sum(a * f[..., None] for (_, _, a), f in zip(partials, factors)))
    return splits(draw, {"merge": merge})


@plants("split", later=True)
def one_partial_of_a_neighbour(draw, batch):
    """One split's partial output is read from the place of the next head of the group, or of the next row."""
    i, axis = draw.any([0, -1]), draw.any(["row"] + ["head"] * (batch.group > 1))
    alone = draw.chance(0.5)

    def merge(self, partials):
        parts = list(partials)
        if len(parts) > 1:
            rolled = [np.roll(x, -1, axis=0 if axis == "head" else 1) for x in parts[i]]
            parts[i] = (*parts[i][:2], rolled[2]) if alone else tuple(rolled)
        return Numerics.merge(self, parts)
    return splits(draw, {"merge": merge}, index=i, neighbour=axis, output_alone=alone)
