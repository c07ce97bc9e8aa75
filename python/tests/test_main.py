"""python -m quire: the same exit codes and JSON as the C++ program."""

import json
import re
import shutil
import subprocess
import sys
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


def test_verify(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert main(["verify", "--backend", "cpu", "--line", LINE, "--no-power", "--json", "--html", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "quire.verify/1" and report["ok"] and report["verdicts"][0]["verdict"] == "pass"
    assert page.read_text().startswith("<!")


def test_a_file_of_lines(capsys, tmp_path):
    (tmp_path / "lines.txt").write_text(f"# two\n{LINE}\n\n{LINE} window=3  # and a window\n")
    assert main(["verify", "--lines", str(tmp_path / "lines.txt"), "--no-power", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["verdicts"][0]["cases"]) == 2
    assert main(["verify", "--lines", str(tmp_path / "none.txt")]) == 3


def test_the_lines_of_the_conformance_page_are_valid():
    path = Path(__file__).parents[2] / "docs" / "guides" / "conformance" / "vllm_cpu.txt"
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == 90
    for line in lines:
        assert quire.parse_problem_line(line)


def test_verify_a_target(capsys):
    assert main(["verify", "--target", "quire.vllm:merge_attn_states", "--line", LINE, "--no-power"]) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, code, text", [
    (["verify", "--target", "nonsense"], 2, "is none of torch_sdpa"),
    (["verify", "--target", "no_such_module:f"], 2, "no_such_module"),
    (["verify", "--target", "quire:no_such_function"], 2, "no_such_function"),
    (["verify", "--line", "q=f16 nonsense"], 2, "nonsense"),
    (["diagnose", "no_such_file.safetensors"], 3, "no_such_file"),
])  # fmt: skip
def test_errors(capsys, arguments, code, text):
    assert main(arguments) == code
    assert text in capsys.readouterr().err


def test_diagnose(capsys, bad, tmp_path):
    assert main(["diagnose", bad]) == 1
    out = capsys.readouterr().out
    assert "cause found" in out and "query_start_loc" in out and "bad.reduced.safetensors" in out
    assert quire.diagnose(tmp_path / "bad.reduced.safetensors").suspicions[0].fault == "query_start_loc_as_int32"
    page = tmp_path / "page.html"
    assert main(["diagnose", bad, "--full", "--json", "--no-reduced", "--html", str(page)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "quire.diagnose/1" and report["file"] == bad and "reduced" not in report
    assert page.read_text().startswith("<!")


def test_diagnose_of_a_right_output(capsys, tmp_path):
    case = quire.make_case(LINE)
    out = quire.attend(case.batch, case.cache, case.options)
    quire.write_capture(tmp_path / "good.safetensors", case.batch, case.cache, case.options, out)
    assert main(["diagnose", str(tmp_path / "good.safetensors")]) == 0


def the_command():
    """The C++ program: of the development build, or an installed one."""
    built = Path(__file__).parents[2] / "build" / "dev" / "cli" / "quire"
    found = str(built) if built.exists() else shutil.which("quire")
    if not found or quire.__version__ not in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("the quire program is not built")
    return found


def both(capsys, *arguments):
    """(exit code, output) of the command and of python -m quire; times are left out."""
    command = subprocess.run([the_command(), "diagnose", *arguments], capture_output=True, text=True)
    code = main(["diagnose", *arguments])
    outputs = command.stdout, capsys.readouterr().out
    assert all(len(text) > 100 for text in outputs), command.stderr
    if "--json" in arguments:
        return tuple((c, {**json.loads(text), "seconds": 0}) for c, text in zip((command.returncode, code), outputs))
    return tuple((c, re.sub(r"(?m)^time     .* s$", "", text)) for c, text in zip((command.returncode, code), outputs))


@pytest.mark.parametrize("arguments", [(), ("--full", "--json"), ("--profile", "weights=f16"), ("--no-reduced", "--seconds", "2")], ids=str)
def test_diagnose_prints_what_the_command_prints(capsys, bad, arguments):
    command, module = both(capsys, bad, *arguments)
    assert command == module


def test_diagnose_of_broken_batches_prints_what_the_command_prints(capsys, tmp_path):
    case = quire.make_case(LINE)
    path = tmp_path / "broken.safetensors"
    case.batch.block_table[1, 0] = 10**6
    quire.write_capture(path, case.batch, case.cache, case.options, quire.make_case(LINE).batch.output)
    command, module = both(capsys, str(path))
    assert command == module and "Q-T03" in module[1]


def test_foreign_text_reaches_no_terminal(capsys, tmp_path):
    """A capture's name and notes are escaped, as the command does."""
    case = quire.make_case(LINE)
    path = tmp_path / "a\x1b[2Jb.safetensors"
    quire.write_capture(path, case.batch, case.cache, case.options, quire.attend(case.batch, case.cache, case.options))
    command, module = both(capsys, str(path))
    assert command == module and "\x1b" not in module[1]


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "quire", "verify", "--help"], capture_output=True, text=True, check=True)
    assert "--target" in done.stdout
    assert subprocess.run([sys.executable, "-m", "quire", "nonsense"], capture_output=True).returncode == 2
