"""The study's figures are what hand counting gives; what a trace does not say is None, and said."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadgen import cli
from loadgen.study.balance import imbalance, per_minute
from loadgen.study.measures import spread, study
from loadgen.study.reuse import Found, Store
from loadgen.workloads.trace import Fact, Runs, Trace, TraceRequest, Trigger, joined, length
from tests.support.paths import TESTS

FIXTURES = TESTS / "loadgen" / "workloads" / "traces" / "samples"
ALL = frozenset(Fact) - {Fact.INFERRED_SESSIONS}


def request(name: str, at: float, blocks: Runs = (), **fields: Any) -> TraceRequest:
    """A request of session name[0], with 10-token blocks unless it says otherwise."""
    given = {
        "session": name[0],
        "turn": 0,
        "input": 10 * length(blocks) or 10,
        "output": 5,
        "duration_s": 1.0,
        **fields,
    }
    return TraceRequest(id=name, arrival_s=at, blocks=blocks, **given)


def trace(*requests: TraceRequest, facts: frozenset[Fact] = ALL) -> Trace:
    """A trace of 10-token blocks."""
    return Trace("tiny", 10, requests, facts)


def test_the_store_is_a_set_of_prefixes() -> None:
    """Whatever the runs, it finds what a set of prefixes, block by block, would: count, producer and last end."""
    rng = random.Random(5)
    for _ in range(30):
        store = Store()
        plain: dict[tuple[int, ...], tuple[str, float]] = {}
        prompts: list[list[int]] = [[]]
        fresh = 0
        for number in range(60):
            kept = rng.choice(prompts)
            prompt = kept[: rng.randint(0, len(kept))]
            grown = rng.randint(0, 6)
            prompt = [*prompt, *range(fresh, fresh + grown)]
            fresh += grown + rng.randint(0, 1)
            prompts.append(prompt)
            session, end_s = rng.choice("abc"), number + rng.random() * 5
            expected = []
            for size in range(1, len(prompt) + 1):
                known = plain.get(tuple(prompt[:size]))
                if known is not None:
                    expected.append(known)
                plain[tuple(prompt[:size])] = (known[0], max(known[1], end_s)) if known else (session, end_s)
            found = store.visit(joined(prompt), session, end_s)
            assert [(one.producer, one.end_s) for one in found for _ in range(one.count)] == expected
            assert [one.position for one in found] == [sum(o.count for o in found[:at]) for at in range(len(found))]


def test_a_growing_prompt_stays_one_piece() -> None:
    """What one session adds turn by turn is found as one piece: the cost does not grow with the turns."""
    store = Store()
    for turn in range(1, 50):
        store.visit(((0, 10 * turn),), "a", float(turn))
    assert store.visit(((0, 490),), "a", 50.0) == [Found(0, 490, "a", 49.0)]


def test_figure_5_splits_reuse_by_who_first_produced_it() -> None:
    """Own blocks, another's system prompt, another's other blocks: by the first producer, whoever used them since."""
    found = study(
        trace(
            request("a0", 0, ((0, 6),), system=40),  # 60 tokens, none reused
            request("a1", 10, ((0, 8),), system=40, turn=1, parent="a0"),  # 60 within
            request("b0", 20, ((0, 4), (50, 2)), system=40),  # 40 system
            request("b1", 30, ((0, 4), (50, 3)), system=40, turn=1, parent="b0"),  # 40 system, 20 within
            request("c0", 40, ((0, 7),), system=40, turn=1, parent="a1"),  # a fork: 40 system, 30 other
        )
    ).reuse
    assert found is not None
    assert found.ratio == pytest.approx(230 / (60 + 80 + 60 + 70 + 70))
    assert found.tokens == 230
    assert (found.within, found.system, found.other) == pytest.approx((80 / 230, 120 / 230, 30 / 230))


def test_figure_5_counts_a_named_part_of_a_block_but_not_for_engines() -> None:
    """The last, partial block counts with its tokens in the ratio and not at all among whole blocks."""
    prompt = {"blocks": ((0, 3),), "input": 25}
    found = study(trace(request("a0", 0, **prompt), request("b0", 10, **prompt))).reuse
    assert found is not None
    assert (found.ratio, found.whole) == (25 / 50, 20 / 50)


def test_figure_5_is_of_prefixes() -> None:
    """Blocks after the first unknown one are of no use, though their names were seen."""
    found = study(trace(request("a0", 0, ((0, 4),)), request("a1", 5, ((9, 1), (1, 3))))).reuse
    assert found is not None
    assert (found.ratio, found.within) == (0.0, None)


def test_figure_6_counts_from_the_end_of_the_last_use() -> None:
    """Each token with its own interval; a request still running when the next arrives gives 0."""
    found = study(
        trace(
            request("a0", 0, ((0, 2),), duration_s=10.0),
            request("a1", 30, ((0, 3),), duration_s=10.0),  # 20 tokens after 20 s
            request("b0", 35, ((0, 1),), duration_s=500.0),  # 10 tokens after 0 s: a1 still runs
            request("a2", 240, ((0, 3),), duration_s=10.0),  # 10 tokens after 0 s (b0 runs), 20 after 200 s
        )
    ).intervals
    assert found is not None
    assert found.soon == pytest.approx(40 / 60)
    assert found.soon_requests == pytest.approx(2 / 3)
    assert (found.p50, found.p90, found.p99) == (20.0, 200.0, 200.0)
    shares = dict(found.curve)
    assert shares[10.0] == pytest.approx(20 / 60)
    assert shares[100.0] == pytest.approx(40 / 60)
    assert found.curve[-1][1] == 1.0


def test_figure_6_without_a_common_clock_is_of_a_sessions_own_blocks() -> None:
    """Where sessions' clocks differ, blocks of others and of the system prompt have no interval."""
    requests = (
        request("a0", 0, ((0, 4),), system=20),
        request("b0", 0, ((0, 2), (8, 1)), system=20, duration_s=500.0),
        request("a1", 3, ((0, 5),), system=20, turn=1, parent="a0"),
    )
    found = study(trace(*requests, facts=ALL - {Fact.ARRIVALS}))
    assert found.intervals is not None
    assert (found.intervals.p50, found.intervals.p99) == (2.0, 2.0)
    assert (found.rate, found.balance) == (None, None)
    assert any(words.startswith("when sessions began") for words in found.unsaid)


