# SPDX-License-Identifier: Apache-2.0
"""./run vllm: vLLM on Quire beside vLLM on its own attention. The same prompts go to both, in turns, over the OpenAI API.

Exit status 0 only if every request was answered and Quire's audit of its own attention has no finding.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from jobs import make_jobs
from server import Answer, Server

_NAMES = {"CPU_ATTN": "vLLM's own", "CUSTOM": "Quire"}


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, help="folder with the files that vLLM loads")
    p.add_argument("--requests", type=int, default=16, help="requests of a turn (default: %(default)s)")
    p.add_argument("--at-once", type=int, default=8, help="requests at a time (default: %(default)s)")
    p.add_argument("--max-tokens", type=int, default=48, help="generated tokens of a request at most (default: %(default)s)")
    p.add_argument("--turns", type=int, default=3, help="turns of each backend (default: %(default)s)")
    p.add_argument("--dtype", default="bfloat16", help="of weights and cache (default: %(default)s)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/vllm"), help="logs and report (default: %(default)s)")
    return p.parse_args()


def findings(folder: pathlib.Path) -> tuple[int, int]:
    """Alarms and visits of all processes."""
    reports = [json.loads(path.read_text()) for path in folder.glob("audit-*.json")]
    return sum(len(r["alarms"]) for r in reports), sum(r["counts"].get("visits", 0) for r in reports)


def show(answers: list[Answer]) -> None:
    for answer in answers[:3]:
        print(f"  | {' '.join(answer.text.split())[:150]}")


def main() -> int:
    a = parse_arguments()
    jobs = make_jobs(a.requests, a.max_tokens)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-audit-"))
    common = ["--dtype", a.dtype, "--max-model-len", "4096", "--seed", "0"]
    quire_environment = {"QUIRE_AUDIT": "1", "QUIRE_AUDIT_DIR": str(folder), "VLLM_CPU_KVCACHE_SPACE": "2"}
    own = Server("own", a.model, a.out / "own.log", common, {"VLLM_CPU_KVCACHE_SPACE": "2"})
    ours = Server("quire", a.model, a.out / "quire.log", [*common, "--attention-backend", "CUSTOM"], quire_environment)
    print("starting two servers: vLLM's own attention, and Quire's (audited, 1 % of the time)", flush=True)
    rates: dict[str, list[float]] = {"CPU_ATTN": [], "CUSTOM": []}
    texts: dict[str, list[str]] = {}
    with own, ours:
        for line in ours.log.read_text(errors="replace").splitlines():
            if "quire: " in line:
                print("  " + line[line.index("quire: ") :])
        for turn in range(a.turns + 1):
            for backend, server in (("CPU_ATTN", own), ("CUSTOM", ours)) if turn % 2 else (("CUSTOM", ours), ("CPU_ATTN", own)):
                answers, seconds = server.chat_all(jobs, a.at_once)
                rate = sum(x.tokens for x in answers) / seconds
                texts[backend] = [x.text for x in answers]
                if turn == 0:
                    print(f"{_NAMES[backend]}, first turn (not counted):")
                    show(answers)
                    continue
                rates[backend].append(rate)
                print(f"turn {turn}: {_NAMES[backend]:<10} {rate:6.1f} tokens/s", flush=True)
    alarms, visits = findings(folder)
    median = {backend: statistics.median(some) for backend, some in rates.items()}
    same = sum(x == y for x, y in zip(texts["CPU_ATTN"], texts["CUSTOM"]))
    print(f"median of {a.turns} turns: vLLM's own {median['CPU_ATTN']:.1f}, Quire {median['CUSTOM']:.1f} tokens/s "
          f"({median['CUSTOM'] / median['CPU_ATTN']:.2f}x); {same} of {len(jobs)} texts equal ({a.dtype}: others differ where logits tie)")  # fmt: skip
    print(f"findings {alarms} ({visits} layers looked at)")
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "report.json").write_text(json.dumps({"rates": rates, "same_texts": same, "findings": alarms, "visits": visits}, indent=1) + "\n")
    return 0 if alarms == 0 and visits > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
