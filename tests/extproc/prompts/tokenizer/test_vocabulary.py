"""vocabulary.py, normalizer.py and unicode_forms.py: text and token ids meet in the same bytes, family by family.

Each family is a small tokenizer that the real library trains here: what it encodes must decode to what the request side
makes of the text.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from extproc.base.errors import ConfigError, UnknownToken
from extproc.prompts.tokenizer import unicode_forms
from extproc.prompts.tokenizer.files import Family, TokenizerFiles
from extproc.prompts.tokenizer.normalizer import Normalizer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support.paths import MODEL

# A machine that is busy with other tests must not fail one of these.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

HARD = [
    "Hello, world!",
    " one leading space",
    "   three leading, two trailing  ",
    " ",
    "\n",
    "a\r\nb\r\n\r\nc\td",
    "日本語のテキスト、漢字。",
    "한국어 \u1112\u1161\u11ab",
    "e\u0301 \u00e9 n\u0303 \u212b \ufb01 \uff21 \u1e9b\u0323",
    "🙂👩\u200d💻🏳\ufe0f\u200d🌈",
    "नमस्ते العربية עברית ไทย",
    "<s>[INST] a [/INST]</s> b<s> <s>c",
    "<|im_start|>user\nx<|im_end|>\n<|im_end|>\u0338",
    "def f():\n    return 1\n\n\n",
    "\u2028\x00\x7f\x1b[0m",
    "▁x▁▁y <0x0A> ▁",
    "1234567890 3.14 'S don\u2019t",
    "x" * 300,
]
SPECIAL = ["<s>", "</s>", "[INST]", "[/INST]", "<|im_start|>", "<|im_end|>"]
TRAINING = [*HARD, "the quick brown fox jumps over the lazy dog and returns the value of the function " * 3]


def byte_level(normalizer: Any = None, *, prefix: bool = False, tokens: list[AddedToken] | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens(tokens or [AddedToken(content, special=True, normalized=False) for content in SPECIAL])
    return tokenizer


def sentencepiece(normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    """As Llama 2, Gemma and Mistral: letters and merges of "▁", one token for each byte, nothing unknown."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trained.train_from_iterator(TRAINING[-1:] * 3, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(model["vocab"], key=model["vocab"].get)]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(content, special=True, normalized=False) for content in SPECIAL])
    return tokenizer


SPACES = normalizers.Replace(" ", "▁")
LLAMA_2 = normalizers.Sequence([normalizers.Prepend("▁"), SPACES])
STRIPPING = [  # as Phi 3 has them, and worse
    AddedToken("<s>", rstrip=True, special=True, normalized=False),
    AddedToken("</s>", lstrip=True, normalized=False),
    AddedToken("[INST]", lstrip=True, rstrip=True, normalized=True),
    AddedToken("quick", single_word=True, normalized=False),
    AddedToken("\u212b", normalized=True),
]

FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "GPT-2": byte_level,
    "Qwen (NFC)": lambda: byte_level(normalizers.NFC()),
    "NFD": lambda: byte_level(normalizers.NFD()),
    "NFKC in a sequence": lambda: byte_level(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "RoBERTa (prefix space)": lambda: byte_level(prefix=True),
    "Phi 3 (stripping tokens)": lambda: byte_level(normalizers.NFC(), tokens=STRIPPING),
    "Llama 2 (Prepend)": lambda: sentencepiece(LLAMA_2),
    "Llama of transformers 5 (Metaspace first)": lambda: sentencepiece(
        None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "Metaspace always": lambda: sentencepiece(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False)),
    "Metaspace never": lambda: sentencepiece(None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)),
    "Gemma (Replace)": lambda: sentencepiece(SPACES, pre_tokenizers.Split(" ", "merged_with_previous")),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path]:
    """A tokenizer of each family, and the directory that holds its file."""
    tokenizer = FAMILIES[request.param]()
    directory = tmp_path_factory.mktemp("model")
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer, directory


