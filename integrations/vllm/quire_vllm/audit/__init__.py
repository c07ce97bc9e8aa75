# SPDX-License-Identifier: Apache-2.0
"""The audit of any attention backend of vLLM: QUIRE_AUDIT=1. The parts know nothing of vLLM; :mod:`.hooks` puts them into it."""

from __future__ import annotations

__all__ = ["install"]


def install() -> None:
    """Puts the audit around every attention backend of vLLM, and its counters into /metrics. May be called again."""
    from quire_vllm import settings
    from quire_vllm.audit import hooks
    from quire_vllm.audit.report import export_metrics

    hooks.install()
    export_metrics(settings.read().folder)
