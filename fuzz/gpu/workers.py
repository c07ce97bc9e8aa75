# SPDX-License-Identifier: Apache-2.0
"""Work that may take its process with it: numbers are handed to worker processes, each with a CUDA context of its own.

A worker says "begin N" before it asks N and "end VERDICT" behind it (say()). One that ends between, by a signal, a lost context or
silence, names the number that it was at; another one starts behind that number.
"""

from __future__ import annotations

import collections
import datetime
import json
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

SECONDS_OF_SILENCE = 240  # the first batch of a worker loads torch and makes a context


class Totals:
    """Verdicts of all workers: maps with a "number", and "lost", "wrong" or "refused" where something is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done, self.kernels, self.worst = 0, collections.Counter(), (0.0, -1)
        self.found: dict[str, list[dict[str, Any]]] = {"lost": [], "wrong": [], "refused": [], "refused_by_cpu_too": []}
        self.launched: set[str] = set()

    def add(self, verdict: dict[str, Any]) -> None:
        with self.lock:
            self.done += 1
            self.kernels.update(verdict.get("kernels", {}))
            self.worst = max(self.worst, (verdict.get("worst", 0.0), verdict["number"]))
            for kind, of_kind in self.found.items():
                if kind in verdict:
                    of_kind.append(verdict)

    def counts(self) -> dict[str, int]:
        return {kind: len(found) for kind, found in self.found.items()}

    def bad(self) -> bool:
        return any(self.found[kind] for kind in ("lost", "wrong", "refused"))


def device_and_date(backend: str) -> dict[str, str]:
    """Device and date of this run, for result files."""
    device = platform.processor() or platform.machine()
    if backend != "cpu":
        import torch

        device = torch.cuda.get_device_name()
    return {"device": device, "date": datetime.date.today().isoformat()}


def say(numbers: Iterable[int], verdict_of: Callable[[int], dict[str, Any]]) -> int:
    """The worker's side. A verdict with "lost" is the last one of its process."""
    for number in numbers:
        print("begin", number, flush=True)
        verdict = verdict_of(number)
        print("end", json.dumps({"number": number, **verdict}), flush=True)
        if "lost" in verdict:
            return 3
    return 0


def say_launched(say_all: Callable[[], int]) -> int:
    """say_all(), and behind it "ran NAMES": the kernels that this process launched, as torch's profiler names them."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    seen = profile(activities=[ProfilerActivity.CUDA])
    try:
        seen.start()
    except RuntimeError:  # the machine has no CUPTI: cells are asked all the same
        return say_all()
    code = say_all()
    if code == 0:
        seen.stop()
        print("ran", json.dumps(sorted({event.name for event in seen.events() if event.device_type == DeviceType.CUDA})), flush=True)
    return code


class Tender:
    """Keeps one worker alive until its numbers first, first + step, .. are done or time is up."""

    def __init__(self, command: list[str], totals: Totals, deadline: float):
        self.command, self.totals, self.deadline = command, totals, deadline
        self.heard = 0.0

    def run(self, first: int, end: int, step: int) -> None:
        at = first
        while at < end and time.monotonic() < self.deadline:
            words = [*self.command, "--worker", "--seed", str(at), "--count", str(end - at), "--step", str(step)]
            worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            at, begun, said = self.listen(worker, at, step)
            if time.monotonic() > self.deadline or worker.returncode == 0:
                return
            if begun is not None or worker.returncode != 3:
                number = at if begun is None else begun
                self.totals.add({"number": number, "lost": said if begun is not None else f"before the first one: {said}", "fields": []})
                at = number + step

    def listen(self, worker: subprocess.Popen, at: int, step: int) -> tuple[int, int | None, str]:
        """The next number, the one that was begun and not ended, and how the process ended, in words."""
        self.heard, begun, errors = time.monotonic(), None, []
        threads = [threading.Thread(target=self.watch, args=(worker,), daemon=True),
                   threading.Thread(target=lambda: errors.extend(worker.stderr.read().strip().splitlines()[-2:]), daemon=True)]  # fmt: skip
        for thread in threads:
            thread.start()
        for line in worker.stdout:
            self.heard = time.monotonic()
            kind, _, rest = line.partition(" ")
            if kind == "begin":
                begun = int(rest)
            elif kind == "end":
                verdict = json.loads(rest)
                self.totals.add(verdict)
                at, begun = verdict["number"] + step, None
            elif kind == "ran":
                with self.totals.lock:
                    self.totals.launched.update(json.loads(rest))
        code = worker.wait()
        threads[1].join(2)
        silent = time.monotonic() - self.heard > SECONDS_OF_SILENCE - 5
        return at, begun, f"said nothing for {SECONDS_OF_SILENCE} s" if silent else f"exit {code}: {' / '.join(errors)[-300:]}"

    def watch(self, worker: subprocess.Popen) -> None:
        while worker.poll() is None:
            time.sleep(0.5)
            if time.monotonic() > self.deadline or time.monotonic() - self.heard > SECONDS_OF_SILENCE:
                worker.kill()


def share_out(command: list[str], first: int, count: int, workers: int, seconds: float = 1e9) -> Totals:
    """Numbers [first, first + count), by `workers` processes of a command."""
    totals, deadline = Totals(), time.monotonic() + seconds
    threads = [threading.Thread(target=Tender(command, totals, deadline).run, args=(first + i, first + count, workers)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals
