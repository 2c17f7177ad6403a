"""Continuity as scripts of what is heard and what is done about it."""

from __future__ import annotations

import re

import pytest

from extproc.base.model import Knowledge
from extproc.kv_events import numbering
from extproc.kv_events.actions import Action, Apply, Closed, Forget, Input, Replay, State
from extproc.kv_events.continuity import Continuity
from extproc.kv_events.engines.frames import END
from tests.support import kv_recordings

EXACT, RECOVERING, UNKNOWN = Knowledge.EXACT, Knowledge.RECOVERING, Knowledge.UNKNOWN


class Script:
    """Plays `up`, `down`, `live 3`, `live 3'` (other bytes), `frame 3`, `end`, `wait 5`; answers what was done."""

    def __init__(self, *, replay: bool = True) -> None:
        self.continuity = Continuity(can_replay=replay)
        self.now = 100.0

    def __call__(self, *steps: str) -> str:
        return ", ".join(said(action) for step in steps for action in self._play(step))

    @property
    def knows(self) -> Knowledge:
        return self.continuity.knowledge

    def _play(self, step: str) -> list[Action]:
        what, _, number = step.partition(" ")
        payload = step.replace("frame", "live").encode()
        match what:
            case "up":
                return self.continuity.connected(self.now)
            case "down":
                return self.continuity.disconnected(self.now)
            case "live":
                return self.continuity.live(int(number.rstrip("'")), payload, self.now)
            case "frame":
                return self.continuity.replayed(int(number.rstrip("'")), payload, self.now)
            case "end":
                return self.continuity.replayed(END, b"", self.now)
            case "wait":
                self.now += float(number)
                return self.continuity.tick(self.now)
        raise AssertionError(step)


def said(action: Action) -> str:
    match action:
        case Apply(number, payload):
            return f"apply {number}" + ("'" if payload.endswith(b"'") else "")
        case Forget():
            return "forget"
        case Replay(start):
            return f"replay {start}"
        case Closed(outcome):
            return outcome


def following(replay: bool = True) -> Script:
    """One that has applied 0 to 2 and follows, its second look behind it."""
    script = Script(replay=replay)
    if replay:
        script("up", "frame 0", "frame 1", "frame 2", "end", "wait 1", "end")
    else:
        script("up", "live 0", "live 1", "live 2")
    assert script.knows is EXACT
    return script


def test_the_time_for_an_answer_begins_when_the_question_is_asked() -> None:
    """A replay that waits for its turn is not unanswered; one that was asked for is, after a while."""
    script = Script()
    assert script("up") == "forget, replay 0"
    assert script.continuity.replaying
    for _ in range(10):
        script.now += 4
        script.continuity.asked(script.now)
        assert script("wait 0.5") == ""
    assert not script.continuity.unanswered
    script("wait 5")
    assert script.continuity.unanswered
    assert not script.continuity.replaying
    deadline = script.continuity.deadline
    script.continuity.asked(script.now + 1)
    assert script.continuity.deadline == deadline, "of one that is asked again later"


def test_a_late_joiner_replays_from_the_beginning() -> None:
    """Observation 10, `from0`: all there is, then on with what is heard; what came twice is applied once."""
    script = Script()
    assert script.knows is UNKNOWN
    assert script("up") == "forget, replay 0"
    assert script.knows is RECOVERING
    assert script("live 8", "live 9") == ""
    assert script(*(f"frame {n}" for n in range(9))) == ", ".join(f"apply {n}" for n in range(9))
    assert script("end") == "apply 9"
    assert script.knows is EXACT
    assert script("live 10") == "apply 10"


def test_an_engine_that_has_published_nothing_is_known_exactly() -> None:
    """Observation 10, `empty`: only the end comes."""
    script = Script()
    assert script("up", "end") == "forget, replay 0"
    assert script.knows is EXACT
    assert script("live 0") == "apply 0"


def test_the_first_batch_of_an_engine_needs_no_replay() -> None:
    """Who hears number 0 has missed nothing, even if the replay is never answered."""
    script = Script()
    assert script("up", "live 0", "live 1") == "forget, replay 0, apply 0, apply 1"
    assert script.knows is EXACT
    assert script("frame 0", "frame 1", "end") == ""


