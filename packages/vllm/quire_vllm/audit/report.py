# SPDX-License-Identifier: Apache-2.0
"""Alarms: their kinds, what is said about each, the file that a process writes, and the counters of /metrics.

A disk may be full, read-only or gone, and other processes leave what files they like: none of that reaches an engine's step. Alarms stay
in memory, and the next report that can be written has them. Meanwhile the report stands in a folder of shared memory, because /metrics
is answered by another process, which knows of files alone.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import hashlib
import json
import logging
import math
import os
import stat
import threading
import time
from typing import Any

import quire

from quire_vllm.audit.boundary import AuditError, Boundary

__all__ = ["KINDS", "Alarm", "AuditError", "Collector", "Report", "export_metrics", "read_reports"]

KINDS = {
    "memory": "memory was overwritten",
    "write": "the cache write is wrong",
    "kernel": "the kernel is wrong",
    "tables": "the tables are wrong",
    "values": "a value is not finite",
}
_KEPT = 100  # alarms that a report holds in full
_SHARED_MEMORY = "/dev/shm"  # a file system of every Linux, in containers as well; without it such reports are not written
_RETRY_SECONDS = 10.0  # after which a report that could not be written is tried again, also without a step; fewer take more time of a full disk
_ALARM_SECONDS = 1.0  # between two writes of a report for alarms that repeat

_log = logging.getLogger("vllm.quire")


@dataclasses.dataclass
class Alarm:
    kind: str  # a key of KINDS
    step: int
    layer: str
    request: str
    text: str
    capture: str = ""
    diagnosis: str = ""

    def __str__(self) -> str:
        where = f"step {self.step}" + (f", {self.layer}" if self.layer else "") + (f", request {self.request}" if self.request else "")
        told = f"quire audit: {KINDS[self.kind]}: {where}: {self.text}"
        told += f"; diagnose: {self.diagnosis}" if self.diagnosis else ""
        return told + (f"; saved {self.capture}" if self.capture else "")


class Report:
    """Counts of one process. ``folder`` gets ``audit-PID.json`` and captures; it is made with the first of them."""

    def __init__(self, folder: str, captures: int, action: str = "log", boundary: Boundary | None = None):
        self.folder, self.captures, self.action = folder, captures, action
        self.boundary = boundary or Boundary()
        self.alarms: list[Alarm] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.worst = 0.0
        self.quarantined: set[str] = set()
        self.facts: dict[str, Any] = {}
        self._told: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._tried = -math.inf  # when a report was written last, or could not be
        self._lock = threading.Lock()  # held while the file is written
        self._later: threading.Timer | None = None

    def alarm(self, alarm: Alarm, problem: tuple[Any, Any, Any, Any] | None = None, notes: dict[str, str] | None = None) -> None:
        """Counts, logs, saves and, if the action is "stop", raises AuditError. Nothing else is raised, wherever the disk is."""
        key = alarm.kind, alarm.layer, alarm.request
        self.counts[alarm.kind] += 1
        self._told[key] += 1
        if problem is not None and self.captures > 0 and self._told[key] == 1:
            self._save(alarm, problem, notes or {})
        if len(self.alarms) < _KEPT:
            self.alarms.append(alarm)
            _log.error("%s", alarm)
        if self.action == "quarantine" and alarm.request:
            self.quarantined.add(alarm.request)
        self.write(0.0 if self._told[key] == 1 or self.action == "stop" else _ALARM_SECONDS)
        if self.action == "stop":
            raise AuditError(str(alarm))

    def _save(self, alarm: Alarm, problem: tuple[Any, Any, Any, Any], notes: dict[str, str]) -> None:
        """The capture, and the diagnosis, which needs no disk."""
        batch, cache, options, observed = problem
        path = os.path.join(self.folder, f"step{alarm.step}-{alarm.kind}-{os.getpid()}-{self.counts[alarm.kind]}.safetensors")
        with self.boundary("capture"):
            os.makedirs(self.folder, exist_ok=True)
            quire.write_capture(path, batch, cache, options, observed, None, {"producer": "quire audit", "finding": alarm.text, **notes})
            self.captures -= 1
            alarm.capture = path
        if alarm.kind == "kernel":
            with self.boundary("diagnosis") as diagnosis:
                alarm.diagnosis = _told(quire.diagnose(batch, cache, options, observed, seconds=0.5))
            if diagnosis.failed:
                alarm.diagnosis = "no diagnosis: the log says why"

    def write(self, every: float = 0.0) -> None:
        """The report as it stands, unless the last one is younger than ``every`` seconds: then a thread writes it when they are over.

        Raises nothing. A report that could not be written is written with the next one."""
        with self.boundary("report"), self._lock:
            left = self._tried + every - time.monotonic()
            if every and left > 0:
                self._write_in(left)
                return
            self._tried = time.monotonic()
            with self.boundary("report") as written:
                self._put(self.folder)
            spare = _spare_folder(self.folder)
            if not written.failed:
                _remove(os.path.join(spare, _name()))
                return
            with self.boundary("report in memory"):
                os.makedirs(spare, mode=0o700, exist_ok=True)
                if not _is_own(spare):
                    raise PermissionError(f"{spare} is another user's")
                self._put(spare)
            self._write_in(_RETRY_SECONDS)  # no step may follow; a process that ends may start no thread, so that this comes last

    def _write_in(self, seconds: float) -> None:
        """The steps behind the last one that wrote must not be lost when the engine has nothing more to do."""
        if self._later is None:
            later = threading.Timer(seconds, self._write_due)
            later.daemon = True
            later.start()
            self._later = later

    def _write_due(self) -> None:
        with self._lock:
            self._later = None
        self.write()

    def _put(self, folder: str) -> None:
        path = os.path.join(folder, _name())
        text = json.dumps({"pid": os.getpid(), **self.facts, "counts": dict(self.counts), "errors": dict(self.boundary.errors),
                           "worst_ratio": self.worst, "alarms": [dataclasses.asdict(a) for a in list(self.alarms)]}, indent=1)  # fmt: skip
        os.makedirs(folder, exist_ok=True)
        try:
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(path + ".new", path)
        finally:
            _remove(path + ".new")  # it is gone, if all went well


def _name() -> str:
    return f"audit-{os.getpid()}.json"


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)


def _spare_folder(folder: str) -> str:
    """The folder in shared memory for reports that ``folder`` does not take."""
    key = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:16]
    return os.path.join(_SHARED_MEMORY, f"quire_audit-{os.geteuid()}-{key}")


def _is_own(path: str) -> bool:
    """Whether this user made the folder: in shared memory anybody may have been first. A link is nobody's folder."""
    try:
        found = os.lstat(path)  # one look, between whose parts nobody can change what stands there
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _told(diagnosis: Any) -> str:
    """A diagnosis in one sentence."""
    if not diagnosis.suspicions:
        return str(diagnosis.verdict)
    best = diagnosis.suspicions[0]
    detail = f": {best.detail}" if best.detail else ""
    return f"{diagnosis.verdict}: a kernel that {best.text}{detail}" + (f" ({best.scope})" if best.scope else "")


