"""How far `kb add` is: bars on a terminal, one line a file into a pipe, nothing beside JSON."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from kb_cli import printable
from kb_cli.output import Output

Outcome = Literal["added", "already there", "empty", "submitted", "skipped", "failed"]

_STYLES: dict[Outcome, str] = {
    "added": "green",
    "already there": "green",
    "submitted": "green",
    "empty": "yellow",
    "skipped": "yellow",
    "failed": "red",
}


class Result(msgspec.Struct):
    """What became of one file."""

    path: str
    outcome: Outcome
    document_id: int | None = None
    job_id: str | None = None
    reason: str | None = None

    def line(self) -> str:
        """One line with the outcome, the path, the document where there is text in it, and the reason."""
        document = f"document {self.document_id}" if self.document_id and self.outcome != "empty" else ""
        last = ": ".join(filter(None, (document, self.reason)))
        return f"{self.outcome}\t{self.path}\t{last}".rstrip()


def progress_on(out: Output) -> AbstractContextManager[Progress]:
    """The progress that suits `out`."""
    return Bars(out) if out.is_terminal else Progress(out)


class Progress(AbstractContextManager["Progress"]):
    """One line a file, none where the answer is JSON; a script has no use for how far it is."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def __exit__(self, *_: object) -> None:
        """There is nothing to clear away."""

    def began(self, files: int, size: int) -> None:
        """So many files of so many bytes together are to be sent."""

    def sent(self, size: int) -> None:
        """So many more bytes went out."""

    def ended(self, result: Result) -> None:
        """One file is through."""
        if not self._out.as_json:
            self._out.text(result.line())


class Bars(Progress):
    """Two bars that vanish at the end, and above them one line a file."""

    def __init__(self, out: Output) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Drawn

        super().__init__(out)
        self._drawn = Drawn(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=out.console(),
            transient=True,
        )
        self._sending = self._drawn.add_task("sending", total=None)
        self._reading = self._drawn.add_task("reading", total=None)

    def __enter__(self) -> Bars:
        self._drawn.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drawn.stop()

    def began(self, files: int, size: int) -> None:
        self._drawn.update(self._sending, total=size)
        self._drawn.update(self._reading, total=files)

    def sent(self, size: int) -> None:
        self._drawn.advance(self._sending, size)

    def ended(self, result: Result) -> None:
        from rich.text import Text

        self._drawn.advance(self._reading)
        line = printable.line(result.line().replace("\t", "  "))
        self._drawn.console.print(Text(line, style=_STYLES[result.outcome]), soft_wrap=True)
