# SPDX-License-Identifier: Apache-2.0
"""Every example runs, says something, and is short; the notebook runs."""
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("test_"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path, tmp_path):
    if path.stem == "torch_attention" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() and not done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_there_are_ten():
    assert len(EXAMPLES) == 10 and all(f"`{path.name}`" in (FOLDER / "README.md").read_text(encoding="utf-8") for path in EXAMPLES)


def test_the_notebook_finds_the_bug(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(FOLDER / "debug_attention.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "verdict  cause found" in printed and "rescale" in printed
    assert (tmp_path / "diagnosis.html").stat().st_size > 10_000
