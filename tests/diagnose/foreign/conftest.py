# SPDX-License-Identifier: Apache-2.0
"""Makes the folder's modules importable, whatever the folder pytest is started in."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
