# SPDX-License-Identifier: Apache-2.0
"""The boundary between the audit and the engine that it watches: what fails in the audit is counted and logged, and the engine goes on.

Every call from an engine's hook into the audit runs in ``with boundary(kind):``. Only :class:`AuditError` passes, which
QUIRE_AUDIT_ACTION=stop asks for. No engine's own call stands inside such a block, so that an engine's error stays the engine's.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

_LOG_SECONDS = 60.0  # between two log lines of one kind; a full disk fails in every step, and its log must not fill another one

_log = logging.getLogger("vllm.quire")


class AuditError(RuntimeError):
    """An alarm under QUIRE_AUDIT_ACTION=stop."""


class Boundary:
    """``errors``: how often each kind of work has failed in this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.errors: collections.Counter[str] = collections.Counter()
        self.clock = clock
        self._charge: Callable[[float], None] | None = None
        self._thread = 0
        self._logged: dict[str, float] = {}

    def charge_to(self, charge: Callable[[float], None]) -> None:
        """``charge`` is told the seconds of a failure in the calling thread, which is the engine's. No step waits for other threads."""
        self._charge, self._thread = charge, threading.get_ident()

    def __call__(self, kind: str) -> _Part:
        return _Part(self, kind)

    def failed(self, kind: str, error: Exception, begun: float) -> None:
        """Counts the failure, and logs it unless that kind was logged a short while ago. Raises nothing."""
        try:
            self.errors[kind] += 1
            now = self.clock()
            if self._charge is not None and threading.get_ident() == self._thread:
                self._charge(now - begun)
            if now - self._logged.get(kind, -_LOG_SECONDS) >= _LOG_SECONDS:
                again = kind in self._logged
                self._logged[kind] = now
                text = "quire audit: %s failed, %d times so far; the engine goes on, and this is not looked at: %s: %s"
                _log.error(text, kind, self.errors[kind], type(error).__name__, error, exc_info=None if again else error)
        except Exception:  # no memory for a line of text, say: nothing is left to do, and the engine's step goes first
            pass


class _Part:
    """``failed``: whether the block was left by an error."""

    __slots__ = ("_begun", "_boundary", "_kind", "failed")

    def __init__(self, boundary: Boundary, kind: str):
        self._boundary, self._kind, self.failed = boundary, kind, False

    def __enter__(self) -> _Part:
        self._begun = self._boundary.clock()
        return self

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> bool:
        if not isinstance(error, Exception) or isinstance(error, AuditError):
            return False
        self.failed = True
        self._boundary.failed(self._kind, error, self._begun)
        return True