def test_ids_decode_to_the_bytes_of_the_request_side(family: tuple[Tokenizer, Path]) -> None:
    """Hard texts, alone and joined: the ids that the library gives decode to what the normaliser gives."""
    tokenizer, directory = family
    files = TokenizerFiles.load(directory)
    vocabulary, normalizer = Vocabulary.load(directory), Normalizer.load(files)
    assert len(vocabulary) == tokenizer.get_vocab_size()
    for text in (*HARD, "".join(HARD), "  <s>  ".join(HARD), "</s>" + "</s> ".join(HARD)):
        assert vocabulary.decode(tokenizer.encode(text, add_special_tokens=False).ids) == normalizer(text), text


def test_random_texts_meet_in_the_same_bytes(family: tuple[Tokenizer, Path]) -> None:
    """The same for any text, special tokens inside."""
    tokenizer, directory = family
    vocabulary, normalizer = Vocabulary.load(directory), Normalizer.load(TokenizerFiles.load(directory))

    @UNHURRIED
    @given(st.lists(st.text(max_size=6) | st.sampled_from([*SPECIAL, " ", "▁", "\u0301", "quick", "\u212b"])))
    def agree(pieces: list[str]) -> None:
        text = "".join(pieces)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert vocabulary.decode(ids) == normalizer(text)

    agree()


def test_the_fixtures_tokenizer_agrees_too() -> None:
    """The tokenizer that the recordings were made with, loaded as the product loads it."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    vocabulary, normalizer = Vocabulary.load(MODEL), Normalizer.load(TokenizerFiles.load(MODEL))
    for text in HARD:
        assert vocabulary.decode(tokenizer.encode(text, add_special_tokens=False).ids) == normalizer(text)
        assert normalizer(text) == unicodedata.normalize("NFC", text).encode() or "\u0338" in text


def fixture_pieces() -> Iterator[tuple[int, bytes]]:
    vocabulary = Vocabulary.load(MODEL)
    return ((token_id, vocabulary.decode([token_id])) for token_id in range(4087))


def test_tiktoken_files_decode(tmp_path: Path) -> None:
    """Lines of base64 and rank, special tokens from tokenizer_config.json; text is taken as it is."""
    lines = [b"%s %d" % (base64.b64encode(piece), token_id) for token_id, piece in fixture_pieces()]
    (tmp_path / "some.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    shutil.copy(MODEL / "tokenizer_config.json", tmp_path)
    files = TokenizerFiles.load(tmp_path)
    assert files.family is Family.TIKTOKEN
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.normalizer = None  # type: ignore[assignment]
    for text in HARD:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert Vocabulary.load(tmp_path).decode(ids) == text.encode() == Normalizer.load(files)(text)


@pytest.mark.parametrize("named", [True, False])
def test_tekken_files_decode(tmp_path: Path, named: bool) -> None:
    """Mistral's file: ids follow the special tokens, whose names it gives or (older files) leaves to the library."""
    vocab = [{"rank": i, "token_bytes": base64.b64encode(piece).decode()} for i, piece in fixture_pieces()]
    document: dict[str, Any] = {
        "config": {"default_vocab_size": 4087 + 1000 - 7, "default_num_special_tokens": 1000},
        "vocab": vocab,
    }
    if named:
        document["special_tokens"] = [{"rank": 3, "token_str": "[START]", "is_control": True}]
    (tmp_path / "tekken.json").write_text(json.dumps(document))
    vocabulary = Vocabulary.load(tmp_path)
    assert len(vocabulary) == 4087 + 1000 - 7  # vocabularies are cut to the size of the model
    assert vocabulary.decode([3, 1000 + 32, 999]) == (b"[START]" if named else b"[INST]") + b"A<SPECIAL_999>"
    with pytest.raises(UnknownToken):
        vocabulary.decode([4087 + 1000 - 7])


def test_tokens_may_cut_a_character() -> None:
    """Bytes are exact even where a token ends inside a character: only the whole is text."""
    vocabulary = Vocabulary.load(MODEL)
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("🙂").ids
    assert len(ids) > 1
    assert b"".join(vocabulary.decode([token_id]) for token_id in ids) == vocabulary.decode(ids) == "🙂".encode()


