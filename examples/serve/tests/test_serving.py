# SPDX-License-Identifier: Apache-2.0
"""Scheduler and paged cache on a small random model: the text is the dense oracle's whatever the batch, chunk, page size,
sharing or shortage of pages; and a fault planted into the cache is found. No download."""

import numpy as np
import pytest
from dense import dense_logits, greedy, greedy_margins
from engine import Engine
from gguf_model import Config, random_weights
from model import Llama
from scheduler import Request, Scheduler, State

CONFIG = Config(
    num_layers=3,
    hidden=48,
    feed_forward=96,
    num_q_heads=6,
    num_kv_heads=2,
    head_dim=8,
    vocab=160,
    context=256,
    rms_epsilon=1e-5,
    rope_base=1e4,
)
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def llama():
    return Llama(random_weights(CONFIG, seed=7))


@pytest.fixture(scope="module")
def prompts():
    """Lengths around the page sizes; the last three share 40 tokens."""
    rng = np.random.default_rng(2)
    common = rng.integers(0, CONFIG.vocab, 40).tolist()
    own = [rng.integers(0, CONFIG.vocab, n).tolist() for n in (1, 8, 15, 33, 64)]
    return own + [common + rng.integers(0, CONFIG.vocab, n).tolist() for n in (1, 9, 30)]


@pytest.fixture(scope="module")
def oracle(llama, prompts):
    return [greedy(llama.weights, p, NEW_TOKENS) for p in prompts]


def requests_for(prompts):
    return [Request(id=i, prompt=p, max_new_tokens=NEW_TOKENS) for i, p in enumerate(prompts)]


def serve(llama, prompts, **settings):
    settings = {"num_pages": 200, "page_size": 8, "verify_every": 5, **settings}
    engine = Engine(llama, **settings)
    requests = requests_for(prompts)
    engine.run(requests)
    assert engine.kv.audit.findings == 0, engine.kv.audit.messages
    assert engine.kv.audit.clean, engine.kv.audit.mismatches
    assert engine.kv.pool.stats.pages_in_use == 0
    return [r.generated for r in requests], engine, requests