def read_reports(folder: str) -> list[dict[str, Any]]:
    """Reports of all processes that audited into ``folder``. A file that is no report is left out."""
    return [report for report in map(_read, _paths(folder)) if report is not None]


def _paths(folder: str) -> list[str]:
    """One path a process: a report in shared memory is newer than what stands in ``folder``."""
    folders = [folder, *filter(_is_own, [_spare_folder(folder)])]
    found = (path for each in folders for path in glob.glob(os.path.join(glob.escape(each), "audit-*.json")))
    return sorted({os.path.basename(path): path for path in found}.values())


def _read(path: str) -> dict[str, Any] | None:
    """A report, or None: empty, cut, of another program, gone since it was listed, or nothing that may be read (a pipe would wait)."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        counts = [report["counts"], report.get("errors", {})]
        sound = all(type(n) is int and n >= 0 for part in counts for n in part.values())
        return report if sound and isinstance(report.get("alarms", []), list) else None
    except Exception:  # whatever another program has put there
        return None


class Collector:
    """The sums of a folder's reports, as prometheus_client asks for them: workers count, and the API server answers /metrics.

    ``boundary``: of this process, whose own failures are taken from it, and not from its report."""

    def __init__(self, folder: str, boundary: Boundary | None = None):
        self.folder, self.boundary = folder, boundary or Boundary()
        self._counted = None if boundary is None else os.getpid()

    def collect(self) -> list[Any]:
        """Raises nothing: vLLM's own metrics are in the same answer."""
        with self.boundary("metrics"):
            found = [_read(path) for path in _paths(self.folder)]
            return self._families([report for report in found if report is not None], found.count(None))
        with self.boundary("metrics"):
            return self._families([], 0)
        return []

    def _families(self, reports: list[dict[str, Any]], unreadable: int) -> list[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        alarms = CounterMetricFamily("quire_audit_alarms", "Alarms of Quire's audit, by kind", labels=["kind"])
        for kind in KINDS:
            alarms.add_metric([kind], sum(r["counts"].get(kind, 0) for r in reports))
        errors = CounterMetricFamily("quire_audit_errors", "Failures of Quire's audit itself, by what failed", labels=["kind"])
        for kind, count in sorted(self._errors(reports).items()):
            errors.add_metric([kind], count)
        sums = [
            CounterMetricFamily(f"quire_audit_{name}", text, value=sum(r["counts"].get(name, 0) for r in reports))
            for name, text in (("visits", "Layers that were looked at"), ("elements", "Output elements compared with fp64"))
        ]
        broken = GaugeMetricFamily("quire_audit_unreadable_reports", "Files among Quire's reports that are none", value=unreadable)
        return [alarms, errors, *sums, broken]

    def _errors(self, reports: list[dict[str, Any]]) -> collections.Counter[str]:
        total = collections.Counter(dict(self.boundary.errors))
        for report in reports:
            if report.get("pid") != self._counted:
                total.update(report.get("errors", {}))
        return total


def export_metrics(folder: str, boundary: Boundary | None = None) -> None:
    """Adds the counters to prometheus_client's registry, if it is installed. May be called again."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    if not getattr(REGISTRY, "_quire_audit", False):
        REGISTRY.register(Collector(folder, boundary))
        REGISTRY._quire_audit = True  # type: ignore[attr-defined]
