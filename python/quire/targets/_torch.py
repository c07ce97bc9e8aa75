# SPDX-License-Identifier: Apache-2.0
"""NumPy bits as torch tensors of the type that Quire knows them by."""

from __future__ import annotations

from typing import Any

import numpy as np


def torch_module() -> Any:
    import torch

    return torch


def dtype_of(name: str) -> Any:
    """f16 -> torch.float16, fp8_e4m3fn -> torch.float8_e4m3fn, ..."""
    short = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "i64": "int64"}
    return getattr(torch_module(), short.get(name, name.replace("fp8_", "float8_")))


def tensor(bits: np.ndarray, dtype: str) -> Any:
    """A torch tensor over the same memory (a copy if the array is read-only or has negative strides)."""
    torch = torch_module()
    raw = {"f32": np.float32, "i32": np.int32, "i64": np.int64}.get(dtype)
    view = bits.view(raw if raw is not None else {1: np.uint8, 2: np.int16}[bits.itemsize])
    if not view.flags.writeable or any(s < 0 for s in view.strides):
        view = view.copy()
    made = torch.from_numpy(view)
    return made if raw is not None else made.view(dtype_of(dtype))


def bits_of(made: Any) -> Any:
    """A CPU tensor as quire reads it."""
    return made.detach().cpu().contiguous()
