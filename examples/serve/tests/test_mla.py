# SPDX-License-Identifier: Apache-2.0
"""A model whose attention is MLA, from a paged latent cache: the text of a dense forward pass."""

import mla as served
import numpy as np


def test_the_text_is_that_of_a_dense_forward_pass():
    weights, rng = served.Weights(), np.random.default_rng(1)
    prompts = [[int(t) for t in rng.integers(served.VOCAB, size=n)] for n in (5, 18, 31)]
    texts = served.serve(weights, prompts, 64)
    assert [len(t) for t in texts] == [64, 64, 64]
    assert all(len(set(text)) > 8 for text in texts), "a text of few tokens would be equal by chance"
    for prompt, text in zip(prompts, texts):
        assert text == served.dense_text(weights, prompt, 64)


def test_values_from_the_wrong_dims_change_the_text(monkeypatch):
    weights, prompt = served.Weights(), list(range(9))
    right = served.dense_text(weights, prompt, 12)

    def from_the_last_dims(latent, rank):
        rows = latent[:, :, None, :]
        return served.quire.KVCache(rows, rows[..., served.ROPE :])

    monkeypatch.setattr(served.mla, "cache", from_the_last_dims)
    assert served.serve(weights, [prompt], 12)[0] != right
