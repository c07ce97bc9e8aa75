# SPDX-License-Identifier: Apache-2.0
"""Progress of a long call as one line on a terminal; no output elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

__all__ = ["Progress"]

_SECONDS_BETWEEN = 0.1


class Progress:
    """A line on stderr, rewritten in place and cut to the width of the terminal. Used as a context manager, it wipes the line at the end."""

    def __init__(self, wanted: bool = True, stream: Any = None):
        self._stream = sys.stderr if stream is None else stream
        self._on = wanted and self._stream.isatty()
        self._shown = False
        self._start = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self.clear()

    def case(self, done: int, total: int, label: str) -> bool:
        """Shows a step of quire.verify: cases done of all cases, the time so far, and the next case."""
        self.stage(f"{done} of {total}, {time.monotonic() - self._start:.0f} s: {label}")
        return True

    def stage(self, text: str) -> bool:
        now = time.monotonic()
        if self._on and now >= self._next:
            self._next = now + _SECONDS_BETWEEN
            width = max(20, shutil.get_terminal_size().columns) - 1  # a full line would wrap
            print("\r\x1b[K" + text[:width], end="", file=self._stream, flush=True)
            self._shown = True
        return True

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False
