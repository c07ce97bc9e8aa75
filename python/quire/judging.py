"""verify() and diagnose(): is an implementation right, and what is wrong with an output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from quire import _quire, targets
from quire._messages import DTYPES, explained, shown
from quire.errors import ArgumentError

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
    batch: Any,
    cache: _quire.KVCache | None = None,
    options: _quire.Options | None = None,
    observed: Any = None,
    lse: Any = None,
    *,
    full: bool = False,
    seconds: float = 1.0,
    profile: str | None = None,
    progress: Callable[[str], Any] | None = None,
) -> _quire.Diagnosis:
    """What is wrong with an observed output, where, and why (docs/diagnose.md)::

        quire.diagnose("bad.safetensors")
        quire.diagnose(batch, cache, options, observed=my_kernel(...))

    batch: the :class:`Batch` that the output was made from; or a :class:`Case`, or the path of a capture, which have their own cache and
        options, and may have their own observed output.
    observed: the output, like batch.query, of any array library in host memory; for a capture, instead of its own.
    lse: judged too if given, f32 [num_tokens, num_q_heads].
    full: compare every row with the reference, however long it takes; else about ``seconds`` are spent on that.
    profile: what the kernel may round (docs/numerics.md, "Profiles"): "plain", "weights=bf16", "weights=f16,dequantised",
        "products=tf32"; without it, the tightest one whose rounding looks like the error is found, and named in the report.
    progress: called with the name of each stage.

    What batch.output holds is taken for what the output held before the call; rows that still hold it were never written. Raises
    ArgumentError without an observed output, or for one of another shape or dtype, ParseError or FileError for a bad file. The GIL is
    released.
    """
    if not isinstance(batch, _quire.Batch):
        if cache is not None or options is not None:
            raise ArgumentError("cache, options: a Case has its own")
        case = _case_of(batch)
        if observed is None:
            if lse is not None:
                raise ArgumentError("lse: is given without observed, the output that it belongs to")
            if case.observed is None:
                raise ArgumentError(_no_output("the case has none of its own", case.batch))
            return _diagnose_case(case, full, seconds, progress, profile)
        batch, cache, options = case.batch, case.cache, case.options
    _check_inputs(batch, cache, options, observed)
    return _diagnose_batch(batch, cache, options, observed, lse, full, seconds, progress, profile)


_diagnose_case = explained(_quire.diagnose_case, name="diagnose")
_diagnose_batch = explained(_quire.diagnose_batch, name="diagnose")


def _case_of(given: Any) -> _quire.Case:
    if isinstance(given, _quire.Case):
        return given
    if isinstance(given, (str, bytes, os.PathLike)):
        return _quire.read_capture(given)
    raise ArgumentError(f"batch: {shown(given)}, expected a quire.Batch, a quire.Case or the path of a capture")


def _no_output(why: str, batch: _quire.Batch) -> str:
    shape = ", ".join(str(n) for n in batch.query.shape)
    return f"observed: {why}, expected the output to be judged, {batch.dtype} [{shape}] like query: diagnose(..., observed=out)"


def _check_inputs(batch: _quire.Batch, cache: Any, options: Any, observed: Any) -> None:
    """What native code would say less well."""
    if not isinstance(cache, _quire.KVCache):
        raise ArgumentError(f"cache: {shown(cache)}, expected a quire.KVCache")
    if options is not None and not isinstance(options, _quire.Options):
        raise ArgumentError(f"options: {shown(options)}, expected a quire.Options or None; an output is given as observed=")
    if observed is None:
        raise ArgumentError(_no_output("is None", batch))
    dtype = str(getattr(observed, "dtype", "")).removeprefix("torch.")
    raw = dtype.startswith("uint") or dtype == "int16"  # the bits of a 16-bit type
    if dtype and not raw and (name := DTYPES.get(dtype, dtype)) != batch.dtype:
        raise ArgumentError(f"observed: {name}, expected {batch.dtype}, the type of the batch's query")
