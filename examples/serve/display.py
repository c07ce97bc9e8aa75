# SPDX-License-Identifier: Apache-2.0
"""Display for a person: one request's text as it grows, the others as a table, and the engine in one line (drawn by rich).

Without a terminal, or with TERM=dumb, every answer is printed when it is complete. NO_COLOR is honoured (no-color.org).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

TEXT_LINES = 6


@dataclasses.dataclass(frozen=True)
class Row:
    """A request as the table shows it."""

    number: int
    question: str
    state: str  # "waiting", "reads", "writes", "done"
    tokens: str
    text: str


def printable(text: str) -> str:
    """The text with control characters made visible: a model's output must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text.expandtabs(4))


def followed(rows: Sequence[Row], before: int | None) -> int | None:
    """The request whose text is shown: the one shown before while it writes, else the first that writes."""
    writing = [row.number for row in rows if row.state == "writes"]
    return before if before in writing else writing[0] if writing else before


def fitting(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """Rows for so many lines, and how many are left out: finished requests first, then the last to come."""
    order = {"done": 0, "waiting": 1}
    dispensable = sorted(rows, key=lambda r: (order.get(r.state, 2), r.number if r.state == "done" else -r.number))
    out = {r.number for r in dispensable[: max(0, len(rows) - room)]}
    return [row for row in rows if row.number not in out], len(out)


class Display:
    STYLES = {"waiting": "dim", "reads": "cyan", "writes": "green", "done": "dim"}

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._shown: int | None = None
        self._printed: set[int] = set()

    def say(self, text: str = "", style: str = "") -> None:
        """A paragraph that stays, as wide as the terminal."""
        self.console.print(Text(printable(text), style))

    def update(self, rows: Sequence[Row], status: str) -> None:
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            self._print_finished(rows)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._shown = followed(rows, self._shown)
        self._live.update(self.screen(rows, status), refresh=True)

    def _print_finished(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.state == "done" and row.number not in self._printed:
                self._printed.add(row.number)
                self.say(f"[{row.number:02d}] {row.question}\n{row.text.strip()}\n")

    def screen(self, rows: Sequence[Row], status: str) -> Group:
        parts = [self._panel(row) for row in rows if row.number == self._shown]
        if len(rows) > 1:
            parts.append(self._table(rows, self.console.height - len(parts) * (TEXT_LINES + 2) - 3))
        return Group(*parts, Text(status, "dim", no_wrap=True, overflow="ellipsis"))

    def _panel(self, row: Row) -> Panel:
        lines = Text(printable(row.text)).wrap(self.console, max(10, self.console.width - 4))[-TEXT_LINES:]
        lines += [Text()] * (TEXT_LINES - len(lines))
        title = Text(f" {row.number:02d}  {printable(row.question)} ", overflow="ellipsis")
        title.truncate(max(10, self.console.width - 8), overflow="ellipsis")
        return Panel(Text("\n").join(lines), title=title, title_align="left")

    def _table(self, rows: Sequence[Row], room: int) -> Table:
        shown, left_out = fitting(rows, max(1, room))
        table = Table(box=None, expand=True, show_header=False, padding=(0, 1), caption_justify="left")
        table.add_column(width=2)
        table.add_column(ratio=2, no_wrap=True, overflow="ellipsis")
        table.add_column(width=7)
        table.add_column(width=9, justify="right")
        table.add_column(ratio=3, no_wrap=True, overflow="ellipsis")
        for row in shown:
            ending = printable(" ".join(row.text.split()))[-120:]
            cells = (f"{row.number:02d}", printable(row.question), row.state, row.tokens, ending)
            table.add_row(*(Text(cell) for cell in cells), style=self.STYLES[row.state])
        if left_out:
            table.caption = f"and {left_out} more"
        return table

    def end(self) -> None:
        """Leaves the last screen where it is."""
        if self._live:
            self._live.stop()
            self._live = None
