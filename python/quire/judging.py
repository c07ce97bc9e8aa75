"""verify() and diagnose(): is an implementation right, and what is wrong with an output."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from quire import _quire

__all__ = ["diagnose"]


def diagnose(
    case: Any,
    *,
    full: bool = False,
    seconds: float = 1.0,
    progress: Callable[[str], Any] | None = None,
) -> _quire.Diagnosis:
    """What is wrong with an observed output, where, and why (docs/diagnose.md).

    case: a :class:`Case` with an observed output, or the path of a capture.
    full: compare every row with the reference, however long it takes; else about ``seconds`` are spent on that.
    progress: called with the name of each stage.

    Raises ArgumentError if the case has no observed output, ParseError or FileError for a bad file. The GIL is released.
    """
    if isinstance(case, (str, bytes, os.PathLike)):
        case = _quire.read_capture(case)
    return _quire.diagnose_case(case, full, seconds, progress)
