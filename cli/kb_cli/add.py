"""`kb add`: files, folders and URLs, sent one after another while the engine already reads the first.

walk, expand archives, fetch ─▶ send (streamed) ─▶ wait for the jobs ─▶ report the outcome of each file
                                  │ 415: skipped, and its format is not sent again in this run
                                  │ 429: the queue is full; wait for our oldest job, then send again

Progress is two bars on a terminal, and nothing with JSON output. Each file has a line; with more than a few
files, only files that need attention, and skipped files of unknown formats have one line for each format.
"""

from __future__ import annotations

import argparse
import io
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kb_cli.archives import Archives
from kb_cli.config import engine, path_of
from kb_cli.documents import labels, note_new_collection
from kb_cli.exclusion import exclusion
from kb_cli.output import (
    CliError,
    Exit,
    Interrupted,
    NotFound,
    Output,
    Unreachable,
    UsageError,
    counted,
    printable_line,
)
from kb_cli.properties import MARKDOWN, NO_DETAILS, Details, of_front_matter
from kb_contracts.api import formats
from kb_contracts.api import models as m
from kb_contracts.api.operations import CREATE_JOB, GET_JOB
from kb_contracts.semantics.sources import what_stays
from kb_server.collection_tags import tags_for_submission

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from kb_cli.client import EngineClient


Outcome = Literal["added", "replaced", "already there", "empty", "submitted", "removed", "skipped", "failed"]

_STYLES: dict[Outcome, str] = {
    "added": "green",
    "replaced": "green",
    "already there": "green",
    "submitted": "green",
    "removed": "green",
    "empty": "yellow",
    "failed": "red",
    "skipped": "yellow",
}
"""The colour of each outcome, in the order of the summary."""


class Result(msgspec.Struct):
    """The outcome of one file."""

    path: str
    outcome: Outcome
    document_id: int | None = None
    job_id: str | None = None
    reason: str | None = None
    fidelity: m.Fidelity | msgspec.UnsetType = msgspec.UNSET

    def line(self) -> str:
        """Return one line with the outcome, the path, the document unless it is empty, and the reason."""
        document = f"document {self.document_id}" if self.document_id and self.outcome != "empty" else ""
        last = ": ".join(filter(None, (document, self.reason)))
        return f"{self.outcome}\t{self.path}\t{last}".rstrip()


_DONE: tuple[Outcome, ...] = ("added", "replaced", "already there", "submitted", "removed")
_LISTED_FILES = 20
"""Maximum number of files for which each file has a line."""


