# SPDX-License-Identifier: Apache-2.0
"""Selection of the backend by vLLM. CUDA and ROCm ask vLLM's registry; vLLM's CPU platform has one answer, and is asked to look first.

The slot is CUSTOM: a name of our own would not survive the pickle of the configuration to the processes that vLLM spawns.
"""

from __future__ import annotations

from typing import Any

PATH = "quire_vllm.backend.QuireBackend"


def offer() -> None:
    """Makes ``--attention-backend CUSTOM`` mean Quire. May be called again."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, PATH)
    if current_platform.is_cpu():
        _ask_first(type(current_platform), AttentionBackendEnum.CUSTOM)


def missing_kernels() -> str | None:
    """Returns why this build of Quire serves no layer on vLLM's device, or None. A GPU host without nvcc builds a Quire for CPUs."""
    from vllm.platforms import current_platform

    for backend, asked, option in (("cuda", current_platform.is_cuda(), "QUIRE_CUDA"), ("hip", current_platform.is_rocm(), "QUIRE_HIP")):
        if asked and not _has_backend(backend):
            return (
                f"this build of quire has no {backend} kernels: vLLM's own attention backends stay in place. "
                f"pip install . -C cmake.define.{option}=ON builds them, or says which compiler is missing"
            )
    return None


def _has_backend(backend: str) -> bool:
    import quire

    return quire.info.has_backend(backend)


def _ask_first(platform: Any, custom: Any) -> None:
    """The platform's ``get_attn_backend_cls`` with a look at the choice before it."""
    original = platform.__dict__["get_attn_backend_cls"].__func__
    if getattr(original, "_quire", False):
        return

    def get_attn_backend_cls(cls: Any, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> str:
        if selected_backend is not custom:
            return original(cls, selected_backend, attn_selector_config, *args, **kwargs)
        refuse(attn_selector_config)
        return custom.get_path()

    get_attn_backend_cls._quire = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def refuse(config: Any) -> None:
    """ValueError with one sentence for all that the configuration asks and Quire has not. CUDA and ROCm ask the backend themselves."""
    from quire_vllm.backend import QuireBackend

    known = {"device_capability": None, **config._asdict()}
    reasons = QuireBackend.validate_configuration(**known)
    if reasons:
        raise ValueError(f"Quire (--attention-backend CUSTOM) does not serve this model: {'; '.join(reasons)}")
