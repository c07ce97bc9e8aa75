# SPDX-License-Identifier: Apache-2.0
"""The share of time that the audit may take, against a clock of the test's own."""

from quire_vllm.audit.budget import Budget


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def _run(share, cost, steps=2000, step=0.05):
    clock = Clock()
    budget = Budget(share, clock)
    looks = 0
    for _ in range(steps):
        budget.begin_step()
        clock.now += step
        if budget.batch("look", 1):
            begun = budget.now()
            clock.now += cost
            budget.pay("look", begun)
            looks += 1
        budget.end_step()
    return budget, looks


def test_the_share_is_kept_whatever_a_look_costs():
    for cost in (1e-5, 1e-4, 1e-3, 1e-2):
        budget, looks = _run(0.01, cost)
        assert looks > 0
        assert budget.used < 0.0115, cost


def test_cheap_looks_happen_in_every_step_and_dear_ones_as_often_as_they_fit():
    assert _run(0.01, 1e-4)[1] > 1990
    assert 64 < _run(0.01, 1e-2)[1] < 96  # layers have nine tenths


def test_cheap_looks_at_tables_leave_the_layers_theirs():
    clock = Clock()
    budget, visits, rows = Budget(0.01, clock), 0, 0
    for _ in range(2000):
        budget.begin_step()
        clock.now += 0.05
        if budget.batch("visit", 1):
            begun = budget.now()
            clock.now += 1e-3
            budget.pay("visit", begun)
            visits += 1
        for _ in range(budget.batch("row of a table", 1)):
            begun = budget.now()
            clock.now += 1e-4
            budget.pay("row of a table", begun)
            rows += 1
        budget.end_step()
    assert 800 < visits < 960
    assert 900 < rows < 1100
    assert budget.used < 0.0115


def test_full_has_no_limit():
    budget, looks = _run(1.0, 1.0, steps=10)
    assert looks == 10
    assert budget.batch("anything", 7) == 7


def test_nothing_is_allowed_before_time_was_earned():
    assert Budget(0.01, Clock()).batch("look", 1) == 0
    assert Budget(0.0, Clock()).batch("look", 3) == 0


def test_a_long_idle_time_does_not_pay_for_a_stall():
    clock = Clock()
    budget = Budget(0.01, clock)
    for _ in range(100_000):
        budget.begin_step()
        clock.now += 0.05
        budget.end_step()
    budget._costs["look"] = 1e-3
    assert budget.batch("look", 10_000) <= 50 * 0.01 * 0.05 / 1e-3 + 1


def test_looks_are_saved_up_to_be_done_together_unless_so_many_never_fit():
    clock = Clock()
    budget, batches = Budget(0.01, clock), []
    for _ in range(2000):
        budget.begin_step()
        clock.now += 0.05
        some = budget.batch("look", 8)
        for _ in range(some):
            begun = budget.now()
            clock.now += 2e-4
            budget.pay("look", begun)
        batches.append(some)
        budget.end_step()
    assert set(batches[10:]) == {0, 8}
    assert 540 < batches.count(8) < 575  # 0.45 ms are earned in a step, and a batch takes 1.6
    budget._costs["look"] = 1.0
    assert budget.batch("look", 8) <= 1


def test_a_look_that_fails_is_paid_for():
    clock = Clock()
    budget, tried = Budget(0.01, clock), 0
    for _ in range(2000):
        budget.begin_step()
        clock.now += 0.05
        if budget.batch("visit", 1):
            clock.now += 1e-2
            budget.charge(1e-2)
            tried += 1
        budget.end_step()
    assert 0 < tried < 120  # 1 % of 2000 steps of 60 ms has room for 120 of 10 ms
    assert budget.used < 0.0115