class Progress(AbstractContextManager["Progress"]):
    """Lines on files, unless the output is JSON; on a terminal above two bars that vanish at the end."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self.files = self._size = self._ended = 0
        self._unknown: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._bars: Bars | None = None
        if out.is_terminal:
            from rich import progress

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.percentage:>3.0f} %"),
                progress.TimeElapsedColumn(),
                console=out.console(),
                transient=True,
            )
            self._tasks = {name: self._bars.add_task(name, total=None) for name in ("sending", "reading")}

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for (extension, reason), paths in sorted(self._unknown.items()):
                many = f"{len(paths)} files {extension or 'without extension'}"
                for path in paths if self.files <= _LISTED_FILES or len(paths) == 1 else [many]:
                    self._show(Result(path, "skipped", reason=reason))
        if self._bars is not None:
            self._bars.stop()

    def began(self, files: int, size: int) -> None:
        """Announce the number of files to send, and their total size in bytes."""
        self.files, self._size = files, size
        self._set("sending", total=size)
        self._set("reading", total=files)

    def sent(self, size: int) -> None:
        """Advance the bar of sent bytes."""
        self._set("sending", advance=size)

    @property
    def on_job(self) -> Callable[[m.Job], None] | None:
        """A callback that shows the progress of an awaited job; None without a terminal."""
        return None if self._bars is None else self._show_job

    def _show_job(self, job: m.Job) -> None:
        self._set("reading", completed=self._ended + job.progress)

    def _set(self, bar: str, **values: Any) -> None:
        if self._bars is not None:
            self._bars.update(self._tasks[bar], **values)

    def ended(self, result: Result) -> None:
        """Report the outcome of one file."""
        self._ended += 1
        self._set("reading", completed=self._ended)
        if self.files <= _LISTED_FILES or result.outcome not in _DONE or result.reason:
            self._show(result)

    def skipped(self, path: str, extension: str, reason: str, size: int) -> None:
        """Skip a file of `size` bytes and of unknown format; its line stands at the end."""
        self._unknown[extension, reason].append(path)
        self._size -= size
        self._set("sending", total=self._size)
        self._set("reading", total=self.files - sum(map(len, self._unknown.values())))

    def _show(self, result: Result) -> None:
        if self._bars is not None:
            from rich.text import Text

            line = printable_line(result.line().replace("\t", "  "))
            self._bars.console.print(Text(line, style=_STYLES[result.outcome]), soft_wrap=True)
        elif not self._out.as_json:
            self._out.text(result.line())


SOURCE_PATH_CHARS = 1_000
_NO_OCR = "OCR does not apply to it: its text is read directly"
_LOOKED_AT_BYTES = 8_192
"""Length of the beginning of a file that shows whether it is text, in bytes."""
_LOOK_SECONDS = 0.5
"""Time between two checks of jobs while files are sent, in seconds."""


def unknown_format(extension: str, *, is_text: bool) -> str:
    """Return the reason for not ingesting a file with this extension, and advice."""
    if extension in formats.ARCHIVES:
        return f"{extension} is an archive; kb add expands it where it is named, or found in a folder"
    kind = f"{extension} is no format" if extension else "without an extension there is no format"
    return f"{kind} that kb reads" + ("; kb add --as-text reads it as text" if is_text else "")


@dataclass(frozen=True, slots=True)
class Found:
    """A file to send. `named`: the user named it, so that skipping it is a failure. `source`: the source path
    of its document. `unpack`: opens the content of a member of an archive.
    """

    path: Path
    size: int
    named: bool
    source: str
    details: Details = NO_DETAILS
    unpack: Callable[[], io.RawIOBase] | None = None

    def opened(self) -> io.RawIOBase:
        """Return its content, to be closed by the caller."""
        return self.unpack() if self.unpack else io.FileIO(self.path)

    @property
    def seems_text(self) -> bool:
        """True if its beginning has no NUL, unlike most binary files; a member of an archive is not read."""
        if self.unpack is not None:
            return False
        try:
            with self.path.open("rb") as content:
                return b"\0" not in content.read(_LOOKED_AT_BYTES)
        except OSError:
            return False

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.source if "://" in self.source else str(self.path)


@dataclass(frozen=True, slots=True)
class Written:
    """A text to send as a note; `label` is its name for people."""

    label: str
    text: str
    details: Details


def run(options: argparse.Namespace, out: Output) -> int:
    """Send all files and report the outcome of each."""
    tags = labels(options, tags_for_submission)
    urls = [path for path in options.paths if is_url(path)]
    found, left_out = walk([path_of(path) for path in options.paths if not is_url(path)])
    with (
        engine(options) as client,
        Progress(out) as progress,
        TemporaryDirectory() as folder,
        Archives() as archives,
    ):
        note_new_collection(client, tags, out)
        found, refused = expanded(found, archives)
        pages, failed = fetched(urls, Path(folder), private=options.private, whole_page=options.whole_page)
        found += pages
        ended = left_out + refused + failed
        progress.began(len(found) + len(ended), sum(file.size for file in found))
        for result in ended:
            progress.ended(result)
        adding = Adding(
            client,
            tags,
            progress,
            wait=not options.no_wait,
            force_ocr=options.force_ocr,
            as_text=options.as_text,
            encoding=options.encoding,
        )
        results = ended + adding.run(found)
    if not out.answered(results):
        out.text(", ".join(outcomes(results)) or "No files there.")
        for line in _fidelity_summed_up(results):
            out.text(line)
    return status_of(results)


def outcomes(results: Iterable[Result]) -> list[str]:
    """Return the number of each outcome, as in "3 added"."""
    counts = Counter(result.outcome for result in results)
    return [f"{counts[outcome]} {outcome}" for outcome in _STYLES if counts[outcome]]


def _fidelity_summed_up(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each kind of guess and omission, with the number of its documents."""
    reports = [result.fidelity for result in results if result.fidelity]
    for kind, count in (
        ("a detected encoding", sum(each.encoding is not None for each in reports)),
        ("text by OCR", sum(bool(each.ocr_pages) for each in reports)),
        ("pages without text", sum(bool(each.pages_without_text) for each in reports)),
        ("parts left out", sum(bool(each.left_out) for each in reports)),
    ):
        if count:
            yield f"{count} with {kind}"


