# SPDX-License-Identifier: Apache-2.0
"""A conversation on the terminal. Each turn is a request whose prompt is everything said so far; what earlier turns computed is
found in the cache, as a shared prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from display import printable
from tokenizer import Tokenizer
from workload import Job


class Wrapped:
    """Text that arrives in pieces, broken between words at a width."""

    def __init__(self, width: int, write: Callable[[str], None]):
        self.width, self.write = width, write
        self._column, self._word = 0, ""

    def push(self, piece: str) -> None:
        for char in printable(piece):
            if char in " \n":
                self._flush(char)
            else:
                self._word += char

    def _flush(self, after: str) -> None:
        if self._column and self._column + len(self._word) > self.width:
            self.write("\n")
            self._column = 0
        self.write(self._word + after)
        self._column = 0 if after == "\n" else self._column + len(self._word + after)
        self._word = ""

    def end(self) -> None:
        self._flush("\n")


class Chat:
    def __init__(self, tokenizer: Tokenizer, system: str, max_new_tokens: int):
        self.tokenizer, self.max_new_tokens = tokenizer, max_new_tokens
        self._known = tokenizer.turn("system", system)

    def jobs(self, ask: Callable[[], str]) -> Iterator[Job]:
        """One job per question, until `ask` raises EOFError."""
        while True:
            try:
                question = ask().strip()
            except EOFError:
                return
            if question:
                self._known += [*self.tokenizer.turn("user", question), *self.tokenizer.answer_begins()]
                yield Job(0.0, question, list(self._known), self.max_new_tokens)

    def answered(self, generated: list[int]) -> None:
        end = self.tokenizer.control("<|im_end|>")
        self._known += [*generated, *([] if generated[-1:] == [end] else [end]), *self.tokenizer.encode("\n")]
