# SPDX-License-Identifier: Apache-2.0
"""Another package on PyPI is called quire, too; both install a folder of that name, and whoever comes last overwrites files of the other."""

from __future__ import annotations

import warnings
from pathlib import Path


def warn_if_installed(folder: Path) -> None:
    """Warns if a distribution called ``quire`` lies in ``folder``, the parent of this package; this one is called quire-attention."""
    found = next(folder.glob("quire-[0-9]*.dist-info"), None)
    if found is not None:
        warnings.warn(
            f"{found.name} is installed beside quire-attention, and both own {folder / 'quire'}; "
            "repair it: pip uninstall quire, then pip install --force-reinstall quire-attention",
            stacklevel=3,
        )
