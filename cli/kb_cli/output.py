"""Where a command's answer goes: coloured tables on a terminal, tab-separated lines into a pipe, or JSON.

A table wider than the terminal is written row by row instead, so that no id or value is ever cut.

rich is imported when there is a terminal to colour and not before: it costs a script a tenth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from kb_cli import printable

if TYPE_CHECKING:
    from rich.console import Console


_UNBOUNDED = 100_000  # wider than any table: to measure one is not to fit it
_INDENT = 2


@dataclass
class Output:
    """The standard streams of one command. Everything that passes is made printable on the way.

    `as_json`: the answer is one JSON document, and nothing else reaches stdout.
    """

    as_json: bool = False
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at stdout."""
        return not self.as_json and self.stdout.isatty()

    def answered(self, value: Any) -> bool:
        """Write `value` where the answer is to be JSON; whether it was."""
        if self.as_json:
            self.document(value)
        return self.as_json

    def document(self, value: Any) -> None:
        """Write `value` as one JSON document."""
        encoded = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self.stdout.write(printable.json(encoded) + "\n")

    def text(self, value: str, style: str = "") -> None:
        """Write a text of one or more lines; `style` is rich's and shows on a terminal only."""
        printed = printable.text(value)
        if style and self.is_terminal:
            from rich.text import Text

            self.console().print(Text(printed, style=style), soft_wrap=True)
        else:
            self.stdout.write(printed + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """Write a table; into a pipe without the title, a header line first."""
        texts = [["" if cell is None else printable.line(str(cell)) for cell in row] for row in rows]
        if self.is_terminal:
            self._print_table(columns, texts, title)
        else:
            for row in (columns, *texts):
                self.stdout.write("\t".join(row) + "\n")

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one pair a line; a value of None or "" is left out."""
        printed = [
            (name, printable.line(str(value))) for name, value in pairs if value is not None and value != ""
        ]
        if self.is_terminal:
            from rich.table import Table
            from rich.text import Text

            grid = Table.grid(padding=(0, 2))
            for name, text in printed:
                grid.add_row(Text(name, style="dim"), Text(text))
            self.console().print(grid)
        else:
            self.stdout.writelines(f"{name}\t{value}\n" for name, value in printed)

    def note(self, message: str) -> None:
        """Tell a person something beside the answer, on stderr."""
        self.stderr.write(printable.line(message) + "\n")

    def console(self) -> Console:
        """A console on stdout, with nothing in a text taken for markup."""
        from rich.console import Console

        return Console(file=self.stdout, markup=False, highlight=False, emoji=False)

    def _print_table(self, columns: Sequence[str], texts: Sequence[Sequence[str]], title: str) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        console = self.console()
        table = Table(*columns, box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
        for row in texts:
            table.add_row(*(Text(cell) for cell in row))
        if console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum <= console.width:
            console.print(table)
        else:
            self._print_records(console, columns, texts, title)

    def _print_records(
        self, console: Console, columns: Sequence[str], texts: Sequence[Sequence[str]], title: str
    ) -> None:
        """Write each row as its first cell and, indented below, the others that are not empty, by name."""
        from rich.padding import Padding
        from rich.text import Text

        if title:
            console.print(Text(title))
        for first, *others in texts:
            console.print(Text(first, style="bold"))
            lines: list[Text] = []
            for name, cell in zip(columns[1:], others, strict=True):
                part = Text.assemble((name, "dim"), " ", cell)
                if cell and lines and lines[-1].cell_len + part.cell_len + 2 * _INDENT <= console.width:
                    lines[-1].append(" " * _INDENT).append_text(part)
                elif cell:
                    lines.append(part)
            console.print(Padding(Text("\n").join(lines), (0, 0, 0, _INDENT)))
