# SPDX-License-Identifier: Apache-2.0
"""Whether what leaves a model's last attention layer is finite.

A NaN or an infinity in a K, a V or an output of any layer reaches the outputs of all later layers in the same step, through the residual
stream. One look at the last layer therefore sees a NaN of any layer, in every step, for the price of one row a request.
"""

from __future__ import annotations

import numpy as np
import torch

from quire_vllm.audit.statement import Request, Tables

_EXPONENT = {torch.float32: (np.int32, 0x7F800000), torch.bfloat16: (np.int16, 0x7F80), torch.float16: (np.int16, 0x7C00)}
"""IEEE 754 bits of the exponent: all of them set = infinity or NaN."""


class Values:
    def __init__(self) -> None:
        self._unread: tuple[list[Request], torch.Tensor | np.ndarray] | None = None
        self._told: set[int] = set()  # numbers of requests whose output is not finite

    def see(self, output: torch.Tensor, tables: Tables) -> None:
        """The last row of each request. A device computes it; :meth:`read` fetches it when the step has ended anyway."""
        rows = [row for row, request in enumerate(tables.rows) if request is not None and request.scheduled]
        if rows:
            self._unread = [tables.rows[row] for row in rows], _finite_rows(output, tables.query_start_loc[1:][rows] - 1)

    def read(self) -> list[Request]:
        """Requests whose output of the step before was the first that is not finite."""
        if self._unread is None:
            return []
        requests, finite = self._unread
        self._unread = None
        broken = [request for request, fine in zip(requests, finite.tolist()) if not fine and request.number not in self._told]
        self._told |= {request.number for request in broken}
        return broken


def _finite_rows(x: torch.Tensor, indices: np.ndarray) -> torch.Tensor | np.ndarray:
    """[indices] bool. On a CPU by NumPy, which takes one core and no barrier, as in Layout.read_slots."""
    if x.device.type == "cpu" and x.dtype in _EXPONENT:
        integer, mask = _EXPONENT[x.dtype]
        bits = x.detach().view(torch.int32 if integer is np.int32 else torch.int16).numpy()[indices].reshape(len(indices), -1)
        return ((bits & integer(mask)) != mask).all(1)
    return x[torch.from_numpy(indices).to(x.device)].reshape(len(indices), -1).isfinite().all(1)


def not_finite(rows: torch.Tensor, cache_dtype: str | None) -> np.ndarray:
    """Indices of slots that hold a NaN or an infinity. rows: [slots, ...] as stored; ``cache_dtype``: Quire's type of raw uint8 caches."""
    if rows.dtype == torch.uint8 and cache_dtype is not None:
        rows = rows.view(getattr(torch, cache_dtype.replace("fp8_", "float8_")))
    if not rows.dtype.is_floating_point:
        return np.empty(0, np.int64)
    return np.flatnonzero(~rows.float().isfinite().reshape(len(rows), -1).all(1).cpu().numpy())
