"""What a tokenizer does to a text before it splits it into tokens: text -> the bytes that its ids decode to.

Owns added tokens and what happens between them: Unicode forms, the spaces of SentencePiece. Refuses to know ids and
templates. It follows Hugging Face's tokenizers: added tokens are cut out of the raw text, each section between them is
normalised, and the pre-tokenizer may put a space in front of what is left. `load` compares the result with the real
tokenizer, so that one which does more than this is refused instead of never hitting.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from os.path import commonprefix
from typing import Any

from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer

from extproc.base.errors import ConfigError
from extproc.base.media import WHITE
from extproc.prompts.tokenizer import unicode_forms
from extproc.prompts.tokenizer.files import AddedToken, Family, TokenizerFiles
from extproc.prompts.tokenizer.vocabulary import SPACE, Vocabulary, added_bytes

Step = Callable[[str], str]

# What Rust's regular expressions call \s; Python's also has the separators U+001C to U+001F.
_WHITE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}

# Texts on which tokenizers differ.
_PROBES = (
    "Hello, world!  Two spaces,\ttabs \r\n and a trailing ",
    " one leading space",
    "   three",
    "e\u0301 \u00e9 \ufb01 \uff21 \u212b \u1e9b\u0323 \ud55c\uae00 \u1112\u1161\u11ab",
    "日本語のテキスト🙂👩\u200d💻 naïve café",
    "▁ ▁▁ and <0x41>",
    "\n\n",
)


class Normalizer:
    """The text that a tokenizer splits into tokens, as UTF-8."""

    def __init__(self, files: TokenizerFiles) -> None:
        normalizer = files.spec.get("normalizer")
        self._steps = [_step(spec) for spec in _sequence(normalizer, "normalizers")]
        self._family = files.family
        self._raw = _Finder([t for t in files.added if not t.normalized], files.family, str)
        self._cooked = _Finder([t for t in files.added if t.normalized], files.family, self._normalize)
        self._prefix = _prefix(files.spec.get("pre_tokenizer"))
        plain = self._prefix is None and all(
            spec["type"] in unicode_forms.FORMS or spec == _SPACES for spec in _sequence(normalizer, "normalizers")
        )
        stripping = [token for token in files.added if token.lstrip or token.rstrip]
        self._keeps_ascii_texts = plain and not stripping
        # With a Unicode form alone, sections matter only where a character joins the added token before it.
        [form] = self._steps if len(self._steps) == 1 else [None]
        self._form = form if self._keeps_ascii_texts and isinstance(form, unicode_forms.Form) else None
        self._keeps_ascii_sections = plain and not any(token.normalized for token in stripping)
        self.around = (b"", b"")  # the special tokens that the tokenizer puts around a text when it is asked to

    @classmethod
    def load(cls, files: TokenizerFiles) -> Normalizer:
        """Raises ConfigError for a tokenizer whose ids would not decode to what we make of a text."""
        normalizer = cls(files)
        if files.family in (Family.BYTE_LEVEL, Family.SENTENCEPIECE):
            normalizer._learn_from(files)
        return normalizer

    def __call__(self, text: str) -> bytes:
        """The bytes of a text. Raises UnicodeEncodeError for a lone surrogate, which no tokenizer takes either."""
        if self._keeps_ascii_texts and text.isascii():
            return text.encode()
        if self._form is not None and (whole := self._form.encode_whole(text)) is not None:
            return whole
        return b"".join(piece for piece, _ in self._pieces(text))

    def loosely(self, text: str) -> bytes:
        """The bytes of a text without added tokens and white space (`base/media.py`)."""
        return b"".join(piece for piece, added in self._pieces(text, apart=True) if not added).translate(None, WHITE)

    def _pieces(self, text: str, *, apart: bool = False) -> Iterator[tuple[bytes, bool]]:
        """The text piece by piece, and whether a piece is an added token: of all of them where these are to be told
        `apart`, at whatever cost."""
        start = True  # whether a piece stands at the start of the text
        for section, token in self._raw.split(text):
            if token is not None:
                yield token, True
            elif self._keeps_ascii_sections and section.isascii() and not apart:
                yield section.encode(), False
            else:
                yield from self._section(section, start=start)
            start = False

    def _section(self, section: str, *, start: bool) -> Iterator[tuple[bytes, bool]]:
        for piece, token in self._cooked.split(self._normalize(section)):
            if token is not None:
                yield token, True
            else:
                if self._prefix is not None:
                    piece = self._prefix(piece, start)
                raw = piece.replace(SPACE, " ") if self._family is Family.SENTENCEPIECE else piece
                yield raw.encode(), False
            start = False

    def _normalize(self, section: str) -> str:
        return reduce(lambda text, step: step(text), self._steps, section)

    def _learn_from(self, files: TokenizerFiles) -> None:
        try:
            tokenizer = Tokenizer.from_buffer(files.data)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"{files.directory / 'tokenizer.json'} cannot be loaded: {error}") from error
        tokenizer.add_tokens([_library_token(token) for token in files.added])
        vocabulary = Vocabulary.of(files)
        unknown = tokenizer.token_to_id(str(files.spec["model"].get("unk_token")))
        # Tokens that strip or are normalised behave in the most ways; a few stand for hundreds of reserved ones.
        added = sorted(files.added, key=lambda t: not (t.lstrip or t.rstrip or t.normalized or t.single_word))[:16]
        around_tokens = (f" a  {token.content}  b {token.content}{token.content}\nc" for token in added)
        for probe in (*_PROBES, *around_tokens):
            ids = tokenizer.encode(probe, add_special_tokens=False).ids
            if unknown not in ids and vocabulary.decode(ids) != self(probe):
                raise ConfigError(
                    f"{files.directory / 'tokenizer.json'}: {probe!r} is tokenised as {vocabulary.decode(ids)!r}, but "
                    f"we expect {self(probe)!r}. This tokenizer changes text in a way that we do not know; use "
                    "`source: routed` without model_dir"
                )
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        framed = tokenizer.encode("a").ids
        before = next((i for i in range(len(framed)) if framed[i : i + len(plain)] == plain), 0)
        self.around = vocabulary.decode(framed[:before]), vocabulary.decode(framed[before + len(plain) :])


class _Finder:
    """Finds added tokens in a text: the leftmost, and of those the longest."""

    def __init__(self, tokens: Sequence[AddedToken], family: Family, normalize: Step) -> None:
        self._tokens = {normalize(token.content): token for token in tokens if token.content}
        self._bytes = {word: added_bytes(token.content, family) for word, token in self._tokens.items()}
        self._regex = re.compile(_alternation(list(self._tokens))) if self._tokens else None

    def split(self, text: str) -> Iterator[tuple[str, bytes | None]]:
        """Sections of text (with None) and added tokens (with their bytes), in order; no section is empty."""
        if self._regex is None:
            yield text, None
            return
        done = 0
        for match in self._regex.finditer(text):
            start, end = match.span()
            token = self._tokens[match[0]]
            if token.single_word and (_in_word(text[start - 1 : start]) or _in_word(text[end : end + 1])):
                continue
            if token.lstrip:
                while start > done and text[start - 1] in _WHITE:
                    start -= 1
            if token.rstrip:
                while end < len(text) and text[end] in _WHITE:
                    end += 1
            if done < start:
                yield text[done:start], None
            yield match[0], self._bytes[match[0]]
            done = end
        if done < len(text):
            yield text[done:], None


def _in_word(character: str) -> bool:
    """What Rust's regular expressions call \\w; unlike in Python, marks are part of a word and ½ is not."""
    if not character:
        return False
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d"


