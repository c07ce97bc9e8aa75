# SPDX-License-Identifier: Apache-2.0
"""The audit of any attention backend of vLLM: QUIRE_AUDIT=1. The parts know nothing of vLLM; :mod:`.hooks` puts them into it."""

from __future__ import annotations

__all__ = ["install"]


def install() -> None:
    """Puts the audit around every attention backend of vLLM, and its counters into /metrics. May be called again.

    Raises ValueError for a setting that cannot be read: now, because a step could only log it."""
    from quire_vllm import settings
    from quire_vllm.audit import hooks
    from quire_vllm.audit.plant import Plant
    from quire_vllm.audit.report import export_metrics

    chosen = settings.read()
    Plant.named(chosen.plant)
    hooks.install()
    with hooks.boundary()("metrics"):
        export_metrics(chosen.folder, hooks.boundary())
