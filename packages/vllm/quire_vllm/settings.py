# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment. A value that cannot be read is an error that names the variable, the value and what was expected."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

ACTIONS = ("log", "quarantine", "stop")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclasses.dataclass(frozen=True)
class Settings:
    """``QUIRE_AUDIT`` and its like, read."""

    audit: bool = False  # QUIRE_AUDIT
    budget: float = 0.01  # QUIRE_AUDIT_BUDGET: share of a step's time; 1 = every layer of every step is looked at in full
    action: str = "log"  # QUIRE_AUDIT_ACTION: what happens on an alarm
    folder: str = "quire_audit"  # QUIRE_AUDIT_DIR: where the report and the captures go
    captures: int = 5  # QUIRE_AUDIT_CAPTURES: captures that a process writes at most
    shadow: float = 0.0  # QUIRE_AUDIT_SHADOW: share of layers whose K and V are copied; the others have a digest for each slot
    heads: float = 1.0  # QUIRE_AUDIT_HEADS: share of KV heads that are read
    seed: int = 0  # QUIRE_AUDIT_SEED: of the choice of rows
    plant: str = ""  # QUIRE_AUDIT_PLANT: "fault@step", a planted fault, for tests and demonstrations
    explain: bool = True  # QUIRE_EXPLAIN


def read(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from ``environment``; None = os.environ. Raises ValueError."""
    env = os.environ if environment is None else environment
    return Settings(
        audit=_flag(env, "QUIRE_AUDIT", False),
        budget=_share(env, "QUIRE_AUDIT_BUDGET", 0.01),
        action=_one_of(env, "QUIRE_AUDIT_ACTION", "log", ACTIONS),
        folder=env.get("QUIRE_AUDIT_DIR", "quire_audit"),
        captures=_count(env, "QUIRE_AUDIT_CAPTURES", 5),
        shadow=_share(env, "QUIRE_AUDIT_SHADOW", 0.0),
        heads=_share(env, "QUIRE_AUDIT_HEADS", 1.0),
        seed=_count(env, "QUIRE_AUDIT_SEED", 0),
        plant=env.get("QUIRE_AUDIT_PLANT", ""),
        explain=_flag(env, "QUIRE_EXPLAIN", True),
    )


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name)
    if text is None:
        return default
    if text.lower() not in _YES + _NO:
        raise ValueError(f'{name}: "{text}", expected 1 or 0')
    return text.lower() in _YES


def _share(env: Mapping[str, str], name: str, default: float) -> float:
    """ "1%", "0.01" or "full"."""
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        share = 1.0 if text == "full" else float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f'{name}: "{text}", expected a share such as 1%, 0.01 or full')
    return share


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f'{name}: "{text}", expected a count')
    return int(text)


def _one_of(env: Mapping[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    text = env.get(name, "") or default
    if text not in known:
        raise ValueError(f'{name}: "{text}", expected one of {", ".join(known)}')
    return text
