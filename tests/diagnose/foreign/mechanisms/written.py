# SPDX-License-Identifier: Apache-2.0
"""Plants rows that are never written: the buffer keeps what it held, or zeros, or NaN."""
import numpy as np

from mechanisms.fault import Fault, plants


@plants("not_written", classic=True)
def kept(draw, batch):
    """The output keeps what it held; half of the captures show what that was."""
    if batch.before is not None:
        held = batch.before.astype(np.float32)
        kind = "given"
    else:
        kind = draw.any(["zero", "nan"])
        held = np.full(batch.q.shape, {"zero": 0, "nan": np.nan}[kind], np.float32)
    with_lse = draw.chance(0.5)    # the capture's lse held NaN before the call

    def output(out, lse):
        return held, np.full_like(lse, np.nan) if with_lse and batch.with_lse else lse
    return Fault({"holds": kind, "lse": with_lse}, output=output, dims=True)


@plants("not_written")
def zeroed(draw, batch):
    """A memset runs after the kernel, or the kernel returns early with zeros."""
    return Fault({"holds": "zero"}, output=lambda out, lse: (0 * out, lse), dims=True)
