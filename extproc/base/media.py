"""What stands for an image, an audio or a video in a prompt's bytes, the same on the request side and the event side.

What an engine makes of a medium depends on its model: special tokens around it, a run of placeholder tokens, line
breaks. So from a prompt's first medium on its text is compared *loosely*: without added tokens and white space, and
with a stand-in for each medium. That is the same for all media: which one it is, events say in the engine's own words.
"""

from __future__ import annotations

WHITE = b" \t\n\v\f\r"

# What a medium counts for, in bytes of text: about 500 tokens. Models make 250 to 2,500 tokens of an image; one that
# counted for nothing would make a session of screenshots look short, and its instance idle.
MEDIUM_BYTES = 2048
STAND_IN = bytes(MEDIUM_BYTES)


def trimmed(raw: bytes, added: tuple[bytes, ...]) -> bytes:
    """A text without the added tokens and the white space at its end: they may be the model's words for a medium."""
    while True:
        raw = raw.rstrip(WHITE)
        if not raw.endswith(added):
            return raw
        raw = raw[: -max(len(token) for token in added if raw.endswith(token))]
