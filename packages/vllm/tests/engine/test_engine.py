# SPDX-License-Identifier: Apache-2.0
"""The plugin inside vLLM on a CPU: ./test vllm. Each test starts engines in subprocesses; a start takes half a minute."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from quire_vllm.audit.report import _spare_folder, read_reports

pytest.importorskip("vllm")
if "QUIRE_VLLM_MODEL" not in os.environ:
    pytest.skip("QUIRE_VLLM_MODEL names no model: ./test vllm makes one", allow_module_level=True)

_SESSION = pathlib.Path(__file__).with_name("session.py")


def session(folder, mode, environment=None, /, **given):
    out = folder / f"{mode}-{len(list(folder.iterdir()))}.json"
    command = [sys.executable, str(_SESSION), mode, str(out), *(f"{name}={value}" for name, value in given.items())]
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text()) | {"log": done.stdout + done.stderr}


def audited(folder, budget="full", **more):
    return {"QUIRE_AUDIT": "1", "QUIRE_AUDIT_BUDGET": budget, "QUIRE_AUDIT_DIR": str(folder / "audit"), **more}


def test_greedy_tokens_are_those_of_vllms_own_attention(tmp_path):
    own = session(tmp_path, "tokens", dtype="float32")
    ours = session(tmp_path, "tokens", dtype="float32", attention_backend="CUSTOM", block_size=16)
    assert ours["tokens"] == own["tokens"]
    assert "prefill on" in ours["log"]
    assert "decode on" in ours["log"]


@pytest.fixture(scope="module")
def even_heads(tmp_path_factory):
    """The model with as many heads as two processes can share."""
    target = tmp_path_factory.mktemp("model")
    command = [sys.executable, str(_SESSION.with_name("even_heads.py")), os.environ["QUIRE_VLLM_MODEL"], str(target)]
    subprocess.run(command, check=True)
    return {"QUIRE_VLLM_MODEL": str(target)}


def test_two_processes_that_share_the_heads_give_the_tokens_of_one(tmp_path, even_heads):
    given = {"dtype": "float32", "attention_backend": "CUSTOM", "block_size": 16, "count": 24}
    one = session(tmp_path, "tokens", even_heads, **given)
    cpus = sorted(os.sched_getaffinity(0))
    bound = {"VLLM_CPU_OMP_THREADS_BIND": f"{cpus[0]}|{cpus[-1]}"}  # vLLM binds a process to a NUMA node, if not told else
    two = session(tmp_path, "tokens", {**even_heads, **bound}, **given, tensor_parallel_size=2)
    assert two["tokens"] == one["tokens"]
    assert "heads=12:4" in one["log"]
    assert two["log"].count("heads=6:2") == 2


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
def test_a_small_cache_with_prefixes_chunks_and_aborts_has_no_finding(tmp_path, kv_cache_dtype):
    given = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype, "attention_backend": "CUSTOM", "block_size": 16, "num_gpu_blocks_override": 64}
    found = session(tmp_path, "stress", audited(tmp_path), **given)
    assert found["alarms"] == []
    assert found["counts"].get("rounding", 0) == 0
    assert found["aborted"] == 6
    assert found["counts"]["rows"] > 1000
    assert 0 < found["worst"] <= 1


@pytest.mark.parametrize(("budget", "step", "after", "within"), [("full", 20, 12, 1), ("1%", 80, 200, 200)])
def test_the_audit_finds_every_planted_fault_and_nothing_else(tmp_path, budget, step, after, within):
    found = session(tmp_path, "faults", audited(tmp_path, budget), dtype="bfloat16", block_size=32, step=step, after=after, folder=tmp_path)
    clean = found.pop("none")
    found.pop("log")
    assert clean["first"] == 0, clean["text"]
    assert len(found) == 12
    missed = {name: f for name, f in found.items() if not (f["planted"] and f["planted"] <= f["first"] < f["planted"] + within)}
    assert not missed
    for name, f in found.items():
        assert f["kind"] in KINDS[name], (name, f["text"])


KINDS = {
    "wrong_table_entry": ("tables",), "stale_block": ("tables",), "wrong_seq_len": ("tables",), "double_free": ("tables",),
    "foreign_write": ("memory",), "swapped_kv_block": ("memory",), "nan_block": ("memory", "values"),
    "dropped_slot": ("write",), "late_write": ("write", "kernel"),
    "wrong_scale": ("kernel",), "head_offset": ("kernel",), "wrong_mask": ("kernel",),
}  # fmt: skip


def test_an_audit_that_cannot_write_serves_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "audit"  # which nobody can make
    monkeypatch.setattr("quire_vllm.audit.report._SHARED_MEMORY", "/dev/shm")  # the session's
    given = {"dtype": "float32", "count": 24}
    found = session(tmp_path, "tokens", audited(tmp_path, QUIRE_AUDIT_DIR=str(folder)), **given)
    (report,) = read_reports(str(folder))  # in shared memory
    shutil.rmtree(_spare_folder(str(folder)))
    assert found["tokens"] == session(tmp_path, "tokens", **given)["tokens"]
    assert found["alarms"] == []
    assert set(found["errors"]) == {"report"}
    assert report["counts"]["steps"] == found["counts"]["steps"] >= 24
    assert "report failed" in found["log"]


def test_what_quire_does_not_have_is_refused_at_start():
    from quire_vllm import selection
    from vllm.v1.attention.selector import AttentionSelectorConfig

    import torch

    fine = AttentionSelectorConfig(head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16)
    selection.refuse(fine)
    for change, reason in (({"use_mla": True}, "MLA"), ({"attn_type": "encoder"}, "encoder"), ({"use_non_causal": True}, "non-causal"),
                           ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"), ({"use_sparse": True}, "sparse")):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            selection.refuse(fine._replace(**change))
