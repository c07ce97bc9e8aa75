# SPDX-License-Identifier: Apache-2.0
"""Explains which kernel would serve a batch, on this machine and on others, and why the other kernels would not."""
import quire

LINE = "q=bf16 heads=32:8 d=128 page=16 reqs=64x1@2048,512@1024"
for device in (None, "avx2", "sm90", "gfx942"):
    explanation = quire.explain(LINE, device=device)
    print(f"{device or 'this machine'}:")
    print("\n".join("    " + line for line in str(explanation).splitlines()))
