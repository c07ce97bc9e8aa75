# SPDX-License-Identifier: Apache-2.0
"""Plants faults of split-KV: a split dropped or doubled, merged in the wrong base, averaged, without its weights."""
import numpy as np

from attention import Numerics, finite
from mechanisms.fault import Fault, plants


def cut(count, size):
    """Cuts keys into splits, of a fixed size or a fixed number of them."""
    class Cut(Numerics):
        def ranges(self, view):
            n = len(view.k_pos)
            edges = np.arange(0, n, size) if size else np.linspace(0, n, count + 1).astype(int)[:-1]
            return list(zip(edges, [*edges[1:], n]))
    return Cut


def splits(draw, method, **parameters):
    """Draws how the keys are cut, and replaces one method of the arithmetic."""
    size = draw.choice([0, 64, 128, 256])
    count = draw.integer(2, 4)
    numerics = type("Split", (cut(count, size),), method)
    return Fault({"size": size, "count": 0 if size else count, **parameters}, edit=lambda view: numerics())


def merged_by(select):
    return {"merge": lambda self, partials: Numerics.merge(self, select(partials))}


@plants("split", classic=True)
def split_dropped(draw, batch):
    i = draw.any([0, -1, 1])
    return splits(draw, merged_by(lambda p: [x for j, x in enumerate(p) if len(p) < 2 or j != i % len(p)]), index=i)


@plants("split")
def split_doubled(draw, batch):
    i = draw.any([0, -1, 1])
    return splits(draw, merged_by(lambda p: p + [p[i % len(p)]] if len(p) > 1 else p), index=i)


@plants("split")
def merged_without_maximum(draw, batch):
    """Partials are summed as if all had one maximum."""
    def merge(self, partials):
        top = np.maximum.reduce([m for m, _, _ in partials])
        return top, sum(d for _, d, _ in partials), sum(a for _, _, a in partials)
    return splits(draw, {"merge": merge})


@plants("split", classic=True)
def merged_in_base_2(draw, batch):
    def merge(self, partials):
        top = np.maximum.reduce([m for m, _, _ in partials])
        factors = [np.exp2(m - finite(top)) for m, _, _ in partials]
        return (top, sum(d * f for (_, d, _), f in zip(partials, factors)),
                sum(a * f[..., None] for (_, _, a), f in zip(partials, factors)))
    return splits(draw, {"merge": merge})


@plants("split")
def averaged(draw, batch):
    """Normalised outputs of the splits are averaged."""
    def merge(self, partials):
        seen = [(m, d, a) for m, d, a in partials]
        top, den, _ = Numerics.merge(self, seen)
        some = sum((d > 0).astype(den.dtype) for _, d, _ in seen)
        mean = sum(np.where(d[..., None] > 0, a / np.where(d > 0, d, 1)[..., None], 0) for _, d, a in seen)
        return top, den, mean / np.maximum(some, 1)[..., None] * den[..., None]
    return splits(draw, {"merge": merge})


@plants("split")
def weighted_by_maximum_alone(draw, batch):
    """Partials are weighted by exp(m), without their denominators."""
    def merge(self, partials):
        top, den, _ = Numerics.merge(self, partials)
        w = [np.where(d > 0, np.exp(m - finite(top)), 0) for m, d, _ in partials]
        out = sum(x[..., None] * np.where(d[..., None] > 0, a / np.where(d > 0, d, 1)[..., None], 0)
                  for x, (_, d, a) in zip(w, partials))
        return top, den, out / np.maximum(sum(w), 1e-30)[..., None] * den[..., None]
    return splits(draw, {"merge": merge})


@plants("split")
def last_split_alone(draw, batch):
    return splits(draw, merged_by(lambda p: p[-1:]))
