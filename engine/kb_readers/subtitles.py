"""Subtitles, WebVTT and SubRip: the spoken lines, under a heading for each minute with speech."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from kb_contracts.api.formats import FORMATS
from kb_readers.markdown import escaped
from kb_readers.model import Extraction
from kb_readers.text import decode_marked

_TIMES = re.compile(r"(?:(\d{1,4}):)?([0-5]?\d):[0-5]?\d[.,]\d{1,3}\s*-->\s")
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|<[\d:.]{1,20}>|\{\\[^{}]{0,200}\}")
_SPEAKER = re.compile(r"<v[^<>\s]{0,100}\s+([^<>]{1,100})>")


def read_subtitles(data: bytes) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed "undecodable_text"."""
    text = "\n".join(_lines(decode_marked(data))).strip()
    return Extraction.of_text(FORMATS["vtt"], text, None)


def _lines(text: str) -> Iterator[str]:
    """Yield headings and lines. Cues that scroll repeat their last line, which is kept once."""
    minute, before, is_speech = "", "", False
    for line in text.splitlines():
        if (times := _TIMES.match(line.strip())) is not None:
            is_speech = True
            hours, minutes = divmod(int(times[1] or 0) * 60 + int(times[2]), 60)
            if (now := f"{hours:02}:{minutes:02}") != minute:
                minute = now
                yield f"\n## {now}\n"
        elif not line.strip():
            is_speech = False
        elif is_speech:
            spoken = unescape(_TAG.sub("", _SPEAKER.sub(r"\1: ", line))).strip()
            if spoken and spoken != before:
                before = spoken
                yield escaped(spoken)