@pytest.mark.parametrize("wrong", [-1, 4096, 2**70, None, "a", [1], 0.5])
def test_an_unknown_id_is_noticed(wrong: Any) -> None:
    """An id that the vocabulary lacks, or that is none, never becomes some other token's bytes."""
    vocabulary = Vocabulary.load(MODEL)
    assert vocabulary.decode([]) == b""
    with pytest.raises(UnknownToken):
        vocabulary.decode([1, wrong])


def test_tokens_that_only_the_configuration_adds_are_known(tmp_path: Path) -> None:
    """tokenizer_config.json may add tokens to tokenizer.json; those in both are as tokenizer.json has them."""
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    flags = {"rstrip": True, "normalized": False}
    added = {"5000": {"content": "<extra>", **flags}, "4088": {"content": "<|im_start|>", **flags}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    files = TokenizerFiles.load(tmp_path)
    assert Vocabulary.load(tmp_path).decode([5000]) == b"<extra>"
    assert Normalizer(files)("a<extra>  b<|im_start|> c") == b"a<extra>b<|im_start|> c"


def test_thousands_of_reserved_tokens_are_found(tmp_path: Path) -> None:
    """The longest of many tokens with a common beginning wins, as in the library."""
    reserved = [AddedToken(f"<unused{i}>", normalized=False) for i in range(3000)]
    tokenizer = byte_level(tokens=[*reserved, AddedToken("<unused", rstrip=True, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary, normalizer = Vocabulary.load(tmp_path), Normalizer.load(TokenizerFiles.load(tmp_path))
    for text in ("é<unused12> <unused 12><unused299><unused2999 >", "<unused3000>  <unused  x<unusedé"):
        assert vocabulary.decode(tokenizer.encode(text).ids) == normalizer(text)


# --- what we do not know


def test_an_unknown_type_of_tokenizer_is_named(tmp_path: Path) -> None:
    """The message says which type it is and what to do without it."""
    Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"unknown type of tokenizer: model WordPiece.*source: routed"):
        Vocabulary.load(tmp_path)
    plain = Tokenizer(models.BPE({"a": 0}, []))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="model BPE, parts Whitespace;"):
        Vocabulary.load(tmp_path)


def test_a_tokenizer_that_changes_text_unseen_is_refused(tmp_path: Path) -> None:
    """A pre-tokenizer that drops text would make every prompt miss; loading compares and says so."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(",", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="changes text in a way that we do not know"):
        Normalizer.load(TokenizerFiles.load(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "cannot be read"),
        ("tokenizer.json", b"[]", "not a JSON object"),
        ("tokenizer.json", b"{}", "malformed"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}', "malformed"),
        ("tokenizer.json", b'{"model": 5}', "malformed"),
        ("x.tiktoken", b"YQ== zero", "malformed"),
        ("x.tiktoken", b"?? 0", "malformed"),
        ("tekken.json", b"{}", "malformed"),
        ("tokenizer.model", b"", "only a SentencePiece tokenizer.model; add a tokenizer.json"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Whatever a file holds instead of a tokenizer, the error is a ConfigError that says so."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Vocabulary.load(tmp_path)


def test_a_file_that_the_library_refuses_is_named(tmp_path: Path) -> None:
    """A tokenizer.json that only looks like one is a ConfigError, whatever the library raises."""
    spec = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}, "decoder": {"type": "ByteLevel"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Normalizer.load(TokenizerFiles.load(tmp_path))


def test_a_tokenizer_that_engines_may_rebuild_is_doubted(tmp_path: Path) -> None:
    """transformers 5 ignores the normaliser of Llama's tokenizers; the operator is told how to be sure."""

    def doubts(tokenizer: Tokenizer, **config: Any) -> list[str]:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return TokenizerFiles.load(tmp_path).doubts()

    first = sentencepiece(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    assert "save_pretrained" in doubts(sentencepiece(LLAMA_2), tokenizer_class="LlamaTokenizer")[0]
    assert "'always'" in doubts(first, tokenizer_class="LlamaTokenizerFast", legacy=True)[0]
    assert "'never'" in doubts(first, tokenizer_class="LlamaTokenizer", add_prefix_space=False)[0]
    assert doubts(first, tokenizer_class="LlamaTokenizer") == []
    assert doubts(sentencepiece(LLAMA_2), tokenizer_class="PreTrainedTokenizerFast") == []
    assert doubts(byte_level(), tokenizer_class="LlamaTokenizer") == []


# --- Unicode forms


@pytest.mark.parametrize("form", unicode_forms.FORMS)
def test_forms_agree_with_the_library_on_every_character(form: str) -> None:
    """Each character of Unicode, between others that could join it, becomes what the library makes of it."""
    library = getattr(normalizers, form)()
    for begin in range(0, sys.maxunicode + 1, 0x100):
        if begin > 0x20000 and begin not in range(0x2F800, 0x2FB00) and begin not in range(0xE0000, 0xE1000):
            continue  # ideographs, private use and nothing
        characters = [chr(code) for code in range(begin, begin + 0x100) if not 0xD800 <= code < 0xE000]
        safe = [character for character in characters if not unicode_forms.doubtful().search(character)]
        text = "\n".join(f"e{c}\u0345\u0301{c}\u0323\u1161" for c in safe)
        assert not unicode_forms.doubtful().search(text)
        assert unicode_forms.FORMS[form](text) == library.normalize_str(text)


@pytest.mark.parametrize("form", unicode_forms.FORMS)
def test_characters_that_do_not_join_can_be_cut_off(form: str) -> None:
    """A text without joining characters comes out the same whole and in sections, whatever stands before the cut."""
    normal = unicode_forms.FORMS[form]
    for begin in range(0x80, 0x20000, 0x80):
        characters = [chr(code) for code in range(begin, begin + 0x80) if not 0xD800 <= code < 0xE000]
        safe = [character for character in characters if not unicode_forms.joining().search(character)]
        for before in "a>\u1100\uac00\u304b\u0915\u0bc6\u1025":
            text = "\n".join(before + character for character in safe)
            assert normal.encode_whole(text) == "\n".join(normal(before) + normal(c) for c in safe).encode()
    for text in (">\u0338", "\u1100\u1161", "か\u3099", "e\u07fd", "\U00011935\U00011930"):
        assert normal.encode_whole(text) is None


@pytest.mark.parametrize("form", unicode_forms.FORMS)
def test_young_characters_are_normalised_by_the_library(form: str) -> None:
    """Where Python's tables may be newer than the library's, the library decides, for the whole text."""
    library = getattr(normalizers, form)()
    for text in ("e\u07fd\u0323", "e\u1df6\u0301", "\u32ff\ua7f2", "\U00011935\U00011930", "\U0001ccd6 \U00011938"):
        assert unicode_forms.FORMS[form]("é" + text) == library.normalize_str("é" + text)


@pytest.mark.parametrize("form", unicode_forms.FORMS)
def test_long_runs_of_marks_are_left_to_the_library(form: Any) -> None:
    """Whatever the mark, Python never has more than a few in a row to sort; ordinary accents never leave Python."""
    left: list[str] = []
    normal = unicode_forms.Form(form, lambda text: left.append(text) or text)
    letters = map(chr, range(0x80, 0x1E944))
    marks = [c for c in letters if all(map(unicodedata.combining, unicodedata.normalize("NFKD", c)))]
    assert len(marks) > 800
    for mark in marks:
        assert normal(text := "a" + mark * 50 + "b") == text
    assert len(left) == len(marks)
    for text in ("e\u0301" * 1000, "e\u0301 plain words " * 1000, ("ж" + "\u0301\u0316" * 15) * 1000):
        assert normal(text) == unicodedata.normalize(form, text)
    assert len(left) == len(marks)


@UNHURRIED
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.sampled_from(list(unicode_forms.FORMS)))
def test_forms_agree_with_the_library_on_any_text(text: str, form: str) -> None:
    """The same for any sequence of characters."""
    assert unicode_forms.FORMS[form](text) == getattr(normalizers, form)().normalize_str(text)
