# SPDX-License-Identifier: Apache-2.0
"""A small version of exactness.py on SmolLM2 itself; skipped with a reason if the model file is not there."""

import pytest
from exactness import Setting, pick_prompts, run, smallest_margin
from gguf_file import GgufFile
from gguf_model import load_weights
from model import Llama
from tokenizer import Tokenizer

TOKENS = 12


@pytest.fixture(scope="module")
def loaded(model_path):
    file = GgufFile(model_path)
    return Tokenizer(file), Llama(load_weights(file))


def test_text_is_sensible_exact_and_dense(loaded):
    tokenizer, llama = loaded
    prompts = pick_prompts(tokenizer, 3)
    first = run(llama, prompts, TOKENS, Setting("full", 64, 16, True))
    other = run(llama, prompts, TOKENS, Setting("full", 512, 32, False))
    assert first.texts == other.texts and first.findings == other.findings == 0
    assert first.prefix_hits > 0
    assert smallest_margin(llama.weights, prompts, first.texts) > 0
    assert "Paris" in tokenizer.decode(first.texts[0])
