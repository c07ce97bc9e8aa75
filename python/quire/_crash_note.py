# SPDX-License-Identifier: Apache-2.0
"""A file that names the case at work, for targets that end the process: a crash takes the verdict with it, but not the file."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from typing import Any

__all__ = ["CrashNote"]

_log = logging.getLogger("quire.judging")


class CrashNote:
    """Used as a context manager. The file is a case file (`python -m quire verify --lines FILE`), and is gone at the end."""

    def __init__(self, path: str | os.PathLike[str] | None):
        self._path = None if path is None else pathlib.Path(str(path).replace("{pid}", str(os.getpid())))
        self._line = ""

    def __enter__(self) -> CrashNote:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._path is not None and self._line:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def write(self, line: str) -> None:
        """Called before each call of the target. Without a place to write, the run goes on and the log says why."""
        if self._path is None or line == self._line:
            return
        try:
            self._path.write_text(
                "# quire verify: the process ended while the target computed this case. To ask for this case alone, give this\n"
                f"# file to --lines, or its line to quire.verify(target, matrices=[], lines=[line], power=False).\n{line}\n",
                encoding="utf-8",
            )
            self._line = line
        except OSError as error:
            _log.warning("verify: no note of crashes: %s", error)
            self._path = None
