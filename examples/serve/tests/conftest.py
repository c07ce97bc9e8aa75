# SPDX-License-Identifier: Apache-2.0
"""Makes the example's modules importable and hands out the real model file where there is one."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import one_blas_thread  # noqa: E402, F401
import pytest  # noqa: E402


@pytest.fixture(scope="session")
def model_path():
    from gguf_model import GGUF_NAME, cached_model, model_folder

    path = cached_model()
    if path is None:
        pytest.skip(f"{model_folder() / GGUF_NAME} is not there; `python examples/serve/gguf_model.py` downloads it")
    return path
