# SPDX-License-Identifier: Apache-2.0
"""quire.transformers: attention as transformers asks for it, and generation where transformers is installed."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import quire  # noqa: E402
import quire.transformers as subject  # noqa: E402


def _plain(query, key, value, visible, scale=None):
    """f64 softmax attention; visible [batch, rows, keys]."""
    group = query.shape[1] // key.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (key, value))
    scores = query.double() @ k.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) .matmul(v).transpose(1, 2)


def _inputs(batch=3, heads=4, kv_heads=2, rows=5, keys=12, dim=16):
    torch.manual_seed(1)
    return torch.randn(batch, heads, rows, dim), torch.randn(batch, kv_heads, keys, dim), torch.randn(batch, kv_heads, keys, dim)


def _causal(batch, rows, keys):
    q, k = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None]
    return (k <= q).expand(batch, rows, keys).clone()


MODULE = types.SimpleNamespace(is_causal=True)


def test_whole_sequences():
    q, k, v = _inputs()
    out, weights = subject.attention(MODULE, q, k, v, None)
    assert weights is None
    np.testing.assert_allclose(out, _plain(q, k, v, _causal(3, 5, 12)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_padding_on_either_side_is_not_seen_and_gives_zeros(rows):
    q, k, v = _inputs(rows=rows)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[0, :9], mask[1, 10:] = False, False
    k[0, :, :9], v[0, :, :9] = torch.nan, torch.nan
    out, _ = subject.attention(MODULE, q, k, v, mask)
    visible = _causal(3, rows, 12) & mask[:, None]
    there = mask[:, 12 - rows :]
    expected = _plain(q, torch.nan_to_num(k), torch.nan_to_num(v), visible) * there[:, :, None, None]
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6)


def test_a_static_cache_is_read_as_far_as_its_mask_goes():
    q, k, v = _inputs(rows=1)
    mask = torch.ones(3, 7, dtype=torch.bool)
    out, _ = subject.attention(MODULE, q, k, v, mask)
    np.testing.assert_allclose(out, _plain(q, k[:, :, :7], v[:, :, :7], torch.ones(3, 1, 7, dtype=torch.bool)), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dropout": 0.1}, "dropout: 0.1, expected 0"),
        ({"is_causal": False}, "is_causal: False, expected True"),
        ({"attention_mask": torch.ones(1, 1, 2, 2)}, r"attention_mask: \[1, 1, 2, 2\], expected \[batch, keys\]"),
        ({"attention_mask": torch.tensor([[1, 0, 1] + [1] * 9] * 3)}, r"attention_mask\[0\]: zeros between ones"),
    ],
)
def test_what_is_not_supported_says_so(change, text):
    q, k, v = _inputs()
    with pytest.raises(quire.UnsupportedError, match=text):
        subject.attention(MODULE, **({"query": q, "key": k, "value": v, "attention_mask": None} | change))


def test_values_may_have_another_length():
    q, k, v = _inputs()
    whole, _ = subject.attention(MODULE, q, k, v, None)
    some, _ = subject.attention(MODULE, q, k, v[..., :5], None)
    assert some.shape == (*whole.shape[:-1], 5)
    np.testing.assert_array_equal(some, whole[..., :5])


def test_training_is_refused():
    q, k, v = _inputs()
    with pytest.raises(quire.UnsupportedError, match="requires grad"):
        subject.attention(MODULE, q.requires_grad_(), k, v, None)


@pytest.fixture(scope="module")
def tiny():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, eos_token_id=None, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    subject.register()
    return transformers.LlamaForCausalLM(config).eval().to(torch.float32)


def test_generate_gives_the_tokens_of_eager_attention(tiny):
    ids = torch.randint(1, 97, (3, 20), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    found = {}
    for name in ("eager", "quire"):
        tiny.set_attn_implementation(name)
        found[name] = tiny.generate(input_ids=ids, attention_mask=mask, max_new_tokens=40, do_sample=False)
    assert torch.equal(found["quire"], found["eager"])
    assert len(set(found["quire"][0, 20:].tolist())) > 5  # tokens differ from each other


def test_generate_batch_gives_the_tokens_of_generate(tiny):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    chooser = torch.Generator().manual_seed(4)
    prompts = [torch.randint(1, 97, (n,), generator=chooser).tolist() for n in (5, 33, 17, 64)]
    tiny.set_attn_implementation("eager")
    expected = [tiny.generate(input_ids=torch.tensor([p]), max_new_tokens=24, do_sample=False)[0, len(p) :].tolist() for p in prompts]
    config = GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=48)  # bounds keep it from filling the machine's memory
    with subject.page(tiny):
        answers = tiny.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=small, progress_bar=False)
    assert tiny.config._attn_implementation == "eager"
    by_prompt = {tuple(a.prompt_ids): a.generated_tokens for a in answers.values()}
    assert [by_prompt[tuple(p)] for p in prompts] == expected
