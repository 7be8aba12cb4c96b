"""Detection of the encoding of a text without a declared one that is not UTF-8.

Two rules, of which one must be sure and neither may contradict:

    frequencies   the best result of charset-normalizer is clearly better than each result with another text:
                  decides most texts in scripts other than Latin
    alphabet      in one candidate alone, the letters beyond ASCII belong to the language of the text, which
                  py3langid finds: decides between the many encodings of Latin letters

The thresholds were chosen on texts of gettext catalogues; docs/limits.md has the measured shares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from threading import Lock
from types import MappingProxyType
from typing import Any

import webencodings

LEAST_BYTES = 200
"""Minimum size of a text whose encoding is detected; shorter texts look alike in many encodings."""

_DETECTORS = ("charset_normalizer", "py3langid")
_SAMPLE_BYTES = 1 << 15
_MOST_CHAOS = 0.1
_LEAST_GAP = 0.1  # of coherence less chaos, between the best text and the next
_LEAST_PROBABILITY = 0.99  # of the language
_LEAST_FIT = 0.99  # share of the letters beyond ASCII that belong to its alphabet
_IN_UTF8 = 0.5  # with more of its bytes beyond ASCII in sound UTF-8, a text is damaged UTF-8

_BY_ALPHABET = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1257", "iso8859_2", "iso8859_4", "iso8859_5",
    "iso8859_7", "iso8859_13", "iso8859_15", "iso8859_16", "koi8_r", "koi8_u", "cp850", "cp852", "cp437",
    "cp866", "mac_roman", "mac_cyrillic",
)  # fmt: skip
_BY_FREQUENCY = (
    "cp932", "euc_jp", "gb18030", "big5hkscs", "cp949", "cp1255", "cp1256", "cp874", "iso8859_6", "iso8859_8",
)  # fmt: skip
_ENCODINGS = (*_BY_ALPHABET, *_BY_FREQUENCY)
"""Python's names of the encodings that are detected, preferred first where the text is the same."""
_LABELS = {
    "cp932": "shift_jis", "cp949": "euc-kr", "big5hkscs": "big5", "mac_roman": "macintosh",
    "mac_cyrillic": "x-mac-cyrillic", "utf-16-le": "utf-16le", "utf-16-be": "utf-16be",
}  # fmt: skip

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")

_CYRILLIC = "абвгдежзиклмнопрстуфхцчш"
_ALPHABETS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        language: frozenset(letters + letters.upper())
        for language, letters in {
            "da": "æøåé", "de": "äöüßéà", "es": "áéíóúüñ", "fr": "àâæçéèêëîïôœùûüÿ", "it": "àèéìíîòóùú",
            "pt": "áâãàçéêíóôõúü", "sv": "åäöé", "nb": "æøåéòóô", "nn": "æøåéòóô", "no": "æøåéòóô",
            "fi": "äöåšž", "is": "áðéíóúýþæö", "nl": "áéëïóöüèàê", "ca": "àçèéíïòóúü", "eu": "ñç",
            "gl": "áéíóúüñï", "ga": "áéíóú", "pl": "ąćęłńóśźż", "cs": "áčďéěíňóřšťúůýž",
            "sk": "áäčďéíĺľňóôŕšťúýž", "hu": "áéíóöőúüű", "hr": "čćđšž", "bs": "čćđšž", "sl": "čšžćđ",
            "ro": "ăâîșțşţ", "sq": "çë", "tr": "çğıöşüâîûİ", "lt": "ąčęėįšųūž", "lv": "āčēģīķļņšūž",
            "et": "äõöüšž", "ru": _CYRILLIC + "йщъыьэюяё", "uk": _CYRILLIC + "ґєіїйщьюя",
            "bg": _CYRILLIC + "йщъьюя", "mk": _CYRILLIC + "ѓѕјљњќџѐѝ", "be": _CYRILLIC + "ёійўыьэюя",
            "sr": _CYRILLIC + "ђјљњћџ", "el": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ",
        }.items()
    }
)  # fmt: skip
"""Letters beyond ASCII by ISO 639-1 code of the language."""
_SIGNS = frozenset("„“”‚‘’–—…€«»°§©®·•¿¡\N{NO-BREAK SPACE}\N{SOFT HYPHEN}ªº×±²³№™‹›¼½")
_CONTROLS = frozenset(map(chr, [*range(9), 11, *range(14, 32), *range(127, 160)]))


