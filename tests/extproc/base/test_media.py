"""media.py: how the text before a medium is trimmed."""

from __future__ import annotations

from extproc.base.media import trimmed


def test_a_text_is_trimmed_to_where_its_medium_begins() -> None:
    """Whatever a model writes in front of a medium: its own words and white space are given up."""
    added = (b"<a>", b"<ab>", b"b>")
    for raw, kept in ((b"x <a>\n<ab> ", b"x"), (b"<a>", b""), (b"x<c>", b"x<c>"), (b"", b""), (b"x<ab>b>", b"x")):
        assert trimmed(raw, added) == kept
    assert trimmed(b"x ", ()) == b"x"
