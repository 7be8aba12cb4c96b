"""Characters that Office encodes by font and code: the fonts Symbol and Wingdings in Unicode."""

from __future__ import annotations

import re

_CODE = re.compile(r"[0-9A-Fa-f]{1,6}")
_UNKNOWN = "\ufffd"
_PRIVATE = 0xF000  # offset of a font's own characters

# Codes 20 to 7E and A0 to FE, as Adobe encodes them.
_SYMBOL = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊⟨®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪�⟩∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
_FONTS: dict[str, dict[int, str]] = {
    "symbol": dict(zip([*range(0x20, 0x7F), *range(0xA0, 0xFF)], _SYMBOL, strict=True)),
    # Ticks, boxes, bullets and arrows, and Word's replacements of `:)`, `:(`, `<--`, `-->`, `<==` and `==>`.
    "wingdings": {
        0x4A: "☺", 0x4C: "☹", 0x6C: "●", 0x6E: "■", 0x6F: "☐", 0x71: "❑", 0x76: "❖", 0x9F: "•", 0xA7: "▪",
        0xA8: "☐", 0xD8: "➢", 0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE7: "←", 0xE8: "→", 0xEF: "⇦",
        0xF0: "⇨", 0xF1: "⇧", 0xF2: "⇩", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑",
    },
    "wingdings 2": {0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0xA3: "☐"},
}  # fmt: skip


def symbol(font: str, code: str) -> str:
    """Return the character of a hexadecimal code; `�` if it is unknown."""
    number = int(code, 16) if _CODE.fullmatch(code) else 0
    if known := _FONTS.get(font.lower()):
        own = number - _PRIVATE if number >= _PRIVATE else number
        if own <= 0xFF:
            return known.get(own, _UNKNOWN)
    character = chr(number) if number <= 0x10FFFF else _UNKNOWN
    return character if character.isprintable() else _UNKNOWN
