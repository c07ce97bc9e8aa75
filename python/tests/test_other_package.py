# SPDX-License-Identifier: Apache-2.0
"""quire-attention beside the other package of PyPI that is called quire."""

import subprocess
import sys
import warnings
from pathlib import Path

import quire
from quire._other_package import warn_if_installed

import pytest


def test_the_other_package_is_named(tmp_path):
    (tmp_path / "quire-0.2.0.dist-info").mkdir()
    with pytest.warns(UserWarning, match=r"quire-0\.2\.0\.dist-info is installed beside quire-attention.*pip uninstall quire"):
        warn_if_installed(tmp_path)


def test_this_package_is_not_the_other(tmp_path):
    (tmp_path / "quire_attention-0.1.0.dist-info").mkdir()
    (tmp_path / "quire_vllm-0.1.0.dist-info").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_installed(tmp_path)


def test_import_asks():
    folder = Path(quire.__file__).parent.parent / "quire-0.2.0.dist-info"
    folder.mkdir()
    try:
        done = subprocess.run([sys.executable, "-c", "import quire"], capture_output=True, text=True, check=True)
    finally:
        folder.rmdir()
    assert "pip uninstall quire" in done.stderr
