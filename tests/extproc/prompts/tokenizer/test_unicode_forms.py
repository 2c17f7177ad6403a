"""Normal forms are those of the tokenizers' library, whichever of the two does the work, and cost in proportion."""

from __future__ import annotations

import random

import pytest

from extproc.base.errors import BodyTooCostly
from extproc.prompts.tokenizer import unicode_forms
from extproc.prompts.tokenizer.unicode_forms import FORMS, Form

# Scripts with marks, compositions and compatibility forms, old and young ones.
RANGES = (
    (0x20, 0x250),
    (0x300, 0x370),
    (0x590, 0x700),
    (0x900, 0xA80),
    (0xE00, 0xE80),
    (0x1100, 0x1200),
    (0x1E00, 0x2100),
    (0x2DF0, 0x2F20),
    (0x3040, 0x3100),
    (0xA660, 0xA6F2),
    (0xAC00, 0xAC80),
    (0xF900, 0xFB50),
    (0xFE20, 0xFE30),
    (0x11080, 0x110C0),
    (0x1D15E, 0x1D170),
    (0x1F600, 0x1F603),
    (0x20000, 0x20040),
    (0x2F800, 0x2F900),
)
LETTERS = [chr(code) for start, end in RANGES for code in range(start, end)]
JOINING = "\u0301\u0316\u0327\u3099\u1161\u11a8\u0653\u093ca"


def texts(count: int) -> list[str]:
    drawn = random.Random(7)
    return [
        "".join(drawn.choice(LETTERS if drawn.random() < 0.7 else JOINING) for _ in range(drawn.randrange(1, 40)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_pieces_normalise_apart(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is cut into pieces of a few characters is the same as one that the library gets whole."""
    monkeypatch.setattr(unicode_forms, "_PIECE", 3)
    for text in texts(3000):
        whole = form._library(text)
        assert "".join(map(form._library, unicode_forms._pieces(text))) == whole, ascii(text)
        assert form(text) == whole, ascii(text)


def test_the_library_gets_only_what_needs_it() -> None:
    """One rare letter in a long text costs its own piece, and a long text of them never comes to it whole."""
    given: list[int] = []

    def library(text: str) -> str:
        given.append(len(text))
        return text

    form = Form("NFC", library)
    assert form("x" * 100_000 + "\U0001d15e" + "y" * 100_000) == "x" * 100_000 + "\U0001d15e" + "y" * 100_000
    assert sum(given) <= 2 * unicode_forms._PIECE
    given.clear()
    assert form("\U00020000" * 100_000) == "\U00020000" * 100_000
    assert max(given) <= 2 * unicode_forms._PIECE


def test_what_is_no_writing_is_refused() -> None:
    """A hundred thousand marks on one letter can only be normalised as a whole; no one writes so."""
    with pytest.raises(BodyTooCostly):
        FORMS["NFC"]("a" + "\u0301\u0316" * 50_000)
    assert FORMS["NFC"]("a" + "\u0301\u0316" * 5_000)
