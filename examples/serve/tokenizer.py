# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back by the `tokenizers` package, with the vocabulary inside a GGUF file ("gpt2" model, "smollm" pre-tokenizer).

Control tokens such as <|im_end|> are only produced by `control()`: text from a user can spell one, but never becomes one.
"""

from __future__ import annotations

import tokenizers
from gguf_file import GgufFile
from tokenizers import decoders, models, pre_tokenizers

CONTROL = 3  # the type that the GGUF format gives to control tokens


class Tokenizer:
    def __init__(self, file: GgufFile):
        kind = file.key("tokenizer.ggml.model", str), file.metadata.get("tokenizer.ggml.pre")
        if kind != ("gpt2", "smollm"):
            raise file.fail("metadata 'tokenizer.ggml.model', '.pre'", kind, ("gpt2", "smollm"))
        tokens = file.strings("tokenizer.ggml.tokens")
        types = file.key("tokenizer.ggml.token_type", list)
        vocab = file.key("llama.vocab_size", int)
        if not len(tokens) == len(types) == vocab:
            raise file.fail("tokens and token types", f"{len(tokens)} and {len(types)}", f"{vocab} of each (llama.vocab_size)")
        self.eos = file.key("tokenizer.ggml.eos_token_id", int, 0, vocab - 1)
        self._controls = {tokens[i]: i for i, t in enumerate(types) if t == CONTROL}
        self._control_ids = frozenset(self._controls.values())
        ids, merges = {token: i for i, token in enumerate(tokens)}, []
        for rank, merge in enumerate(file.strings("tokenizer.ggml.merges")):
            left, _, right = merge.partition(" ")
            if not right or not {left, right, left + right} <= ids.keys():
                raise file.fail(f"metadata 'tokenizer.ggml.merges'[{rank}]", repr(merge), "two tokens that make a third")
            merges.append((left, right))
        self._bpe = tokenizers.Tokenizer(models.BPE(ids, merges))
        # A digit is alone, then GPT-2's rule for words.
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self._bpe.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """ValueError for the few bytes (control characters, rare planes) that the vocabulary leaves out."""
        ids = self._ids(text)
        if self.decode(ids) != text:
            unknown = next((c for c in text if self.decode(self._ids(c)) != c), text)
            raise ValueError(f"text {text[:80]!r}: {unknown!r} has no token in this vocabulary")
        return ids

    def _ids(self, text: str) -> list[int]:
        return self._bpe.encode(text.encode("utf-8", "replace").decode()).ids  # half a surrogate pair becomes a question mark

    def control(self, name: str) -> int:
        return self._controls[name]

    def turn(self, role: str, text: str) -> list[int]:
        """One complete ChatML turn."""
        start, end = self.control("<|im_start|>"), self.control("<|im_end|>")
        return [start, *self.encode(f"{role}\n{text}"), end, *self.encode("\n")]

    def answer_begins(self) -> list[int]:
        return [self.control("<|im_start|>"), *self.encode("assistant\n")]

    def chat(self, system: str, user: str) -> list[int]:
        """The ChatML prompt of one turn, ending where the assistant speaks."""
        return [*self.turn("system", system), *self.turn("user", user), *self.answer_begins()]

    def decode(self, tokens: list[int]) -> str:
        """The text without control tokens."""
        return self._bpe.decode([t for t in tokens if t not in self._control_ids])

    def stream(self) -> Stream:
        return Stream(self)


class Stream:
    """Decodes one token at a time; bytes of a character that is not complete yet are held back."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._tokens, self._shown = tokenizer, [], 0

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else self._new(text)

    def finish(self) -> str:
        return self._new(self._tokenizer.decode(self._tokens))

    def _new(self, text: str) -> str:
        new, self._shown = text[self._shown :], len(text)
        return new
