"""verify(), soak() and diagnose(): is an implementation right, and what is wrong with an output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from quire import _quire, targets
from quire._progress import Progress
from quire._supports import TypePairs, as_function, type_pairs

__all__ = ["diagnose", "soak", "verify"]


def _runner(target: Any) -> Any:
    if isinstance(target, str) and (target in targets.ADAPTERS or ":" in target):
        target = targets.load(target)
    return target if isinstance(target, str) else targets.Runner(target)


def _supports_of(target: Any, given: Any) -> Callable[[dict[str, Any]], bool] | None:
    """What the caller says, or the target."""
    return as_function(getattr(target, "supports", None) if given is None else given)


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
    types: TypePairs = (),
    dims: Iterable[int] = (),
    layouts: str | Iterable[str] = (),
    supports: Any = None,
    disabled_checks: str | Iterable[str] = (),
    shrink: bool = True,
    shrink_seconds: float = 15.0,
    progress: Callable[[int, int, str], Any] | None = None,
) -> _quire.Verdict:
    """Is an implementation a correct paged attention, and would this suite notice if it were not? (docs/verify.md)

    target: the name of a kernel of Quire ("cpu" = the planned one), the name of an adapter of :mod:`quire.targets`, or an implementation
        as described there: a callable ``f(case)`` or ``f(batch, cache, options)`` that returns the output, ``(output, lse)`` or None.
    matrices: any of "notes", "hazards", "random"; "all". One may be given as it is, here and below.
    lines: problem lines of your own.
    quick: a subset of every matrix, in under a minute.
    power: plant the catalogue of faults and count how many the suite notices. peer_power: also with vLLM's test data and tolerance.
    seed, random_cases: of the random matrix.
    types, dims, layouts: ask hazards and random lines in these alone: types as "bf16" or "bf16:fp8_e4m3fn" (query and cache), head_dims,
        layouts "nhd", "hnd", "packed".
    supports: what the implementation takes, for hazards and random lines to be brought into that form instead of being refused. A dict of
        attributes, ``{"query": ["f16", "bf16"], "kv": ["f16", "bf16"], "layout": "nhd", "sinks": False, "page_size": [16, 32]}``, each a
        value, some values or a function of the value; or a function of an object with these attributes that says yes or no. Attributes:
        query, kv, layout, num_q_heads, num_kv_heads, head_dim, page_size, reqs (of query_len, context_len, cached_len), sliding_window,
        logits_soft_cap, softmax_scale, alibi, sinks, lse, k_scale, v_scale ("none", "tensor", "head"), index, shared_pages, line. Default:
        ``target.supports``, if there is one.
    disabled_checks: checks to leave out, by name.
    shrink: reduce failing cases to the smallest line that fails, for about shrink_seconds each.
    progress: called with (done, total, what comes next); return False to stop. Default: a line on stderr, if that is a terminal.

    An exception in the callable is a finding with its text; UnsupportedError and NotImplementedError refuse the case.
    """
    runner = _runner(target)
    says = _supports_of(target, supports)
    with Progress(progress is None) as line:
        return _quire.verify_target(
            runner, _several(matrices), _several(lines), quick, power, peer_power, seed, random_cases, type_pairs(types), list(dims), _several(layouts),
            says, _several(disabled_checks), shrink, shrink_seconds, line.case if progress is None else progress,
        )  # fmt: skip


def soak(
    target: Any,
    minutes: float,
    directory: str | os.PathLike[str] | None = None,
    *,
    seed: int = 1,
    types: TypePairs = (),
    dims: Iterable[int] = (),
    layouts: str | Iterable[str] = (),
    supports: Any = None,
    shrink: bool = True,
    shrink_seconds: float = 15.0,
    progress: Callable[[str], Any] | None = None,
) -> _quire.SoakResult:
    """Asks fresh random batches until time is up or Ctrl-C is pressed (docs/verify.md).

    directory: where state.json, log.txt and findings.txt are kept; a later run with the same folder goes on from there. None: nowhere.
    minutes: of this run; 0: until ``progress`` returns False. progress: called with a text before each batch.
    target, types, dims, layouts, supports, shrink, shrink_seconds: as for :func:`verify`.

    Raises ArgumentError if the state in the folder is of another target, FileError if the folder cannot be written.
    """
    runner = _runner(target)
    says = _supports_of(target, supports)
    with Progress(progress is None) as line:
        return _quire.soak_target(
            runner, minutes, "" if directory is None else os.fspath(directory), seed, type_pairs(types), list(dims), _several(layouts), says,
            shrink, shrink_seconds, line.stage if progress is None else progress,
        )  # fmt: skip


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
