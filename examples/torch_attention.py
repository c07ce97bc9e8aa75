# SPDX-License-Identifier: Apache-2.0
"""A prompt and a decode row in torch, on a GPU if there is one. Tensors go in, a tensor comes out, nothing is copied."""
import torch

import quire

device = "cuda" if torch.cuda.is_available() and quire.info.gpu_devices() else "cpu"
k, v = torch.randn(2, 64, 16, 8, 128, dtype=torch.bfloat16, device=device)
cache = quire.KVCache(k, v)
batch = quire.Batch(
    query=torch.randn(6, 32, 128, dtype=torch.bfloat16, device=device),
    query_start_loc=torch.tensor([0, 5, 6], device=device),  # five prompt rows, one decode row
    seq_lens=torch.tensor([5, 40], device=device),
    block_table=torch.tensor([[3, 0, 0], [7, 1, 9]], device=device),
)
out = quire.attend(batch, cache)
quire.synchronize()  # on a GPU: waits, and raises what the device found
print(tuple(out.shape), out.dtype, "on", out.device.type)
