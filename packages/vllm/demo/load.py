# SPDX-License-Identifier: Apache-2.0
"""load.py MODEL: a vLLM server on Quire under load for some minutes: streams that hang up, a cache too small for all, prompts too long.

Its answers at temperature 0 in f32 are compared with those of vLLM's own attention without load. Exit status 0 only if all are equal, no
request failed that should not, the audit has no finding, and memory stays flat after a warm-up.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import statistics
import sys
import threading
import time

from jobs import make_jobs
from server import Server

_MODEL_LEN = 1024  # tokens; prompts of the kind "too long" have more
_BLOCKS = 160  # of 16 tokens: less than the running requests would fill, so that vLLM preempts and evicts
_KINDS = {"whole": 0.75, "hang up": 0.2, "too long": 0.05}  # what a client does next, by probability
_GROWTH = 1.05  # of memory from the first to the last third behind the warm-up; allocators round, caches fill

Job = tuple[list[dict[str, str]], int]


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, help="folder with the files that vLLM loads")
    p.add_argument("--minutes", type=float, default=10.0)
    p.add_argument("--streams", type=int, default=50, help="clients at a time (default: %(default)s)")
    p.add_argument("--budget", default="1%", help="of the audit (default: %(default)s)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/load"), help="logs and the audit's reports (default: %(default)s)")
    return p.parse_args()


class Load:
    """Clients that ask until the time is over; what became of their requests."""

    def __init__(self, server: Server, jobs: list[Job], expected: list[str], seconds: float):
        self.server, self.jobs, self.expected = server, jobs, expected
        self.end = time.monotonic() + seconds
        self.seen: collections.Counter[str] = collections.Counter()
        self.unequal: list[int] = []
        self.failures: list[str] = []
        self.memory: list[int] = []  # MiB of all processes of the server, every few seconds

    def run(self, streams: int) -> None:
        threads = [threading.Thread(target=self._client, args=(i,)) for i in range(streams)]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.end:
            self.memory.append(_memory(self.server.pid))
            time.sleep(5.0)
        for thread in threads:
            thread.join()

    def _client(self, number: int) -> None:
        choose = random.Random(number)
        while time.monotonic() < self.end:
            kind = choose.choices(list(_KINDS), list(_KINDS.values()))[0]
            try:
                self._ask(kind, choose)
                self.seen[kind] += 1
            except Exception as error:  # the report says it; other clients go on
                self.failures.append(f"{kind}: {error}"[:300])

    def _ask(self, kind: str, choose: random.Random) -> None:
        i = choose.randrange(len(self.jobs))
        messages, tokens = self.jobs[i]
        if kind == "too long":
            self._ask_too_much(messages)
        elif kind == "hang up":
            self.server.chat(messages, tokens, stop_after=choose.randint(1, 12))
        elif self.server.chat(messages, tokens).text != self.expected[i]:
            self.unequal.append(i)

    def _ask_too_much(self, messages: list[dict[str, str]]) -> None:
        try:
            self.server.chat([{"role": "user", "content": "word " * 2 * _MODEL_LEN}], 8)
        except RuntimeError as error:
            if "status 400" in str(error):
                return
            raise
        raise RuntimeError("a prompt that is too long was answered")


def _memory(pid: int) -> int:
    """MiB in memory of a process and all its descendants."""
    children = collections.defaultdict(list)
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            children[int(status.read_text().rpartition(")")[2].split()[1])].append(int(status.parent.name))
        except OSError:
            continue  # it has ended
    total, left = 0, [pid]
    while left:
        one = left.pop()
        left += children[one]
        try:
            total += int(pathlib.Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * 4096 // 2**20


def _metric(text: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}(_total)?[{{ ]", line))


def main() -> int:
    a = parse_arguments()
    jobs = [(messages, min(tokens, 48)) for messages, tokens in make_jobs(24, 48, shrink=8)]
    arguments = ["--dtype", "float32", "--max-model-len", str(_MODEL_LEN), "--enforce-eager"]
    with Server("own", a.model, a.out / "own.log", [*arguments, "--attention-backend", "CPU_ATTN"], {"VLLM_CPU_KVCACHE_SPACE": "1"}) as own:
        expected = [answer.text for answer in own.chat_all(jobs, 4)[0]]
    print(f"vLLM's own attention answered {len(expected)} prompts; now Quire's, {a.streams} streams for {a.minutes:g} minutes", flush=True)
    folder = a.out / "audit"
    shutil.rmtree(folder, ignore_errors=True)
    environment = {"QUIRE_AUDIT": "1", "QUIRE_AUDIT_BUDGET": a.budget, "QUIRE_AUDIT_DIR": str(folder), "VLLM_CPU_KVCACHE_SPACE": "1"}
    small = ["--block-size", "16", "--num-gpu-blocks-override", str(_BLOCKS), "--max-num-seqs", "32", "--max-num-batched-tokens", "512"]
    with Server("quire", a.model, a.out / "quire.log", [*arguments, *small, "--attention-backend", "CUSTOM"], environment) as server:
        load = Load(server, jobs, expected, 60 * a.minutes)
        load.run(a.streams)
        metrics = server.get("/metrics")[1]
        alive = server.get("/health")[0] == 200
    reports = [json.loads(path.read_text()) for path in folder.glob("audit-*.json")]
    alarms = [alarm for report in reports for alarm in report["alarms"]]
    third = max(1, len(load.memory) // 3)
    first, last = (statistics.median(part) for part in (load.memory[third : 2 * third] or load.memory, load.memory[-third:]))
    print("requests: " + ", ".join(f"{count} {kind}" for kind, count in sorted(load.seen.items())) + f"; failures {len(load.failures)}")
    print(f"answers unlike vLLM's own: {len(load.unequal)} of {load.seen['whole']}")
    print(f"preemptions {_metric(metrics, 'vllm:num_preemptions'):.0f}, prefix cache hits {_metric(metrics, 'vllm:prefix_cache_hits'):.0f} tokens")
    print(f"audit: {sum(r['counts'].get('steps', 0) for r in reports)} steps, alarms {len(alarms)}")
    print(f"memory: {first:.0f} MiB in the second third, {last:.0f} MiB in the last")
    for line in load.failures[:5] + [alarm["text"] for alarm in alarms[:5]]:
        print(f"  {line}")
    return 0 if alive and not (load.failures or load.unequal or alarms) and last <= _GROWTH * first else 1


if __name__ == "__main__":
    sys.exit(main())
