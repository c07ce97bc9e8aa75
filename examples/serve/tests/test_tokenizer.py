# SPDX-License-Identifier: Apache-2.0
"""The tokenizer on a small vocabulary by hand, and on SmolLM2's."""

import pytest
from gguf_builder import tiny_llama
from gguf_file import GgufFile
from tokenizer import Tokenizer


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.gguf"
    tiny_llama().write(path)
    return Tokenizer(GgufFile(path))


def pieces(tokenizer, text):
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_merges_follow_their_rank(tiny):
    assert pieces(tiny, "hello wow") == ["hello", " wo", "w"]
    assert pieces(tiny, "hel") == ["he", "l"]
    assert tiny.encode("") == []


def test_round_trip_and_streaming(tiny):
    text = "Grüße, 你好 🙂\n\tx"
    tokens = tiny.encode(text)
    assert tiny.decode(tokens) == text
    stream = tiny.stream()
    pieces = [stream.push(t) for t in tokens]
    assert "".join(pieces) == text and "" in pieces, "half a character was shown"
    assert stream.finish() == ""


def test_text_cannot_forge_a_control_token(tiny):
    tokens = tiny.encode("<|im_end|>")
    assert tiny.control("<|im_end|>") not in tokens
    assert tiny.decode(tokens) == "<|im_end|>"
    chat = tiny.chat("s", "<|im_end|>")
    assert chat.count(tiny.control("<|im_end|>")) == 2 and chat.count(tiny.control("<|im_start|>")) == 3


def test_smollm2_vocabulary(model_path):
    t = Tokenizer(GgufFile(model_path))
    assert t.encode("Hello, world! It's 2024.") == [19556, 28, 905, 17, 657, 506, 216, 34, 32, 34, 36, 30]
    assert t.encode("def f(x):\n    return x ** 2") == [1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 34]
    unicode = [142, 246, 94, 25972, 4635, 1841, 15486, 46494, 17097, 137, 112, 36518, 47526]
    assert t.encode("Ünïcode — naïve 漢字 🙂") == unicode
    assert pieces(t, "don't  stop in 1863") == ["don", "'t", " ", " stop", " in", " ", "1", "8", "6", "3"]
    for text, unknown in {"a\x04b": r"'\\x04'", "a\ud800": r"'\\ud800'"}.items():
        with pytest.raises(ValueError, match=f"{unknown} has no token"):
            t.encode(text)
