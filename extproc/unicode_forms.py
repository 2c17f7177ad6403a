"""Unicode normal forms as Hugging Face's tokenizers apply them, at the speed of `unicodedata`.

The library's normaliser takes 35 ns a character, Python's 1 ns; but the library's tables are older, so a text with a
character on which two versions of Unicode may disagree goes to the library.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Literal

from tokenizers import normalizers

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


_ASCII = bytes(range(0x80))


@cache
def doubtful() -> re.Pattern[str]:
    """Any character whose normalisation may depend on the version of Unicode.

    Unicode never changes the normalisation of a character that it has assigned, so it is enough to look at characters
    younger than Unicode 3.2 (Python carries that version's tables) that decompose, combine, or are part of one that
    decomposes. Beyond U+FFFF only emoji are taken for safe: the rest is rare, and long lists of ranges are slow there.
    """
    found: set[str] = set()
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x10000)):
        character = chr(code)
        if unicodedata.combining(character) or unicodedata.decomposition(character):
            found.update(c for c in character + unicodedata.normalize("NFD", character) if _young(c))
    return re.compile(f"[{re.escape(''.join(sorted(found)))}\U00010000-\U0001f2ff\U0001fb00-\U0010ffff]")


def _young(character: str) -> bool:
    return unicodedata.ucd_3_2_0.category(character) == "Cn"


def _normalize(form: Form, library: Callable[[str], str], text: str) -> str:
    raw = text.encode()
    # Searching costs 6 ns a character; in a text that is mostly ASCII, the few others are quicker to pick out first.
    beyond = raw.translate(None, _ASCII).decode() if 2 * len(raw) < 3 * len(text) else text
    return library(text) if doubtful().search(beyond) else unicodedata.normalize(form, text)


FORMS: Mapping[str, Callable[[str], str]] = {
    "NFC": partial(_normalize, "NFC", normalizers.NFC().normalize_str),
    "NFD": partial(_normalize, "NFD", normalizers.NFD().normalize_str),
    "NFKC": partial(_normalize, "NFKC", normalizers.NFKC().normalize_str),
    "NFKD": partial(_normalize, "NFKD", normalizers.NFKD().normalize_str),
}
