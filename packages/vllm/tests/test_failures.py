# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, read-only or gone, other programs' files, and a look's own bug: nothing of it is raised, and all of it is heard."""

import json
import logging
import os
import threading

import numpy as np
import pytest
import quire
from quire_vllm.audit.report import Alarm, AuditError, Collector, Report, read_reports


def _alarm(kind="memory", request="req-1"):
    return Alarm(kind, 20, "layers.7", request, "page 3 changed")


def _under_a_file(tmp_path):
    """A folder that nobody can make, root neither."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "audit"


def _files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_alarm_on_a_full_disk_is_logged_kept_and_written_when_there_is_room(tmp_path, caplog, full_disk):
    report = Report(str(tmp_path / "audit"), captures=1)
    with full_disk():
        report.alarm(_alarm())
        report.alarm(_alarm("tables", "req-2"))
    assert [record.getMessage() for record in caplog.records if "page 3 changed" in record.getMessage()] == list(map(str, report.alarms))
    assert read_reports(str(tmp_path / "audit")) == []
    assert _files(tmp_path / "audit") == []  # no part of a report either
    report.write()
    (read,) = read_reports(str(tmp_path / "audit"))
    assert [alarm["kind"] for alarm in read["alarms"]] == ["memory", "tables"]
    assert read["counts"] == {"memory": 1, "tables": 1}
    assert read["errors"] == {"report": 2, "report in memory": 2}


def test_an_alarm_behind_which_no_step_comes_is_written_all_the_same(tmp_path, monkeypatch, full_disk):
    monkeypatch.setattr("quire_vllm.audit.report._RETRY_SECONDS", 0.3)
    report = Report(str(tmp_path / "audit"), captures=0)
    with full_disk():
        report.alarm(_alarm())
    tried = threading.Event()
    for _ in range(100):
        if read_reports(report.folder):
            break
        tried.wait(0.1)
    assert read_reports(report.folder)[0]["counts"] == {"memory": 1}


def test_a_full_disk_leaves_the_last_report_whole(tmp_path, full_disk):
    report = Report(str(tmp_path), captures=0)
    report.alarm(_alarm())
    before = (tmp_path / f"audit-{os.getpid()}.json").read_text()
    with full_disk():
        report.alarm(_alarm("tables"))
    assert (tmp_path / f"audit-{os.getpid()}.json").read_text() == before
    assert len(_files(tmp_path)) == 1


@pytest.mark.parametrize("action", ["log", "quarantine", "stop"])
def test_what_a_user_asked_for_is_done_where_nothing_can_be_written(tmp_path, action):
    report = Report(str(_under_a_file(tmp_path)), captures=1, action=action)
    if action == "stop":
        with pytest.raises(AuditError, match="page 3 changed"):
            report.alarm(_alarm())
    else:
        report.alarm(_alarm())
    assert report.quarantined == ({"req-1"} if action == "quarantine" else set())
    assert report.counts == {"memory": 1}
    assert report.boundary.errors["report"] == 1


def test_a_folder_that_is_removed_is_made_again(tmp_path):
    folder = tmp_path / "audit"
    report = Report(str(folder), captures=0)
    report.write()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    report.alarm(_alarm())
    assert read_reports(str(folder))[0]["counts"] == {"memory": 1}


def _problem():
    case = quire.make_case("q=f32 heads=2:1 d=16 page=4 reqs=3@40 seed=1")
    wrong = np.array(quire.attend(case.batch, case.cache, case.options))
    wrong[:, 1] = wrong[:, 0]
    return case.batch, case.cache, case.options, wrong


def test_a_capture_that_finds_no_room_costs_no_diagnosis_and_no_later_capture(tmp_path, full_disk):
    report = Report(str(tmp_path), captures=1)
    with full_disk():
        report.alarm(_alarm("kernel"), _problem())
    alarm = report.alarms[0]
    assert alarm.capture == ""
    assert alarm.diagnosis
    assert report.boundary.errors == {"capture": 1, "report": 1, "report in memory": 1}
    assert _files(tmp_path) == []
    report.alarm(_alarm("kernel", "req-2"), _problem())
    assert quire.read_capture(report.alarms[1].capture).observed is not None


def test_two_captures_of_one_step_are_two_files(tmp_path):
    report = Report(str(tmp_path), captures=2)
    for request in ("req-1", "req-2"):
        report.alarm(_alarm("kernel", request), _problem())
    assert len({alarm.capture for alarm in report.alarms}) == 2


_GOOD = {"pid": 1, "counts": {"kernel": 2, "visits": 10}, "errors": {"report": 3}, "alarms": []}
_FOREIGN = {
    "empty": b"",
    "cut": json.dumps(_GOOD).encode()[:40],
    "binary": bytes(range(256)),
    "null": b"null",
    "a list": b"[1, 2]",
    "without counts": b'{"pid": 2}',
    "counts of words": b'{"counts": {"kernel": "many"}}',
    "counts as a list": b'{"counts": ["kernel"]}',
    "not a number": b'{"counts": {"kernel": NaN}}',
    "less than none": b'{"counts": {"kernel": -7}}',
    "errors as a number": b'{"counts": {}, "errors": 1}',
    "deep": b'{"counts": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", _FOREIGN)
def test_a_file_that_is_no_report_does_not_break_metrics(tmp_path, metrics, name):
    (tmp_path / "audit-1.json").write_text(json.dumps(_GOOD))
    (tmp_path / "audit-2.json").write_bytes(_FOREIGN[name])
    found = metrics(Collector(str(tmp_path)))
    assert found["quire_audit_alarms"]["kernel"] == 2
    assert found["quire_audit_errors"] == {"report": 3}
    assert found["quire_audit_unreadable_reports"] == {"": 1}


def test_a_pipe_among_the_reports_is_not_waited_for(tmp_path, metrics):
    os.mkfifo(tmp_path / "audit-1.json")
    found = {}
    reader = threading.Thread(target=lambda: found.update(metrics(Collector(str(tmp_path)))), daemon=True)
    reader.start()
    reader.join(10)
    assert found["quire_audit_unreadable_reports"] == {"": 1}


def test_reports_of_many_processes_are_summed(tmp_path, metrics):
    for pid in range(500):
        (tmp_path / f"audit-{pid}.json").write_text(json.dumps(_GOOD | {"pid": -pid}) if pid % 5 else "")
    found = metrics(Collector(str(tmp_path)))
    assert found["quire_audit_alarms"]["kernel"] == 800
    assert found["quire_audit_errors"] == {"report": 1200}
    assert found["quire_audit_unreadable_reports"] == {"": 100}


def test_what_could_not_be_written_is_in_the_metrics_of_another_process(tmp_path, metrics, shared_memory):
    folder = _under_a_file(tmp_path)
    report = Report(str(folder), captures=0)
    report.alarm(_alarm())
    found = metrics(Collector(report.folder))  # knows no more than the files
    assert found["quire_audit_alarms"]["memory"] == 1
    assert found["quire_audit_errors"] == {"report": 1}
    (tmp_path / "file").unlink()
    report.write()
    assert _files(folder) == [f"audit-{os.getpid()}.json"]
    assert [path for path in shared_memory.rglob("*") if path.is_file()] == []
    assert metrics(Collector(report.folder))["quire_audit_alarms"]["memory"] == 1


def test_a_process_that_may_start_no_thread_has_its_report_in_shared_memory(tmp_path, monkeypatch):
    """As a process may when it ends (Python 3.12)."""
    report = Report(str(_under_a_file(tmp_path)), captures=0)
    report.counts["steps"] = 27
    monkeypatch.setattr(threading.Thread, "start", lambda _: 1 / 0)
    report.write()
    assert read_reports(report.folder)[0]["counts"] == {"steps": 27}
    assert report.boundary.errors == {"report": 2}


def test_a_folder_in_shared_memory_that_another_user_made_is_not_used(tmp_path, shared_memory, metrics):
    report = Report(str(_under_a_file(tmp_path)), captures=0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    from quire_vllm.audit.report import _spare_folder

    os.symlink(elsewhere, _spare_folder(report.folder))
    report.alarm(_alarm())
    assert report.boundary.errors == {"report": 1, "report in memory": 1}
    assert _files(elsewhere) == []
    (elsewhere / "audit-1.json").write_text(json.dumps(_GOOD))
    assert metrics(Collector(report.folder))["quire_audit_alarms"]["kernel"] == 0


def test_own_failures_are_counted_once(tmp_path, metrics, full_disk):
    report = Report(str(tmp_path), captures=0)
    with full_disk():
        report.write()
    report.write()
    assert metrics(Collector(report.folder, report.boundary))["quire_audit_errors"] == {"report": 1, "report in memory": 1}


def test_a_collector_that_breaks_leaves_the_others_metrics_alone(tmp_path, caplog):
    collector = Collector(str(tmp_path))
    collector._families = lambda *_: 1 / 0
    assert collector.collect() == []
    assert "ZeroDivisionError" in caplog.text


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_one_kind_of_failure_is_logged_once_a_minute(caplog):
    from quire_vllm.audit.boundary import Boundary

    clock = Clock()
    boundary = Boundary(clock)
    for second in range(121):
        clock.now = second
        for kind in ("report", "tables"):
            with boundary(kind):
                raise OSError(28, "No space left on device")
    assert boundary.errors == {"report": 121, "tables": 121}
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 6
    assert told[0].getMessage().startswith("quire audit: report failed, 1 times so far")
    assert "61 times" in told[2].getMessage()
    assert [record.exc_info is not None for record in told] == [True, True, False, False, False, False]


def test_time_of_another_thread_is_no_time_of_a_step():
    from quire_vllm.audit.boundary import Boundary

    boundary, charged = Boundary(), []
    boundary.charge_to(charged.append)

    def fail():
        with boundary("report"):
            raise OSError(5, "Input/output error")

    other = threading.Thread(target=fail)
    other.start()
    other.join()
    assert (charged, boundary.errors) == ([], {"report": 1})
    fail()
    assert (len(charged), boundary.errors) == (1, {"report": 2})


def test_what_a_user_does_and_a_stop_pass_the_boundary():
    from quire_vllm.audit.boundary import Boundary

    for error in (KeyboardInterrupt, SystemExit, AuditError):
        with pytest.raises(error), Boundary()("report"):
            raise error
    with Boundary()("report") as part:
        raise MemoryError
    assert part.failed


def test_the_last_steps_are_written_when_no_step_follows(tmp_path):
    report = Report(str(tmp_path), captures=0)
    for step in range(1, 28):
        report.counts["steps"] = step
        report.write(0.3)
    written = threading.Event()
    for _ in range(100):
        if read_reports(str(tmp_path))[0]["counts"]["steps"] == 27:
            break
        written.wait(0.1)
    assert read_reports(str(tmp_path))[0]["counts"] == {"steps": 27}
