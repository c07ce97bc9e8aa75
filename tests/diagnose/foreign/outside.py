# SPDX-License-Identifier: Apache-2.0
"""Plants faults that no mechanism of a grammar explains: noise, races, wrong data, flipped bits, mixtures."""
import numpy as np

from attention import Numerics, run


def random_cells(draw, batch, share):
    cells = draw.rng.random((batch.num_tokens, batch.num_heads)) < share
    cells[draw.integer(0, batch.num_tokens - 1), draw.integer(0, batch.num_heads - 1)] = True
    return cells


def noise(draw, batch, out, lse):
    """Adds Gaussian noise to random elements."""
    share, size = draw.log_uniform(0.001, 0.5), draw.log_uniform(0.02, 1)
    hit = draw.rng.random(out.shape) < share
    return np.where(hit, out + size * draw.rng.standard_normal(out.shape), out), lse, {"share": share, "size": size}


def factors(draw, batch, out, lse):
    """Multiplies each of random cells by a number of its own."""
    share = draw.uniform(0.05, 0.9)
    cells = random_cells(draw, batch, share)
    f = np.exp(draw.rng.standard_normal(cells.shape) * 0.5)
    return np.where(cells[..., None], out * f[..., None], out), lse, {"share": share}


class LostPartials(Numerics):
    """Loses partial sums at random, as a race between blocks does."""

    def __init__(self, rng, share):
        self.rng, self.share = rng, share

    def accumulated(self, acc):
        lost = self.rng.random(acc.shape[:-1]) < self.share
        return np.where(lost[..., None], 0, acc).astype(acc.dtype)


class Dropout(Numerics):
    """Drops weights at random, as a model left in training mode does."""

    def __init__(self, rng, share):
        self.rng, self.share = rng, share

    def weights(self, p):
        return (p * (self.rng.random(p.shape) >= self.share) / (1 - self.share)).astype(p.dtype)


class Edit:
    """Wraps an edit of views as a fault."""
    output = None

    def __init__(self, edit):
        self.edit = edit


def race(draw, batch, out, lse):
    share = draw.uniform(0.02, 0.3)
    o, _ = run(batch, Edit(lambda view: LostPartials(draw.rng, share)))
    cells = random_cells(draw, batch, draw.uniform(0.05, 0.6))
    return np.where(cells[..., None], o, out), lse, {"share": share}


def dropout(draw, batch, out, lse):
    share = draw.uniform(0.05, 0.4)
    o, _ = run(batch, Edit(lambda view: Dropout(draw.rng, share)))
    return o, lse, {"share": share}


def other_data(draw, batch, out, lse):
    """Reads K, V or queries that this batch does not have."""
    what = draw.any(["k", "v", "q", "kv"])

    def edit(view):
        for name in what:
            x = getattr(view, name)
            setattr(view, name, (draw.rng.standard_normal(x.shape) * np.std(x)).astype(np.float32))
    o, l = run(batch, Edit(edit))
    cells = random_cells(draw, batch, 0.3) if draw.chance(0.5) else np.ones(lse.shape, bool)
    return np.where(cells[..., None], o, out), np.where(cells, l, lse), {"of": what}


def permuted_dims(draw, batch, out, lse):
    """Permutes the dims of K at random, anew for each request."""
    def edit(view):
        view.k = view.k[..., draw.rng.permutation(batch.dim)]
    o, l = run(batch, Edit(edit))
    return o, l, {}


def permuted_keys(draw, batch, out, lse):
    """Pairs values with the keys of other tokens, at random."""
    def edit(view):
        view.v = view.v[draw.rng.permutation(len(view.v))]
    o, l = run(batch, Edit(edit))
    return o, l, {}


def bit_flips(draw, batch, out, lse):
    """Flips a high bit of random elements of the output."""
    bits = {2: np.uint16, 4: np.uint32}[batch.q.dtype.itemsize]
    share = draw.log_uniform(0.0005, 0.1)
    stored = out.astype(batch.q.dtype).view(bits).copy()
    top = stored.dtype.itemsize * 8
    flips = (1 << draw.rng.integers(top - 6, top, stored.shape)).astype(bits)
    hit = draw.rng.random(stored.shape) < share
    flipped = np.where(hit, stored ^ flips, stored).view(batch.q.dtype).astype(np.float32)
    return np.where(hit, flipped, out), lse, {"share": share}


def mixture(draw, batch, out, lse):
    """Mixes each row with another row at random."""
    w = draw.uniform(0.1, 0.9)
    other = out[draw.rng.permutation(len(out))]
    return (1 - w) * out + w * other, lse, {"weight": w}


def noisy_keys(draw, batch, out, lse):
    """Reads keys with noise, as a lossy transfer of the cache would leave them."""
    size = draw.log_uniform(0.05, 1)

    def edit(view):
        view.k = view.k + (size * draw.rng.standard_normal(view.k.shape)).astype(np.float32)
    o, l = run(batch, Edit(edit))
    return o, l, {"size": size}


def torn_cells(draw, batch, out, lse):
    """Writes a random half of the dims of random cells from another row, as stores that race do."""
    cells = random_cells(draw, batch, draw.uniform(0.02, 0.3))
    torn = cells[..., None] & (draw.rng.random(out.shape) < 0.5)
    return np.where(torn, out[draw.rng.permutation(len(out))], out), lse, {}


OUTSIDE = [noise, race, other_data, factors, permuted_dims, bit_flips, mixture, dropout, permuted_keys, noisy_keys,
           torn_cells]


def plant_outside(draw, batch, out, lse):
    """Gives out, lse, name and parameters."""
    kind = draw.choice(OUTSIDE)
    o, l, parameters = kind(draw, batch, out, lse)
    return o.astype(np.float32), l.astype(np.float32), kind.__name__, parameters


