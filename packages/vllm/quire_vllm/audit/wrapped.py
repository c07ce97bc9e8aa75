# SPDX-License-Identifier: Apache-2.0
"""Attributes of this module are audited backends, by the names of vLLM's registry: ``wrapped.FLASH_ATTN``."""

from __future__ import annotations


def __getattr__(name: str) -> type:
    if name.startswith("_"):
        raise AttributeError(name)
    from quire_vllm.audit import hooks

    cls = hooks.wrapped_class(name)
    globals()[name] = cls
    return cls
