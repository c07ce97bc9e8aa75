# SPDX-License-Identifier: Apache-2.0
"""Budget of the audit's time: a share of the engine's own time, spent as it is earned."""

from __future__ import annotations

import time
from typing import Any

_SMOOTHING = 0.2  # weight of the newest cost in an estimate; a wrong value makes the share overshoot for some steps, not in the end
_ARREARS = 50.0  # steps whose unused time is kept: a quiet minute must not pay for a stall later
_PURSES = {"tables": 0.1, "layers": 0.9}
"""Parts of the time. With one purse the cheaper look, of a table's row, would spend it in every step, and no layer be visited again."""
_PURSE = {"tables": "tables", "row of a table": "tables"}  # of a kind of work; the others are of layers
_ALWAYS = ("statement",)  # kinds that every step does: all purses pay


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
            self._credit[purse] = min(self._credit[purse] + part * self.share * took, self._limit(purse))

    def batch(self, kind: str, most: int, *more: str) -> int:
        """Number of units to do now: ``most`` once they fit, fewer only if ``most`` never would; 0 while credit is saved up.

        ``more``: kinds of work that each unit also needs. Units done together cost less than one by one, because
        shared work is done once and stays in the processor's caches."""
        if self.full or most == 0:
            return most
        purse, cost = _PURSE.get(kind, "layers"), sum(self._costs.get(k, 0.0) for k in (kind, *more))
        credit, limit = self._credit[purse], self._limit(purse)
        if credit <= 0.0:
            return 0
        if cost <= 0.0:
            return 1  # an estimate is made first
        wanted = max(1, min(most, int(limit / cost)))
        return wanted if credit >= min(wanted * cost, limit) else 0

    def _limit(self, purse: str) -> float:
        """The most credit that a purse holds."""
        return _ARREARS * _PURSES[purse] * self.share * self._step

    def pay(self, kind: str, begun: float, amount: float = 1.0) -> None:
        """``amount`` units of work of this kind have run since ``begun`` (of :meth:`now`)."""
        took = self._clock() - begun
        each = took / max(amount, 1.0)
        known = self._costs.get(kind)
        self._costs[kind] = each if known is None else known + _SMOOTHING * (each - known)
        self.spent += took
        parts = _PURSES if kind in _ALWAYS else {_PURSE.get(kind, "layers"): 1.0}
        for purse, part in parts.items():
            self._credit[purse] -= part * took

    def charge(self, seconds: float) -> None:
        """Work has failed after so long. All purses pay, so that a look that fails in every step is tried as rarely as one that does not."""
        self.spent += seconds
        for purse, part in _PURSES.items():
            self._credit[purse] -= part * seconds

    def now(self) -> float:
        return self._clock()

    @property
    def used(self) -> float:
        """Seconds of the audit as a share of all others."""
        return self.spent / max(self.seconds - self.spent, 1e-9)
