"""Images as an engine sees them: a placeholder in the text, a run of equal tokens, a name in the extra keys of blocks.

As vLLM does it for the Qwen-VL family: the image processor replaces each placeholder token by as many as the image
takes; blocks that hold some of them carry (identifier of the image, where it begins counted from the block's start).
Knows no templates; what an image shows is not looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from loadgen.json_types import Json

TOKEN = "<|image_pad|>"  # noqa: S105 - a token of a vocabulary
PLACEHOLDER = f"<|vision_start|>{TOKEN}<|vision_end|>"
# A real one takes its size in patches, 66 to 16,384 tokens; here the digest decides, so that sizes differ.
LEAST_TOKENS, SIZES = 150, 200
KINDS = {
    "image_url": "image_url",
    "input_image": "image_url",
    "image": "image",
}  # type of a part -> field with the image


@dataclass(frozen=True, slots=True)
class Image:
    """One image; `identifier` is equal for equal images, or what the client calls it (`uuid`)."""

    identifier: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Span:
    """Where an image stands in a prompt, in tokens."""

    identifier: str
    start: int
    length: int


def image(part: Mapping[str, Json]) -> Image | None:
    """The image of a content part; None where it is none.

    Raises:
        ValueError: it should be one and is not.
    """
    kind = part.get("type")
    field = KINDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        return None
    value = part.get(field)
    url = value.get("url") if isinstance(value, dict) else value
    uuid = part.get("uuid")
    if not isinstance(url or uuid, str):
        raise ValueError("an image part needs a URL, or the uuid of an image that was sent before")
    digest = sha256((url if isinstance(url, str) else str(uuid)).encode()).digest()
    size = LEAST_TOKENS + int.from_bytes(digest[:4], "big") % SIZES
    return Image(uuid if isinstance(uuid, str) else digest.hex(), size)


def expand(tokens: array[int], token: int, images: Sequence[Image]) -> tuple[array[int], list[Span]]:
    """A prompt with each placeholder token replaced by its image's.

    Raises:
        ValueError: there are not as many placeholders as images: a text holds one, or the template drops images.
    """
    places = [place for place, one in enumerate(tokens) if one == token]
    if len(places) != len(images):
        raise ValueError(f"{len(places)} image placeholders in the prompt, but {len(images)} images")
    expanded = array("I")
    spans = []
    done = 0
    for place, one in zip(places, images, strict=True):
        expanded += tokens[done:place]
        spans.append(Span(one.identifier, len(expanded), one.tokens))
        expanded += array("I", [token]) * one.tokens
        done = place + 1
    return expanded + tokens[done:], spans


def in_blocks(spans: Sequence[Span], count: int, size: int) -> Iterator[list[tuple[str, int]]]:
    """Of each of `count` blocks: the images in it, and where they begin, negative where it was in a block before."""
    first = 0
    for start in range(0, count * size, size):
        while first < len(spans) and spans[first].start + spans[first].length <= start:
            first += 1
        found = []
        for span in spans[first:]:
            if span.start >= start + size:
                break
            found.append((span.identifier, span.start - start))
        yield found
