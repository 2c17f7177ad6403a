"""A template that is not the engines' must not stay unnoticed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from extproc.routing.pools.mismatch import ENOUGH, Agreement
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
    assert not agreement.broken(100)
    agreement.note(1, 9, matched=False)
    assert agreement.broken(100)
    assert not agreement.broken(0)
    agreement.note(1, 9, matched=True)
    assert not agreement.broken(100)


async def test_another_models_template_is_reported(tmp_path: Path) -> None:
    """With a template that the engines do not use, the log says what is wrong and a gauge is 1."""
    model = shutil.copytree(MODEL_DIR, tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>system\\n", "<|im_start|>system \\n"))
    with Stack(engines=2, cluster={"model_dir": str(model)}) as stack:
        history = [("system", WORD * 20), ("user", "go")]
        for number in range(ENOUGH + 2):
            reply = (await post(stack, chat(*history, max_tokens=2))).json["choices"][0]["message"]["content"]
            history += [("assistant", reply), ("user", f"{number} {WORD}")]
            await asyncio.sleep(0)

        def reported() -> bool:
            assert stack.extproc is not None
            said = "none of the last" in stack.extproc.log.read_text()
            return said and b'smetric_prompt_mismatch{pool="engines"} 1.0' in (
                get(f"{stack.metrics_url}/metrics") or b""
            )

        await asyncio.sleep(5.5)  # what was just sent counts as cached, but not as matched
        await until(reported, 40)
