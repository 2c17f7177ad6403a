"""loose_text.py: behind an image, engine blocks and requests come to the same keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from extproc.base import blocks
from extproc.base.media import MEDIUM_BYTES, STAND_IN
from extproc.kv_events import loose_text
from extproc.kv_events.engines import Stored, pieces
from extproc.kv_events.mirror import Mirror
from extproc.prompts.renderer import Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests import apis
from extproc.requests.paths import Api
from loadgen.engine.media import Span, in_blocks
from loadgen.engine.options import MODEL_DIR

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
EYE = "<|image_pad|>"
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""

Message = dict[str, Any]


class Letters:
    """A vocabulary of letters; 0 is an added token, 32 white space."""

    added = (b"<0>",)

    def decode(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(b"<0>" if token == 0 else bytes([token]) for token in token_ids)

    def decode_loosely(self, token_ids: Sequence[int]) -> bytes:
        return bytes(token for token in token_ids if token not in (0, 32))


PAD = 9


@pytest.mark.parametrize(
    ("tokens", "media", "before", "behind"),
    [
        ([97, 98, PAD, PAD, 99], [2], b"ab", STAND_IN + b"c"),
        ([PAD, PAD, 97], [0], b"", STAND_IN + b"a"),
        ([97, 32, 0, PAD, PAD], [3], b"a <0>", STAND_IN),
        ([97, PAD, 98, 32, PAD, 0, 99], [1, 4], b"a", STAND_IN + b"b" + STAND_IN + b"c"),
        ([97, PAD, PAD, PAD, 98], [1, 3], b"a", STAND_IN + STAND_IN + b"b"),
        ([PAD, 97, 98], [-3], b"ab", b""),  # it began in a block that nobody told of
    ],
)
def test_the_first_block_with_a_medium(tokens: list[int], media: list[int], before: bytes, behind: bytes) -> None:
    """The text before it stands as it is; from there on there are stand-ins, no added tokens and no white space."""
    assert loose_text.first(Letters(), (tokens, media)) == (before, behind)


@pytest.mark.parametrize(
    ("tokens", "media", "text"),
    [
        ([97, 32, 0, 98], [], b"ab"),
        ([PAD, PAD, 97], [-4], b"a"),
        ([PAD, PAD, PAD], [-4], b""),
        ([PAD, 97, PAD, 98], [-1, 2], b"a" + STAND_IN + b"b"),
        ([97, 98], [5], b"ab"),
    ],
)
def test_a_block_behind_it(tokens: list[int], media: list[int], text: bytes) -> None:
    """A medium that began in a block before is no text, and has its stand-in there."""
    assert list(loose_text.later(Letters(), [(tokens, media), ([97], [])])) == [text, b"a"]


# --- requests and events


@cache
def model() -> tuple[Renderer, Vocabulary, Tokenizer]:
    """The simulated engine's model with a template that shows images in place."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        shutil.copytree(MODEL_DIR, path, dirs_exist_ok=True)
        config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
        config.pop("chat_template", None)
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        (path / "chat_template.jinja").write_text(TEMPLATE)
        return Renderer.load(path), Vocabulary.load(path), Tokenizer.from_file(str(path / "tokenizer.json"))


def asked(messages: Sequence[Message]) -> tuple[list[int], int]:
    """The keys that a request asks for, and how long its text is."""
    prompt = model()[0].render(apis.parse(Api.CHAT, json.dumps({"messages": messages}).encode()))
    assert prompt.media is not None
    return blocks.extend(prompt.media.data, blocks.root("pool")), len(prompt.media.data)


def stored(messages: Sequence[Message], block: int, length: int) -> tuple[set[int], int]:
    """The keys held after an engine has stored such a prompt in blocks of so many tokens, and how many bytes are left
    out because they fill no block; its images take `length` tokens."""
    _, vocabulary, tokenizer = model()
    text = ""
    for each in messages:
        parts = [{"text": each["content"]}] if isinstance(each["content"], str) else each["content"]
        shown = "".join(part.get("text", f"<|vision_start|>{EYE}<|vision_end|>") for part in parts)
        text += f"<|im_start|>{each['role']}\n{shown}<|im_end|>\n"
    tokens: list[int] = []
    spans: list[Span] = []
    for token in tokenizer.encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False).ids:
        if token == tokenizer.token_to_id(EYE):
            spans.append(Span("i", len(tokens), length))
        tokens += [token] * (length if token == tokenizer.token_to_id(EYE) else 1)
    count = len(tokens) // block
    media = {at: [offset for _, offset in found] for at, found in enumerate(in_blocks(spans, count, block)) if found}
    hashes = [xxh3_64_intdigest(b"%d" % n) for n in range(count)]
    mirror = Mirror("pool", vocabulary, loose=vocabulary)
    plain = min(media, default=None)
    for event in pieces(Stored(hashes, None, tokens[: count * block], block, plain=plain, media=media), 3):
        mirror.apply(event)
        while mirror.settle():
            pass
    left = sum(span.start >= count * block for span in spans) * MEDIUM_BYTES
    return set(mirror.held), left + len(vocabulary.decode(tokens[count * block :]))


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t <|"), max_size=60).map(
    lambda text: {"type": "text", "text": text.replace(EYE, "")}
)
CONTENT = st.lists(TEXT | st.just(IMAGE), min_size=1, max_size=5)
SESSION = st.builds(
    lambda system, contents: [
        {"role": "system", "content": "s" * system},
        *({"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)),
    ],
    st.integers(0, 600),
    st.lists(CONTENT, min_size=1, max_size=3),
).filter(lambda messages: IMAGE in [part for each in messages[1:] for part in each["content"]])


@UNHURRIED
@given(SESSION, st.sampled_from([1, 2, 16, 33]), st.sampled_from([1, 5, 40]))
def test_events_and_requests_come_to_the_same_keys(messages: list[Message], block: int, length: int) -> None:
    """Whatever stands before and behind the images, however long they are, however the engine cuts its blocks: it holds
    what the request asks for, but for the end that fills no block of its own."""
    chain, size = asked(messages)
    held, left = stored(messages, block, length)
    missing = next((n for n, key in enumerate(chain) if key not in held), len(chain))
    assert (missing + 1) * blocks.DEFAULT_SIZE > size - left
