"""Collects the mechanisms: each file plants one family of faults, with random parameters."""
from mechanisms import (alibi, contents, dims, element_type, factor, head, keys, layout, mask, normalisation, page,  # noqa: F401
                        positions, rope, rounded, row, sink, soft_cap, split, table, written)
from mechanisms.fault import FAMILIES, Fault, draw_fault  # noqa: F401
