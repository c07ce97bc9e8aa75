# SPDX-License-Identifier: Apache-2.0
"""The decoder against the dense oracle on a random model: rotation, grouping, residuals, tiles. No download, no cache."""

import numpy as np
import pytest
from dense import dense_logits, greedy, greedy_margins
from gguf_model import Config, random_weights
from model import Llama, shares

CONFIG = Config(
    num_layers=3,
    hidden=48,
    feed_forward=96,
    num_q_heads=6,
    num_kv_heads=2,
    head_dim=8,
    vocab=160,
    context=128,
    rms_epsilon=1e-5,
    rope_base=1e4,
)


@pytest.fixture(scope="module")
def weights():
    return random_weights(CONFIG, seed=7)


def plain_attend(layer, q, k, v):
    """One sequence from position 0, in f64, row by row."""
    group = q.shape[1] // k.shape[1]
    out = np.empty_like(q)
    for i in range(len(q)):
        for h in range(q.shape[1]):
            s = k[: i + 1, h // group].astype(np.float64) @ q[i, h] / np.sqrt(q.shape[2])
            p = np.exp(s - s.max())
            out[i, h] = (p / p.sum()) @ v[: i + 1, h // group]
    return out


def test_decoder_agrees_with_dense(weights):
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, 37)
    llama = Llama(weights)
    got = llama.logits(llama.forward(tokens, np.arange(37), plain_attend))
    want = dense_logits(weights, tokens)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)


def test_a_wrong_rotation_would_be_seen(weights, monkeypatch):
    """Half-split rotation is the classic mistake: right shapes, wrong model."""
    llama = Llama(weights)

    def half_split(heads, positions):
        cos, sin = llama._cos[positions], llama._sin[positions]
        a, b = np.split(heads, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, 37)
    monkeypatch.setattr(llama, "rope", half_split)
    got = llama.logits(llama.forward(tokens, np.arange(37), plain_attend))
    assert np.abs(got - dense_logits(weights, tokens)).max() > 0.1


def test_rows_do_not_depend_on_their_neighbours(weights):
    """Bitwise: a row alone, at every place of a larger batch, and beside other rows."""
    llama = Llama(weights)
    rng = np.random.default_rng(3)
    tokens, positions = rng.integers(0, CONFIG.vocab, 40), rng.integers(0, CONFIG.context, 40)

    def no_mixing(layer, q, k, v):
        return q * np.float32(0.5)

    together = llama.logits(llama.forward(tokens, positions, no_mixing))
    for i in range(40):
        alone = llama.logits(llama.forward(tokens[i : i + 1], positions[i : i + 1], no_mixing))
        np.testing.assert_array_equal(alone[0], together[i])
    shuffle = rng.permutation(40)
    shuffled = llama.logits(llama.forward(tokens[shuffle], positions[shuffle], no_mixing))
    np.testing.assert_array_equal(shuffled, together[shuffle])


def test_tiles_and_threads_cover_every_output(weights, monkeypatch):
    import model

    rows = np.random.default_rng(4).standard_normal((5, CONFIG.hidden)).astype(np.float32)
    want = Llama(weights).linear(rows, weights.output)
    np.testing.assert_allclose(want, rows @ weights.output.T, rtol=0, atol=1e-4)
    for tile, threads in ((32, 1), (64, 2), (16, 3)):
        monkeypatch.setattr(model, "TILE", tile)
        monkeypatch.setattr(model, "THREADS", threads)
        monkeypatch.setattr(model, "WORTH_A_THREAD", 0)
        np.testing.assert_allclose(Llama(weights).linear(rows, weights.output), want, rtol=0, atol=1e-5)


def test_shares_cover_everything_once():
    for size, parts in ((10, 3), (2, 4), (0, 2), (48, 1)):
        covered = [i for begin, end in shares(size, parts) for i in range(begin, end)]
        assert covered == list(range(size))


def test_margins_say_the_same_as_recomputing_everything(weights):
    prompt = [5, 99, 31, 7]
    text = greedy(weights, prompt, 12)
    assert (greedy_margins(weights, prompt, text) > 0).all()
    text[6] = (text[6] + 1) % CONFIG.vocab
    assert greedy_margins(weights, prompt, text)[6] < 0
