# SPDX-License-Identifier: Apache-2.0
"""Four invalid batches and what Quire says about each. Nothing is computed for an invalid batch."""
import numpy as np

import quire

RIGHT = dict(query=np.ones((3, 4, 64), np.float32), query_start_loc=[0, 2, 3], seq_lens=[20, 31], block_table=[[0, 1], [2, 3]])
BROKEN = {
    "a page that does not exist": dict(block_table=[[0, 1], [2, 9]]),
    "a table that is too narrow": dict(seq_lens=[20, 70]),
    "starts that do not end at the last row": dict(query_start_loc=[0, 2, 4]),
    "a sequence shorter than its new rows": dict(seq_lens=[1, 31]),
}

cache = quire.KVCache(*np.zeros((2, 4, 16, 2, 64), np.float32))
quire.attend(quire.Batch(**RIGHT), cache)  # fine
for what, change in BROKEN.items():
    try:
        quire.attend(quire.Batch(**{**RIGHT, **change}), cache)
        raise SystemExit(f"{what}: no error")
    except quire.ContractError as error:
        print(f"{what}:\n    {error}")
