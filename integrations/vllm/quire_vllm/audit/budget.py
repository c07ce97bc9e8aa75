"""How much looking is allowed: a share of the engine's own time, spent as it is earned."""

from __future__ import annotations

import time
from typing import Any

_SMOOTHING = 0.2  # weight of the newest cost in an estimate; a wrong value makes the share overshoot for some steps, not in the end
_ARREARS = 50.0  # steps whose unused time is kept: a quiet minute must not pay for a stall later


class Budget:
    """``share`` of the time between :meth:`begin_step` and :meth:`end_step`; 1 or more = no limit."""

    def __init__(self, share: float, clock: Any = time.perf_counter):
        self.share, self._clock = share, clock
        self.full = share >= 1.0
        self.seconds = 0.0  # of the engine, in steps
        self.spent = 0.0  # of these, by the audit
        self._begun = 0.0
        self._credit = 0.0
        self._step = 0.0  # a step's usual seconds
        self._costs: dict[str, float] = {}

    def begin_step(self) -> None:
        self._begun = self._clock()

    def end_step(self) -> None:
        took = self._clock() - self._begun
        self.seconds += took
        self._step = took if self._step == 0 else self._step + _SMOOTHING * (took - self._step)
        self._credit = min(self._credit + self.share * took, _ARREARS * self.share * self._step)

    def allows(self, kind: str, amount: float = 1.0) -> bool:
        """Whether ``amount`` units of work of this kind fit. Work that was never done before is allowed once there is credit."""
        return self.full or self._credit >= self._costs.get(kind, 0.0) * amount and self._credit > 0.0

    def affordable(self, kind: str, most: int) -> int:
        """How many units fit, at most ``most``; at least one where any credit is left, or an estimate would never be made."""
        if self.full:
            return most
        cost = self._costs.get(kind, 0.0)
        if self._credit <= 0.0 or most == 0:
            return 0
        return most if cost <= 0.0 else max(0, min(most, int(self._credit / cost)))

    def pay(self, kind: str, begun: float, amount: float = 1.0) -> None:
        """Work of this kind has run since ``begun`` (of :meth:`now`)."""
        took = self._clock() - begun
        self.spent += took
        self._credit -= took
        each = took / max(amount, 1.0)
        known = self._costs.get(kind)
        self._costs[kind] = each if known is None else known + _SMOOTHING * (each - known)

    def now(self) -> float:
        return self._clock()

    @property
    def used(self) -> float:
        """Seconds of the audit as a share of all others."""
        return self.spent / max(self.seconds - self.spent, 1e-9)