def test_figure_6_without_a_common_clock_clips_a_run_at_the_system_prompt() -> None:
    """Of a run of own blocks that begins in the system prompt, what lies behind it has an interval."""
    requests = (
        request("a0", 0, ((0, 4),), system=20),
        request("a1", 3, ((0, 5),), system=20, turn=1, parent="a0"),  # 20 tokens behind it, after 2 s
        request("a2", 13, ((0, 6),), system=20, turn=2, parent="a1"),  # 30 tokens, after 9 s
    )
    found = study(trace(*requests, facts=ALL - {Fact.ARRIVALS})).intervals
    assert found is not None
    assert [share for seconds, share in found.curve if 2.0 <= seconds < 9.0] == [0.4] * sum(
        2.0 <= seconds < 9.0 for seconds, _ in found.curve
    )
    assert (found.p50, found.p99) == (9.0, 9.0)


def test_figure_6_takes_an_unrecorded_end_for_the_arrival() -> None:
    """Without a duration the interval is counted from the arrival: an upper bound, and said to be."""
    facts = ALL - {Fact.DURATIONS, Fact.GAPS}
    found = study(trace(request("a0", 0, ((0, 1),), duration_s=None), request("a1", 7, ((0, 1),)), facts=facts))
    assert found.intervals is not None
    assert found.intervals.p50 == 7.0
    assert found.nominal == 0.5
    assert any("how long 50% of the requests took" in words for words in found.unsaid)


def test_figure_7_is_the_share_of_each_trigger() -> None:
    """Of all requests, those without a trigger included."""
    triggers = (Trigger.USER, Trigger.AGENT, Trigger.AGENT, Trigger.COMPACTION, None)
    requests = [request(f"a{at}", at, trigger=trigger) for at, trigger in enumerate(triggers)]
    assert study(trace(*requests)).triggers == {"agent": 0.4, "user": 0.2, "compaction": 0.2, "not said": 0.2}


def test_figure_8_is_tokens_a_session_and_what_the_largest_hold() -> None:
    """Prompts and replies summed by session; the largest 1 % are at least one session."""
    requests = [request(f"{name}0", at, input=85, output=15) for at, name in enumerate("bcdefghijk")]
    found = study(trace(request("a0", 0, input=850, output=50), request("a1", 1, input=50, output=50), *requests))
    assert found.session_tokens == spread([1000, *[100] * 10])
    assert found.concentration is not None
    assert dict(found.concentration)[0.01] == 0.5
    assert dict(found.concentration)[0.1] == pytest.approx(0.55)  # two of eleven
    assert dict(found.concentration)[1.0] == 1.0


def test_figure_9_sends_each_request_where_the_fewest_tokens_are_in_flight() -> None:
    """Tokens free at a request's end; a window's value is the hottest instance over the mean, idle ones included."""
    requests = [
        request("a", 0, input=90, output=10, duration_s=50.0),  # to 0
        request("b", 1, input=20, output=10, duration_s=5.0),  # to 1
        request("c", 2, input=20, output=10, duration_s=5.0),  # to 1: 30 in flight, against 100
        request("d", 10, input=50, output=10, duration_s=100.0),  # to 1, where nothing is in flight
        request("e", 55, input=10, output=10, duration_s=1.0),  # to 0: 0 in flight, against 60
        request("f", 70, input=35, output=5, duration_s=1.0),  # to 0, the only one in its minute
        request("g", 121, input=1, output=1),
    ]
    assert imbalance(requests, 2) == pytest.approx([120 / 120, 40 / 20])
    found = study(trace(*requests), instances=2).balance
    assert found is not None
    assert (found.median, found.worst) == pytest.approx((1.0, 2.0))