def detect(data: bytes) -> str | None:
    """Return Python's name of the encoding of a text, or None unless it is certain. CPU-bound.

    `data` is not UTF-8, or has NUL characters. None, too, if the detectors are not installed.
    """
    if len(data) >= LEAST_BYTES and b"\0" in data:
        return _wide(data)
    if len(data) < LEAST_BYTES or _is_damaged_utf8(data) or not all(map(find_spec, _DETECTORS)):
        return None
    sample = _sample(data)
    found = {text for text in (_text_by_frequency(sample), _text_by_alphabet(sample)) if text is not None}
    if len(found) != 1:
        return None
    text = found.pop()
    for encoding in _ENCODINGS:
        if _decoded(sample, encoding) == text and _decoded(data, encoding) is not None:
            return encoding
    return None


def _wide(data: bytes) -> str | None:
    """Return UTF-16 for data of which at least every other character is Latin, without control characters."""
    for encoding, zeros, others in (
        ("utf-16-le", data[1::2], data[::2]),
        ("utf-16-be", data[::2], data[1::2]),
    ):
        if b"\0" not in others and 2 * zeros.count(0) >= len(zeros):
            text = _decoded(data, encoding)
            return None if text is None or _CONTROL.search(text) else encoding
    return None


def label_of(encoding: str) -> str:
    """Return the label of a detected encoding in the WHATWG Encoding Standard, or its own name."""
    label = _LABELS.get(encoding, encoding).replace("iso8859_", "iso-8859-").replace("koi8_", "koi8-")
    found = webencodings.lookup(label)
    return label if found is None else str(found.name)


def _sample(data: bytes) -> bytes:
    """Return lines with bytes beyond ASCII: the other lines are the same in all encodings."""
    found, size, at = [], 0, 0
    while size <= _SAMPLE_BYTES and (beyond := _BEYOND_ASCII.search(data, at)) is not None:
        start, end = data.rfind(b"\n", at, beyond.start()) + 1 or at, data.find(b"\n", beyond.start())
        at = len(data) if end < 0 else end
        found.append(data[start:at])
        size += at - start + 1
    lines = b"\n".join(found)
    if len(lines) <= _SAMPLE_BYTES:
        return lines
    end = max(lines.rfind(b"\n", 0, _SAMPLE_BYTES), lines.rfind(b" ", 0, _SAMPLE_BYTES))
    return lines[: end if end > 0 else _SAMPLE_BYTES]


def _is_damaged_utf8(data: bytes) -> bool:
    beyond = len(data) - len(data.decode("ascii", "ignore"))
    sound = data.decode("utf-8", "ignore")
    return len(sound.encode()) - len(sound.encode("ascii", "ignore")) > _IN_UTF8 * beyond


def _decoded(data: bytes, encoding: str) -> str | None:
    """Return the text, or None if the bytes are not in this encoding or contain control characters."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS.intersection(text) else text


def _text_by_frequency(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes  # late: most texts need no detector

    best: tuple[float, str] | None = None
    for match in from_bytes(sample, preemptive_behaviour=False, enable_fallback=False):
        score = match.coherence - match.chaos
        for encoding in (match.encoding, *match.could_be_from_charset):
            try:
                text = sample.decode(encoding)
            except UnicodeDecodeError:
                continue
            if best is None:
                if match.chaos > _MOST_CHAOS:
                    return None
                best = score, text
            elif text != best[1] and score > best[0] - _LEAST_GAP:
                return None
    return None if best is None else best[1]


def _text_by_alphabet(sample: bytes) -> str | None:
    texts = dict.fromkeys(text for each in _BY_ALPHABET if (text := _decoded(sample, each)) is not None)
    fitting = [text for text in texts if _fits_its_language(text)]
    return fitting[0] if len(fitting) == 1 else None


def _fits_its_language(text: str) -> bool:
    letters = [char for char in text if not char.isascii() and char not in _SIGNS]
    if not letters:
        return False
    identifier, lock = _identifier()
    with lock:
        language, probability = identifier.classify(text[:8_000])
    alphabet = _ALPHABETS.get(language, frozenset())
    fit = sum(letter in alphabet for letter in letters) / len(letters)
    return float(probability) >= _LEAST_PROBABILITY and fit >= _LEAST_FIT


@cache
def _identifier() -> tuple[Any, Lock]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # loading its model takes a second

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True), Lock()
