# SPDX-License-Identifier: Apache-2.0
"""Collects the mechanisms: each file plants one family of faults, with random parameters."""
from mechanisms import (alibi, contents, dims, element_type, factor, head, keys, layout, mask, normalisation, page,  # noqa: F401
                        positions, rope, rounded, row, sink, soft_cap, split, table, written)
from mechanisms import (later_contents, later_heads, later_keys, later_layout, later_pages, later_rope,  # noqa: F401
                        later_rounding, later_rows, later_softmax, later_split, later_table, later_types)
from mechanisms.fault import FAMILIES, LATER, Fault, draw_fault  # noqa: F401