def test_a_batch_that_fell_between_replay_and_subscription_is_found() -> None:
    """An idle engine sends nothing that would show the gap, so there is a second look."""
    script = Script()
    script("up", "frame 0", "end")
    assert script("wait 0.9") == ""
    assert script("wait 0.1") == "replay 1"
    assert script.knows is EXACT
    assert script("live 2") == ""
    assert script("frame 1", "end") == "apply 1, apply 2"
    assert script.knows is EXACT
    assert script.continuity.deadline is None


def test_a_second_look_that_is_not_answered_changes_nothing() -> None:
    """What was known is known."""
    script = Script()
    script("up", "frame 0", "end", "wait 1", "live 1")
    assert script("wait 5") == "apply 1"
    assert script.knows is EXACT
    assert script.continuity.deadline is None


def test_a_gap_is_replayed_from_the_last_seen() -> None:
    """Observation 10, `from3`: nothing is forgotten, and in the end nothing is missing."""
    script = following()
    assert script("live 5") == "replay 3"
    assert script.knows is RECOVERING
    assert script("live 6") == ""
    assert script("frame 3", "frame 4", "frame 5", "end") == "apply 3, apply 4, apply 5, apply 6, replayed"
    assert script.knows is EXACT


def test_a_gap_that_the_engine_no_longer_remembers_is_forgotten() -> None:
    """The replay begins too late: what was known may be wrong, what follows is part of the truth."""
    script = following()
    script("live 9")
    assert script("frame 7") == "forgotten, forget, apply 7"
    assert script("frame 8", "frame 9", "end") == "apply 8, apply 9"
    assert script.knows is UNKNOWN


def test_without_replay_a_gap_is_forgotten() -> None:
    """Nothing can close it."""
    script = following(replay=False)
    assert script("live 4", "live 5") == "forgotten, forget, apply 4, apply 5"
    assert script.knows is UNKNOWN


def test_without_replay_a_late_joiner_knows_a_part() -> None:
    """It applies what it hears; what came before stays unknown."""
    script = Script(replay=False)
    assert script("up", "live 7", "live 8") == "forget, apply 7, apply 8"
    assert script.knows is UNKNOWN


def test_a_clear_makes_up_for_everything() -> None:
    """Once the cache is empty, nothing that was missed matters; unless more was missed since."""
    script = following(replay=False)
    script("live 4")
    script.continuity.cleared(4)
    assert script.knows is EXACT
    script("live 9")
    script.continuity.cleared(8)  # told late, of a batch before the gap
    assert script.knows is UNKNOWN


def test_a_batch_that_could_not_be_used_is_a_loss() -> None:
    """The instance is unknown until something makes up for it."""
    script = following()
    assert script("live 3") == "apply 3"
    script.continuity.lost(3)
    assert script.knows is UNKNOWN
    assert script("live 4") == "apply 4"
    assert script.knows is UNKNOWN
    script.continuity.cleared(4)
    assert script.knows is EXACT


def test_a_lost_batch_of_the_beginning_is_not_asked_for_again_and_again() -> None:
    """It would come with the same bytes."""
    script = Script()
    script("up", "frame 0", "frame 1")
    script.continuity.lost(1)
    assert script("frame 2", "end") == "apply 2"
    assert script.knows is UNKNOWN
    assert script("wait 1", "end", "wait 1000") == "replay 3"


def test_duplicates_are_applied_once() -> None:
    """The same number with the same bytes, at once or later."""
    script = following()
    assert script("live 3", "live 3", "live 2", "live 0", "live 4") == "apply 3, apply 4"
    assert script.knows is EXACT


@pytest.mark.parametrize("replay", [True, False])
def test_a_sequence_that_starts_over_is_a_restarted_engine(replay: bool) -> None:
    """Observation 10: a subscriber that stays connected hears 9, then 0."""
    script = following(replay)
    assert script("live 0'", "live 1'") == "forget, apply 0', apply 1'"
    assert script.knows is EXACT
    assert script("live 1'", "live 2'") == "apply 2'"


