"""A template that is not the engines' must not stay unnoticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from extproc.routing.pools.mismatch import ENOUGH, Agreement, advice
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.parts import get
from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, post, until


def test_follow_ups_that_match_nothing_are_counted_in_a_row() -> None:
    """Any match starts the count anew; first turns, short prompts and an empty index say nothing."""
    agreement = Agreement()
    for _ in range(ENOUGH - 1):
        agreement.note(1, 9, matched=False)
    agreement.note(0, 9, matched=False)
    agreement.note(1, 1, matched=False)
    assert not agreement.broken(100, heard=True)
    agreement.note(1, 9, matched=False)
    assert agreement.broken(100, heard=False)
    assert not agreement.broken(0, heard=False)
    agreement.note(1, 9, matched=True)
    assert not agreement.broken(100, heard=True)


def test_events_of_which_nothing_can_be_held_are_no_agreement() -> None:
    """An index that stays empty says nothing, unless engines say that they cache; then the advice is another."""
    agreement = Agreement()
    for _ in range(ENOUGH):
        agreement.note(1, 9, matched=False)
    assert agreement.broken(0, heard=True)
    assert "unknown_token" in advice("pool", ENOUGH, 0)
    assert "chat template" in advice("pool", ENOUGH, 100)


async def follow_up(stack: Stack) -> None:
    """More turns of one session than it takes to be sure."""
    history = [("system", WORD * 20), ("user", "go")]
    for number in range(ENOUGH + 2):
        reply = (await post(stack, chat(*history, max_tokens=2))).json["choices"][0]["message"]["content"]
        history += [("assistant", reply), ("user", f"{number} {WORD}")]


async def reported(stack: Stack, words: str) -> None:
    """The log says these words, and the gauge is 1."""

    def seen() -> bool:
        assert stack.extproc is not None
        metrics = get(f"{stack.metrics_url}/metrics") or b""
        return words in stack.extproc.log.read_text() and b'smetric_prompt_mismatch{pool="engines"} 1.0' in metrics

    await until(seen, 40)


async def test_another_models_template_is_reported(tmp_path: Path) -> None:
    """With a template that the engines do not use, the log says what is wrong and a gauge is 1."""
    model = shutil.copytree(MODEL_DIR, tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>system\\n", "<|im_start|>system \\n"))
    with Stack(engines=2, cluster={"model_dir": str(model)}) as stack:
        await follow_up(stack)
        await reported(stack, "with the same chat template")


async def test_another_models_vocabulary_is_reported(tmp_path: Path) -> None:
    """Where not one block can be held, because its tokens are unknown, the same gauge is 1."""
    model = shutil.copytree(MODEL_DIR, tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {word: id_ + 10_000 for word, id_ in tokenizer["model"]["vocab"].items()}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Stack(engines=2, cluster={"model_dir": str(model)}) as stack:
        await follow_up(stack)
        await reported(stack, "no block of them can be held")
