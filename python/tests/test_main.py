# SPDX-License-Identifier: Apache-2.0
"""The quire command of the package: every verb of the C++ program, and verify of what Python can call."""

import importlib.metadata
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quire
from quire.__main__ import main

LINE = "q=f16 heads=4:2 d=16 page=8 index=i64 reqs=9@20,1@30 seed=1"


@pytest.fixture
def bad(tmp_path):
    case = quire.make_case(LINE)
    out = quire.attend_with_fault(case.batch, case.cache, "query_start_loc_as_int32", case.options)
    quire.write_capture(tmp_path / "bad.safetensors", case.batch, case.cache, case.options, out)
    return str(tmp_path / "bad.safetensors")


def test_verify(capfd, tmp_path):
    page = tmp_path / "page.html"
    assert main(["verify", "--backend", "cpu", "--line", LINE, "--no-power", "--json", "--html", str(page)]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["schema"] == "quire.verify/1" and report["ok"] and report["verdicts"][0]["verdict"] == "pass"
    assert page.read_text().startswith("<!")


def test_a_file_of_lines(capfd, tmp_path):
    (tmp_path / "lines.txt").write_text(f"# two\n{LINE}\n\n{LINE} window=3  # and a window\n")
    assert main(["verify", "--lines", str(tmp_path / "lines.txt"), "--no-power", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["verdicts"][0]["cases"]) == 2
    assert main(["verify", "--lines", str(tmp_path / "none.txt")]) == 3


KERNEL = """
import numpy as np
import quire
from beside import attend

def plain(batch, cache, options):
    \"\"\"It has never heard of scales, and returns no lse.\"\"\"
    unscaled = quire.KVCache(cache.k, cache.v, layout=cache.layout, dtype=cache.dtype)
    return attend(batch, unscaled, options)
"""
BESIDE = """
import numpy as np
import quire

def attend(batch, cache, options):
    names = ("query", "query_start_loc", "seq_lens", "block_table", "cached_lens", "key", "value")
    out = np.empty(batch.output.shape, batch.output.dtype)
    return quire.attend(quire.Batch(**{name: getattr(batch, name) for name in names}, output=out, dtype=batch.dtype), cache, options)
"""


@pytest.mark.parametrize("target", ["mykernel:plain", "mykernel.py:plain", "{folder}/mykernel.py:plain"])
def test_a_target_of_the_working_directory(capfd, tmp_path, monkeypatch, target):
    (tmp_path / "mykernel.py").write_text(KERNEL)
    (tmp_path / "beside.py").write_text(BESIDE)
    monkeypatch.chdir("/" if target.startswith("{") else tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in ("mykernel", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    arguments = ["verify", "--target", target.format(folder=tmp_path), "--line", LINE, "--no-power"]
    assert main(arguments) == 0, capfd.readouterr()
    assert main(["verify", "--target", "absent.py:plain"]) == 2
    assert 'no file is called "absent.py"' in capfd.readouterr().err


def test_a_plain_kernel_is_told_what_to_ask(capfd, tmp_path, monkeypatch):
    (tmp_path / "mykernel.py").write_text(KERNEL)
    (tmp_path / "beside.py").write_text(BESIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lines = [LINE, *(f"{LINE} {more}" for more in ("lse=1", "kscale=head", "vscale=head", "kscale=tensor vscale=head"))]
    asked = [word for line in lines for word in ("--line", line)]
    assert main(["verify", "--target", "mykernel.py:plain", "--no-power", *asked]) == 1
    first, sentence = capfd.readouterr().out.splitlines()[:2]
    assert first == "FAIL plain"
    assert sentence.startswith("all 4 failing cases have ") and "k_scale" in sentence and "v_scale" in sentence and "lse" in sentence
    supports = sentence.split('"')[1]
    assert set(supports.split()) == {"kscale=none", "vscale=none", "lse=0"}
    matrix = ["--matrix", "random", "--cases", "12", "--types", "f16", "--dims", "16", "--no-power"]
    assert main(["verify", "--target", "mykernel.py:plain", "--supports", supports, *matrix]) == 0, capfd.readouterr().out
    assert main(["verify", "--target", "mykernel.py:plain", "--supports", "kscale"]) == 2
    assert "expected NAME=VALUE" in capfd.readouterr().err


def test_the_lines_of_the_conformance_page_are_valid():
    path = Path(__file__).parents[2] / "docs" / "guides" / "conformance" / "vllm_cpu.txt"
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == 90
    for line in lines:
        assert quire.parse_problem_line(line)


def test_a_page_never_takes_the_place_of_the_lines(capfd, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text(LINE)
    (tmp_path / "link").symlink_to(lines)
    assert main(["verify", "--lines", str(lines), "--html", str(tmp_path / "link"), "--no-power"]) == 2
    assert "would overwrite the input" in capfd.readouterr().err
    assert lines.read_text() == LINE
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def attend(batch, cache, options):\n    pass\n")
    assert main(["verify", "--target", f"{kernel}:attend", "--line", LINE, "--html", str(kernel), "--no-power"]) == 2
    assert "would overwrite the input" in capfd.readouterr().err
    assert kernel.read_text().startswith("def attend")


def test_files_keep_their_mode(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o600)
    assert main(["verify", "--line", LINE, "--no-power", "--html", str(path)]) == 0
    assert path.read_text().startswith("<!") and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1"])
def test_times_are_finite_and_not_negative(capfd, bad, wrong):
    assert main(["verify", "--target", "right_kernels:run", f"--soak={wrong}"]) == 2
    assert "minutes: " in capfd.readouterr().err
    for call in (
        lambda seconds: quire.soak("cpu", seconds),
        lambda seconds: quire.soak("cpu", 0.001, shrink_seconds=seconds),
        lambda seconds: quire.verify("cpu", matrices=[], lines=[LINE], power=False, shrink_seconds=seconds),
        lambda seconds: quire.diagnose(bad, seconds=seconds),
    ):
        with pytest.raises(quire.ArgumentError, match="expected a finite number >= 0"):
            call(float(wrong))


def test_verify_a_target(capfd):
    assert main(["verify", "--target", "quire_vllm.ops:merge_attn_states", "--line", LINE, "--no-power"]) == 1
    assert "FAIL" in capfd.readouterr().out


@pytest.mark.parametrize("arguments, code, text", [
    (["verify", "--target", "nonsense"], 2, "is none of torch_sdpa"),
    (["verify", "--target", "no_such_module:f"], 2, "no_such_module"),
    (["verify", "--target", "quire:no_such_function"], 2, "no_such_function"),
    (["verify", "--line", "q=f16 nonsense"], 2, "nonsense"),
    (["diagnose", "no_such_file.safetensors"], 3, "no_such_file"),
])  # fmt: skip
def test_errors(capfd, arguments, code, text):
    assert main(arguments) == code
    assert text in capfd.readouterr().err


def test_diagnose(capfd, bad, tmp_path):
    assert main(["diagnose", bad]) == 1
    out = capfd.readouterr().out
    assert "cause found" in out and "query_start_loc" in out and "bad.reduced.safetensors" in out
    assert quire.diagnose(tmp_path / "bad.reduced.safetensors").suspicions[0].fault == "query_start_loc_as_int32"
    page = tmp_path / "page.html"
    assert main(["diagnose", bad, "--full", "--json", "--no-reduced", "--html", str(page)]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["schema"] == "quire.diagnose/1" and report["file"] == bad and "reduced" not in report
    assert page.read_text().startswith("<!")


def test_diagnose_of_a_right_output(capfd, tmp_path):
    case = quire.make_case(LINE)
    out = quire.attend(case.batch, case.cache, case.options)
    quire.write_capture(tmp_path / "good.safetensors", case.batch, case.cache, case.options, out)
    assert main(["diagnose", str(tmp_path / "good.safetensors")]) == 0


@pytest.mark.parametrize("words, text", [
    (["check", LINE], "0 findings"), (["explain", LINE], "kernel    cpu"), (["run", LINE], "PASS"), (["info"], "built     by"),
    (["info", "kernels"], "cpu_generic"), (["info", "devices"], "this machine"), (["rules", "Q-T03"], "Q-T03"), (["completions", "bash"], "complete"),
    (["--version"], f"quire {quire.__version__}"), (["bench", LINE, "--seconds", "0.01", "--threads", "1"], "OK: 1 verified"),
], ids=lambda value: value[0] if isinstance(value, list) else "")  # fmt: skip
def test_every_verb_of_the_program_is_here(capfd, words, text):
    assert main(words) == 0
    assert text in capfd.readouterr().out


def test_ctrl_c_ends_the_command():
    command = [sys.executable, "-m", "quire", "verify", "--matrix", "all"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == -signal.SIGINT


def test_the_console_script():
    """pip installs `quire` beside python; it is this module's main()."""
    scripts = [e for e in importlib.metadata.distribution("quire-attention").entry_points if e.group == "console_scripts"]
    assert [(e.name, e.value) for e in scripts] == [("quire", "quire.__main__:main")]


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "quire", "verify", "--help"], capture_output=True, text=True, check=True)
    assert "--target" in done.stdout
    assert subprocess.run([sys.executable, "-m", "quire", "nonsense"], capture_output=True).returncode == 2
