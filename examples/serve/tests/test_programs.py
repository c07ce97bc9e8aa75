# SPDX-License-Identifier: Apache-2.0
"""serve.py, exactness.py and perplexity.py from end to end on a tiny model file, and what they do when something is wrong."""

import io
import json

import exactness
import paged
import perplexity
import numpy as np
import pytest
import serve
from chat import Wrapped
from display import Display, Row, fitting, followed
from engine import Engine
from gguf_builder import U32, tiny_llama
from rich.console import Console


@pytest.fixture
def tiny_model(tmp_path):
    g = tiny_llama(hidden=32, q_heads=4, kv_heads=2, feed_forward=48)
    g.metadata["llama.context_length"] = (U32, 4096)
    path = tmp_path / "tiny.gguf"
    g.write(path)
    return path


def serve_tiny(tiny_model, tmp_path, *more):
    out = tmp_path / "serve.json"
    arguments = ["--model", str(tiny_model), "--out", str(out), "--requests", "4", "--max-new-tokens", "6", "--pages", "320"]
    status = serve.main([*arguments, "--verify-every", "3", *more])
    return status, json.loads(out.read_text())


def test_serve(tiny_model, tmp_path, capsys):
    status, report = serve_tiny(tiny_model, tmp_path)
    assert status == 0
    assert report["contract"]["findings"] == 0 and report["contract"]["checks"] == 2 * report["steps"]
    assert report["requests_finished"] == 4 and report["verified"]["attend_calls"] > 0
    assert 0 < report["verified"]["worst_error_over_tolerance"] <= 1
    attention = report["attention_per_step"]
    assert 0 < attention["median_ms"] <= attention["p90_ms"] and 0 < attention["share"] < 1
    assert sum(s["attend_seconds"] for s in report["step_log"]) == pytest.approx(report["seconds_by_part"]["attend"], rel=0.01)
    assert report["slots_written"] == 2 * report["rows_computed"]
    assert report["pool"]["prefix_hit_tokens"] > 0, "requests 0 and 2 share a system prompt"
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "[02] Why is the sky blue" in printed
    words = " ".join(printed.split())
    assert "Problems found: 0." in words and "Wrong: 0." in words and "4 of 4 requests in" in words
    assert "Quire found it: step 4 layer 0: Q-L02" in words and "Q-L02" in report["planted_bug"]
    assert 0 < report["speed"]["alone"] and 0 < report["speed"]["batched"] and "for one request alone" in words


def test_text_does_not_depend_on_the_settings(tiny_model, tmp_path):
    _, a = serve_tiny(tiny_model, tmp_path, "--cache-dtype", "f32")
    _, b = serve_tiny(
        tiny_model, tmp_path, "--cache-dtype", "f32", "--chunk", "17", "--page-size", "8", "--pages", "640", "--no-prefix-sharing"
    )
    assert [r["tokens"] for r in a["requests"]] == [r["tokens"] for r in b["requests"]]
    assert b["pool"]["prefix_hit_tokens"] == 0


def test_a_wrong_kernel_is_noticed(tiny_model, tmp_path, monkeypatch, capsys):
    right = paged.quire.attend

    def wrong_by_a_little(batch, *args, **kwargs):
        out = right(batch, *args, **kwargs)
        out[-1, 1, 3] *= 1.001
        return out

    monkeypatch.setattr(paged.quire, "attend", wrong_by_a_little)
    status, report = serve_tiny(tiny_model, tmp_path)
    assert status == 1
    assert report["verified"]["worst_error_over_tolerance"] > 1 and report["verified"]["mismatches"]
    assert "Wrong: 0." not in " ".join(capsys.readouterr().out.split())


def test_a_planted_bug_that_nobody_finds_fails_the_run(tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve, "plant_a_foreign_page", lambda llama: "")
    status, _ = serve_tiny(tiny_model, tmp_path)
    assert status == 1 and "DID NOT FIND IT" in " ".join(capsys.readouterr().out.split())


def test_own_prompts(tiny_model, tmp_path, capsys):
    status, report = serve_tiny(tiny_model, tmp_path, "--prompt", "Who are you?", "--prompt", "Why?")
    assert status == 0 and [r["question"] for r in report["requests"]] == ["Who are you?", "Why?"]
    assert "[01] Why?" in capsys.readouterr().out


def test_chat_finds_what_was_said_in_the_cache(tiny_model, tmp_path, monkeypatch, capsys):
    lines = iter(["Hello", "", "And you?"])

    def ask(*_args, **_kwargs):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("rich.console.Console.input", ask)
    status, report = serve_tiny(tiny_model, tmp_path, "--chat")
    assert status == 0 and len(report["requests"]) == 2
    first, second = report["requests"]
    assert second["prefix_hit_tokens"] >= first["prompt_tokens"] // 16 * 16 > 0
    assert "prompt tokens were still in the cache" in capsys.readouterr().out


def test_ctrl_c_prints_the_summary(tiny_model, tmp_path, monkeypatch, capsys):
    step, calls = Engine.step, []

    def interrupted(self):
        calls.append(self)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    status, report = serve_tiny(tiny_model, tmp_path)
    assert status == serve.STOPPED and report["steps"] == 3
    printed = capsys.readouterr().out
    assert 0 < report["prompt_tokens"] < sum(r["prompt_tokens"] for r in report["requests"]), "as far as they were read"
    assert "Problems found: 0." in " ".join(printed.split()) and "Ctrl-C: the rest was not served." in printed


