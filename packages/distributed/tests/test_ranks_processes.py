# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes, by torch.distributed (gloo) and by MPI: right, equal, and no deadlock whoever fails or dies."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "distributed_worker.py"
PATIENCE = 120  # seconds until a test says deadlock; starting torch four times on a busy machine takes half of it

has_torch = importlib.util.find_spec("torch") is not None
gloo = pytest.mark.skipif(not has_torch, reason="torch is not installed: no gloo; pip install torch runs these tests")
mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpiexec is None,
    reason="mpi4py or mpiexec is not installed; pip install mpi4py mpich runs these tests",
)


def environment():
    here = str(WORKER.parent)
    paths = [here, *(p for p in sys.path if p)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "QUIRE_NUM_THREADS": "1"}


def said_in(folder):
    """The ranks' reports, by rank; ranks that died before they wrote one are left out."""
    return {int(file.stem): json.loads(file.read_text(encoding="utf-8")) for file in Path(folder).glob("*.json")}


def run_gloo(world, scenario):
    """The ranks' reports, by rank; ranks that died are left out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp()
    common = {**environment(), "RANKS_SAY": folder, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    command = [sys.executable, str(WORKER), "gloo", scenario]
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(k)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for k in range(world)
    ]
    errors = []
    try:
        for rank in ranks:
            errors.append(rank.communicate(timeout=PATIENCE)[1])
    except subprocess.TimeoutExpired:
        pytest.fail(f"deadlock: after {PATIENCE} s only ranks {sorted(said_in(folder))} have ended")
    finally:
        for rank in ranks:
            rank.kill()
        said = said_in(folder)
        shutil.rmtree(folder)
    assert said, "\n".join(errors)
    return said


#: Open MPI starts neither as root nor more ranks than cores without being told to; MPICH knows none of these.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # fmt: skip


def run_mpi(world, scenario):
    command = [mpiexec, "-n", str(world), sys.executable, "-m", "mpi4py", str(WORKER), "mpi", scenario]
    with tempfile.TemporaryDirectory() as folder:
        env = {**environment(), **OPEN_MPI, "RANKS_SAY": folder}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
        return said_in(folder), done


def equal_digests(said, world):
    assert sorted(said) == list(range(world)), said
    for rank in said.values():
        assert "error" not in rank, rank
        assert rank["result"] == said[0]["result"]
    results = said[0]["result"]
    for name, digest in results.items():
        assert digest == results[name.rsplit(" ", 1)[0] + " all_gather"]


@gloo
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_gloo_is_right_and_equal(world):
    equal_digests(run_gloo(world, "right"), world)


@gloo
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_gloo_prefill(world):
    said = run_gloo(world, "prefills")
    assert sorted(said) == list(range(world)) and all("error" not in rank for rank in said.values()), said


@mpi
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_mpi_prefill(world):
    said, done = run_mpi(world, "prefills")
    assert done.returncode == 0 and sorted(said) == list(range(world)), done.stderr
    assert all("error" not in rank for rank in said.values()), said


@gloo
def test_gloo_refuses_copies_between_gpus():
    said = run_gloo(2, "copies")
    for rank in said.values():
        assert rank["text"] == 'exchange: "copy" copies between GPUs of one host, whose ranks exchange by NCCL, but the tensors are in host memory'


@mpi
def test_mpi_refuses_copies_between_gpus():
    said, _ = run_mpi(2, "copies")
    assert said and all(rank["text"].endswith("whose ranks exchange by NCCL, but these exchange host memory by MPI") for rank in said.values())


@gloo
def test_torch_tensors_travel():
    said = run_gloo(2, "torch_tensors")
    assert said[0]["result"] == said[1]["result"] and "error" not in said[0]


@gloo
def test_gloo_ranks_that_disagree():
    said = run_gloo(3, "page_size")
    assert sorted(said) == [0, 1, 2]
    for rank in said.values():
        assert rank["rule"] == "Q-D05" and rank["text"] == "Q-D05 page_size: 16 on rank 1, expected 8 as on rank 0", rank
        assert rank["seconds"] < 6


@gloo
def test_gloo_a_rank_that_throws_before_the_exchange():
    said = run_gloo(3, "throws")
    for rank in (0, 2):
        assert said[rank]["text"] == "agree: rank 1 did not come within 6 s" and said[rank]["ranks"] == [1], said[rank]
        assert said[rank]["seconds"] < 12


@gloo
def test_gloo_a_rank_that_throws_under_guard_is_named_at_once():
    said = run_gloo(3, "throws_guarded")
    assert said[1]["error"] == "ValueError"
    for rank in (0, 2):
        assert said[rank]["text"] == "rank 1 failed: ValueError: no pages left" and said[rank]["seconds"] < 5, said[rank]


@gloo
@pytest.mark.parametrize("scenario, dead", [("dies", 1), ("dies_in_attention", 1), ("dies_in_a_ring", 1), ("first_dies", 0)])
def test_gloo_a_rank_that_dies(scenario, dead):
    said = run_gloo(3, scenario)
    assert sorted(said) == sorted({0, 1, 2} - {dead}), said
    for rank in said.values():
        assert rank["error"] == "RankError" and f"rank {dead}" in rank["text"], rank
        assert rank["seconds"] < 15


@gloo
def test_the_bench_notices_wrong_rows(tmp_path):
    bench = Path(__file__).parents[3] / "bench" / "gpu" / "distributed.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(bench), "--device", "cpu", "--self-test", "--out",
               str(tmp_path), "--only", "B1,uneven"]  # fmt: skip
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        (said,) = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank}: ")]
        caught, planted = said.removeprefix(f"rank {rank}: ").split(" planted")[0].split(" of ")
        assert caught == planted and int(planted) >= 20 and said.endswith("0 right outputs are"), said


@mpi
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_mpi_is_right_and_equal(world):
    said, done = run_mpi(world, "right")
    assert done.returncode == 0, done.stderr
    equal_digests(said, world)


@mpi
def test_mpi_ranks_that_disagree():
    said, done = run_mpi(2, "page_size")
    assert said and done.returncode != 0
    for rank in said.values():
        assert rank["text"] == "Q-D05 page_size: 16 on rank 1, expected 8 as on rank 0", rank


@mpi
def test_mpi_a_rank_that_throws():
    said, done = run_mpi(3, "throws_guarded")
    assert done.returncode != 0
    texts = {rank["text"] for k, rank in said.items() if k != 1}
    assert texts <= {"rank 1 failed: ValueError: no pages left"}


@mpi
def test_mpi_a_rank_that_dies_ends_the_job():
    said, done = run_mpi(3, "dies")
    assert done.returncode != 0
    assert all(rank["error"] == "RankError" for rank in said.values())
