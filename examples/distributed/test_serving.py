# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 over processes: text token for token that of one process, under torchrun and on Ray's workers."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
has_torch, has_ray = (importlib.util.find_spec(name) is not None for name in ("torch", "ray"))


def said_by(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "QUIRE_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not has_torch, reason="torch is not installed")
@pytest.mark.parametrize("ranks, contexts", [(3, 1), (2, 2)])
def test_torchrun(ranks, contexts):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    said = said_by([*torchrun, str(FOLDER / "serve_tp.py"), "--contexts", str(contexts), "--max-new-tokens", "12"])
    assert f"tokens on {ranks} ranks" in said and "the same as of one process" in said


@pytest.mark.skipif(not (has_torch and has_ray), reason="torch or ray is not installed: ./test vllm installs both")
def test_ray():
    said = said_by([sys.executable, str(FOLDER / "serve_ray.py"), "--max-new-tokens", "12"])
    assert "tokens on 2 ranks (1 x heads, 2 x contexts)" in said and "the same as of one process" in said
