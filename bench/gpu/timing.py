# SPDX-License-Identifier: Apache-2.0
"""What the modes of run_device.py share: graphs that are replayed, ways that take turns, attend_cuda, and the record of a run.

A record has device, date, commit, method and results; each result has its problem line, so that a figure names all of them."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

LAYERS = 8  # layers of a graph: a replay of one launch would time the launch of the graph


def replayed(layer: Callable[[int], Any], layers: int = LAYERS) -> Callable[[], float]:
    """A function that returns the seconds of one layer in a graph of `layers`. layer(i) enqueues the i-th, on a cache of its own or in turn."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(layers):
            layer(i)

    def run() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / layers

    run.kept = layer  # the layers own the memory that the graph writes to
    run()
    return run


def medians(ways: "list[Callable[[], float]]", rounds: int = 9) -> "list[float]":
    """Seconds of each way, which take turns."""
    times: "list[list[float]]" = [[] for _ in ways]
    for _ in range(rounds):
        for seconds, way in zip(times, ways):
            seconds.append(way())
    return [statistics.median(seconds) for seconds in times]


def attend_cuda(path: str, words: "list[str]", commit: str) -> dict:
    """The report of attend_cuda (bench/gpu/attend_cuda.cu says what it times and compares)."""
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False, env={**os.environ, "QUIRE_COMMIT": commit})
    if done.returncode != 0:
        sys.exit(f"{path}: exit {done.returncode}\n{done.stderr[-2000:]}\n{done.stdout[-500:]}")
    return json.loads(done.stdout)


def this_commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def record(commit: str, device: str, method: str, results: "list[dict]", **more: Any) -> dict:
    return {"device": device, "date": datetime.date.today().isoformat(), "commit": commit, "method": method, **more, "results": results}


def save(path: Path, report: dict) -> None:
    """One result a line, so that a new run is a readable difference."""
    head = json.dumps({key: value for key, value in report.items() if key != "results"})
    rows = ",\n".join("  " + json.dumps(row) for row in report["results"])
    path.write_text(head[:-1] + ', "results": [\n' + rows + "\n]}\n", encoding="utf-8")