def test_the_recorded_restart_is_noticed() -> None:
    """The recording's own numbers and bytes, twice the same prompts: forgotten at each restart, exact all the time."""
    events = [line for line in kv_recordings.lines("0.32.0/I_replay_restart") if line["kind"] == "event"]
    continuity = Continuity(can_replay=False)
    continuity.connected(0)
    restarts = 0
    for line in events:
        actions = continuity.live(line["seq"], bytes.fromhex(line["payload_hex"]), 0)
        restarts += Forget() in actions
        assert actions[-1] == Apply(line["seq"], bytes.fromhex(line["payload_hex"]))
        assert continuity.knowledge is EXACT
    assert restarts == sum(line["seq"] == 0 for line in events) - 1 == 2


def test_a_restart_whose_first_batches_were_not_heard() -> None:
    """The number is smaller than one heard before: forget, and replay what the new engine has."""
    script = following()
    script("live 3", "live 4")
    assert script("live 2'") == "forget, replay 0"
    assert script("frame 0'", "frame 1'", "frame 2'", "end") == "apply 0', apply 1', apply 2'"
    assert script.knows is EXACT


def test_a_restart_without_replay_and_without_its_beginning() -> None:
    """What is heard is part of the truth."""
    script = following(replay=False)
    assert script("live 1'", "live 2'") == "forget, apply 1', apply 2'"
    assert script.knows is UNKNOWN


def test_a_restart_during_a_replay() -> None:
    """What was held is of an engine that is gone."""
    script = Script()
    script("up", "live 50", "frame 0")
    assert script("live 3'") == "forget, replay 0"
    assert script("frame 0'", "frame 1'", "frame 2'", "frame 3'", "end") == "apply 0', apply 1', apply 2', apply 3'"
    assert script.knows is EXACT


def test_batches_out_of_order_are_never_silently_wrong() -> None:
    """One that overtook another looks like a gap, the other like a restart: begin again from what the engine has."""
    script = following()
    assert script("live 4") == "replay 3"
    assert script("live 3") == "forget, replay 0"
    assert script(*(f"frame {n}" for n in range(5)), "end") == "apply 0, apply 1, apply 2, apply 3, apply 4"
    assert script.knows is EXACT
    script = following(replay=False)
    assert (
        script("live 4", "live 3", "live 5")
        == "forgotten, forget, apply 4, forget, apply 3, forgotten, forget, apply 5"
    )
    assert script.knows is UNKNOWN


def test_every_connection_begins_anew() -> None:
    """A restart may hide behind batches that nobody heard."""
    script = following()
    assert script("down") == "forget"
    assert script.knows is UNKNOWN
    assert script("live 3") == ""
    assert script("up") == "forget, replay 0"
    assert script("frame 0'", "end", "live 1'") == "apply 0', apply 1'"
    assert script.knows is EXACT


def test_a_connection_that_is_made_again_without_news_of_its_end() -> None:
    """Then that begins anew as well."""
    assert following()("up") == "forget, replay 0"


def test_a_replay_beyond_the_newest_is_a_contradiction() -> None:
    """Observation 10, `beyond`: only the end comes although a later batch was heard. Then a restart is likely."""
    script = following()
    assert script("live 9") == "replay 3"
    assert script("end") == "forgotten, forget, replay 0"
    assert script("frame 0", "frame 1", "end") == "apply 0, apply 1, replay 2"
    assert script("end") == "forgotten, forget, apply 9"
    assert script.knows is UNKNOWN
    assert script("live 10") == "apply 10"


def test_a_replay_that_was_torn_is_asked_for_again() -> None:
    """A ROUTER drops what its peer does not take in time, even the end."""
    script = Script()
    script("up")
    assert script("frame 0", "frame 1", "frame 5", "frame 6", "end") == "apply 0, apply 1, replay 2"
    assert script("frame 2", "frame 3") == "apply 2, apply 3"
    assert script("wait 5") == "replay 4"
    assert script("end") == ""
    assert script.knows is EXACT


def test_a_torn_replay_whose_rest_is_gone_is_forgotten() -> None:
    """By the time it is asked for, the engine has overwritten it."""
    script = Script()
    script("up", "frame 0", "frame 2", "end")
    assert script("frame 4") == "forgotten, forget, apply 4"
    script("end")
    assert script.knows is UNKNOWN


def test_a_late_joiner_of_an_old_engine_knows_a_part() -> None:
    """The engine remembers only its newest batches: they are applied, and the rest stays unknown."""
    script = Script()
    script("up", "live 503")
    assert script("frame 500", "frame 501", "end") == "forget, apply 500, apply 501, replay 502"
    assert script("frame 502", "end") == "apply 502, apply 503, replayed"
    assert script.knows is UNKNOWN


