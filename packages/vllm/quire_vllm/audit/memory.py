# SPDX-License-Identifier: Apache-2.0
"""Contents of every slot of a layer: a digest of its K and V, or a copy. A slot that changes without a recorded write was overwritten."""

from __future__ import annotations

import numpy as np
import torch

_SEED = 0x5155495245  # of the digest's weights; any value will do
_UNKNOWN = -1


def slot_digests(rows: torch.Tensor) -> torch.Tensor:
    """A 64-bit sum of each slot's bits times random odd weights: [slots] int64 of [slots, ...]. One changed bit always shows."""
    flat = rows.reshape(len(rows), -1).contiguous()
    width = flat.shape[1] * flat.element_size()
    if width % 8:
        flat = torch.nn.functional.pad(flat.view(torch.uint8), (0, 8 - width % 8))
    words = flat.view(torch.int64)
    weights = _weights(words.shape[1], words.device)
    if words.device.type == "cpu":  # as in Layout.read_slots
        return torch.from_numpy((words.numpy() * weights.numpy()).sum(-1))
    return (words * weights).sum(-1)


_known: dict[tuple[int, str], torch.Tensor] = {}


def _weights(count: int, device: torch.device) -> torch.Tensor:
    if (count, str(device)) not in _known:
        numbers = np.random.default_rng(_SEED).integers(-(2**62), 2**62, count, dtype=np.int64) * 2 + 1
        _known[count, str(device)] = torch.from_numpy(numbers).to(device)
    return _known[count, str(device)]


class Memory:
    """One layer's slots. ``version``: the ledger's step of the write that the entry belongs to. ``copy``: keep K and V, not digests."""

    def __init__(self, num_slots: int, copy: bool = False):
        self.version = np.full(num_slots, _UNKNOWN, np.int32)
        self.digest = np.zeros(num_slots, np.int64)
        self.rows: torch.Tensor | None = None
        self.copy = copy

    def changed(self, slots: np.ndarray, versions: np.ndarray, rows: torch.Tensor) -> np.ndarray:
        """Indices into ``slots`` whose contents differ from what they held at the same version. ``rows``: [slots, ...] as read now."""
        same = self.version[slots] == versions
        digests = slot_digests(rows).cpu().numpy()
        wrong = np.flatnonzero(same & (self.digest[slots] != digests))
        self._keep(slots, versions, rows, digests)
        return wrong

    def before(self, slot: int) -> torch.Tensor | None:
        """Contents of a slot at the last look; None without copies. Call it before :meth:`changed` replaces the copy."""
        return None if self.rows is None else self.rows[slot].clone()

    def _keep(self, slots: np.ndarray, versions: np.ndarray, rows: torch.Tensor, digests: np.ndarray) -> None:
        self.version[slots], self.digest[slots] = versions, digests
        if self.copy:
            if self.rows is None:
                self.rows = torch.zeros((len(self.version), *rows.shape[1:]), dtype=rows.dtype)
            self.rows[torch.from_numpy(slots)] = rows.cpu()
