"""Unicode normal forms as Hugging Face's tokenizers apply them, at the speed of `unicodedata`.

The library's normaliser takes 35 ns a character, Python's 1 ns; but two kinds of text go to the library. Its tables are
older, so its word counts for a character on which two versions of Unicode may disagree. And it sorts a run of combining
marks in linear time, Python in quadratic: 160 KB of them would take 15 s. It gets a text in pieces, and only the pieces
that need it, because it takes sixteen bytes for each of a text besides.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from tokenizers import normalizers

from extproc.base.errors import BodyTooCostly

_ASCII = bytes(range(0x80))
# Beyond U+FFFF only emoji are taken for safe: the rest is rare, and long lists of ranges are slow to search there.
_ASTRAL = "\U00010000-\U0001f2ff\U0001fb00-\U0010ffff"
_LONGEST_RUN = 32  # combining marks in a row that Python may sort; writing systems have at most five
_PIECE = 4096  # characters, and as many more as normalise together with these
_LONGEST_PIECE = 65_536  # no writing has a word of so many characters that normalise together
_IDEOGRAPHS = "\U00020000-\U0002a6d6"  # of the astral characters these are old and inert, and the most frequent
_JAMO = "".join(map(chr, (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))))  # join the letter before by arithmetic


class Form:
    """One normal form; call it with a text."""

    def __init__(self, name: Literal["NFC", "NFD", "NFKC", "NFKD"], library: Callable[[str], str]) -> None:
        self._name = name
        self._library = library

    def __call__(self, text: str) -> str:
        """The text in this form. Raises BodyTooCostly for what is no text of any writing."""
        if not _needs_library(text):
            return unicodedata.normalize(self._name, text)
        pieces = _pieces(text)
        return "".join(
            self._library(each) if _needs_library(each) else unicodedata.normalize(self._name, each) for each in pieces
        )

    def encode_whole(self, text: str) -> bytes | None:
        """The text in this form as UTF-8, if it comes out the same however it is cut into sections; else None."""
        raw = text.encode()
        if joining().search(_beyond_ascii(text, raw)):
            return None
        normal = unicodedata.normalize(self._name, text)
        return raw if normal is text else normal.encode()


def _needs_library(text: str) -> bool:
    beyond_ascii = _beyond_ascii(text, text.encode())
    if doubtful().search(beyond_ascii):
        return True
    # Where ASCII is picked out, marks of different letters come to stand in a row: ask the text itself then.
    return bool(long_run().search(beyond_ascii)) and (beyond_ascii is text or bool(long_run().search(text)))


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that normalise apart from each other."""
    start = 0
    while len(text) - start > _PIECE:
        found = apart().search(text, start + _PIECE, start + _LONGEST_PIECE)
        end = found.start() if found else len(text)
        if end - start > _LONGEST_PIECE:
            raise BodyTooCostly("too many characters in a row that normalise together")
        yield text[start:end]
        start = end
    yield text[start:]


def _beyond_ascii(text: str, raw: bytes) -> str:
    """A text with every character of `text` that is not ASCII; `raw` is its UTF-8.

    Searching costs 6 ns a character; in a text that is mostly ASCII, the few others are quicker to pick out first.
    """
    return raw.translate(None, _ASCII).decode() if 2 * len(raw) < 3 * len(text) else text


@cache
def doubtful() -> re.Pattern[str]:
    """Any character whose normalisation may depend on the version of Unicode.

    Unicode never changes the normalisation of a character that it has assigned, so it is enough to look at characters
    younger than Unicode 3.2 (Python carries that version's tables) that decompose, combine, or are part of one that
    decomposes.
    """
    return _any_of(c for character, parts in _eventful() for c in character + parts if _young(c))


@cache
def joining() -> re.Pattern[str]:
    """Any character that is doubtful, or that may change together with the one before it."""
    found = {*_JAMO}
    for character, parts in _eventful():
        found.update(parts[1:])
        found.update(c for c in character + parts if _young(c))
    for character, _ in _eventful():
        first = unicodedata.normalize("NFKD", character)[0]
        if unicodedata.combining(first) or first in found:
            found.add(character)
    return _any_of(found)


@cache
def apart() -> re.Pattern[str]:
    """Any character that surely normalises apart from the one before it."""
    return re.compile(f"[^{joining().pattern[1:-1]}]|[{_IDEOGRAPHS}]")


@cache
def long_run() -> re.Pattern[str]:
    """More combining marks in a row than Python shall sort; those beyond U+FFFF are doubtful anyway."""
    marks = _class_of(c for c, _ in _eventful() if unicodedata.combining(unicodedata.normalize("NFKD", c)[0]))
    return re.compile(f"{marks}{marks}{{{_LONGEST_RUN}}}")  # with a plain class first, searching is twice as fast


def _eventful() -> Iterator[tuple[str, str]]:
    """Every character up to U+FFFF that decomposes or combines, and its canonical decomposition."""
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x10000)):
        character = chr(code)
        if unicodedata.combining(character) or unicodedata.decomposition(character):
            yield character, unicodedata.normalize("NFD", character)


def _any_of(characters: Iterable[str]) -> re.Pattern[str]:
    return re.compile(_class_of(characters, _ASTRAL))


def _class_of(characters: Iterable[str], ranges: str = "") -> str:
    return f"[{re.escape(''.join(sorted(set(characters))))}{ranges}]"


def _young(character: str) -> bool:
    return unicodedata.ucd_3_2_0.category(character) == "Cn"


FORMS: Mapping[str, Form] = {
    "NFC": Form("NFC", normalizers.NFC().normalize_str),
    "NFD": Form("NFD", normalizers.NFD().normalize_str),
    "NFKC": Form("NFKC", normalizers.NFKC().normalize_str),
    "NFKD": Form("NFKD", normalizers.NFKD().normalize_str),
}