def test_requests_a_minute_are_of_whole_minutes_and_by_instance() -> None:
    """Minutes count from the first arrival; those without requests count, the last, cut one does not."""
    requests = [request(f"a{at}", 5.0 + at) for at in (0, 10, 59, 130, 185)]
    assert per_minute(requests) == ([3, 1], 1)
    found = study(trace(*requests), instances=2)
    assert found.rate is not None
    assert (found.rate.mean, found.rate_least) == pytest.approx((2 / 3, 0.0))


def test_the_work_does_not_grow_with_the_time_that_passes() -> None:
    """Minutes without requests take no memory, be they more than any machine has bytes."""
    requests = [request("a", 0), request("b", 1), request("c", 6e15)]
    assert per_minute(requests) == ([2], 10**14 - 1)
    found = study(trace(*requests), instances=1)
    assert found.rate is not None
    assert (found.rate.count, found.rate.p99, found.rate.max, found.rate_least) == (10**14, 0.0, 2.0, 0.0)
    assert found.rate.mean == pytest.approx(2e-14)


def test_zeros_of_a_distribution_need_not_be_listed() -> None:
    """So many zeros give what listing them gives."""
    for zeros in range(12):
        assert spread([3, 1, 2, 5], zeros=zeros) == spread([3, 1, 2, 5, *[0] * zeros])


def test_turns_appended_tokens_and_growth() -> None:
    """A session's requests are its turns, forks apart; what follows the last reply is appended, the rest is history."""
    found = study(
        trace(
            request("a0", 0, input=100, output=20),
            request("a1", 9, input=150, output=20, turn=1, parent="a0", history=120),
            request("a2", 19, input=60, turn=0, parent="a1"),  # compacted
            request("b0", 20, input=160, turn=2, parent="a1", history=150),  # a fork
        )
    )
    assert (found.sessions, found.forks) == (2, 1)
    assert found.turns == spread([3])
    assert found.append == spread([30])
    assert found.growth == spread([50])


def test_a_trace_of_lengths_alone_says_what_it_cannot_answer() -> None:
    """No blocks, sessions, triggers: the figures are None, and each absence has its reason."""
    requests = [request(f"{at}", 30.0 * at, duration_s=None) for at in range(9)]
    found = study(trace(*requests, facts=frozenset({Fact.ARRIVALS})))
    assert (found.reuse, found.intervals, found.sessions, found.turns, found.triggers) == (None,) * 5
    assert (found.session_tokens, found.concentration, found.append) == (None,) * 3
    assert found.balance is not None
    reasons = ("which prompts share blocks", "which requests belong to a session", "what triggered", "how long 100%")
    assert [any(words.startswith(reason) for words in found.unsaid) for reason in reasons] == [True] * 4


def test_progress_adds_up_to_all_requests() -> None:
    """Whoever shows a bar is told of every request."""
    told: list[int] = []
    study(trace(*[request(f"a{at}", at, ((0, 1),)) for at in range(600)]), progress=told.append)
    assert sum(told) == 600
    assert len(told) > 2


def test_nothing_to_study_is_an_error() -> None:
    """No request, no instance: ValueError."""
    with pytest.raises(ValueError, match="request"):
        study(trace())
    with pytest.raises(ValueError, match="instance"):
        study(trace(request("a0", 0)), instances=0)


def test_the_command_prints_a_column_a_trace_and_what_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Markdown by default: traces side by side, gaps in words."""
    files = [str(FIXTURES / file) for file in ("claude-code.jsonl.gz", "azure.csv")]
    assert cli.main(["study", *files]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "|  | claude-code | azure |"
    fifth = next(line for line in shown if line.startswith("| Fig. 5"))
    assert fifth.count("%") == 1
    assert fifth.endswith("| not said |")
    assert "azure: this format does not say" in shown


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json is a list with the study of each trace, by the names of its fields."""
    assert cli.main(["study", str(FIXTURES / "mooncake.jsonl"), "--json", "--instances", "4"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["trace"], found["requests"], found["instances"], found["inferred"]) == ("mooncake", 8, 4, True)
    assert found["reuse"]["ratio"] > 0


def test_the_command_draws_what_the_traces_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--figures writes PNG and SVG of each figure that a trace has data for, and no other."""
    pytest.importorskip("matplotlib")
    assert cli.main(["study", str(FIXTURES / "claude-code.jsonl.gz"), "--figures", str(tmp_path / "out")]) == 0
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == sorted(f"{n}.{k}" for n in ("intervals", "reuse", "sessions", "triggers") for k in ("png", "svg"))
    assert "<svg" in (tmp_path / "out" / "reuse.svg").read_text()
    assert "intervals" in capsys.readouterr().err


def test_the_command_fails_with_the_place_of_a_bad_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and path:line, field, expectation on stderr; nothing on stdout."""
    path = tmp_path / "bad.jsonl"
    path.write_text((FIXTURES / "mooncake.jsonl").read_text() + '{"timestamp": 1, "input_length": -4}\n')
    assert cli.main(["study", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"loadgen: {path}:9: ")
    assert "input_length" in err
    assert cli.main(["study", str(FIXTURES / "azure.csv"), "--instances", "0"]) == 1
