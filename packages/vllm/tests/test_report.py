# SPDX-License-Identifier: Apache-2.0
"""Alarms: counted, written, exported, and raised where that was asked for."""

import json

import numpy as np
import pytest
import quire
from quire_vllm.audit.report import Alarm, AuditError, Collector, Report, read_reports


def _alarm(kind="memory"):
    return Alarm(kind, 20, "layers.7", "req-1", "page 3 changed")


def test_an_alarm_is_one_sentence_and_one_entry(tmp_path):
    report = Report(str(tmp_path), captures=1)
    report.alarm(_alarm())
    (read,) = read_reports(str(tmp_path))
    assert read["counts"] == {"memory": 1}
    assert str(report.alarms[0]) == "quire audit: memory was overwritten: step 20, layers.7, request req-1: page 3 changed"


def test_stop_raises_behind_the_report(tmp_path):
    report = Report(str(tmp_path), captures=0, action="stop")
    with pytest.raises(AuditError, match="tables are wrong"):
        report.alarm(_alarm("tables"))
    assert read_reports(str(tmp_path))[0]["counts"] == {"tables": 1}


def test_quarantine_keeps_the_request(tmp_path):
    report = Report(str(tmp_path), captures=0, action="quarantine")
    report.alarm(_alarm())
    assert report.quarantined == {"req-1"}


def _problem():
    case = quire.make_case("q=f32 heads=2:1 d=16 page=4 reqs=3@40 seed=1")
    return case.batch, case.cache, case.options, quire.attend(case.batch, case.cache, case.options)


def test_a_wrong_kernel_leaves_a_capture_and_a_diagnosis(tmp_path):
    batch, cache, options, right = _problem()
    wrong = np.array(right)
    wrong[:, 1] = wrong[:, 0]
    report = Report(str(tmp_path), captures=1)
    report.alarm(_alarm("kernel"), (batch, cache, options, wrong), {"layer": "7"})
    alarm = report.alarms[0]
    assert quire.read_capture(alarm.capture).observed.shape == wrong.shape
    assert alarm.diagnosis
    report.alarm(_alarm("kernel"), (batch, cache, options, wrong))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_metrics_are_sums_over_processes(tmp_path, metrics):
    for pid, count in ((1, 2), (2, 3)):
        (tmp_path / f"audit-{pid}.json").write_text(json.dumps({"pid": pid, "counts": {"kernel": count, "visits": 10}}))
    found = metrics(Collector(str(tmp_path)))
    assert found["quire_audit_alarms"] == {"memory": 0, "write": 0, "kernel": 5, "tables": 0, "values": 0}
    assert found["quire_audit_visits"] == {"": 20}
