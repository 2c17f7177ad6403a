"""What Redis says where it refuses, in the words of each version, and what is no refusal."""

from __future__ import annotations

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError

from extproc.shared_state.refusals import Cause, read, remedy

SHA = "1cfe179701d1ddc321e92f9bd10d24017f171d86"
IN_7 = f"script: {SHA}, on @user_script:1."
IN_6 = f"Error running script (call to f_{SHA}): @user_script:110: "

NO_AUTH = (  # to the letter, because redis-py compares it
    "AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)

SAID = {
    Cause.NO_RIGHTS: [
        "NOPERM this user has no permissions to run the 'evalsha' command",
        f"ERR {IN_6}@user_script: 110: The user executing the script can't run this command or subcommand",
        f"ERR ACL failure in script: User u has no permissions to run the 'hset' command {IN_7}",
    ],
    Cause.WRONG_PASSWORD: [
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOAUTH Authentication required.",
        f"ERR {NO_AUTH}",
    ],
    Cause.WRONG_TYPE: [
        f"ERR {IN_6}WRONGTYPE Operation against a key holding the wrong kind of value",
        f"WRONGTYPE Operation against a key holding the wrong kind of value {IN_7}",
    ],
    Cause.READ_ONLY: [
        "READONLY You can't write against a read only replica.",
        f"ERR {IN_6}@user_script: 110: -READONLY You can't write against a read only replica.",
    ],
    Cause.OUT_OF_MEMORY: [
        "OOM command not allowed when used memory > 'maxmemory'.",
        f"OOM command not allowed when used memory > 'maxmemory'. {IN_7}",
    ],
    Cause.CANNOT_SAVE: ["MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist."],
    Cause.TOO_FEW_REPLICAS: ["NOREPLICAS Not enough good replicas to write."],
    Cause.MASTER_DOWN: ["MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."],
    Cause.CLUSTER_DOWN: ["CLUSTERDOWN Hash slot not served"],
    Cause.WRONG_NODE: ["MOVED 3999 127.0.0.1:6381"],
    Cause.NO_CLUSTER: ["ERR This instance has cluster support disabled"],
    Cause.LOADING: ["LOADING Redis is loading the dataset in memory"],
    Cause.BUSY: ["BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."],
    Cause.NO_SCRIPT: ["NOSCRIPT No matching script. Please use EVAL."],
    Cause.UNKNOWN_COMMAND: ["ERR unknown command 'EVALSHA', with args beginning with: "],
    Cause.TOO_MANY_CLIENTS: ["ERR max number of clients reached"],
    Cause.PROTECTED: ["DENIED Redis is running in protected mode because protected mode is enabled"],
    Cause.OTHER: ["ERR something that no version has said yet, of pool ROOM"],
}


def test_every_cause_is_tried() -> None:
    """None is left out above."""
    assert SAID.keys() == set(Cause)


@pytest.mark.parametrize(("said", "cause"), [(said, cause) for cause, all_ in SAID.items() for said in all_])
def test_words_and_cause(said: str, cause: Cause) -> None:
    """The cause is one of the set; the words are Redis's own, with the code, and without what changes between calls."""
    refusal = read(BaseParser.parse_error(said))
    assert refusal is not None
    assert refusal.cause is cause
    assert SHA not in refusal.words
    assert "user_script" not in refusal.words
    assert refusal.words in said or refusal.words.removeprefix("ERR ") in said or cause is Cause.NO_RIGHTS


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.OTHER])
def test_each_cause_has_a_remedy(cause: Cause) -> None:
    """And none shows a placeholder."""
    helps = remedy(cause, namespace="mine", cluster=True)
    assert helps
    assert "{" not in helps
    if cause is Cause.NO_RIGHTS:
        assert "~mine:*" in helps
        assert "+cluster" in helps


def test_slots_that_no_node_serves() -> None:
    """Found by redis-py before it asks."""
    refusal = read(SlotNotCoveredError('Slot "7" is not covered by the cluster.'))
    assert refusal is not None
    assert refusal.cause is Cause.CLUSTER_DOWN


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."),
        RedisTimeoutError("Timeout reading from socket"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError(),
        ValueError("a bug"),
    ],
)
def test_nobody_refused(error: BaseException) -> None:
    """A Redis that is not there has said nothing."""
    assert read(error) is None