def fetched(
    urls: Iterable[str], folder: Path, *, private: bool, whole_page: bool
) -> tuple[list[Found], list[Result]]:
    """Return the files fetched from the URLs, pages reduced to their main text, and the failures."""
    from kb_cli.web import NotFetched, address_rule, fetch, reduce_to_main_text

    found, failed = [], []
    for number, url in enumerate(dict.fromkeys(urls)):
        place = folder / str(number)
        place.mkdir()
        try:
            path = fetch(url, place, is_allowed=address_rule(private=private)).path
        except NotFetched as error:
            failed.append(Result(url, "failed", reason=str(error)))
        else:
            remark = None if whole_page else reduce_to_main_text(path)
            details = Details(notes=[remark] if remark else [])
            source = url.partition("#")[0]
            found.append(Found(path, path.stat().st_size, named=True, source=source, details=details))
    return found, failed


def expanded(files: Iterable[Found], archives: Archives) -> tuple[list[Found], list[Result]]:
    """Return the files, members in place of archives, and the members and archives left out."""
    found, left_out = [], []
    for file in files:
        if file.path.suffix.lower() not in formats.ARCHIVES:
            found.append(file)
            continue
        try:
            members, others = archives.members(file.path)
        except OSError as error:
            left_out.append(Result(file.label, "failed", reason=error.strerror or str(error)))
            continue
        found += [
            Found(
                Path(f"{file.path}!", each.name),
                each.size,
                named=False,
                source=f"{file.source}!/{each.name}",
                unpack=partial(archives.unpack, each),
            )
            for each in members
        ]
        left_out += [
            Result(
                f"{file.path}!/{each.name}", "failed" if each.is_failure else "skipped", reason=each.reason
            )
            for each in others
        ]
        if not (members or others):
            outcome: Outcome = "failed" if file.named else "skipped"
            left_out.append(Result(file.label, outcome, reason="there is no file in it that kb adds"))
    return found, left_out


def is_url(path: str) -> bool:
    """True if it is a URL of the web."""
    return path.lower().startswith(("http://", "https://"))


def walk(paths: Iterable[Path]) -> tuple[list[Found], list[Result]]:
    """Return the files at and under `paths`, each once and in the order of names, and the files left out.

    Hidden files and folders inside a named folder are skipped, and links to folders are not followed. A file
    in it that is a link out of it, or holds credentials, is left out; a file that the user named is taken. An
    unreadable folder is one failure, and does not stop the rest.
    Raises CliError: a path that was named does not exist, or is a pipe or a device.
    """
    found: dict[Path, Found] = {}
    left_out = []
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - False also for a name that is too long
            raise UsageError(f"{path}: there is no such file or folder")
        named, root = not path.is_dir(), path.resolve()
        if named and not path.is_file():
            raise UsageError(f"{path} is a pipe or a device; write its content to a file first")
        try:
            files = [path] if named else list(_under(path))
        except OSError as error:
            left_out.append(Result(str(path), "failed", reason=error.strerror or str(error)))
            continue
        for file in files:
            if not named and (reason := _exclusion(file, root)) is not None:
                left_out.append(reason)
            elif (real := file.resolve()) not in found:
                try:
                    size = file.stat().st_size
                except OSError:
                    size = 0
                found[real] = Found(file, size, named, str(real))
    return list(found.values()), left_out


