# SPDX-License-Identifier: Apache-2.0
"""A vLLM server as a subprocess, and a client that streams chat completions from it. Standard library only."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped, too

_START_SECONDS = 1800.0  # a first start compiles, which took over 300 s on two busy cores; a server that fails to start ends, and is not waited for
_TELL_SECONDS = 60.0  # between lines that say that a server is still awaited


@dataclasses.dataclass
class Answer:
    text: str
    tokens: int
    first: float  # seconds until the first token
    seconds: float


class Server:
    """``with Server(...) as server``: up when entered, gone when left."""

    def __init__(self, name: str, model: pathlib.Path, log: pathlib.Path, arguments: list[str], environment: Mapping[str, str]):
        self.name, self.model, self.log = name, model, log
        self.arguments, self.environment = arguments, environment
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), "--served-model-name", "model",
                   "--host", "127.0.0.1", "--port", str(self.port), *self.arguments]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **self.environment}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # vLLM's engine and workers, which outlive a server that was killed
        except ProcessLookupError:
            pass

    def _wait(self) -> None:
        begun = time.monotonic()
        told = begun
        while time.monotonic() < begun + _START_SECONDS:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server {self.name} stopped with status {self._process.returncode}; its log: {self.log}")
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > told + _TELL_SECONDS:
                told = time.monotonic()
                print(f"  {self.name}: still starting after {told - begun:.0f} s; its log: {self.log}", flush=True)
            time.sleep(1.0)
        raise RuntimeError(f"the server {self.name} was not healthy after {_START_SECONDS:.0f} s; its log: {self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def chat(self, messages: list[dict[str, str]], max_tokens: int, stop_after: int | None = None) -> Answer:
        """One streamed completion at temperature 0. ``stop_after``: the client hangs up after so many pieces."""
        body = {"model": "model", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        begun, first, pieces, tokens = time.perf_counter(), 0.0, [], 0
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read().decode()[:300]}")
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                first = first or time.perf_counter() - begun
                pieces.append(choice["delta"].get("content") or "")
            if stop_after is not None and len(pieces) >= stop_after:
                break
        connection.close()
        return Answer("".join(pieces), tokens, first, time.perf_counter() - begun)

    def chat_all(self, jobs: list[tuple[list[dict[str, str]], int]], at_once: int) -> tuple[list[Answer], float]:
        """All jobs, ``at_once`` of them at a time; the answers in the jobs' order, and the seconds from start to end."""
        begun = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(lambda job: self.chat(*job), jobs))
        return answers, time.perf_counter() - begun
