# SPDX-License-Identifier: Apache-2.0
"""Tests shared out among processes, for tools/peer_tests.py: each takes the next id, whoever is free.

Every process collects all tests and writes a line when one begins and when one ends, so nothing is lost when a process dies or a time
limit ends it. Tests that found no room on the GPU beside the others are run again at the end, by one process.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

_GRACE = 20.0
"""Seconds that a test may take beyond the limit before its process is ended."""


class Desk:
    """Hands out numbers from 0 on, each to one process."""

    def __init__(self, file: pathlib.Path):
        self.file = file

    def take(self) -> int:
        with open(self.file, "r+") as f:
            fcntl.lockf(f, fcntl.LOCK_EX)
            number = int(f.read() or 0)
            f.seek(0)
            f.write(str(number + 1))
            f.flush()
        return number


class Worker:
    """A pytest plugin: runs the tests whose numbers it takes, and writes down how they end."""

    def __init__(self, folder: pathlib.Path, number: int, deadline: float):
        self.folder, self.deadline = folder, deadline
        self.desk = Desk(folder / "next")
        self.lines = open(folder / f"{number}.jsonl", "a")
        self.began = 0.0

    def note(self, **line: Any) -> None:
        self.lines.write(json.dumps(line) + "\n")
        self.lines.flush()

    def begins(self, nodeid: str) -> None:
        self.began = time.monotonic()
        self.note(begins=nodeid)

    def ends(self, item: Any, how: str, why: str) -> None:
        self.note(id=item.nodeid, file=item.path.name, function=item.originalname, how=how, why=why, name=item.name,
                  seconds=round(time.monotonic() - self.began, 3))  # fmt: skip

    def pytest_runtestloop(self, session: Any) -> bool:
        ids = self.folder / "ids.json"
        if not ids.exists():
            mine = self.folder / f"ids.{os.getpid()}"
            mine.write_text(json.dumps([item.nodeid for item in session.items]))
            mine.rename(ids)
        again = self.folder / "again.json"
        wanted = set(json.loads(again.read_text())) if again.exists() else None
        while (number := self.desk.take()) < len(session.items) and time.time() < self.deadline:
            item = session.items[number]
            if wanted is not None and item.nodeid not in wanted:
                continue
            self.begins(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if torch.cuda.is_available() and torch.cuda.memory_reserved() > 1 << 30:
                torch.cuda.empty_cache()
        return True


def _start(folder: pathlib.Path, numbers: range, threads: int) -> list[subprocess.Popen[bytes]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    (folder / "next").write_text("0")
    started = []
    for number in numbers:
        with open(folder / f"{number}.log", "wb") as log:
            command = [sys.executable, *sys.argv, "--worker", f"{folder}:{number}"]
            started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
    return started


def _wait(started: list[subprocess.Popen[bytes]], until: float) -> list[int]:
    """Waits for processes, and ends those that are late. Their exit codes."""
    for process in started:
        try:
            process.wait(max(0.1, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [process.returncode for process in started]


def _lines(folder: pathlib.Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for text in file.read_text().splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:
                pass  # the process was ended while it wrote
    return found


class Outcome:
    """Outcome of the ids: ``ends`` as they were written, ``not_run`` with the reason."""

    def __init__(self, folder: pathlib.Path, codes: list[int]):
        lines = _lines(folder)
        self.ends = [line for line in lines if "how" in line and line["how"] != "no room"]
        ids = json.loads((folder / "ids.json").read_text()) if (folder / "ids.json").exists() else []
        ended = {line["id"] for line in self.ends}
        begun = {line["begins"] for line in lines if "begins" in line}
        self.not_run = {
            nodeid: "begun, not ended" if nodeid in begun else "not begun" for nodeid in ids if nodeid not in ended
        }
        self.failed = [(folder / f"{i}.log").read_text(errors="replace")[-2000:] for i, code in enumerate(codes) if code not in (0, 1, -9)]
        self.total = len(ids)

    def seconds(self) -> dict[str, tuple[int, float]]:
        """Tests and seconds by function."""
        found: dict[str, tuple[int, float]] = {}
        for line in self.ends:
            count, total = found.get(line["function"], (0, 0.0))
            found[line["function"]] = count + 1, total + line["seconds"]
        return found


def run(processes: int, limit: float) -> Outcome:
    """This command in ``processes`` processes, for at most ``limit`` seconds and a little more."""
    deadline = time.time() + limit
    os.environ["PEER_TESTS_DEADLINE"] = str(deadline)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="peer-tests-"))
    threads = max(1, (os.cpu_count() or 1) // processes)
    codes = _wait(_start(folder, range(processes), threads), deadline + _GRACE)
    again = sorted({line["id"] for line in _lines(folder) if line.get("how") == "no room"})
    if again and time.time() < deadline:
        (folder / "again.json").write_text(json.dumps(again))
        codes += _wait(_start(folder, range(processes, processes + 1), threads), deadline + _GRACE)
    return Outcome(folder, codes)


def deadline() -> float:
    return float(os.environ.get("PEER_TESTS_DEADLINE", "inf"))
