# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE from the vocabulary inside a GGUF file ("gpt2" model, "smollm" pre-tokenizer).

Text becomes words (every digit alone, then GPT-2's rule), words become bytes, bytes are merged by rank. Control tokens such
as <|im_end|> are only produced by `control()`: text from a user can spell one, but never becomes one.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata

from gguf_file import GgufFile

NORMAL, CONTROL = 1, 3  # token types of the GGUF format that occur here
CONTRACTIONS = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# On the classes below: `\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` with '_' for a space and 'S' for other whitespace.
WORD = re.compile(r"N|_?L+|_?P+|[_S]+(?![^_S])|[_S]+")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in alphabet:
            alphabet[b] = chr(256 + len(alphabet) - len(printable))
    return alphabet


@functools.cache
def _char_class(char: str) -> str:
    if char == " ":
        return "_"
    if char.isspace() and not "\x1c" <= char <= "\x1f":
        return "S"
    return {"L": "L", "N": "N"}.get(unicodedata.category(char)[0], "P")


def split_words(text: str) -> list[str]:
    """The pre-tokenizer: BPE never merges across these pieces. A digit is alone, and what stands before it ends there."""
    words = []
    classes = "".join(map(_char_class, text))
    for piece in re.finditer(r"N|[^N]+", classes):
        at, end = piece.span()
        while at < end:
            match = CONTRACTIONS.match(text, at, end) or WORD.match(classes, at, end)
            words.append(text[at : match.end()])
            at = match.end()
    return words


class Tokenizer:
    def __init__(self, file: GgufFile):
        kind = file.key("tokenizer.ggml.model", str), file.metadata.get("tokenizer.ggml.pre")
        if kind != ("gpt2", "smollm"):
            raise file.fail("metadata 'tokenizer.ggml.model', '.pre'", kind, ("gpt2", "smollm"))
        self.tokens = self._strings(file, "tokenizer.ggml.tokens")
        types = file.key("tokenizer.ggml.token_type", list)
        vocab = file.key("llama.vocab_size", int)
        if not len(self.tokens) == len(types) == vocab:
            raise file.fail(
                "tokens and token types", f"{len(self.tokens)} and {len(types)}", f"{vocab} of each (llama.vocab_size)"
            )
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.controls = {self.tokens[i]: i for i, t in enumerate(types) if t == CONTROL}
        self.eos = file.key("tokenizer.ggml.eos_token_id", int, 0, vocab - 1)
        self._encode_byte = _byte_alphabet()
        self._decode_byte = {c: b for b, c in self._encode_byte.items()}
        self.ranks: dict[tuple[str, str], int] = {}
        for rank, merge in enumerate(self._strings(file, "tokenizer.ggml.merges")):
            left, _, right = merge.partition(" ")
            if left + right not in self.ids or not right:
                raise file.fail(f"metadata 'tokenizer.ggml.merges'[{rank}]", repr(merge), "two parts that make a token")
            self.ranks.setdefault((left, right), rank)
        self._bpe = functools.lru_cache(maxsize=1 << 16)(self._merge)

    @staticmethod
    def _strings(file: GgufFile, key: str) -> list[str]:
        values = file.key(key, list)
        if not values or not all(type(v) is str for v in values):
            raise file.fail(
                f"metadata {key!r}", f"{len(values)} values of {type(values[0]).__name__ if values else 'nothing'}", "strings"
            )
        return values

    def _merge(self, word: str) -> tuple[int, ...]:
        parts = [self._encode_byte[b] for b in word.encode("utf-8", "surrogatepass")]
        while len(parts) > 1:
            rank, i = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(self.ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        unknown = [p for p in parts if p not in self.ids]
        if unknown:
            raise ValueError(f"text {word!r}: byte {self._decode_byte[unknown[0]]:#04x} has no token in this vocabulary")
        return tuple(self.ids[p] for p in parts)

    def encode(self, text: str) -> list[int]:
        """ValueError for the few bytes (control characters, rare planes) that the vocabulary leaves out."""
        return [i for word in split_words(text) for i in self._bpe(word)]

    def control(self, name: str) -> int:
        return self.controls[name]

    def turn(self, role: str, text: str) -> list[int]:
        """One complete ChatML turn."""
        start, end = self.control("<|im_start|>"), self.control("<|im_end|>")
        return [start, *self.encode(f"{role}\n{text}"), end, *self.encode("\n")]

    def answer_begins(self) -> list[int]:
        return [self.control("<|im_start|>"), *self.encode("assistant\n")]

    def chat(self, system: str, user: str) -> list[int]:
        """The ChatML prompt of one turn, ending where the assistant speaks."""
        return [*self.turn("system", system), *self.turn("user", user), *self.answer_begins()]

    def token_bytes(self, token: int) -> bytes:
        text = self.tokens[token]
        return b"" if text in self.controls else bytes(self._decode_byte[c] for c in text)

    def decode(self, tokens: list[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def stream(self) -> Stream:
        return Stream(self)


class Stream:
    """Decodes one token at a time; bytes of a character that is not complete yet are held back."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