def test_ctrl_c_after_the_last_answer_still_prints_the_summary(tiny_model, tmp_path, monkeypatch, capsys):
    def interrupted(llama):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "measure", interrupted)
    status, report = serve_tiny(tiny_model, tmp_path)
    assert status == 0 and report["speed"] is None
    assert "4 of 4 requests in" in " ".join(capsys.readouterr().out.split())


def test_no_network_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_MODEL_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr("gguf_model.REPOSITORY", tmp_path)
    assert serve.main([]) == 2
    assert "The model needs the network once" in " ".join(capsys.readouterr().out.split())


def test_exactness(tiny_model, tmp_path, capsys):
    out = tmp_path / "exactness.json"
    arguments = ["--model", str(tiny_model), "--prompts", "2", "--tokens", "5", "--quick", "--out", str(out)]
    assert exactness.main(arguments) == 0
    assert json.loads(out.read_text())["passed"] and "passed: 4 runs, 0 findings" in capsys.readouterr().out


def test_exactness_notices_another_text(tiny_model, tmp_path, monkeypatch, capsys):
    right = exactness.run

    def last_token_differs(llama, prompts, count, setting):
        outcome = right(llama, prompts, count, setting)
        if setting.page_size == 32:
            outcome.texts[1][-1] ^= 1
        return outcome

    monkeypatch.setattr(exactness, "run", last_token_differs)
    arguments = ["--model", str(tiny_model), "--prompts", "2", "--tokens", "5", "--quick", "--out", str(tmp_path / "e.json")]
    assert exactness.main(arguments) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_perplexity(tiny_model, tmp_path, capsys):
    out = tmp_path / "perplexity.json"
    assert perplexity.main(["--model", str(tiny_model), "--tokens", "150", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    by_dtype = {r["dtype"]: r["perplexity"] for r in report["caches"]}
    assert by_dtype["f32"] == pytest.approx(report["dense_f32"], rel=1e-5)
    assert by_dtype["fp8_e5m2"] != by_dtype["f32"], "an fp8 cache that loses nothing is no fp8 cache"
    # Perplexity is the exponential of the loss: of a random model, whose loss is 16, it shows a change of the loss 16 times as large.
    assert np.log(by_dtype["int8_per_token_head"]) == pytest.approx(np.log(by_dtype["f32"]), rel=1e-2)


def row(number, state, text="", question="Why?"):
    return Row(number, question, state, "3 new", text)


def display_of(width=60, height=16, **more):
    stream = io.StringIO()
    return Display(Console(file=stream, width=width, height=height, highlight=False, **more)), stream


def shown(display, rows, status="status"):
    display.console.print(display.screen(rows, status))
    return display.console.file.getvalue().splitlines()


def test_screen_respects_the_terminal():
    for width, height in ((50, 14), (100, 30), (200, 60)):
        display, _ = display_of(width, height)
        rows = [row(i, "done" if i < 20 else "writes" if i < 30 else "waiting", "word " * 90, "long question " * 9) for i in range(50)]
        display._shown = 20
        lines = shown(display, rows, "s" * 300)
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert any("20" in line and "long" in line for line in lines) and any("more" in line for line in lines)


def test_the_text_shown_stays_with_its_request():
    rows = [row(0, "done"), row(1, "writes"), row(2, "writes")]
    assert followed(rows, None) == 1 and followed(rows, 2) == 2 and followed(rows, 0) == 1
    assert followed([row(0, "done")], 0) == 0, "the last text stays"


def test_finished_requests_leave_the_table_first():
    rows = [row(0, "done"), row(1, "writes"), row(2, "waiting"), row(3, "waiting")]
    kept, left_out = fitting(rows, 2)
    assert [r.number for r in kept] == [1, 2] and left_out == 2


def test_display_hides_control_characters():
    display, stream = display_of()
    display.say("red\x1b[31m\x07")
    assert "\x1b" not in stream.getvalue() and "\x07" not in stream.getvalue()
    display._shown = 0
    assert "\x1b" not in "".join(shown(display, [row(0, "writes", "a\x1b[2Jb", "q\x1b[2J")]))


def test_display_without_a_terminal_prints_each_answer_once():
    display, stream = display_of()
    for _ in range(2):
        display.update([row(0, "done", "Because."), row(1, "writes", "Per")], "status")
    assert stream.getvalue().count("[00] Why?\nBecause.") == 1 and "Per" not in stream.getvalue()


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    display, stream = display_of(force_terminal=True)
    display.say("Hello", "red")
    assert "\x1b[31m" not in stream.getvalue()


def test_wrapped_breaks_between_words():
    pieces: list[str] = []
    out = Wrapped(12, pieces.append)
    for piece in ("one tw", "o three f", "our\nfive"):
        out.push(piece)
    out.end()
    lines = "".join(pieces).split("\n")
    assert [line.strip() for line in lines] == ["one two", "three four", "five", ""]
