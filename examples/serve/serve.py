# SPDX-License-Identifier: Apache-2.0
"""Serves SmolLM2-135M-Instruct with continuous batching through one paged KV cache, every contract rule switched on.

Requests arrive at the times of a real chat service, share prompt prefixes, run out of pages and are preempted; each layer of
each step is one mixed quire.attend over prefill and decode rows. The text appears as it is generated. Ctrl-C ends the run and
prints the summary. Exit status 0 only if every request finished, no rule was broken, every sampled output was within its
tolerance of the fp64 reference, and a bug planted at the end was found.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Sequence

import one_blas_thread  # noqa: F401  (before numpy)
from chat import Chat, Wrapped
from display import Display, Row
from engine import Engine, StepReport
from gguf_file import GgufError, GgufFile
from gguf_model import REPOSITORY, fetch_model, load_weights
from model import THREADS, Llama
from paged import CACHE_DTYPES
from planted import plant_a_foreign_page
from report import report_of, summary
from rich.table import Table
from scheduler import Request, State
from speed import Speed, measure
from tokenizer import Tokenizer
from workload import Job, make_jobs

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
STOPPED = 130  # exit status after Ctrl-C, as shells have it


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path, help="a llama-type GGUF file (default: SmolLM2, downloaded once)")
    p.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="ask this instead; may be given several times")
    p.add_argument("--chat", action="store_true", help="a conversation; Ctrl-D ends it")
    p.add_argument("--requests", type=int, default=24, help="how many requests to serve (default: %(default)s)")
    p.add_argument("--max-new-tokens", type=int, help="generated tokens per request (default: 64; 200 with --prompt, --chat)")
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
    a = p.parse_args(argv)
    a.max_new_tokens = a.max_new_tokens or (200 if a.prompt or a.chat else 64)
    return a


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
    def __init__(self, engine: Engine, tokenizer: Tokenizer, display: Display):
        self.engine, self.tokenizer, self.display = engine, tokenizer, display
        self.stop = frozenset({tokenizer.eos, tokenizer.control("<|endoftext|>")})
        self.tracks: list[Track] = []
        self.clock = Clock()
        self.steps: list[dict] = []
        self.window: collections.deque[StepReport] = collections.deque(maxlen=20)

    def add(self, job: Job) -> Track:
        request = Request(len(self.tracks), job.tokens, job.max_new_tokens, self.stop, job.arrival)
        self.tracks.append(Track(job, request, self.tokenizer.stream()))
        return self.tracks[-1]

    def run(self, jobs: Sequence[Job]) -> None:
        """All jobs, each from its time of arrival on."""
        arrivals = collections.deque(self.add(job) for job in jobs)
        while arrivals or self.engine.scheduler.has_work():
            if not self.engine.scheduler.has_work():
                self.clock.skip_to(arrivals[0].job.arrival)
            while arrivals and arrivals[0].job.arrival <= self.clock.now():
                self.engine.submit(arrivals.popleft().request)
            self.step()
            self.display.update([self._row(track) for track in self.tracks], self._status())

    def converse(self, chat: Chat) -> None:
        """Questions from the terminal, one after the other."""
        console = self.display.console
        for job in chat.jobs(lambda: console.input("[bold]you>[/bold] ")):
            track = self.add(job)
            self.engine.submit(track.request)
            shown, out = 0, Wrapped(console.width - 1, lambda text: console.out(text, end="", highlight=False))
            while self.engine.scheduler.has_work():
                self.step()
                out.push(track.text[shown:])
                shown = len(track.text)
            out.end()
            self.display.say(f"({track.request.prefix_hits} of {len(job.tokens)} prompt tokens were still in the cache)\n", "dim")
            chat.answered(track.request.generated)

    def step(self) -> None:
        report = self.engine.step()
        now = self.clock.now()
        for request, token in report.new_tokens:
            track = self.tracks[request.id]
            track.first_token = now if track.first_token is None else track.first_token
            track.text += track.stream.push(token)
        for request in report.done:
            track = self.tracks[request.id]
            track.finished = now
            track.text += track.stream.finish()
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

    @staticmethod
    def _row(track: Track) -> Row:
        r = track.request
        if r.state is State.DONE:
            return Row(r.id, track.job.question, "done", f"{len(r.generated)} new", track.text)
        if r.state is not State.RUNNING:
            return Row(r.id, track.job.question, "waiting", f"{len(r.prompt)}", track.text)
        if not r.generated:
            return Row(r.id, track.job.question, "reads", f"{r.computed}/{len(r.prompt)}", track.text)
        return Row(r.id, track.job.question, "writes", f"{len(r.generated)} new", track.text)

    def _status(self) -> str:
        stats, now = self.engine.kv.pool.stats, self.window[-1]
        seconds = sum(r.seconds for r in self.window)
        new = sum(len(r.new_tokens) for r in self.window)
        done = sum(t.request.state is State.DONE for t in self.tracks)
        audit = self.engine.kv.audit
        return (
            f"{done}/{len(self.tracks)} done | {new / seconds:.0f} new tokens/s | {now.prefill_rows} prompt + {now.decode_rows} "
            f"new rows in step {len(self.steps)} | pages {stats.pages_in_use}/{stats.num_pages} | {audit.checks} checks, "
            f"{audit.findings} problems"
        )


def introduce(display: Display, file: GgufFile, llama: Llama, a: argparse.Namespace) -> None:
    c = llama.config
    name = pathlib.Path(file.path).stem
    threads = "1 CPU thread" if THREADS == 1 else f"{THREADS} CPU threads"
    what = "answers you" if a.chat else "answers all requests side by side"
    display.say(
        f"{name}, a language model of {c.num_layers} layers, {what} on {threads}. Quire keeps its {a.cache_dtype} cache in "
        f"{a.pages} pages of {a.page_size} tokens, computes its attention, and checks every call before it runs."
    )
    if not (a.chat or a.prompt):
        display.say("The frame shows one answer as it grows, the table the others. --prompt and --chat ask your own questions.")
    display.say()


def jobs_of(a: argparse.Namespace, tokenizer: Tokenizer) -> list[Job]:
    if a.prompt:
        return [Job(0.0, text, tokenizer.chat(SYSTEM, text), a.max_new_tokens) for text in a.prompt]
    return make_jobs(tokenizer, a.requests, max_new_tokens=a.max_new_tokens, stretch=a.stretch)


def serve(server: Server, a: argparse.Namespace) -> bool:
    """False if Ctrl-C ended it."""
    try:
        if a.chat:
            server.converse(Chat(server.tokenizer, SYSTEM, a.max_new_tokens))
        else:
            server.run(jobs_of(a, server.tokenizer))
        return True
    except KeyboardInterrupt:
        return False
    finally:
        server.display.end()


def demonstrate(llama: Llama) -> tuple[Speed | None, str]:
    """Measures this machine's speed and Quire's finding of a planted bug; nothing if Ctrl-C ends the run."""
    try:
        return measure(llama), plant_a_foreign_page(llama)
    except KeyboardInterrupt:
        return None, ""


def tell(display: Display, report: dict, a: argparse.Namespace) -> None:
    table = Table.grid(padding=(0, 2))
    for about, sentence in summary(report, a.out).items():
        table.add_row(about, sentence)
    display.console.print(table, markup=False)
    for text in [*report["contract"]["messages"], *report["verified"]["mismatches"]]:
        display.say(text, "red")


def main(argv: list[str] | None = None) -> int:
    a = parse_arguments(argv)
    display = Display()
    try:
        file = GgufFile(a.model or fetch_model())
        tokenizer, llama = Tokenizer(file), Llama(load_weights(file))
    except GgufError as error:
        display.say(str(error), "red")
        return 2
    introduce(display, file, llama, a)
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
    server = Server(engine, tokenizer, display)
    start = time.perf_counter()
    whole = serve(server, a)
    seconds = time.perf_counter() - start
    if not server.steps:
        return 0 if whole else STOPPED
    speed, planted = demonstrate(llama) if whole and not (a.chat or a.prompt) else (None, "")
    report = report_of(server, a, seconds, speed, planted)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    display.say()
    tell(display, report, a)
    if not whole:
        display.say("Ctrl-C: the rest was not served.")
        return STOPPED
    found = bool(planted) or speed is None
    return 0 if engine.kv.audit.clean and found and report["requests_finished"] == len(server.tracks) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the first request
        sys.exit(STOPPED)
