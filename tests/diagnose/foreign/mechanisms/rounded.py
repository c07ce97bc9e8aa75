# SPDX-License-Identifier: Apache-2.0
"""Plants rounding and saturation of weights, scores, accumulators, queries, keys and values."""
import ml_dtypes
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, plants

COARSE = {"fp8_e4m3fn": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
LARGEST = {"fp8_e4m3fn": 448, "fp8_e5m2": 57344, "bf16": 3e38, "f16": 65504}


def rounded(x, name):
    limit = np.float32(LARGEST[name])
    return np.clip(x, -limit, limit).astype(COARSE[name]).astype(np.float32)


def types_coarser(draw, batch):
    """Draws a type that is coarse enough to show in the output's."""
    if batch.q.dtype == np.float32:
        return draw.choice(["fp8_e4m3fn", "bf16", "f16", "fp8_e5m2"])
    return draw.any(["fp8_e4m3fn", "fp8_e5m2"] + (["bf16"] if batch.q.dtype == np.float16 else []))


def arithmetic(methods, **parameters):
    numerics = type("Rounded", (Numerics,), methods)
    return Fault(parameters, edit=lambda view: numerics())


@plants("rounded", classic=True)
def weights_rounded(draw, batch):
    name = types_coarser(draw, batch)
    return arithmetic({"weights": lambda self, p: rounded(p, name)}, type=name)


@plants("rounded", classic=True)
def scores_rounded(draw, batch):
    name = types_coarser(draw, batch)
    return arithmetic({"scores": lambda self, s, q, k: rounded(s, name)}, type=name)


@plants("rounded")
def accumulator_rounded(draw, batch):
    name = types_coarser(draw, batch)
    return arithmetic({"accumulated": lambda self, acc: rounded(acc, name)}, type=name)


@plants("rounded")
def dots_saturated(draw, batch):
    """The dot product before the scale goes through a type that saturates."""
    limit = draw.choice([8.0, 16.0, 32.0])
    return arithmetic({"dot": lambda self, s: np.clip(s, -limit, limit)}, limit=limit)


@plants("rounded")
def operands_rounded(draw, batch):
    which, name = draw.any(["q", "k", "v"]), draw.any(["fp8_e4m3fn", "fp8_e5m2"])
    if batch.k_cache.dtype.itemsize == 1 and which != "q":
        return None

    def edit(view):
        setattr(view, which, rounded(getattr(view, which), name))
    return Fault({"of": which, "type": name}, edit=edit)


@plants("rounded")
def output_rounded(draw, batch):
    name = types_coarser(draw, batch)
    return Fault({"type": name}, output=lambda out, lse: (rounded(out, name), lse), dims=True)


@plants("rounded")
def values_saturated(draw, batch):
    limit = draw.choice([0.5, 1.0, 1.5])

    def edit(view):
        view.v = np.clip(view.v, -limit, limit)
    return Fault({"limit": limit}, edit=edit)


@plants("rounded")
def codes_saturated_at_240(draw, batch):
    """An e4m3fn cache passes through e4m3fnuz, whose largest value is 240."""
    if batch.k_cache.dtype.itemsize != 1:
        return None
    which = draw.any(["k", "v", "both"])

    def edit(view):
        for name, scale in (("k", batch.k_scale), ("v", batch.v_scale)):
            if which in ("both", name):
                limit = 240 * np.broadcast_to(np.asarray(scale, view.q.dtype), batch.num_kv_heads)[:, None]
                setattr(view, name, np.clip(getattr(view, name), -limit, limit))
    return Fault({"of": which, "limit": 240}, edit=edit)
