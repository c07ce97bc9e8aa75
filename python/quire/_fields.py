# SPDX-License-Identifier: Apache-2.0
"""The table of a call's fields (``src/batch/fields.inc``), as the extension exports it."""

from __future__ import annotations

from typing import Any, NamedTuple

from quire import _quire


class Field(NamedTuple):
    """A tensor or a choice of :class:`quire.Batch`, :class:`quire.KVCache` or :class:`quire.Options`."""

    owner: str
    name: str
    argument: str
    """Its name in one dict with all others, as ``_quire.attend_arrays`` takes it."""
    declared: str
    """Its declaration in a signature."""
    kind: str
    """The role of a tensor; "choice" of what is none."""
    written: bool
    of_step: bool
    """The layers of a step share it."""

    @property
    def otherwise(self) -> Any:
        """What it is if nobody gives it."""
        return {"None": None, "True": True, "False": False}.get(text := self.declared.rpartition(" = ")[2], text.strip("'"))


FIELDS = tuple(Field(*row) for row in _quire.fields())
NAMES = {owner: tuple(f.name for f in FIELDS if f.owner == owner) for owner in ("Batch", "KVCache", "Options")}


_TABLES = ("query_start_loc", "seq_lens", "block_table", "cached_lens", "slot_mapping", "request_ids")
MASKS = tuple(f.name for f in FIELDS if f.owner == "Batch" and f.of_step and f.name not in _TABLES)
"""Tensors of a batch that say more of what a row sees than lengths and tables do."""
