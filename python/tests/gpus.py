# SPDX-License-Identifier: Apache-2.0
"""Torch on a GPU for tests: the module, None without torch, and the mark of tests that need a GPU which this build has kernels for."""

import pytest

import quire

try:
    import torch
except ImportError:
    torch = None

needs_gpu = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available() or not quire.info.gpu_devices(),
    reason="no torch with CUDA, or no GPU that this build has kernels for",
)