def test_oracle_is_decisive(llama, prompts, oracle):
    """No near-ties: otherwise the tests below would depend on rounding."""
    worst = min(greedy_margins(llama.weights, p, o).min() for p, o in zip(prompts, oracle, strict=True))
    assert worst > 1e-4


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
@pytest.mark.parametrize("page_size", [1, 8, 16, 32])
def test_text_is_the_oracles(llama, prompts, oracle, chunk, page_size):
    got, engine, _ = serve(llama, prompts, chunk=chunk, page_size=page_size, budget=70, num_pages=1600 // page_size)
    assert got == oracle
    assert engine.kv.audit.verified > 0 and engine.kv.audit.worst_ratio <= 1


def test_alone_and_together_are_the_same(llama, prompts, oracle):
    for i, prompt in enumerate(prompts):
        assert serve(llama, [prompt], chunk=16)[0] == [oracle[i]]


def test_prefix_sharing_saves_rows_and_changes_nothing(llama, prompts, oracle):
    # One after the other, so that the later ones find what the earlier ones left.
    got, engine, _ = serve(llama, prompts, max_running=1)
    assert got == oracle and engine.kv.pool.stats.prefix_hit_tokens == 80
    got, engine, _ = serve(llama, prompts, max_running=1, sharing=False)
    assert got == oracle and engine.kv.pool.stats.prefix_hit_tokens == 0


@pytest.mark.parametrize("sharing", [True, False])
def test_preemption_changes_nothing(llama, prompts, oracle, sharing):
    got, engine, requests = serve(llama, prompts, num_pages=16, chunk=16, sharing=sharing)
    assert got == oracle
    assert engine.kv.pool.stats.preemptions > 0 and sum(r.preemptions for r in requests) == engine.kv.pool.stats.preemptions


@pytest.mark.parametrize("dtype", ["f16", "bf16", "fp8_e4m3fn", "fp8_e5m2"])
def test_narrow_caches_are_right_for_what_they_store(llama, prompts, dtype):
    got, engine, _ = serve(llama, prompts, dtype=dtype, verify_every=1)
    assert engine.kv.audit.worst_ratio <= 1
    again, _, _ = serve(llama, prompts, dtype=dtype, chunk=7, page_size=16, num_pages=100)
    assert got == again


def test_stop_tokens_end_a_request(llama, prompts, oracle):
    stop = oracle[3][4]
    engine = Engine(llama, num_pages=50, page_size=8)
    request = Request(id=5, prompt=prompts[3], max_new_tokens=NEW_TOKENS, stop=frozenset([stop]))
    engine.run([request])
    assert request.state is State.DONE and request.generated == oracle[3][: oracle[3].index(stop) + 1]


def test_budget_chunk_and_order_are_kept(llama):
    engine = Engine(llama, num_pages=100, page_size=8, budget=20, chunk=12, max_running=3)
    for i in range(5):
        engine.submit(Request(id=i, prompt=[i + 1] * 30, max_new_tokens=4))
    first = [(c.request.id, c.begin, c.end) for c in engine.scheduler.schedule()]
    assert first == [(0, 0, 12), (1, 0, 8)]


def test_what_can_never_fit_is_refused_at_once(llama):
    engine = Engine(llama, num_pages=4, page_size=8)
    with pytest.raises(
        ValueError, match="request 1: up to 5 pages for 30 prompt and 4 new tokens, expected at most the 4 there are"
    ):
        engine.submit(Request(id=1, prompt=[1] * 30, max_new_tokens=4))
    with pytest.raises(ValueError, match="request 2: 0 prompt tokens"):
        engine.submit(Request(id=2, prompt=[], max_new_tokens=4))
    with pytest.raises(ValueError, match="expected at most the model's context of 256"):
        Engine(llama, num_pages=99, page_size=8).submit(Request(id=3, prompt=[1] * 250, max_new_tokens=40))
    with pytest.raises(ValueError, match="expected at least 1 each"):
        Scheduler(engine.kv.pool, 4, budget=0)


def run_with_fault(llama, prompts, fault, steps=6):
    engine = Engine(llama, num_pages=100, page_size=8, chunk=16, verify_every=1)
    for r in requests_for(prompts):
        engine.submit(r)
    for _ in range(steps):
        engine.step()
    assert engine.kv.audit.clean
    fault(engine)
    engine.step()
    return engine.kv.audit.messages


def skip_append_at_layer_2(engine):
    begin = engine.kv.begin_step

    def begin_step(chunks):
        step = begin(chunks)
        attend = step.attend

        def without_append(layer, q, k, v):
            slots = step.slot_mapping
            if layer == 2:
                step.slot_mapping = np.full_like(slots, -1)
            out = attend(layer, q, k, v)
            step.slot_mapping = slots
            return out

        step.attend = without_append
        return step

    engine.kv.begin_step = begin_step


class PoolWithForeignPage:
    """Request 4 reads its first page from request 3: the right positions of the wrong text."""

    def __init__(self, pool):
        self.pool = pool

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def block_table(self, request):
        table = self.pool.block_table(request)
        if request == 4:
            table[0] = self.pool.block_table(3)[0]
        return table


def give_a_foreign_page(engine):
    engine.kv.pool = PoolWithForeignPage(engine.kv.pool)


def recycle_a_page(engine):
    page = int(engine.kv.pool.block_table(4)[0])
    engine.kv.ledgers[1].recycle(page)


def shift_positions(engine):
    engine.kv.ledgers[0].record(int(engine.kv.pool.slot(4, 3)), 4, 2)


FAULTS = {"Q-L01": skip_append_at_layer_2, "Q-L02": give_a_foreign_page, "Q-L03": shift_positions, "Q-L04": recycle_a_page}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_planted_fault_is_found(llama, prompts, rule):
    found = run_with_fault(llama, prompts, FAULTS[rule])
    assert any(rule in message for message in found), found


def test_paged_logits_are_close_to_dense(llama, prompts):
    """Not only the arg max: all logits of one chunked, paged prefill."""
    engine = Engine(llama, num_pages=100, page_size=8, chunk=11)
    request = Request(id=0, prompt=prompts[-1], max_new_tokens=1)
    engine.submit(request)
    rows = []
    while engine.scheduler.has_work():
        chunks = engine.scheduler.schedule()
        step = engine.kv.begin_step(chunks)
        rows.append(llama.logits(llama.forward(step.tokens, step.positions, step.attend)))
        engine.scheduler.finish_step(chunks, {0: 0})
    want = dense_logits(llama.weights, prompts[-1])
    np.testing.assert_allclose(np.concatenate(rows), want, rtol=0, atol=2e-4)
