# SPDX-License-Identifier: Apache-2.0
"""verify(), soak() and diagnose(): is an implementation right, and what is wrong with an output."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from quire import _quire, targets
from quire._crash_note import CrashNote
from quire._messages import DTYPES, keywords_checked, shown
from quire._progress import Progress
from quire._supports import TypePairs, as_function, strides_of, type_pairs
from quire.errors import ArgumentError

__all__ = ["diagnose", "soak", "verify"]

_log = logging.getLogger("quire.judging")


def _runner(target: Any, before: Callable[[str], None] | None = None) -> Any:
    if isinstance(target, str) and (target in targets.ADAPTERS or ":" in target):
        target = targets.load(target)
    return target if isinstance(target, str) else targets.Runner(target, before)


def _supports_of(target: Any, given: Any) -> Callable[[dict[str, Any]], bool] | None:
    """Function that states the supported problems: the caller's, or the target's."""
    return as_function(getattr(target, "supports", None) if given is None else given)


def _strides_of(target: Any, given: Any) -> str:
    return strides_of(getattr(target, "supports", None) if given is None else given)


def _several(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


@keywords_checked
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
    crash_file: str | os.PathLike[str] | None = "quire-verify-crash-{pid}.txt",
    progress: Callable[[int, int, str], Any] | None = None,
) -> _quire.Verdict:
    """Is an implementation a correct paged attention, and would this suite notice if it were not? (verify.md)

    target: the name of a kernel of Quire ("cpu" = the planned one), the name of an adapter of :mod:`quire.targets`, or an implementation
        as described there: a callable ``f(case)`` or ``f(batch, cache, options)`` that returns the output, ``(output, lse)`` or None.
    matrices: any of "notes", "hazards", "random"; "all". One may be given as it is, here and below.
    lines: problem lines of your own.
    quick: a subset of every matrix, in under a minute.
    power: plant the catalogue of faults and count how many the suite notices. peer_power: also with vLLM's test data and tolerance.
    seed, random_cases: of the random matrix.
    types, dims, layouts: make hazard and random cases in these alone: types as "bf16" or "bf16:fp8_e4m3fn" (query and cache), head_dims,
        layouts "nhd", "hnd", "packed".
    supports: what the implementation takes, for hazards and random lines to be brought into that form instead of being refused. A dict of
        attributes, ``{"query": ["f16", "bf16"], "kv": ["f16", "bf16"], "layout": "nhd", "sinks": False, "page_size": [16, 32]}``, each a
        value, some values or a function of the value; or a function of an object with these attributes that says yes or no. Attributes:
        query, kv, layout, num_q_heads, num_kv_heads, head_dim, v_head_dim, latent, page_size, reqs (of query_len, context_len, cached_len), sliding_window,
        logits_soft_cap, softmax_scale, alibi, sinks, lse, k_scale, v_scale ("none", "tensor", "head", "token"), index, shared_pages, line. A
        dict may also say ``"strides"``: "none", "rows" or "any" (:class:`quire.targets.Target`). Default: ``target.supports``, if there is one.
    disabled_checks: checks to leave out, by name.
    shrink: reduce failing cases to the smallest line that fails, for about shrink_seconds each.
    crash_file: holds the problem line of the case at work, and is removed at the end. A target that ends the process leaves the file
        behind. ``{pid}`` stands for the number of the process. None: no file.
    progress: called with (done, total, what comes next); return False to stop. Default: a line on stderr, if that is a terminal.

    An exception in the callable is a finding with its text; UnsupportedError and NotImplementedError refuse the case.
    """
    says = _supports_of(target, supports)
    with Progress(progress is None) as line, CrashNote(crash_file) as note:
        runner = _runner(target, note.write)
        asked = dict(
            matrices=_several(matrices), lines=_several(lines), quick=quick, power=power, peer_power=peer_power, seed=seed,
            random_cases=random_cases, types=type_pairs(types), dims=list(dims), layouts=_several(layouts), supports=says,
            strides=_strides_of(target, supports), disabled_checks=_several(disabled_checks), shrink=shrink, shrink_seconds=shrink_seconds,
            progress=line.case if progress is None else progress,
        )  # fmt: skip
        verdict = _quire.verify_target(runner, asked)
    _log.info("verify: %r", verdict)
    return verdict


@keywords_checked
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
    """Asks fresh random batches until time is up or Ctrl-C is pressed (verify.md).

    directory: where state.json, log.txt and findings.txt are kept; a later run with the same folder goes on from there. None: nowhere.
    minutes: of this run; 0: until ``progress`` returns False. progress: called with a text before each batch.
    target, types, dims, layouts, supports, shrink, shrink_seconds: as for :func:`verify`.

    Raises ArgumentError if the state in the folder is of another target, FileError if the folder cannot be written.
    """
    runner = _runner(target)
    says = _supports_of(target, supports)
    with Progress(progress is None) as line:
        asked = dict(
            minutes=minutes, directory="" if directory is None else os.fspath(directory), seed=seed, types=type_pairs(types),
            dims=list(dims), layouts=_several(layouts), supports=says, strides=_strides_of(target, supports), shrink=shrink,
            shrink_seconds=shrink_seconds, progress=line.stage if progress is None else progress,
        )  # fmt: skip
        result = _quire.soak_target(runner, asked)
    _log.info("soak: %r", result)
    return result


@keywords_checked
def diagnose(
    batch: Any,
    cache: _quire.KVCache | None = None,
    options: _quire.Options | None = None,
    observed: Any = None,
    lse: Any = None,
    *,
    full: bool = False,
    seconds: float = 10.0,
    profile: str | None = None,
    progress: Callable[[str], Any] | None = None,
) -> _quire.Diagnosis:
    """Finds what is wrong with an observed output, where, and why (diagnose.md)::

        quire.diagnose("bad.safetensors")
        quire.diagnose(batch, cache, options, observed=my_kernel(...))

    batch: the :class:`Batch` that the output was made from; or a :class:`Case`, or the path of a capture, which have their own cache and
        options, and may have their own observed output.
    observed: the output, like batch.query, of any array library in host memory; for a capture, instead of its own.
    lse: judged too if given, f32 [num_tokens, num_q_heads].
    full: compare every row with the reference and try every cause, however long it takes.
    seconds: time limit of the search; a search that it ends says what it has not tried. An output that looks right is compared to the end.
    profile: what the kernel may round (numerics.md, "Profiles"): "plain", "weights=bf16", "weights=f16,dequantised",
        "products=tf32"; without it, the tightest one whose rounding looks like the error is found, and named in the report.
    progress: called with the name of each stage.

    What batch.output holds is taken for what the output held before the call; rows that still hold it were never written. Raises
    ArgumentError without an observed output, or for one of another shape or dtype, ParseError or FileError for a bad file. The GIL is
    released.
    """
    how = dict(full=full, seconds=seconds, progress=progress, profile=profile)
    if not isinstance(batch, _quire.Batch):
        if cache is not None or options is not None:
            raise ArgumentError("cache, options: a Case has its own")
        case = _case_of(batch)
        if observed is None:
            if lse is not None:
                raise ArgumentError("lse: is given without observed, the output that it belongs to")
            if case.observed is None:
                raise ArgumentError(_no_output("the case has none of its own", case.batch))
            return _logged(_quire.diagnose_case(case, how))
        batch, cache, options = case.batch, case.cache, case.options
    _check_inputs(batch, cache, options, observed)
    return _logged(_quire.diagnose_batch(batch, cache, options, observed, lse, how))


def _logged(found: _quire.Diagnosis) -> _quire.Diagnosis:
    _log.info("diagnose: %r", found)
    return found


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
    """Refuses wrong inputs with clearer messages than native code gives."""
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
