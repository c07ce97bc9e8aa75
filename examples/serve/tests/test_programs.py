"""serve.py, exactness.py and perplexity.py from end to end on a tiny model file, and what they do when something is wrong."""

import io
import json

import exactness
import paged
import perplexity
import pytest
import serve
from display import Display
from gguf_builder import U32, tiny_llama


@pytest.fixture
def tiny_model(tmp_path):
    g = tiny_llama(hidden=32, q_heads=4, kv_heads=2, feed_forward=48)
    g.metadata["llama.context_length"] = (U32, 4096)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(g.build())
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
    assert "0 findings in" in printed and "step 1 |" in printed and "\x1b" not in printed
    assert "[02] > Why is the sky blue" in printed
    assert "ms per step (median; p90" in printed


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
    assert "WRONG" in capsys.readouterr().out


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


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_display_keeps_the_progress_line_last(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    d = Display(Terminal())
    d.progress("step 1")
    d.text(3, "Hello\nwor")
    d.text(3, "ld", last=True)
    shown = d.stream.getvalue()
    assert shown.count("\x1b[2mstep 1\x1b[0m") == 3, "drawn once, and again after each line of text"
    assert "\x1b[35m[03]\x1b[0m Hello\n" in shown and "[03]\x1b[0m world\n" in shown


def test_display_honours_no_color_and_pipes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    d = Display(Terminal())
    d.progress("step 1")
    d.text(3, "Hello", last=True)
    assert "\x1b[2m" not in d.stream.getvalue() and "\x1b[35m" not in d.stream.getvalue()
    pipe = Display(io.StringIO(), every=10)
    for i in range(1, 22):
        pipe.progress(f"step {i}")
    assert pipe.stream.getvalue().split() == ["step", "1", "step", "11", "step", "21"]


def test_display_wraps_and_hides_control_characters():
    d = Display(io.StringIO(), width=20)
    d.text(1, "one two three four five six\x1b[31m seven" + "x" * 30, last=True)
    lines = d.stream.getvalue().splitlines()
    assert all(len(line) <= 25 for line in lines) and "\x1b" not in d.stream.getvalue()
    assert lines[0] == "[01] one two three four"
