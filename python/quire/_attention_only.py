# SPDX-License-Identifier: Apache-2.0
"""Builds without the tools (QUIRE_TOOLS=OFF, as ./run makes them): what they lack says so when it is called."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from quire.errors import UnsupportedError


def _missing(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(f"quire.{name}: this build has attention only (QUIRE_TOOLS=OFF); `pip install .` builds the rest")

    return type(name, (), {"__new__": refuse, "__nb_signature__": ((f"def {name}(*args, **kwargs)", None, None),)})


def stand_in(module: ModuleType) -> None:
    """Gives the extension module something to import for every name that this build lacks."""
    if not hasattr(module, "make_case"):
        setattr(module, "__getattr__", _missing)
