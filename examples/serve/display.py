"""What a person sees: the text of many requests as it grows, and one line of progress that stays at the bottom of a terminal."""

from __future__ import annotations

import os
import shutil
import sys

COLORS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Display:
    """Text is shown a line at a time, each behind the number of its request. On a terminal the progress line is rewritten in
    place; elsewhere it is printed every `every` steps. NO_COLOR is honoured (no-color.org)."""

    def __init__(self, stream=None, every: int = 25, width: int = 100):
        self.stream, self.every, self.width = stream or sys.stdout, every, width
        self.live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.color = self.live and not os.environ.get("NO_COLOR")
        self._pending: dict[int, str] = {}
        self._status = ""
        self._calls = 0

    def paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text

    def line(self, text: str = "") -> None:
        """A line that stays, above the progress line."""
        if self.live:
            self.stream.write("\r\x1b[2K")
        self.stream.write(text + "\n")
        if self.live:
            self.stream.write(self._status)
        self.stream.flush()

    def text(self, request: int, piece: str, last: bool = False) -> None:
        """More text of a request; whole lines of it are shown, and at the end what is left."""
        pending = self._pending.pop(request, "") + piece
        while "\n" in pending or len(pending) > self.width:
            cut = pending.find("\n")
            if not 0 <= cut <= self.width:
                cut = pending.rfind(" ", 0, self.width + 1)
                cut = self.width if cut <= 0 else cut
            self._show(request, pending[:cut])
            pending = pending[cut:].removeprefix("\n") if pending[cut] == "\n" else pending[cut:].lstrip(" ")
        if last:
            self._show(request, pending)
        elif pending:
            self._pending[request] = pending

    def _show(self, request: int, text: str) -> None:
        if text.strip():
            printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text.expandtabs(4))
            self.line(self.paint(f"[{request:02d}]", COLORS[request % len(COLORS)]) + " " + printable)

    def progress(self, text: str) -> None:
        self._calls += 1
        if self.live:
            columns = shutil.get_terminal_size((self.width, 24)).columns
            self._status = self.paint(text[: columns - 1], 2)
            self.stream.write("\r\x1b[2K" + self._status)
            self.stream.flush()
        elif self._calls % self.every == 1 or self.every == 1:
            self.line("     " + text)

    def end(self) -> None:
        """Removes the progress line."""
        if self.live and self._status:
            self.stream.write("\r\x1b[2K")
        self._status = ""
