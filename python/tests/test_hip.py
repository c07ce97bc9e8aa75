# SPDX-License-Identifier: Apache-2.0
"""Arrays on an AMD GPU (DLPack device type kDLROCM): through the C++ tests' stand-in for the HIP runtime, whose device memory only it
may touch. In a process of its own, because the runtime is opened once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quire


def fake_runtime():
    """libquire_fake_hip.so of a build beside this file, or the one that is named."""
    named = os.environ.get("QUIRE_FAKE_HIP_LIBRARY")
    built = sorted(Path(__file__).resolve().parents[2].glob("build/*/tests/libquire_fake_hip.so"))
    return named or (str(built[0]) if built else None)


needs_fake = pytest.mark.skipif(
    not quire.info.has_backend("hip") or fake_runtime() is None,
    reason="the build has no AMD kernels, or no libquire_fake_hip.so is built (tests/hip)",
)

PROGRAM = '''
import ctypes
import sys

import numpy as np

import quire

hip = ctypes.CDLL(sys.argv[1])
hip.hipMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
hip.hipMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("dtype", ctypes.c_uint32), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class OnDevice:
    """A copy of a NumPy array there. Its capsule is NumPy's, with the device and the address changed."""

    def __init__(self, array):
        self.like = np.ascontiguousarray(array)
        self.shape, self.dtype = self.like.shape, self.like.dtype
        address = ctypes.c_void_p()
        assert hip.hipMalloc(ctypes.byref(address), max(self.like.nbytes, 1)) == 0
        self.address = address.value
        assert hip.hipMemcpy(self.address, self.like.ctypes.data, self.like.nbytes, 1) == 0

    def __dlpack_device__(self):
        return (10, 0)

    def __dlpack__(self, **_):
        capsule = self.like.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
        tensor.data, tensor.device_type, tensor.device_id = self.address, 10, 0
        return capsule

    def to_host(self):
        host = np.empty_like(self.like)
        assert hip.hipMemcpy(host.ctypes.data, self.address, host.nbytes, 2) == 0
        return host


rng = np.random.default_rng(1)
query = rng.standard_normal((5, 4, 64)).astype(np.float16)
k, v = (rng.standard_normal((6, 16, 2, 64)).astype(np.float16) for _ in range(2))
key, value = (rng.standard_normal((5, 2, 64)).astype(np.float16) for _ in range(2))
table = np.array([[3, 1, 0], [5, 2, 4]], np.int32)
arrays = {"query": query, "output": np.full_like(query, np.nan), "query_start_loc": np.array([0, 3, 5], np.int32),
          "seq_lens": np.array([40, 33], np.int32), "block_table": table}
slots = np.array([3 * 16 + 0, 1 * 16 + 5, -1, 5 * 16 + 1, 2 * 16 + 15], np.int64)


def run(place):
    there = {name: place(array) for name, array in arrays.items()}
    cache_k, cache_v = place(k), place(v)
    cache = quire.KVCache(cache_k, cache_v)
    quire.append(cache, place(key), place(value), place(slots))
    batch = quire.Batch(**there)
    plan = quire.plan(batch, cache)
    rows = {}
    workspace = place(np.full(plan.workspace_bytes + 64, 255, np.uint8)) if place is OnDevice else None
    quire.attend(batch, cache, plan=plan, workspace=workspace)
    if place is OnDevice:
        quire.attend_status(batch, cache, None, plan, workspace, rows=rows)
        assert rows == {"hip_matrix": 20}, rows
        return plan, there["output"].to_host(), cache_k.to_host()
    return plan, there["output"], cache_k


devices = [d for d in quire.info.gpu_devices() if d.backend == "hip"]
assert [d.name for d in devices] == ["gfx942"], devices
plan, output, cache_k = run(OnDevice)
_, expected, expected_k = run(np.copy)
assert plan.kernel == "hip_matrix", plan.kernel
assert np.array_equal(cache_k.view(np.uint16), expected_k.view(np.uint16)), "append wrote other bits"
worst = np.abs(output.astype(np.float32) - expected.astype(np.float32)).max()
assert worst < 4e-3, worst

arrays["seq_lens"] = np.array([40, 4000], np.int32)
try:
    run(OnDevice)
except quire.ContractError as error:
    print(error)
else:
    raise AssertionError("a length beyond the table went unnoticed")
'''


@needs_fake
def test_attend_append_and_status_on_an_amd_gpu(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = dict(os.environ, QUIRE_HIP_LIBRARY=fake_runtime(), QUIRE_FAKE_HIP="gfx942")
    run = subprocess.run([sys.executable, program, fake_runtime()], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Q-T10" in run.stdout, run.stdout


@pytest.mark.skipif(not quire.info.has_backend("hip"), reason="the build has no AMD kernels")
def test_what_is_missing_is_named(tmp_path):
    program = "import quire; print([d for d in quire.info.gpu_devices() if d.backend == 'hip']); quire.verify('hip', quick=True)"
    environment = dict(os.environ, QUIRE_HIP_LIBRARY="/nowhere/libamdhip64.so")
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.stdout.startswith("[]") and "the HIP runtime of ROCm 6 or newer is missing" in run.stderr, run.stderr
