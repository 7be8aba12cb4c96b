"""PowerPoint files from before 2007 slide by slide: the title as heading, the texts of the shapes, the notes.

Texts of a slide stand in its shapes, or in the outline of the whole presentation, to which a shape refers.
Tables are groups of shapes: their cells are lines. Charts, pictures and the texts of masters are not read.

Offsets and codes are those of [MS-PPT].
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kb_contracts.api.formats import FORMATS
from kb_readers.disguised import read_disguised
from kb_readers.failures import ExtractionFailed, damaged, locked, unsafe
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import Extraction, Page, TextBudget
from kb_readers.ole import Compound, reading

_FORMAT = FORMATS["ppt"]
_STREAM = "PowerPoint Document"
_ENCRYPTED = 0xF3D1C4DF
_DEEPEST = 100
_MOST_EDITS = 10_000

_USER_EDIT, _PLACES = 0x0FF5, 0x1772
_SLIDE_ATOM, _SLIDE_PLACE, _SLIDE_INFO, _OUTLINE = 0x03EF, 0x03F3, 0x03F9, 0x0FF0
_SHAPE_KIND, _TEXT_KIND, _TEXT_REFERENCE, _WIDE_TEXT, _NARROW_TEXT = 0x0BC3, 0x0F9F, 0x0F9E, 0x0FA0, 0x0FA8
_OF_SLIDES, _OF_NOTES = 0, 2  # instances of an outline
_TITLES = frozenset([0, 6])  # kinds of text
_TITLE_SHAPES = frozenset([13, 15, 17])
_FIELDS: tuple[list[str], ...] = [], ["*"]  # texts of a page of notes with a date or a page number
_IS_HIDDEN = 0x0004


class _Record(NamedTuple):
    kind: int
    instance: int
    is_container: bool
    start: int
    end: int


class _Text(NamedTuple):
    kind: int
    lines: list[str]


@dataclass
class _Slide:
    """A slide or a page of notes, as an outline lists it."""

    place: int  # number in the directory of the file
    number: int  # number by which slides refer to notes
    outline: list[_Text] = field(default_factory=list)
    texts: list[_Text] = field(default_factory=list)
    notes: int = 0
    is_hidden: bool = False


def read_ppt(data: bytes) -> Extraction:
    """Return a page for each slide, in order; hidden slides are marked. Raises ExtractionFailed."""
    if (other := read_disguised(data, _FORMAT)) is not None:
        return other
    file = Compound(data, _FORMAT)
    if file.holds("PP40") or not file.holds(_STREAM):
        raise ExtractionFailed(
            "file_corrupt",
            "The file has no presentation of PowerPoint 97 or later. Save it as PPTX and send it again.",
        )
    with reading(_FORMAT):
        presentation = _Presentation(file.read(_STREAM), file.read("Current User"))
        slides = presentation.outline(_OF_SLIDES)
        notes = {each.number: each for each in presentation.outline(_OF_NOTES)}
        pages = []
        for number, slide in enumerate(slides, start=1):
            presentation.complete(slide)
            if beside := notes.get(slide.notes):
                presentation.complete(beside)
            pages.append(Page(number, _page(slide, beside, number)))
    title = file.title or given_title(next(map(_title, slides), None))
    return Extraction(pages, title, "text_extraction", _FORMAT.mime_type)


def _title(slide: _Slide) -> str:
    lines = next((text.lines for text in slide.texts if text.kind in _TITLES), [])
    return " ".join(lines)


def _page(slide: _Slide, notes: _Slide | None, number: int) -> str:
    title = _title(slide)
    blocks: list[str] = []
    is_first = True
    for text in slide.texts:
        if text.kind in _TITLES and is_first and title:
            is_first = False
        elif text.lines:
            blocks.append("\n".join(map(escaped, text.lines)))
    beside = [text.lines for text in notes.texts if text.lines not in _FIELDS] if notes else []
    if beside:
        blocks += ["## Notes", *("\n".join(map(escaped, lines)) for lines in beside)]
    if not (title or blocks):
        return ""
    return "\n\n".join(
        [f"# {title or f'Slide {number}'}{' (hidden slide)' if slide.is_hidden else ''}", *blocks]
    )


class _Presentation:
    """The records of one file. Methods may raise any error that `reading` converts."""

    def __init__(self, data: bytes, user: bytes) -> None:
        self._data = data
        token, edit = struct.unpack_from("<2I", user, 12)
        if token == _ENCRYPTED:
            raise locked(_FORMAT.label)
        self._budget = TextBudget()
        self._places: dict[int, int] = {}
        document = None
        for _ in range(_MOST_EDITS):
            record = self._record(edit)
            if record.kind != _USER_EDIT:
                raise damaged(_FORMAT.label, "an edit is missing")
            before, directory, first = struct.unpack_from("<3I", data, record.start + 8)
            document = first if document is None else document
            self._add_places(self._record(directory))
            if not 0 < before < edit:
                break
            edit = before
        self._document = self._record(self._places[document or 0])

    def outline(self, instance: int) -> list[_Slide]:
        """Return the slides, or the pages of notes, with their texts in the outline."""
        slides: list[_Slide] = []
        kind = 0
        for record in self._within(self._document):
            if record.kind != _OUTLINE or record.instance != instance:
                continue
            for inner in self._within(record):
                if inner.kind == _SLIDE_PLACE:
                    place, _, _, number = struct.unpack_from("<4I", self._data, inner.start)
                    slides.append(_Slide(place, number))
                elif inner.kind == _TEXT_KIND:
                    (kind,) = struct.unpack_from("<I", self._data, inner.start)
                    if slides:
                        slides[-1].outline.append(_Text(kind, []))
                elif slides and slides[-1].outline and (text := self._text(inner)) is not None:
                    slides[-1].outline[-1].lines.extend(text)
        return slides

    def complete(self, slide: _Slide) -> None:
        """Read the texts of the shapes of a slide; once only."""
        if slide.texts or slide.place not in self._places:
            return
        kind, is_title = 0, False
        used = set[int]()
        for record in self._all(self._record(self._places[slide.place]), 0):
            if record.kind == _SLIDE_ATOM:
                (slide.notes,) = struct.unpack_from("<I", self._data, record.start + 16)
            elif record.kind == _SLIDE_INFO:
                (flags,) = struct.unpack_from("<H", self._data, record.start + 10)
                slide.is_hidden = bool(flags & _IS_HIDDEN)
            elif record.kind == _SHAPE_KIND:
                is_title = self._data[record.start + 4] in _TITLE_SHAPES
            elif record.kind == _TEXT_KIND:
                (kind,) = (0,) if is_title else struct.unpack_from("<I", self._data, record.start)
                is_title = False
            elif record.kind == _TEXT_REFERENCE:
                (index,) = struct.unpack_from("<I", self._data, record.start)
                if index < len(slide.outline) and index not in used:
                    used.add(index)
                    slide.texts.append(slide.outline[index])
            elif (text := self._text(record)) is not None:
                slide.texts.append(_Text(kind, text))
        slide.texts += [text for index, text in enumerate(slide.outline) if index not in used]

    def _text(self, record: _Record) -> list[str] | None:
        if record.kind not in (_WIDE_TEXT, _NARROW_TEXT):
            return None
        data = self._data[record.start : record.end]
        text = data.decode("utf-16-le" if record.kind == _WIDE_TEXT else "latin-1", "replace")
        self._budget.spend(text)
        lines = text.replace("\0", "").replace("\x0b", "\r").split("\r")
        return [line for line in map(one_line, lines) if line]

    def _add_places(self, directory: _Record) -> None:
        if directory.kind != _PLACES:
            raise damaged(_FORMAT.label, "its directory is missing")
        at = directory.start
        while at + 4 <= directory.end:
            (head,) = struct.unpack_from("<I", self._data, at)
            number, count = head & 0xFFFFF, head >> 20
            for index, offset in enumerate(struct.unpack_from(f"<{count}I", self._data, at + 4)):
                self._places.setdefault(number + index, offset)
            at += 4 + 4 * count

    def _record(self, at: int) -> _Record:
        version, kind, size = struct.unpack_from("<2HI", self._data, at)
        start = at + 8
        end = min(start + size, len(self._data))
        return _Record(kind, version >> 4, version & 0xF == 0xF, start, end)

    def _within(self, container: _Record) -> Iterator[_Record]:
        at = container.start
        while at + 8 <= container.end:
            record = self._record(at)
            yield record
            at = record.end

    def _all(self, container: _Record, depth: int) -> Iterator[_Record]:
        if depth > _DEEPEST:
            raise unsafe(_FORMAT.label, f"records more than {_DEEPEST:,} deep")
        for record in self._within(container):
            if record.is_container:
                yield from self._all(record, depth + 1)
            else:
                yield record