def test_nobody_answers_a_replay() -> None:
    """After five seconds it goes on with what it hears, and asks again later without giving up what it has."""
    script = Script()
    script("up", "live 7", "live 8")
    assert script("wait 4.9") == ""
    assert script("wait 0.1") == "forget, apply 7, apply 8"
    assert script.knows is UNKNOWN
    assert script("live 9", "wait 30") == "apply 9, replay 0"
    assert script("live 10") == "apply 10"
    assert script("wait 59") == ""
    assert script("wait 1") == "replay 0"
    assert script("frame 0", "live 11") == "forget, apply 0"
    assert script(*(f"frame {n}" for n in range(1, 12)), "end").endswith("apply 11")
    assert script.knows is EXACT


def test_a_gap_that_is_answered_does_not_settle_what_was_never_answered() -> None:
    """The engine answers again: then all there is is asked for, too."""
    script = Script()
    script("up", "live 7", "wait 5", "live 9")
    assert script("frame 8", "end") == "apply 8, apply 9, replayed"
    assert script.knows is UNKNOWN
    assert script("wait 30") == "replay 0"
    assert script(*(f"frame {n}" for n in range(10)), "end").startswith("forget, apply 0")
    assert script.knows is EXACT


def test_after_a_clear_nothing_is_owed() -> None:
    """An answer would bring nothing that is not known."""
    script = Script()
    script("up", "live 7", "wait 5")
    script.continuity.cleared(7)
    assert script("wait 30") == "replay 8"
    assert script.knows is EXACT


def test_waiting_for_answers_has_an_end() -> None:
    """The pauses grow to ten minutes, and no further."""
    script = Script()
    script("up", "wait 5")
    pauses = []
    for _ in range(8):
        deadline = script.continuity.deadline
        assert deadline is not None
        pauses.append(round(deadline - script.now))
        assert script(f"wait {deadline - script.now}") == "replay 0"
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 600]


def test_a_gap_that_nobody_answers_is_forgotten() -> None:
    """Never silently wrong."""
    script = following()
    script("live 5", "live 6", "live 9")
    assert script("wait 5") == "forgotten, forget, apply 5, apply 6, forget, apply 9"
    assert script.knows is UNKNOWN


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard beyond that during a replay is a gap afterwards, and closed like one."""
    monkeypatch.setattr(numbering, "HELD_BATCHES", 3)
    script = following()
    script("live 4", "live 5", "live 6", "live 7")
    assert script("frame 3", "end") == "apply 3, apply 4, apply 5, apply 6, replayed"
    assert script("live 8") == "replay 7"
    assert script("frame 7", "end") == "apply 7, apply 8, replayed"
    monkeypatch.setattr(numbering, "HELD_BYTES", 10)
    script("live 10", "live 11")
    assert script("frame 9", "end") == "apply 9, apply 10, replayed"


def test_huge_numbers_do_no_lasting_harm() -> None:
    """A jump that nothing explains is forgotten; the true numbers that follow look like a restart, and are replayed."""
    script = following()
    script(f"live {2**62}", "end", "frame 0", "frame 1", "frame 2", "end", "end")
    assert script.knows is UNKNOWN
    assert script("live 3") == "forget, replay 0"
    assert script("frame 0", "frame 1", "frame 2", "frame 3", "end") == "apply 0, apply 1, apply 2, apply 3"
    assert script.knows is EXACT


def test_what_may_follow_what_is_complete() -> None:
    """Every input has its row in every state; only time does not pass without a connection."""
    rows = {(state, what) for state in State for what in Input} - {(State.DOWN, Input.TIMEOUT)}
    assert set(Continuity._TABLE) == rows


def test_the_recorded_reset_is_published_late() -> None:
    """Observation 4: no message comes at the reset; the clear stands in front of the next step's blocks."""
    lines = [line for line in kv_recordings.lines("0.32.0/C_reset") if line["kind"] in {"event", "control", "request"}]
    kinds = "".join(line["kind"][0] for line in lines)
    assert re.search("c+r", kinds)
    assert not re.search("ce", kinds)