def _alternation(words: Sequence[str]) -> str:
    """A pattern of the longest of the words that fits. A trie: models reserve thousands of `<unused1>`, `<unused2>`."""
    shared = commonprefix(words)  # noqa: RUF071 -- characters, not paths
    tails = sorted({word[len(shared) :] for word in words})
    branches = [_alternation(list(group)) for head, group in groupby(tails, key=lambda tail: tail[:1]) if head]
    if not branches:
        return re.escape(shared)
    return f"{re.escape(shared)}(?:{'|'.join(branches)}){'?' if tails[0] == '' else ''}"


_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


def _sequence(spec: Any, members: str) -> list[dict[str, Any]]:
    if spec is None:
        return []
    return (
        [spec] if spec["type"] != "Sequence" else [part for each in spec[members] for part in _sequence(each, members)]
    )


def _step(spec: dict[str, Any]) -> Step:
    """One normaliser of tokenizer.json as a function."""
    if (form := unicode_forms.FORMS.get(spec["type"])) is not None:
        return form
    if spec == _SPACES:
        return lambda text: text.replace(" ", SPACE)
    if spec["type"] == "Prepend":
        prepended: str = spec["prepend"]
        return lambda text: prepended + text if text else text
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    normalizer = Tokenizer.from_str(json.dumps(empty | {"normalizer": spec})).normalizer
    step: Step = normalizer.normalize_str
    return step


def _prefix(pre_tokenizer: Any) -> Callable[[str, bool], str] | None:
    """What a pre-tokenizer puts in front of a piece, told whether it stands at the start of the text."""
    first = next(iter(_sequence(pre_tokenizer, "pretokenizers")), {"type": None})
    if first["type"] == "ByteLevel" and first.get("add_prefix_space", True):
        return lambda piece, start: piece if piece.startswith(" ") else " " + piece
    if first["type"] == "Metaspace" and first.get("add_prefix_space", True):
        scheme = first.get("prepend_scheme", "always")
        if scheme != "never":
            return lambda piece, start: (
                SPACE + piece if (start or scheme == "always") and not piece.startswith((" ", SPACE)) else piece
            )
    return None


def _library_token(token: AddedToken) -> LibraryToken:
    return LibraryToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
    )
