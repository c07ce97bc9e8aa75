"""verify() and diagnose(): is an implementation right, and what is wrong with an output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from quire import _quire, targets

__all__ = ["diagnose", "verify"]


def _several(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def verify(
    target: Any,
    *,
    matrices: str | Iterable[str] = ("hazards",),
    lines: str | Iterable[str] = (),
    quick: bool = False,
    power: bool = True,
    peer_power: bool = False,
    seed: int = 1,
    random_cases: int = 200,
    disabled_checks: str | Iterable[str] = (),
    shrink: bool = True,
    progress: Callable[[int, int, str], Any] | None = None,
) -> _quire.Verdict:
    """Is an implementation a correct paged attention, and would this suite notice if it were not? (docs/verify.md)

    target: the name of a kernel of Quire ("cpu" = the planned one), the name of an adapter of :mod:`quire.targets`, or an implementation
        as described there: a callable ``f(case)`` or ``f(batch, cache, options)`` that returns the output, ``(output, lse)`` or None.
    matrices: any of "notes", "hazards", "random"; "all". One may be given as it is, here and below.
    lines: problem lines of your own.
    quick: a subset of every matrix, in under a minute.
    power: plant the catalogue of faults and count how many the suite notices. peer_power: also with vLLM's test data and tolerance.
    seed, random_cases: of the random matrix. shrink: reduce every failing case to the smallest line that fails.
    disabled_checks: checks to leave out, by name.
    progress: called with (done, total, what comes next); return False to stop.

    An exception in the callable is a finding with its text; UnsupportedError and NotImplementedError refuse the case.
    """
    if isinstance(target, str) and (target in targets.ADAPTERS or ":" in target):
        target = targets.load(target)
    runner = target if isinstance(target, str) else targets.Runner(target)
    return _quire.verify_target(
        runner, _several(matrices), _several(lines), quick, power, peer_power, seed, random_cases, _several(disabled_checks), shrink, progress
    )


def diagnose(
    case: Any,
    *,
    full: bool = False,
    seconds: float = 1.0,
    profile: str | None = None,
    progress: Callable[[str], Any] | None = None,
) -> _quire.Diagnosis:
    """What is wrong with an observed output, where, and why (docs/diagnose.md).

    case: a :class:`Case` with an observed output, or the path of a capture.
    full: compare every row with the reference, however long it takes; else about ``seconds`` are spent on that.
    profile: what the kernel may round (docs/numerics.md, "Profiles"): "plain", "weights=bf16", "weights=f16,dequantised",
        "products=tf32"; without it, the tightest one whose rounding looks like the error is found, and named in the report.
    progress: called with the name of each stage.

    Raises ArgumentError if the case has no observed output, ParseError or FileError for a bad file. The GIL is released.
    """
    if isinstance(case, (str, bytes, os.PathLike)):
        case = _quire.read_capture(case)
    return _quire.diagnose_case(case, full, seconds, progress, profile)
