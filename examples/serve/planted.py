# SPDX-License-Identifier: Apache-2.0
"""One bug on purpose: a request is given a page of another one, and Quire must say so.

Such a bug is what a mistake in a page allocator gives. The numbers stay finite, the text stays fluent, and it is the text of
somebody else's conversation.
"""

from __future__ import annotations

from engine import Engine
from model import Llama
from scheduler import Request


class PoolWithForeignPage:
    """The block table of request `thief` begins with a page of request `owner`."""

    def __init__(self, pool, thief: int, owner: int):
        self.pool, self.thief, self.owner = pool, thief, owner

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def block_table(self, request: int):
        table = self.pool.block_table(request)
        if request == self.thief:
            table[0] = self.pool.block_table(self.owner)[0]
        return table


def plant_a_foreign_page(llama: Llama, steps: int = 3) -> str:
    """Plants the bug and returns Quire's finding, or "". Before the bug is planted, Quire must find nothing."""
    engine = Engine(llama, num_pages=8)
    for i in range(2):
        engine.submit(Request(i, [i + 1] * 20, 8))
    for _ in range(steps):
        engine.step()
    if not engine.kv.audit.clean:
        return ""
    engine.kv.pool = PoolWithForeignPage(engine.kv.pool, thief=1, owner=0)
    engine.step()
    return engine.kv.audit.messages[0] if engine.kv.audit.findings else ""
