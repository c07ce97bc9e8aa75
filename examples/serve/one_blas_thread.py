# SPDX-License-Identifier: Apache-2.0
"""Import this before numpy: BLAS gets one thread, model.py brings its own two."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
