# SPDX-License-Identifier: Apache-2.0
"""Alarms: their kinds, what is said about each, the file that a process writes, and the counters of /metrics."""

from __future__ import annotations

import collections
import dataclasses
import glob
import json
import logging
import os
import time
from typing import Any

import quire

KINDS = {
    "memory": "memory was overwritten",
    "write": "the cache write is wrong",
    "kernel": "the kernel is wrong",
    "tables": "the tables are wrong",
    "values": "a value is not finite",
}
_KEPT = 100  # alarms that a report holds in full
_ALARM_SECONDS = 1.0  # between two writes of a report for alarms that repeat

_log = logging.getLogger("vllm.quire")


class AuditError(RuntimeError):
    """An alarm under QUIRE_AUDIT_ACTION=stop."""


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

    def __init__(self, folder: str, captures: int, action: str = "log"):
        self.folder, self.captures, self.action = folder, captures, action
        self.alarms: list[Alarm] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.worst = 0.0
        self.quarantined: set[str] = set()
        self.facts: dict[str, Any] = {}
        self._told: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._written = 0.0

    def alarm(self, alarm: Alarm, problem: tuple[Any, Any, Any, Any] | None = None, notes: dict[str, str] | None = None) -> None:
        """Counts, logs, saves and, if the action is "stop", raises AuditError."""
        self.counts[alarm.kind] += 1
        self._told[alarm.kind, alarm.layer, alarm.request] += 1
        if problem is not None and self.captures > 0 and self._told[alarm.kind, alarm.layer, alarm.request] == 1:
            self.captures -= 1
            self._save(alarm, problem, notes or {})
        if len(self.alarms) < _KEPT:
            self.alarms.append(alarm)
            _log.error("%s", alarm)
        if self.action == "quarantine" and alarm.request:
            self.quarantined.add(alarm.request)
        self.write(0.0 if self._told[alarm.kind, alarm.layer, alarm.request] == 1 or self.action == "stop" else _ALARM_SECONDS)
        if self.action == "stop":
            raise AuditError(str(alarm))

    def _save(self, alarm: Alarm, problem: tuple[Any, Any, Any, Any], notes: dict[str, str]) -> None:
        batch, cache, options, observed = problem
        try:
            os.makedirs(self.folder, exist_ok=True)
            path = os.path.join(self.folder, f"step{alarm.step}-{alarm.kind}-{os.getpid()}.safetensors")
            quire.write_capture(path, batch, cache, options, observed, None, {"producer": "quire audit", "finding": alarm.text, **notes})
            alarm.capture = path
            if alarm.kind == "kernel":
                alarm.diagnosis = _told(quire.diagnose(batch, cache, options, observed, seconds=0.5))
        except quire.Error as error:
            alarm.diagnosis = f"no diagnosis: {error}"

    def write(self, every: float = 0.0) -> None:
        """The report as it stands, unless the last one is younger than ``every`` seconds."""
        now = time.monotonic()
        if every and now - self._written < every:
            return
        self._written = now
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f"audit-{os.getpid()}.json")
        text = json.dumps({"pid": os.getpid(), **self.facts, "counts": dict(self.counts), "worst_ratio": self.worst,
                           "alarms": [dataclasses.asdict(a) for a in self.alarms]}, indent=1)  # fmt: skip
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(path + ".new", path)


def _told(diagnosis: Any) -> str:
    """A diagnosis in one sentence."""
    if not diagnosis.suspicions:
        return str(diagnosis.verdict)
    best = diagnosis.suspicions[0]
    detail = f": {best.detail}" if best.detail else ""
    return f"{diagnosis.verdict}: a kernel that {best.text}{detail}" + (f" ({best.scope})" if best.scope else "")


def read_reports(folder: str) -> list[dict[str, Any]]:
    """Reports of all processes that audited into ``folder``."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "audit-*.json"))):
        with open(path, encoding="utf-8") as file:
            found.append(json.load(file))
    return found


class Collector:
    """The sums of a folder's reports, as prometheus_client asks for them: workers count, and the API server answers /metrics."""

    def __init__(self, folder: str):
        self.folder = folder

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily

        reports = read_reports(self.folder)
        alarms = CounterMetricFamily("quire_audit_alarms", "Alarms of Quire's audit, by kind", labels=["kind"])
        for kind in KINDS:
            alarms.add_metric([kind], sum(r["counts"].get(kind, 0) for r in reports))
        yield alarms
        for name, text in (("visits", "Layers that were looked at"), ("elements", "Output elements compared with fp64")):
            yield CounterMetricFamily(f"quire_audit_{name}", text, value=sum(r["counts"].get(name, 0) for r in reports))


def export_metrics(folder: str) -> None:
    """Adds the counters to prometheus_client's registry, if it is installed. May be called again."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    if not getattr(REGISTRY, "_quire_audit", False):
        REGISTRY.register(Collector(folder))
        REGISTRY._quire_audit = True  # type: ignore[attr-defined]
