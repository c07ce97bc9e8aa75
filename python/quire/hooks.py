# SPDX-License-Identifier: Apache-2.0
"""Recording the calls of somebody's attention op: what went in and what came out, as capture files.

::

    with quire.capture("captures/", op="flash_attn:flash_attn_varlen_func"):      # records the first wrong call
        run_my_test()                                         # patches the function, also where it was imported by name

    import quire_vllm.ops                                     # adds vLLM's ops: of the package quire-vllm

    with quire.capture("bad.safetensors", op="vllm.v1.attention.ops.chunked_prefill_paged_decode:chunked_prefill_paged_decode"):
        run_vllm()

    @quire.record("captures/", when="always", op="flash_attn_varlen_func")
    def my_attention(q, k, v, cu_seqlens_q, ...): ...

    @quire.record("captures/", adapter=lambda q, cache, step: (step.batch(q), cache))      # any other signature
    def my_decode(q, cache, step): ...

The op's result, its exceptions and its arguments are never changed; a recorder that cannot read a call or write its file warns. With
``when="mismatch"`` every call is compared with :func:`quire.reference` on a few rows, chosen so that the cost stays near ``budget_ms``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from quire import _adapter, _calls, _quire
from quire._messages import keywords_checked
from quire._sampling import Part, Sampler
from quire.errors import ArgumentError

__all__ = ["CaptureWarning", "Recorder", "capture", "record"]

_log = logging.getLogger("quire.hooks")

F = TypeVar("F", bound=Callable[..., Any])
_inside = threading.local()
_MAX_CACHE_BYTES = 256 << 20


class CaptureWarning(UserWarning):
    """A wrong call was recorded, or a call could not be."""


class Recorder:
    """Records calls of attention ops. Made by :func:`capture` and :func:`record`; its counters say what it did and cost."""

    def __init__(self, path: Any, when: str | int, budget_ms: float, limit: int | None, pages: str):
        if not (when in ("mismatch", "always") or (isinstance(when, int) and not isinstance(when, bool) and when >= 1)):
            raise ArgumentError(f'when: {when!r} is neither "mismatch" nor "always" nor a number n >= 1 (every n-th call)')
        if pages not in ("auto", "all", "named"):
            raise ArgumentError(f'pages: "{pages}" is none of auto, all, named')
        if error := _quire.duration_error(budget_ms, 1e-6):
            raise ArgumentError(f"budget_ms: {error}")
        self._path, self._when, self._pages = os.fsdecode(path), when, pages
        self.sampler = Sampler(budget_ms / 1e3)
        self._limit = limit if limit is not None else (1 if when == "mismatch" else sys.maxsize)
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self.paths: list[str] = []
        """Captures written, in order."""
        self.calls = 0
        """Calls seen."""
        self.mismatches = 0
        """Calls found wrong."""
        self.seconds = 0.0
        """Time spent on looking at calls and writing captures; the ops' own time is not in it."""

    @property
    def checked_rows(self) -> int:
        """(row, KV head) pairs compared with the reference."""
        return self.sampler.checked_rows

    def __repr__(self) -> str:
        return f"Recorder({self._path!r}, calls={self.calls}, mismatches={self.mismatches}, captures={len(self.paths)})"

    # --- around one call ---

    def wrap(self, function: F, op: str | None = None, adapter: _adapter.Adapter | None = None) -> F:
        """``function`` with every call recorded as this recorder was told to."""
        name = op or getattr(function, "__name__", "call")
        kind = _calls.op_named(name) if adapter is None else _adapter.OWN
        bind = _calls.binder(function, name) if adapter is None else _adapter.binder(adapter)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if getattr(_inside, "busy", False) or len(self.paths) >= self._limit or _calls.is_capturing():
                return function(*args, **kwargs)
            _inside.busy = True
            try:
                watch = _Watch(self, name, kind)
                watch.before(lambda: bind(args, kwargs))
                try:
                    result = function(*args, **kwargs)
                except Exception as error:
                    watch.after(None, error)
                    raise
                watch.after(result, None)
                return result
            finally:
                _inside.busy = False

        return recorded  # type: ignore[return-value]

    # --- used by _Watch ---

    def begin(self) -> int:
        with self._lock:
            self.calls += 1
            return self.calls

    def due(self, number: int) -> bool:
        """Is this call recorded whatever its output is?"""
        return self._when == "always" or (isinstance(self._when, int) and (number - 1) % self._when == 0)

    @property
    def compares(self) -> bool:
        return self._when == "mismatch"

    def warn(self, text: str, once: bool = True) -> None:
        if once and text in self._warned:
            return
        self._warned.add(text)
        warnings.warn(text, CaptureWarning, stacklevel=5)

    def next_path(self, op: str) -> str | None:
        """A file name that is free, or None if enough was recorded."""
        with self._lock:
            if len(self.paths) >= self._limit:
                return None
            if self._path.endswith(".safetensors"):
                stem, number = self._path.removesuffix(".safetensors"), len(self.paths) + 1
                path = self._path if number == 1 else f"{stem}-{number}.safetensors"
            else:
                number = 1
                while os.path.exists(path := os.path.join(self._path, f"{op}-{os.getpid()}-{number:04d}.safetensors")):
                    number += 1
            self.paths.append(path)
            return path

    def forget(self, path: str) -> None:
        with self._lock:
            self.paths.remove(path)

    def spent(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds

    def arguments(self, arguments: Mapping[str, Any], kind: _calls.Op) -> tuple[dict[str, Any], str]:
        """Copies the arguments to host memory, with as much of the caches as a capture should hold."""
        device = any(_calls.on_device(arguments[name]) for name in kind.caches)
        large = _calls.cache_bytes(arguments, kind) > _MAX_CACHE_BYTES
        kept, text = (
            _calls.compacted(arguments, kind)
            if self._pages == "named" or (self._pages == "auto" and (device or large))
            else (dict(arguments), "all pages")
        )
        return {name: _calls.to_host(value) for name, value in kept.items()}, text


class _Watch:
    """A watched call: its arguments before the call, and the check of its output afterwards."""

    def __init__(self, recorder: Recorder, name: str, kind: _calls.Op):
        self._recorder, self._name, self._kind = recorder, name, kind
        self._number = recorder.begin()
        self._arguments: dict[str, Any] | None = None
        self._output_before: Any = None

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step of the recorder; its failures are warnings and its time is counted."""
        start = time.perf_counter()
        try:
            step()
        except Exception as error:  # the op comes first, whatever we cannot do
            self._arguments = None
            self._recorder.warn(f"quire.capture: {self._name}: this call cannot be recorded: {type(error).__name__}: {error}")
        self._recorder.spent(time.perf_counter() - start)

    def before(self, bind: Callable[[], Mapping[str, Any]]) -> None:
        def step() -> None:
            if not (self._recorder.compares or self._recorder.due(self._number)):
                return
            arguments = dict(bind())
            output = arguments.get(self._kind.out)
            if output is not None:
                # Unwritten rows are recognised by what the output held before.
                self._output_before = _calls.copy_of(output)
                for name, value in arguments.items():  # an input that the op overwrites
                    if name != self._kind.out and _calls.overlaps(value, output):
                        arguments[name] = _calls.copy_of(value)
            self._arguments = arguments

        self._guarded(step)

    def after(self, result: Any, error: Exception | None) -> None:
        if self._arguments is not None:
            self._guarded(lambda: self._look(result, error))

    def _look(self, result: Any, error: Exception | None) -> None:
        assert self._arguments is not None
        output = self._output(result)
        if output is None and error is None:
            raise ArgumentError("it returned None, and the batch of the adapter names no output: give Batch(output=)")
        if error is not None:
            self._save(None, {"raised": f"{type(error).__name__}: {error}"})
        elif self._recorder.due(self._number):
            self._save(output, {})
        else:
            host, _ = self._recorder.arguments(self._arguments, self._kind)
            host[self._kind.out] = _calls.to_host(output)
            finding = self._recorder.sampler.look(Part(self._kind.read(**host)), self._output_before, self._number)
            if finding:
                with self._recorder._lock:
                    self._recorder.mismatches += 1
                self._save(output, {"finding": finding})

    def _output(self, result: Any) -> Any:
        """Output of a call: the argument that it writes; for an adapted call its returned value, if that looks like an output."""
        assert self._arguments is not None
        written = self._arguments.get(self._kind.out)
        returned = result[0] if isinstance(result, (tuple, list)) and result else result
        if self._kind is _adapter.OWN and tuple(getattr(returned, "shape", ())) == tuple(self._arguments["query"].shape):
            return returned
        return returned if written is None else written

    def _save(self, output: Any, notes: dict[str, str]) -> None:
        assert self._arguments is not None
        path = self._recorder.next_path(self._name)
        if path is None:
            return
        try:
            host, pages = self._recorder.arguments(self._arguments, self._kind)
            host[self._kind.out] = self._output_before
            inputs = Part(self._kind.read(**host))
            notes = {"producer": f"quire.capture {self._name}", "call": str(self._number), "pages": pages, **notes}
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            observed = inputs.rows_of(None if output is None else _calls.to_host(output))
            _quire.write_capture(path, inputs.batch, inputs.cache, inputs.options, observed, None, notes, inputs.batch.dtype)
        except Exception:
            self._recorder.forget(path)
            raise
        _log.info("capture: call %d of %s written to %s", self._number, self._name, path)
        what = notes.get("finding") or notes.get("raised")
        if what:
            self._recorder.warn(f"quire.capture: {self._name}: {what}; saved {path} (look with: quire diagnose {path})", once=False)


class _Place(NamedTuple):
    """A function to be patched: ``text`` as the caller named it, ``kind`` the known op whose signature it has, if that is said."""

    text: str
    module: str
    name: str
    kind: str | None


class _Patch:
    """A function replaced where it is defined, and in every module that imported it by name.

    A patch of a patched function calls the one below. Patches may end in any order: modules hold the newest one that has not ended, and
    the one above a patch that ends calls what was below it.
    """

    _applied: list[_Patch] = []
    _lock = threading.Lock()

    def __init__(self, place: _Place, recorder: Recorder, adapter: _adapter.Adapter | None):
        self._module, self._name = _imported(place), place.name
        self._recorder, self._kind, self._adapter = recorder, place.kind or place.name, adapter

    def apply(self) -> None:
        with self._lock:
            self._below = getattr(self._module, self._name)
            self._recorded = self._recorder.wrap(self._below_now(), self._kind, self._adapter)
            self._applied.append(self)
            self._replace(self._below, self._recorded)

    def undo(self) -> None:
        with self._lock:
            self._applied.remove(self)
            for above in self._applied:
                if above._below is self._recorded:
                    above._below = self._below
            self._replace(self._recorded, self._below)

    def _below_now(self) -> Callable[..., Any]:
        """Calls what is below this patch at the time of the call."""

        @functools.wraps(self._below)
        def below(*args: Any, **kwargs: Any) -> Any:
            return self._below(*args, **kwargs)

        return below

    def _replace(self, old: Any, new: Any) -> None:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict) and names.get(self._name) is old:
                setattr(module, self._name, new)


class _Capture:
    """The context manager behind :func:`capture`; each ``with`` gets a recorder of its own."""

    def __init__(self, places: list[_Place], make: Callable[[], Recorder], adapter: _adapter.Adapter | None):
        self._places, self._make, self._adapter = places, make, adapter
        self._active: list[list[_Patch]] = []

    def __enter__(self) -> Recorder:
        recorder = self._make()
        patches = [_Patch(place, recorder, self._adapter) for place in self._places]
        for patch in patches:
            patch.apply()
        _log.info("capture: patched %s", ", ".join(place.text for place in self._places))
        self._active.append(patches)
        return recorder

    def __exit__(self, *_: Any) -> None:
        for patch in reversed(self._active.pop()):
            patch.undo()

    def __call__(self, function: F) -> F:
        """Decorates a function: the capture is on while ``function`` runs."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


def _places_of(op: str | Iterable[str] | None, adapted: bool) -> list[_Place]:
    """Places named by "module:function" or "module:function=op_name"; without a name, the functions that packages added."""
    if op is None:
        if adapted:
            raise ArgumentError('adapter: needs op="module:function", the function whose arguments it reads')
        op = [name for name, known in _calls.OPS.items() if known.function]
        if not op:
            raise ArgumentError('op: say which function, as "module:function"; import quire_vllm.ops adds functions that need no name')
    found = []
    for text in [op] if isinstance(op, str) else list(op):
        where, _, kind = text.partition("=")
        module, colon, name = where.partition(":")
        if not colon:
            module, _, name = _calls.op_named(where).function.partition(":")
        top = module.partition(".")[0]
        if top not in sys.modules and (not top or importlib.util.find_spec(top) is None):
            raise ArgumentError(f'op "{text}": there is no module "{top}"')
        if adapted and kind:
            raise ArgumentError(_BOTH.format(kind))
        if not adapted:
            _calls.op_named(kind or name)
        found.append(_Place(text, module, name, kind or None))
    return found


_BOTH = "op {} says what the arguments mean, and so does adapter; give one of them"


def _imported(place: _Place) -> Any:
    try:
        module = importlib.import_module(place.module)
    except ModuleNotFoundError as error:
        if error.name and (place.module + ".").startswith(error.name + "."):
            raise ArgumentError(f'op "{place.text}": there is no module "{error.name}"') from error
        raise ArgumentError(f'op "{place.text}": module "{place.module}" cannot be imported: {error}') from error
    if not hasattr(module, place.name):
        raise ArgumentError(f'op "{place.text}": module "{place.module}" has no "{place.name}"')
    return module


@keywords_checked
def capture(
    path: Any,
    when: str | int = "mismatch",
    *,
    op: str | Iterable[str] | None = None,
    adapter: Callable[..., Any] | None = None,
    budget_ms: float = 2.0,
    limit: int | None = None,
    pages: str = "auto",
) -> _Capture:
    """A context manager (and decorator) that records calls of attention ops as captures; ``with`` gives the :class:`Recorder`.

    path: a ``.safetensors`` file (later captures get ``-2``, ``-3``, ...) or a folder.
    when: "mismatch" = the first call whose output is wrong on the rows that are looked at, or that raises; "always"; or n = every n-th.
    op: what to patch: "module:function", with "=chunked_prefill_paged_decode" or another known op behind it if the function has another
        name; several in a list; None = the functions of packages that were imported (quire_vllm.ops).
    adapter: for functions of any other signature: called with the arguments of each call, it returns (batch, cache), (batch, cache,
        options), or a dict of the arguments of Batch, KVCache (its dtype as cache_dtype) and Options. The output is what the
        function returns, or the first of a tuple, if it has the shape of the query; else the batch's ``output``, written in place.
    budget_ms: about how long a call may be looked at; at least one row and KV head is compared.
    limit: captures to write; default 1 for "mismatch", else no limit. After that, calls are no longer looked at.
    pages: "all", "named" (only pages that the block table names, renumbered), or "auto" = named for caches on a device or over 256 MiB.

    Index tensors are recorded with the dtype they have. A wrong call, and a call that cannot be recorded, is a :class:`CaptureWarning`.
    """
    make = functools.partial(Recorder, path, when, budget_ms, limit, pages)
    make()  # bad arguments raise here, not in the with statement
    places = _places_of(op, adapter is not None)
    if adapter is not None:
        _adapter.binder(adapter)
    return _Capture(places, make, adapter)


@keywords_checked
def record(
    path: Any,
    when: str | int = "mismatch",
    *,
    op: str | None = None,
    adapter: Callable[..., Any] | None = None,
    budget_ms: float = 2.0,
    limit: int | None = None,
    pages: str = "auto",
) -> Callable[[F], F]:
    """A decorator that records the calls of one function; arguments as in :func:`capture`.

    op: the known op whose signature it has; default: the function's own name. adapter: for any other signature. The recorder is the
    decorated function's ``recorder``.
    """

    def decorate(function: F) -> F:
        recorder = Recorder(path, when, budget_ms, limit, pages)
        recorded = recorder.wrap(function, op, adapter)
        recorded.recorder = recorder  # type: ignore[attr-defined]
        return recorded

    if op is not None:
        if adapter is not None:
            raise ArgumentError(_BOTH.format(op))
        _calls.op_named(op)
    if adapter is not None:
        _adapter.binder(adapter)
    return decorate

