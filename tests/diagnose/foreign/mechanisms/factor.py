# SPDX-License-Identifier: Apache-2.0
"""Plants factors: on V or the output, on the lse, on queries, keys or softmax_scale."""
import numpy as np

from mechanisms.fault import Fault, away_from_one, per_head, plants


def on_out(factor, /, **parameters):
    def output(out, lse):
        return out * np.asarray(factor, np.float32).reshape(-1, 1), lse
    return Fault(parameters, output=output, dims=True)


@plants("factor_out")
def out_times_a_number(draw, batch):
    f = away_from_one(draw)
    return on_out(f, factor=f)


@plants("factor_out")
def v_scale_dropped(draw, batch):
    return None if batch.v_scale is None or batch.cached_lens is not None else on_out(1 / per_head(batch, batch.v_scale))


@plants("factor_out")
def out_negated_or_halved(draw, batch):
    f = draw.any([-1.0, 0.5, 2.0])
    return on_out(f, factor=f)


@plants("factor_out")
def v_scale_of_another_head(draw, batch):
    if batch.v_scale is None or np.size(batch.v_scale) == 1:
        return None
    s, shift = per_head(batch, batch.v_scale), draw.integer(1, batch.num_kv_heads - 1) * batch.group
    return on_out(np.roll(s, shift) / s, shift=shift)


@plants("factor_out")
def k_scale_in_place_of_v_scale(draw, batch):
    if batch.v_scale is None:
        return None
    return on_out(per_head(batch, batch.k_scale) / per_head(batch, batch.v_scale))


@plants("factor_out")
def v_scale_twice(draw, batch):
    return None if batch.v_scale is None else on_out(per_head(batch, batch.v_scale))


@plants("factor_out")
def v_scale_dropped_where_there_is_one(draw, batch):
    """A scalar layer scale of another layer."""
    f = away_from_one(draw, 0.7, 1.5)
    return on_out(f, factor=f)


@plants("factor_lse")
def lse_in_base_2(draw, batch):
    return Fault({}, output=lambda out, lse: (out, lse / np.float32(np.log(2)))) if batch.with_lse else None


@plants("factor_lse")
def lse_plus_a_number(draw, batch):
    add = draw.any([-1, 1]) * draw.log_uniform(0.05, 4)
    return Fault({"add": add}, output=lambda out, lse: (out, lse + np.float32(add))) if batch.with_lse else None


@plants("factor_lse")
def lse_times_a_number(draw, batch):
    f = away_from_one(draw)
    return Fault({"factor": f}, output=lambda out, lse: (out, lse * np.float32(f))) if batch.with_lse else None


def on_scores(factor, /, **parameters):
    def edit(view):
        view.scale = view.scale * factor
    return Fault(parameters, edit=edit)


@plants("factor_scores", classic=True)
def scale_of_another_dim(draw, batch):
    d = draw.any([1, 2 * batch.dim, batch.dim // 2, batch.dim * batch.num_heads, batch.dim ** 2, 4 * batch.dim])
    f = d ** -0.5 / batch.scale()
    return None if abs(f - 1) < 0.05 else on_scores(f, factor=f)


@plants("factor_scores")
def scores_times_a_number(draw, batch):
    f = away_from_one(draw)
    return on_scores(f, factor=f)


@plants("factor_scores")
def log2e_missing(draw, batch):
    return on_scores(np.log(2), factor=float(np.log(2)))


@plants("factor_scores")
def k_scale_dropped(draw, batch):
    if batch.k_scale is None or batch.cached_lens is not None:
        return None
    return on_scores(1 / per_head(batch, batch.k_scale))


@plants("factor_scores")
def k_scale_of_another_head(draw, batch):
    if batch.k_scale is None or np.size(batch.k_scale) == 1:
        return None
    s, shift = per_head(batch, batch.k_scale), draw.integer(1, batch.num_kv_heads - 1) * batch.group
    return on_scores(np.roll(s, shift) / s, shift=shift)


@plants("factor_scores")
def log2e_twice(draw, batch):
    return on_scores(1 / np.log(2), factor=float(1 / np.log(2)))


@plants("factor_scores")
def scores_negated(draw, batch):
    return on_scores(-1.0, factor=-1.0)


@plants("factor_scores", classic=True)
def scale_of_the_padded_dim(draw, batch):
    """head_dim is padded to a power of two before the scale is taken from it."""
    padded = 1 << (batch.dim - 1).bit_length()
    f = padded ** -0.5 / batch.scale()
    return None if abs(f - 1) < 0.05 else on_scores(f, factor=f)
