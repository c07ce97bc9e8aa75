# SPDX-License-Identifier: Apache-2.0
"""How much looking is allowed: a share of the engine's own time, spent as it is earned."""

from __future__ import annotations

import time
from typing import Any

_SMOOTHING = 0.2  # weight of the newest cost in an estimate; a wrong value makes the share overshoot for some steps, not in the end
_ARREARS = 50.0  # steps whose unused time is kept: a quiet minute must not pay for a stall later
_PURSES = {"tables": 0.2, "layers": 0.8}
"""Parts of the time. With one purse the cheaper look, of a table's row, would spend it in every step, and no layer be visited again."""
_PURSE = {"row of a table": "tables"}  # of a kind of work; the others are of layers
_ALWAYS = ("statement", "tables")  # kinds that every step does: all purses pay


class Budget:
    """``share`` of the time between :meth:`begin_step` and :meth:`end_step`; 1 or more = no limit."""

    def __init__(self, share: float, clock: Any = time.perf_counter):
        self.share, self._clock = share, clock
        self.full = share >= 1.0
        self.seconds = 0.0  # of the engine, in steps
        self.spent = 0.0  # of these, by the audit
        self._begun = 0.0
        self._credit = dict.fromkeys(_PURSES, 0.0)
        self._step = 0.0  # a step's usual seconds
        self._costs: dict[str, float] = {}

    def begin_step(self) -> None:
        self._begun = self._clock()

    def end_step(self) -> None:
        took = self._clock() - self._begun
        self.seconds += took
        self._step = took if self._step == 0 else self._step + _SMOOTHING * (took - self._step)
        for purse, part in _PURSES.items():
            earned = part * self.share
            self._credit[purse] = min(self._credit[purse] + earned * took, _ARREARS * earned * self._step)

    def allows(self, kind: str, amount: float = 1.0) -> bool:
        """Whether ``amount`` units of work of this kind fit. Work that was never done before is allowed once there is credit."""
        credit = self._credit[_PURSE.get(kind, "layers")]
        return self.full or credit >= self._costs.get(kind, 0.0) * amount and credit > 0.0

    def affordable(self, kind: str, most: int) -> int:
        """How many units fit, at most ``most``; at least one where any credit is left, or an estimate would never be made."""
        if self.full:
            return most
        cost, credit = self._costs.get(kind, 0.0), self._credit[_PURSE.get(kind, "layers")]
        if credit <= 0.0 or most == 0:
            return 0
        return most if cost <= 0.0 else max(0, min(most, int(credit / cost)))

    def pay(self, kind: str, begun: float, amount: float = 1.0) -> None:
        """Work of this kind has run since ``begun`` (of :meth:`now`)."""
        took = self.learn(kind, begun, amount)
        self.spent += took
        parts = _PURSES if kind in _ALWAYS else {_PURSE.get(kind, "layers"): 1.0}
        for purse, part in parts.items():
            self._credit[purse] -= part * took

    def learn(self, kind: str, begun: float, amount: float = 1.0) -> float:
        """As :meth:`pay`, for work that is part of some other kind, which pays. Returns seconds."""
        took = self._clock() - begun
        each = took / max(amount, 1.0)
        known = self._costs.get(kind)
        self._costs[kind] = each if known is None else known + _SMOOTHING * (each - known)
        return took

    def now(self) -> float:
        return self._clock()

    @property
    def used(self) -> float:
        """Seconds of the audit as a share of all others."""
        return self.spent / max(self.seconds - self.spent, 1e-9)