def _exclusion(file: Path, root: Path) -> Result | None:
    try:
        reason = exclusion(file, root)
    except OSError as error:
        return Result(str(file), "failed", reason=error.strerror or str(error))
    return None if reason is None else Result(str(file), "skipped", reason=reason)


def _under(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():
                yield from _under(entry)
        elif entry.is_file():
            yield entry


@dataclass
class Adding:
    """One run of `kb add`. `tags` start with the collection's."""

    client: EngineClient
    tags: list[str]
    progress: Progress
    wait: bool = True
    force_ocr: bool = False
    as_text: bool = False
    """Send files of unknown formats as text."""
    encoding: str = ""
    """The declared encoding of texts; empty for UTF-8."""
    clock: Callable[[], float] = monotonic
    _refused_kinds: set[str] = field(default_factory=set)
    _waiting: deque[tuple[Found | Written, str]] = field(default_factory=deque)
    _results: list[Result] = field(default_factory=list)
    _looked_at: float | None = None

    def run(self, items: Iterable[Found | Written]) -> list[Result]:
        """Send files and texts, then wait for their jobs.
        Raises CliError: the engine no longer responds, or refuses the key; or Ctrl-C.
        """
        try:
            for item in items:
                if isinstance(item, Found):
                    self._send(item)
                else:
                    self._submit(item, partial(self._send_text, item))
                self._look()
            while self._waiting:
                self._await_oldest()
        except KeyboardInterrupt:
            done = sum(result.outcome in _DONE for result in self._results)
            sent = f", {len(self._waiting)} more sent and in progress" if self._waiting else ""
            message = f"interrupted: {done} of {counted(self.progress.files, 'file')} added{sent}"
            raise Interrupted(f"{message}; the same command continues") from None
        return self._results

    def _send(self, file: Found) -> None:
        kind = file.path.suffix.lower()
        if not (file.named or self.as_text):
            # Files in a folder are not sent to test their format: a large file would be refused for its size
            # first.
            try:
                formats.format_of(file.path.name)
            except formats.UnsupportedFormat:
                self._pass_over(file, kind)
                return
        if kind in self._refused_kinds:
            self._pass_over(file, kind)
            return
        from kb_cli.client import UnsupportedFormat

        if file.details == NO_DETAILS and kind in MARKDOWN:
            # A failure to read the file is reported when it is sent.
            with suppress(OSError), io.BufferedReader(file.opened()) as content:
                details = of_front_matter(content, len(self.tags), self.encoding)
                file = replace(file, details=details)
        try:
            self._submit(file, partial(self._send_file, file))
        except UnsupportedFormat:
            self._refused_kinds.add(kind)
            self._pass_over(file, kind)

    def _submit(self, item: Found | Written, send: Callable[[], m.Job]) -> None:
        """Send one item; if the engine's queue is full and has jobs of ours, wait for one and repeat."""
        from kb_cli.client import QueueFull, UnsupportedFormat

        while True:
            try:
                job = send()
            except (UnsupportedFormat, Unreachable):
                raise
            except QueueFull as error:
                if self._waiting:
                    self._await_oldest()
                    continue
                self._end(Result(item.label, "failed", reason=error.message))
            except OSError as error:
                self._end(Result(item.label, "failed", reason=error.strerror or str(error)))
            except CliError as error:
                self._end(Result(item.label, "failed", reason=error.message))
            else:
                if self.wait:
                    self._waiting.append((item, job.id))
                else:
                    notes = "; ".join(item.details.notes) or None
                    self._end(Result(item.label, "submitted", job_id=job.id, reason=notes))
            return

    def _send_file(self, file: Found) -> m.Job:
        with _Watched(file.opened(), self.progress) as content:
            return self.client.send_file(
                file.path.name, content, self._fields(file), as_text=self.as_text, encoding=self.encoding
            )

    def _fields(self, file: Found) -> m.FileFields:
        return m.FileFields(
            title=file.details.title,
            tags=[*self.tags, *file.details.tags],
            metadata=dict(file.details.metadata),
            # A path over the engine's maximum is omitted rather than cut, which could give another file's
            # path.
            source_path=file.source if len(file.source) <= SOURCE_PATH_CHARS else None,
            dedup_scope=self.tags[0],
            force_ocr=self.force_ocr and _takes_ocr(file.path),
        )

    def _send_text(self, written: Written) -> m.Job:
        details = written.details
        request = m.NoteRequest(
            text=written.text,
            title=details.title,
            tags=[*self.tags, *details.tags],
            metadata=dict(details.metadata),
            dedup_scope=self.tags[0],
        )
        return self.client.call(CREATE_JOB, body=request)

    def _pass_over(self, file: Found, kind: str) -> None:
        reason = unknown_format(kind, is_text=file.seems_text)
        if file.named:
            self._end(Result(file.label, "failed", reason=reason))
        else:
            self._results.append(Result(file.label, "skipped", reason=reason))
            self.progress.skipped(file.label, kind, reason, file.size)

    def _look(self) -> None:
        """Report, from time to time and without waiting, jobs that have ended while others were sent."""
        now = self.clock()
        if self._looked_at is None:
            self._looked_at = now
        if now - self._looked_at < _LOOK_SECONDS:
            return
        while self._waiting:
            job = self.client.call(GET_JOB, path={"job_id": self._waiting[0][1]})
            if job.status not in m.FINAL_STATUSES:
                break
            self._report(self._waiting.popleft()[0], job)
        self._looked_at = self.clock()

    def _await_oldest(self) -> None:
        item, job_id = self._waiting[0]
        job = self.client.wait_for_job(job_id, on_job=self.progress.on_job)
        self._waiting.popleft()
        self._report(item, job)

    def _report(self, item: Found | Written, job: m.Job) -> None:
        result = self._result(item.label, job)
        result.reason = "; ".join(filter(None, (result.reason, *item.details.notes))) or None
        self._end(result)

    def _result(self, path: str, job: m.Job) -> Result:
        if job.document_id is None:
            reason = f"{job.error.message} ({job.error.code})" if job.error else f"the job was {job.status}"
            return Result(path, "failed", job_id=job.id, reason=reason)
        document = status_reason = None
        fidelity: m.Fidelity | msgspec.UnsetType = msgspec.UNSET
        with suppress(NotFound):  # removed in the meantime
            document = self.client.document(job.document_id)
            status_reason, fidelity = document.status_reason, document.fidelity
        if document is not None and document.status == "empty":  # a scan must not look like a success
            reason = status_reason or "no text was found in it"
            return Result(path, "empty", job.document_id, job.id, reason, fidelity)
        outcome: Outcome = "already there" if job.deduplicated else "added"
        if job.outcome == "replaced":
            outcome = "replaced"
        own = f"its own is kept: {', '.join(job.left_out)}" if job.left_out else None
        notes = "; ".join(filter(None, (status_reason, own, what_stays(job, document)))) or None
        return Result(path, outcome, job.document_id, job.id, notes, fidelity)

    def _end(self, result: Result) -> None:
        if self.force_ocr and result.job_id and not _takes_ocr(Path(result.path)):
            result.reason = "; ".join(filter(None, (result.reason, _NO_OCR)))
        self._results.append(result)
        self.progress.ended(result)


def _takes_ocr(path: Path) -> bool:
    try:
        return formats.format_of(path.name).takes_ocr
    except formats.UnsupportedFormat:
        return False


def status_of(results: list[Result]) -> Exit:
    """Return the exit status: skipped files are no failures, files without text are."""
    failed = [result for result in results if result.outcome in ("failed", "empty")]
    if not failed:
        return Exit.OK
    done = [result for result in results if result.outcome in _DONE]
    return Exit.PARTLY if done else Exit.FAILED


class _Watched(io.BufferedReader):
    """A file that reports the number of bytes read."""

    def __init__(self, file: io.RawIOBase, progress: Progress) -> None:
        super().__init__(file)
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._progress.sent(len(data))
        return data
