# SPDX-License-Identifier: Apache-2.0
"""demo/: a control run that was looked at in part proves nothing."""

import json
import pathlib
import sys
import threading

DEMO = pathlib.Path(__file__).resolve().parents[1] / "demo"
sys.path.insert(0, str(DEMO))

import audit_a_fault  # noqa: E402
from server import Answer  # noqa: E402

_ANSWERS = [Answer("", tokens, 0.1, 1.0) for tokens in (4, 27, 12)]


def test_a_report_of_fewer_steps_than_an_answer_has_tokens_is_told():
    assert audit_a_fault.missing({"counts": {"steps": 1}}, _ANSWERS) == "the report has 1 of at least 27 steps"
    assert audit_a_fault.missing({"counts": {}}, _ANSWERS) == "the report has 0 of at least 27 steps"
    assert audit_a_fault.missing({"counts": {"steps": 27}}, _ANSWERS) == ""


def test_a_server_that_answers_nothing_proves_nothing():
    for answers in ([], [Answer("", 0, 0.0, 1.0)]):
        assert audit_a_fault.missing({"counts": {}}, answers) == "no answer has a token"


def test_failures_of_the_audit_are_told():
    report = {"counts": {"steps": 30}, "errors": {"layer": 1, "tables": 30}}
    assert audit_a_fault.missing(report, _ANSWERS) == "the audit itself failed: layer 1 times, tables 30 times"


def test_the_report_of_the_last_steps_is_waited_for(tmp_path):
    def write(steps):
        (tmp_path / "audit-1.json").write_text(json.dumps({"counts": {"steps": steps}}))

    write(1)
    later = threading.Timer(1.0, write, (27,))
    later.start()
    audit_a_fault.wait_for_steps(tmp_path, _ANSWERS)
    assert audit_a_fault.fullest_report(tmp_path)["counts"]["steps"] == 27
    later.join()
    write(1)
    audit_a_fault.wait_for_steps(tmp_path, _ANSWERS, seconds=0.1)  # and not for ever
