# SPDX-License-Identifier: Apache-2.0
"""Plants faults of the running softmax and its division."""
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, plants


def arithmetic(methods, tile=None, **parameters):
    numerics = type("Normalisation", (Numerics,), methods)

    def edit(view):
        view.splits = 1
        if tile:
            view.tile = tile
        return numerics()
    return Fault({**({"tile": tile} if tile else {}), **parameters}, edit=edit)


def finish(divide):
    """Replaces the division: divide(acc, den, keys) -> out."""
    def method(self, m, den, acc, keys):
        _, lse = Numerics.finish(self, m, den, acc, keys)
        with np.errstate(divide="ignore", invalid="ignore"):
            return divide(acc, den, keys).astype(acc.dtype), lse
    return {"finish": method}


@plants("normalisation", classic=True)
def not_normalised(draw, batch):
    return arithmetic(finish(lambda acc, den, keys: acc))


@plants("normalisation", classic=True)
def divided_by_number_of_keys(draw, batch):
    return arithmetic(finish(lambda acc, den, keys: acc / np.maximum(keys, 1)[None, :, None]))


@plants("normalisation")
def normalised_twice(draw, batch):
    return arithmetic(finish(lambda acc, den, keys: acc / (den * den)[..., None]))


@plants("normalisation", classic=True)
def denominator_not_rescaled(draw, batch):
    return arithmetic({"rescale": lambda self, acc, den, a: (acc * a[..., None], den)}, draw.any([16, 32, 64, 128]))


@plants("normalisation", classic=True)
def accumulator_not_rescaled(draw, batch):
    return arithmetic({"rescale": lambda self, acc, den, a: (acc, den * a)}, draw.any([16, 32, 64, 128]))


@plants("normalisation")
def neither_rescaled(draw, batch):
    return arithmetic({"rescale": lambda self, acc, den, a: (acc, den)}, draw.any([16, 32, 64, 128]))


@plants("normalisation", classic=True)
def denominator_from_one(draw, batch):
    def start(self, shape, dtype):
        m, den, acc = Numerics.start(self, shape, dtype)
        return np.zeros_like(m), den + 1, acc
    return arithmetic({"start": start})


@plants("normalisation")
def denominator_of_the_last_tile(draw, batch):
    return arithmetic({"rescale": lambda self, acc, den, a: (acc * a[..., None], 0 * den)}, draw.any([32, 64, 128]))


@plants("normalisation")
def epsilon_in_the_denominator(draw, batch):
    e = draw.log_uniform(0.05, 2)
    return arithmetic(finish(lambda acc, den, keys: acc / (den + e)[..., None]), epsilon=e)


@plants("normalisation")
def hidden_tile_gives_nan(draw, batch):
    """A tile without visible keys leaves -inf as the maximum, and exp(-inf - -inf) is NaN."""
    tile = draw.any([16, 32, 64])

    def edit(view):
        class Hidden(Numerics):
            def finish(self, m, den, acc, keys):
                out, lse = Numerics.finish(self, m, den, acc, keys)
                first = np.maximum(view.q_pos - view.window + 1, 0)
                hidden = first // tile > 0
                return np.where(hidden[None, :, None], np.nan, out), np.where(hidden[None, :], np.nan, lse)
        return Hidden()
    return Fault({"tile": tile}, edit=edit) if batch.window else None
