# SPDX-License-Identifier: Apache-2.0
"""The shortest path through the package: a case, a check, a plan, attention, the reference, a capture."""

import subprocess
import sys

import numpy as np
import pytest

import quire

LINES = [
    "q=f32 kv=f32 heads=4:2 d=40 page=8 reqs=3x7@13,2x1@20 lse=1 seed=1",
    "q=bf16 kv=fp8_e4m3fn heads=8:2 d=64 page=16 layout=packed reqs=17@40,2x1@100 window=30 alibi=1 lse=1 seed=2",
    "q=f16 kv=f16 heads=6:3 d=64 page=5 layout=hnd reqs=9@1,1@0,0@7 sinks=1 cap=20 lse=1 seed=3",
]


@pytest.mark.parametrize("line", LINES)
def test_case_runs_and_agrees_with_the_reference(line):
    case = quire.make_case(line)
    batch, cache, options = case.batch, case.cache, case.options
    assert quire.check(batch, cache, options).ok
    plan = quire.plan(batch, cache, options)
    rows = {}
    output = quire.attend(batch, cache, options, plan, rows=rows)
    assert sum(rows.values()) == batch.query.shape[0] * batch.query.shape[1]
    verdict = quire.compare(output, batch.lse, quire.reference(batch, cache, options))
    assert verdict.ok, str(verdict)


def test_a_wrong_output_is_found():
    case = quire.make_case(LINES[0])
    output = quire.attend(case.batch, case.cache, case.options)
    output[2, 1, 3] += 0.01
    verdict = quire.compare(output, None, quire.reference(case.batch, case.cache, case.options))
    assert not verdict.ok and verdict.num_mismatches == 1
    assert (verdict.worst.token, verdict.worst.head, verdict.worst.dim) == (2, 1, 3)


def test_capture_round_trip(tmp_path):
    case = quire.make_case(LINES[1])
    output = quire.attend(case.batch, case.cache, case.options)
    expected = np.asarray(output).view(np.uint16)
    path = tmp_path / "case.safetensors"
    quire.write_capture(path, case.batch, case.cache, case.options, observed=output, notes={"producer": "test"})
    back = quire.read_capture(path)
    assert back.notes["producer"] == "test"
    assert np.array_equal(np.asarray(back.observed).view(np.uint16), expected)
    again = quire.attend(back.batch, back.cache, back.options)
    assert np.array_equal(np.asarray(again).view(np.uint16), expected)


def test_nothing_is_printed_at_exit():
    """A reference that somebody keeps until the interpreter ends, as torch._dynamo does, is not our users' business."""
    code = "import quire, ctypes; kept = quire.info.host_device(); ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_package_knows_no_package_beside_it():
    """quire_distributed and quire_vllm call quire; an import the other way would ask every user for them."""
    import ast
    from pathlib import Path

    found = []
    for path in Path(quire.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in ("quire_distributed", "quire_vllm")]
    assert not found


def test_packages_beside_it_have_its_version():
    """They call functions of quire._quire that are no promise to others."""
    import re
    from pathlib import Path

    pages = sorted((Path(__file__).resolve().parents[2] / "packages").glob("*/pyproject.toml"))
    if not pages:
        pytest.skip("needs the repository's packages/")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'^version = "(.*)"', text, re.M) == re.findall(r'"quire-attention==(.*?)"', text) == [quire.__version__], page
