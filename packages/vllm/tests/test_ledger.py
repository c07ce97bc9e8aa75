# SPDX-License-Identifier: Apache-2.0
"""Tables against the scheduler's words: clean histories raise nothing, and every way to break a table is named."""

import numpy as np
import pytest
from quire_vllm.audit.ledger import Ledger
from quire_vllm.audit.statement import Statement, Tables

PAGE = 4


class Engine:
    """Builds tables as an engine would, from the same messages that the audit reads."""

    def __init__(self, messages):
        self.messages, self.statement, self.ledger = messages, Statement(), Ledger(1000, PAGE)

    def step(self, spoil=None, **work):
        output = self.messages.step(**work)
        self.statement.begin_step(output)
        requests = self.statement.scheduled
        starts = np.cumsum([0, *(q.scheduled for q in requests)])
        width = max(len(q.pages[0]) for q in requests)
        table = np.zeros((len(requests), width), np.int32)
        slots = []
        for row, q in enumerate(requests):
            table[row, : len(q.pages[0])] = q.pages[0]
            slots += [q.pages[0][p // PAGE] * PAGE + p % PAGE for p in range(q.computed, q.seq_len)]
        tables = Tables(starts, np.array([q.seq_len for q in requests]), table, np.array(slots), PAGE, step=self.statement.step)
        if spoil:
            spoil(tables)
        tables.rows = self.statement.in_order([q.name for q in requests], tables, 0)
        self.ledger.record(requests, 0, self.statement.step)
        return [str(f.text) for row in range(len(requests)) for f in self.ledger.judge(tables, 0, row)]


@pytest.fixture
def engine(messages):
    return Engine(messages)


def test_a_sound_history_has_no_findings(engine):
    assert engine.step(new=[("a", 9), ("b", 3)]) == []
    for _ in range(20):
        assert engine.step(go_on=[("a", 1), ("b", 1)]) == []
    assert engine.step(go_on=[("b", 1)], finished=["a"]) == []


def test_a_shared_prefix_has_no_findings(engine):
    engine.step(new=[("a", 8)])
    pages = engine.messages.requests["a"][0]
    assert engine.step(new=[("b", 2)], go_on=[("a", 1)], shared={"b": (pages[:2], 8)}) == []
    assert engine.step(go_on=[("a", 1), ("b", 1)]) == []


def test_a_preempted_request_may_start_again_elsewhere(engine):
    engine.step(new=[("a", 6)])
    del engine.messages.requests["a"]
    assert engine.step(new=[("a", 7)]) == []


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda t: t.block_table.__setitem__((0, 0), t.block_table[1, 0]), "block_table[0][0]: page 4, the scheduler gave page 1"),
        (lambda t: t.seq_lens.__setitem__(0, t.seq_lens[0] - 1), "seq_lens[0]: 9, the scheduler said 10"),
        (lambda t: t.slot_mapping.__setitem__(1, -1), "slot_mapping[1]: -1, expected slot 19 = page 4, offset 3"),
        (lambda t: t.query_start_loc.__setitem__(1, 0), "query_start_loc[1]: 0 rows, the scheduler said 1"),
    ],
)
def test_a_broken_table_is_named(engine, spoil, expected):
    engine.step(new=[("a", 9), ("b", 3)])
    assert expected in "\n".join(engine.step(spoil, go_on=[("a", 1), ("b", 1)]))


def test_a_page_with_two_owners_is_named(engine):
    engine.step(new=[("a", 8), ("b", 4)])
    engine.messages.free = iter([engine.messages.requests["a"][0][0], *range(100, 200)])  # a's first page was freed twice
    found = engine.step(go_on=[("b", 1), ("a", 1)])
    assert any("position 0 was last written by request number 2 for position 4" in text for text in found)


def test_a_slot_that_nobody_wrote_is_named(engine):
    engine.step(new=[("a", 8)])
    assert any("was never written" in text for text in engine.step(new=[("b", 1)], shared={"b": ([500, 501], 8)}))


def test_pages_of_the_scheduler_may_be_several_of_attention(messages):
    ledger = Ledger(100, 4, ratio=2)
    statement = Statement()
    messages.page_size = 8
    statement.begin_step(messages.step(new=[("a", 9)]))
    request = statement.scheduled[0]
    assert ledger.slots(request, 0, 0, 9).tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 16]


def test_rows_find_their_request_without_names(engine):
    output = engine.messages.step(new=[("a", 3), ("b", 3), ("c", 2)])
    engine.statement.begin_step(output)
    a, b, c = engine.statement.scheduled
    tables = Tables(np.array([0, 2, 5, 8]), np.array([2, 3, 3]), np.array([c.pages[0], b.pages[0], a.pages[0]]), None, PAGE)
    assert [q.name for q in engine.statement.in_order(None, tables, 0)] == ["c", "b", "a"]
