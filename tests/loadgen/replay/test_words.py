"""Words for a trace's requests, as a client would send them and an engine would tokenise them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from loadgen.engine.chat_template import ChatTemplate
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens
from loadgen.json_types import Json
from loadgen.replay.script import carried_on
from loadgen.replay.tools import Tools
from loadgen.replay.words import Words
from loadgen.study.measures import study
from loadgen.workloads.arrivals import arrange
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.synthetic import generate, generate_whole
from loadgen.workloads.trace import Trace, TraceRequest, Trigger

TOKENS = Tokens(MODEL_DIR)
TEMPLATE = ChatTemplate(MODEL_DIR)
REPLIES = [text for _, text in TOKENS.words()]


def replayed(trace: Trace) -> dict[str, tuple[list[Mapping[str, Json]], Sequence[int]]]:
    """Of each request: its messages, after replies of the length asked for, and the rendered prompt's tokens."""
    words = Words(trace, MODEL_DIR)
    conversations: dict[str, list[Mapping[str, Json]]] = {}
    sent = {}
    for request in trace.requests:
        turn = words.ask(request)
        messages = carried_on(conversations.get(request.parent or "", []), turn)
        reply = "".join(random.Random(request.id).choices(REPLIES, k=request.output))
        conversations[request.id] = [*messages, {"role": "assistant", "content": reply}]
        body = {"messages": messages} | ({"tools": turn.tools} if turn.tools else {})
        sent[request.id] = messages, TOKENS.encode(TEMPLATE.render(body))
    return sent


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(PROFILES["paper-trace-1"], rate=1, seconds=80, seed=4)


@pytest.fixture(scope="module")
def sent(trace: Trace) -> dict[str, tuple[list[Mapping[str, Json]], Sequence[int]]]:
    return replayed(trace)


def reuse(prompts: Sequence[Sequence[int]], size: int) -> float:
    """Of the prompts' tokens, those in blocks that an earlier prompt had."""
    seen: set[int] = set()
    found = 0
    for prompt in prompts:
        chain = 0
        for start in range(0, len(prompt) - size + 1, size):
            chain = hash((chain, tuple(prompt[start : start + size])))
            found += size if chain in seen else 0
            seen.add(chain)
    return found / sum(map(len, prompts))


def test_prompts_have_the_lengths_of_the_trace(
    trace: Trace, sent: dict[str, tuple[list[Mapping[str, Json]], Sequence[int]]]
) -> None:
    """A rendered prompt has its request's tokens, most to the token, and as many replies as its turn says."""
    exact = sum(len(sent[request.id][1]) == request.input for request in trace.requests)
    assert exact / len(trace.requests) > 0.9
    for request in trace.requests:
        messages, tokens = sent[request.id]
        assert len(tokens) == pytest.approx(request.input, rel=0.02)
        assert sum(message["role"] == "assistant" for message in messages) == request.turn
        assert messages[-1]["role"] == "user"


def test_prompts_share_what_the_trace_shares(
    trace: Trace, sent: dict[str, tuple[list[Mapping[str, Json]], Sequence[int]]]
) -> None:
    """Real tokens are reused as the names say: system prompts, follow-ups, forks and rewritten histories."""
    expected = study(trace, 1).reuse
    assert expected is not None
    assert reuse([tokens for _, tokens in sent.values()], trace.block_size) == pytest.approx(expected.ratio, abs=0.01)


def test_sessions_with_one_system_prompt_hear_it_word_for_word(
    trace: Trace, sent: dict[str, tuple[list[Mapping[str, Json]], Sequence[int]]]
) -> None:
    """Equal shared prompts are equal texts; those that a session has for itself are not."""
    texts: dict[int, list[str]] = {}
    for request in trace.requests:
        if request.turn == 0 and request.trigger is Trigger.USER:
            texts.setdefault(request.system, []).append(sent[request.id][0][0]["content"])
    assert len(texts[14_500]) > 3
    assert len(set(texts[14_500])) == 1
    assert len(set(texts[9_000])) > 1


def test_tools_are_a_part_of_the_system_prompt() -> None:
    """Definitions take the tokens that the trace says, rendered prompts have its lengths with them, and sessions with
    one system prompt have the same tools at every turn."""
    trace = generate_whole(PROFILES["demo"], sessions=2, rate=1, seed=3)
    sent = replayed(trace)
    assert all(len(sent[request.id][1]) == request.input for request in trace.requests)
    words = Words(trace, MODEL_DIR)
    tools = [words.ask(request).tools for request in trace.requests]
    assert all(one == tools[0] for one in tools)
    assert len({tool["function"]["name"] for tool in tools[0]}) == len(tools[0]) > 1


@pytest.mark.parametrize("length", [0, 1, 60, 61, 200, 700, 5_000])
def test_tools_of_any_length(length: int) -> None:
    """As many as there is room for, none where there is not, and to the token."""
    tools = Tools(TOKENS, TEMPLATE, REPLIES[0])
    made = tools.define(length, REPLIES[:1] * tools.words(length))
    said = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}
    taken = len(TOKENS.encode(TEMPLATE.render(said | ({"tools": made} if made else {}))))
    plain = len(TOKENS.encode(TEMPLATE.render(said)))
    assert taken - plain == (length if made else 0)
    assert bool(made) == (length >= 200)


def test_compactions_begin_anew() -> None:
    """After a compaction the conversation is the system prompt and one user's message."""
    profile = PROFILES["claude-code"]
    whole = generate_whole(profile, sessions=12, rate=1, seed=1)
    sessions = {r.session for r in whole.requests if r.trigger is Trigger.COMPACTION and r.arrival_s < 20_000}
    chosen = [r for r in whole.requests if r.session in sessions]
    first = next(r for r in chosen if r.trigger is Trigger.COMPACTION)
    chain = [r for r in chosen if r.session == first.session and r.arrival_s <= first.arrival_s]
    messages, tokens = replayed(Trace("t", 64, chain))[first.id]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert len(tokens) == pytest.approx(first.input, rel=0.02)


def test_what_a_session_shares_in_a_recording_it_shares_in_words() -> None:
    """Without system prompts, too: first prompts begin alike for as many tokens as they have blocks in common."""
    requests = [
        TraceRequest(id=str(n), session=str(n), turn=0, arrival_s=n, input=400, output=9, blocks=((0, 3), (10 * n, 3)))
        for n in (1, 2)
    ]
    (one, _), (other, _) = replayed(Trace("t", 64, requests)).values()
    a, b = (TOKENS.encode(messages[-1]["content"]) for messages in (one, other))
    assert a[:192] == b[:192]
    assert a[192] != b[192]


def test_forks_of_copies_are_worded() -> None:
    """Arranged sessions, cut by their window, still have every length."""
    recorded = generate_whole(PROFILES["paper-trace-1"], sessions=30, rate=1, seed=3)
    arranged = arrange(recorded, rate=1, seconds=25, seed=1)
    for (messages, tokens), request in zip(replayed(arranged).values(), arranged.requests, strict=True):
        assert len(tokens) == pytest.approx(request.input, rel=0.02)
        assert sum(message["role"] == "assistant" for message in messages) == request.turn


def test_words_need_a_tokenizer(tmp_path: Path) -> None:
    """A directory without a model is an error that names what is missing."""
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        Words(Trace("t", 64, []), tmp_path)
