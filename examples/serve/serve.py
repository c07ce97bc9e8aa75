"""Serves SmolLM2-135M-Instruct with continuous batching through one paged KV cache, every contract rule switched on.

Requests arrive at the times of a real chat service, share prompt prefixes, run out of pages and are preempted; each layer of
each step is one mixed quire.attend over prefill and decode rows. The text appears as it is generated. Exit status 0 only if
every request finished, no rule was broken and every sampled output was within its tolerance of the fp64 reference.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
import time

import one_blas_thread  # noqa: F401  (before numpy)
import numpy as np
import quire
from display import Display
from engine import Engine, StepReport
from gguf_file import GgufFile
from gguf_model import REPOSITORY, fetch_model, load_weights
from model import Llama
from paged import CACHE_DTYPES
from scheduler import Request, State
from tokenizer import Tokenizer
from workload import Job, make_jobs


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path, help="a llama-type GGUF file (default: SmolLM2, downloaded once)")
    p.add_argument("--requests", type=int, default=24, help="how many requests to serve (default: %(default)s)")
    p.add_argument("--max-new-tokens", type=int, default=64, help="generated tokens per request (default: %(default)s)")
    p.add_argument(
        "--cache-dtype", choices=sorted(CACHE_DTYPES), default="bf16", help="type of K and V in the pages (default: %(default)s)"
    )
    p.add_argument("--page-size", type=int, default=16, help="tokens per page (default: %(default)s)")
    p.add_argument("--pages", type=int, default=110, help="pages in the cache; few enough to preempt (default: %(default)s)")
    p.add_argument("--budget", type=int, default=128, help="rows per step (default: %(default)s)")
    p.add_argument("--chunk", type=int, default=64, help="prompt rows of one request per step (default: %(default)s)")
    p.add_argument("--max-running", type=int, default=16, help="requests that may hold pages at once (default: %(default)s)")
    p.add_argument("--no-prefix-sharing", action="store_true", help="compute every prompt in full")
    p.add_argument("--stretch", type=float, default=1.0, help="multiplies the trace's arrival times (default: %(default)s)")
    p.add_argument(
        "--verify-every", type=int, default=12, help="steps between fp64 verifications, 0 = never (default: %(default)s)"
    )
    p.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "out" / "serve.json", help="report (default: out/serve.json)")
    return p.parse_args(argv)


class Clock:
    """Seconds since the start; idle time until the next arrival is skipped, not slept."""

    def __init__(self):
        self._start, self._skipped = time.perf_counter(), 0.0

    def now(self) -> float:
        return time.perf_counter() - self._start + self._skipped

    def skip_to(self, moment: float) -> None:
        self._skipped += max(0.0, moment - self.now())


@dataclasses.dataclass
class Track:
    """One request as its user sees it."""

    job: Job
    request: Request
    stream: object
    text: str = ""
    first_token: float | None = None
    finished: float | None = None


class Server:
    def __init__(self, engine: Engine, tokenizer: Tokenizer, jobs: list[Job], display: Display):
        self.engine, self.tokenizer, self.display = engine, tokenizer, display
        stop = frozenset({tokenizer.eos, tokenizer.control("<|endoftext|>")})
        self.tracks = [
            Track(job, Request(i, job.tokens, job.max_new_tokens, stop, job.arrival), tokenizer.stream())
            for i, job in enumerate(jobs)
        ]
        self.clock = Clock()
        self.steps: list[dict] = []
        self.window: collections.deque[StepReport] = collections.deque(maxlen=20)

    def run(self) -> None:
        arrivals = collections.deque(self.tracks)
        while arrivals or self.engine.scheduler.has_work():
            if not self.engine.scheduler.has_work():
                self.clock.skip_to(arrivals[0].job.arrival)
            while arrivals and arrivals[0].job.arrival <= self.clock.now():
                self.engine.submit(arrivals.popleft().request)
            self._account(self.engine.step())
        self.display.end()

    def _account(self, report: StepReport) -> None:
        now = self.clock.now()
        for request, token in report.new_tokens:
            track = self.tracks[request.id]
            track.first_token = now if track.first_token is None else track.first_token
            self._show(track, track.stream.push(token))
        for request in report.done:
            self.tracks[request.id].finished = now
            self._show(self.tracks[request.id], self.tracks[request.id].stream.finish(), last=True)
        self.window.append(report)
        stats = self.engine.kv.pool.stats
        self.steps.append(
            {
                "requests": report.requests,
                "prefill_rows": report.prefill_rows,
                "decode_rows": report.decode_rows,
                "pages_in_use": stats.pages_in_use,
                "pages_shared": stats.pages_shared,
                "seconds": round(report.seconds, 4),
                "attend_seconds": round(report.attend_seconds, 6),
            }
        )
        self.display.progress(self._progress())

    def _show(self, track: Track, piece: str, last: bool = False) -> None:
        if not track.text and piece:
            self.display.text(track.request.id, f"{self.display.paint('> ' + track.job.question, 1)}\n")
        track.text += piece
        self.display.text(track.request.id, piece, last)

    def _progress(self) -> str:
        stats, now = self.engine.kv.pool.stats, self.window[-1]
        seconds = sum(r.seconds for r in self.window)
        rows = sum(r.prefill_rows + r.decode_rows for r in self.window)
        new = sum(len(r.new_tokens) for r in self.window)
        done = sum(t.request.state is State.DONE for t in self.tracks)
        findings = self.engine.kv.audit.findings
        return (
            f"{f'{findings} FINDINGS | ' if findings else ''}step {len(self.steps)} | {done}/{len(self.tracks)} done, "
            f"{len(self.engine.scheduler.running)} running | pages {stats.pages_in_use}/{stats.num_pages} | "
            f"{now.prefill_rows} prefill + {now.decode_rows} decode | {rows / seconds:.0f} tokens/s, {new / seconds:.1f} new"
        )


def attention_per_step(steps: list[dict]) -> dict:
    """What quire.attend() took, all layers of a step together, and its share of the time of all steps."""
    milliseconds = [1e3 * s["attend_seconds"] for s in steps]
    median, p90 = np.percentile(milliseconds, [50, 90])
    return {
        "median_ms": round(float(median), 3),
        "p90_ms": round(float(p90), 3),
        "share": round(sum(milliseconds) / (1e3 * sum(s["seconds"] for s in steps)), 4),
    }


def report_of(server: Server, arguments: argparse.Namespace, seconds: float) -> dict:
    kv, audit = server.engine.kv, server.engine.kv.audit
    stats = kv.pool.stats
    prompt_tokens = sum(len(t.request.prompt) for t in server.tracks)
    new_tokens = sum(len(t.request.generated) for t in server.tracks)
    rows = sum(s["prefill_rows"] + s["decode_rows"] for s in server.steps)
    parts = {name: audit.seconds[name] for name in ("append", "plan", "attend", "check", "verify")}
    parts["model"] = sum(s["seconds"] for s in server.steps) - sum(parts.values())
    return {
        "quire": quire.__version__,
        "device": str(quire.host_device()),
        "settings": {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(arguments).items()},
        "requests_finished": sum(t.request.state is State.DONE for t in server.tracks),
        "steps": len(server.steps),
        "mixed_steps": sum(s["prefill_rows"] > 0 and s["decode_rows"] > 0 for s in server.steps),
        "seconds": seconds,
        "seconds_by_part": parts,
        "attention_per_step": attention_per_step(server.steps),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "rows_computed": rows,
        "new_tokens_per_second": new_tokens / seconds,
        "rows_per_second": rows / seconds,
        "contract": {
            "checks": audit.checks,
            "checks_with_contents": audit.checks_with_contents,
            "findings": audit.findings,
            "messages": audit.messages,
        },
        "slots_written": kv.slots_written,
        "slots_read": kv.slots_read,
        "verified": {
            "attend_calls": audit.verified,
            "elements": audit.verified_elements,
            "worst_error_over_tolerance": audit.worst_ratio,
            "where": audit.worst_where,
            "mismatches": audit.mismatches,
        },
        "pool": {name: getattr(stats, name) for name in ("num_pages", "prefix_hit_tokens", "preemptions", "evictions")}
        | {
            "most_pages_in_use": max(s["pages_in_use"] for s in server.steps),
            "most_pages_shared": max(s["pages_shared"] for s in server.steps),
        },
        "kernels": dict(audit.kernels),
        "requests": [
            {
                "id": t.request.id,
                "question": t.job.question,
                "arrival": round(t.job.arrival, 3),
                "prompt_tokens": len(t.request.prompt),
                "prefix_hit_tokens": t.request.prefix_hits,
                "preemptions": t.request.preemptions,
                "first_token_after": None if t.first_token is None else round(t.first_token - t.job.arrival, 3),
                "finished_after": None if t.finished is None else round(t.finished - t.job.arrival, 3),
                "tokens": t.request.generated,
                "text": t.text,
            }
            for t in server.tracks
        ],
        "step_log": server.steps,
    }


def summary(r: dict, path: pathlib.Path, display: Display) -> list[str]:
    contract, verified, pool, attention = r["contract"], r["verified"], r["pool"], r["attention_per_step"]
    good = contract["findings"] == 0 and not verified["mismatches"]
    verdict = display.paint("ok", 32) if good else display.paint("WRONG", 31)
    kernels = ", ".join(f"{name} ({n} steps)" for name, n in r["kernels"].items())
    entries = {
        "served": f"{r['requests_finished']}/{len(r['requests'])} requests in {r['seconds']:.1f} s: {r['prompt_tokens']} prompt "
        f"and {r['new_tokens']} new tokens in {r['steps']} steps, {r['mixed_steps']} of them mixed",
        "speed": f"{r['rows_per_second']:.0f} rows/s, {r['new_tokens_per_second']:.1f} new tokens/s, everything included; "
        f"model {r['seconds_by_part']['model']:.1f} s",
        "attention": f"{attention['median_ms']:.2f} ms per step (median; p90 {attention['p90_ms']:.2f} ms), "
        f"{100 * attention['share']:.1f} % of the time of all steps",
        "contract": f"{contract['findings']} findings in {contract['checks']} checks, {contract['checks_with_contents']} of them "
        f"down to the contents: {verdict}",
        "slot ledger": f"{r['slots_written']} slots written, {r['slots_read']} slots read, over all layers",
        "fp64 reference": f"worst error {verified['worst_error_over_tolerance']:.3g} of its tolerance "
        f"({verified['where'] or 'nothing was compared'}; {verified['attend_calls']} calls, {verified['elements']} elements)",
        "page pool": f"at most {pool['most_pages_in_use']}/{pool['num_pages']} pages in use, {pool['most_pages_shared']} shared; "
        f"{pool['prefix_hit_tokens']} prefix hit tokens, {pool['preemptions']} preemptions, {pool['evictions']} evictions",
        "kernels": kernels,
        "report": str(path),
    }
    return [f"{name:<16}{text}" for name, text in entries.items()]


def main(argv: list[str] | None = None) -> int:
    a = parse_arguments(argv)
    display = Display()
    start = time.perf_counter()
    file = GgufFile(a.model or fetch_model())
    tokenizer = Tokenizer(file)
    llama = Llama(load_weights(file))
    c = llama.config
    display.line(
        f"{file.metadata.get('general.name', file.path)}: {c.num_layers} layers, heads {c.num_q_heads}:{c.num_kv_heads}, "
        f"head_dim {c.head_dim}, read in {time.perf_counter() - start:.1f} s; {a.cache_dtype} cache of {a.pages} pages "
        f"of {a.page_size} tokens"
    )
    engine = Engine(
        llama,
        num_pages=a.pages,
        page_size=a.page_size,
        dtype=a.cache_dtype,
        sharing=not a.no_prefix_sharing,
        verify_every=a.verify_every,
        budget=a.budget,
        chunk=a.chunk,
        max_running=a.max_running,
    )
    jobs = make_jobs(tokenizer, a.requests, max_new_tokens=a.max_new_tokens, stretch=a.stretch)
    server = Server(engine, tokenizer, jobs, display)
    start = time.perf_counter()
    server.run()
    report = report_of(server, a, time.perf_counter() - start)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    display.line()
    for text in [*summary(report, a.out, display), *report["contract"]["messages"], *report["verified"]["mismatches"]]:
        display.line(text)
    return 0 if engine.kv.audit.clean and report["requests_finished"] == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
