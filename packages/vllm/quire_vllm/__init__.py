# SPDX-License-Identifier: Apache-2.0
"""Quire in vLLM: an attention backend (``--attention-backend CUSTOM``) and an audit of any backend (``QUIRE_AUDIT=1``).

vLLM calls :func:`register` in every process, before it parses arguments. Environment variables configure both, because no
configuration of vLLM reaches a backend: see :mod:`quire_vllm.settings`.
"""

from __future__ import annotations

import logging
import re

__all__ = ["VERSIONS", "register"]

VERSIONS = ((0, 26), (0, 34))
"""First version of vLLM that the plugin serves, and the first that it does not: one class has the interfaces of all of them."""

_log = logging.getLogger("vllm.quire")


def register() -> None:
    """Registers Quire with vLLM. Another version of vLLM gets a sentence in the log, and keeps its own backends."""
    import vllm

    if refusal := refusal_of(vllm.__version__):
        _log.warning(refusal)
        return
    from quire_vllm import selection, settings

    if missing := selection.missing_kernels():
        _log.warning(missing)
    else:
        selection.offer()
    if settings.read().audit:
        from quire_vllm.audit import install

        install()


def refusal_of(version: str) -> str | None:
    """Returns why this version of vLLM is not served, or None. A version without a number (a build from a checkout) is served."""
    found = re.match(r"(\d+)\.(\d+)", version)
    first, end = VERSIONS
    if found is None or first <= (int(found[1]), int(found[2])) < end or version.startswith("0.0"):
        return None
    wanted = f">={first[0]}.{first[1]},<{end[0]}.{end[1]}"
    return f"quire-vllm needs vllm{wanted} and found {version}: vLLM's own attention backends stay in place"
