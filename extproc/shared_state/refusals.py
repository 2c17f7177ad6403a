"""What Redis says where it refuses: the cause as one of a fixed set, its own words, and what helps.

Everybody who tells of a refusal reads it here: the log, the metric, `/debug/state` and `check --live`. It knows neither
connections nor what was asked for.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from redis.exceptions import ResponseError


class Cause(StrEnum):
    """Why Redis refuses; the value of a metric's label."""

    NO_RIGHTS = "no_rights"
    WRONG_PASSWORD = "wrong_password"  # noqa: S105 - a name
    WRONG_TYPE = "wrong_type"
    READ_ONLY = "read_only"
    OUT_OF_MEMORY = "out_of_memory"
    CANNOT_SAVE = "cannot_save"
    TOO_FEW_REPLICAS = "too_few_replicas"
    MASTER_DOWN = "master_down"
    CLUSTER_DOWN = "cluster_down"
    WRONG_NODE = "wrong_node"
    NO_CLUSTER = "no_cluster"
    LOADING = "loading"
    BUSY = "busy"
    NO_SCRIPT = "no_script"
    UNKNOWN_COMMAND = "unknown_command"
    TOO_MANY_CLIENTS = "too_many_clients"
    PROTECTED = "protected"
    OTHER = "other"


class Refusal(NamedTuple):
    """What Redis said."""

    cause: Cause
    words: str  # its own, without what differs from call to call


class _Kind(NamedTuple):
    cause: Cause
    signs: tuple[str, ...]  # in the name of redis-py's error, or in Redis's words
    remedy: str


# Of a user in Redis, by namespace; the test of a deployment that is well has no more.
RIGHTS: Final = "resetchannels ~{0}:* &{0}:* +@read +@write +@scripting +@connection +@pubsub +time"
_IN_CLUSTER: Final = " +cluster +command"

# The first that fits. Within a script the code stands somewhere in the text, and old versions leave it out.
_KINDS: Final = (
    _Kind(
        Cause.WRONG_PASSWORD,
        ("NOAUTH", "WRONGPASS", "AuthenticationError", "AuthenticationWrongNumberOfArgsError", "invalid password"),
        "correct user and password in the index URL",
    ),
    _Kind(
        Cause.NO_RIGHTS,
        ("NOPERM", "no permissions", "ACL failure", "can't run this command", "can't access at least one of the keys"),
        "give this user the rights: ACL SETUSER NAME {rights}",
    ),
    _Kind(
        Cause.READ_ONLY,
        ("READONLY", "read only replica", "read-only replica"),
        "this is a replica, which takes no writes: give the address of the master, or one that follows it",
    ),
    _Kind(Cause.MASTER_DOWN, ("MASTERDOWN",), "this replica has lost its master: give the master's address"),
    _Kind(
        Cause.CLUSTER_DOWN,
        ("CLUSTERDOWN", "not covered"),  # the latter is what redis-py finds before it asks
        "look at CLUSTER INFO: slots are not served",
    ),
    _Kind(Cause.WRONG_NODE, ("MovedError", "AskError", "CROSSSLOT"), "add cluster=true to the index URL"),
    _Kind(
        Cause.NO_CLUSTER,
        ("cluster support disabled", "Cluster mode is not enabled"),
        "take cluster=true out of the index URL",
    ),
    _Kind(
        Cause.OUT_OF_MEMORY,
        ("OOM",),
        "raise maxmemory: the index takes about 57 bytes a prompt block (docs/shared-index.md)",
    ),
    _Kind(
        Cause.CANNOT_SAVE,
        ("MISCONF",),
        "Redis cannot save to disk and refuses writes: free the disk, or set stop-writes-on-bgsave-error no",
    ),
    _Kind(
        Cause.TOO_FEW_REPLICAS,
        ("NOREPLICAS",),
        "Redis has fewer replicas than min-replicas-to-write, and refuses writes: start them, or set it to 0",
    ),
    _Kind(
        Cause.WRONG_TYPE,
        ("WRONGTYPE",),
        "another application's keys stand where ours would: write namespace=NAME in the index URL",
    ),
    _Kind(Cause.LOADING, ("LOADING",), "it is still reading its data from disk: wait"),
    _Kind(Cause.BUSY, ("BUSY",), "a script of somebody runs for long: wait, or SCRIPT KILL"),
    _Kind(Cause.NO_SCRIPT, ("NOSCRIPT",), "something between us and Redis keeps scripts from it: connect directly"),
    _Kind(
        Cause.UNKNOWN_COMMAND,
        ("unknown command", "Unknown Redis command"),
        "it was renamed or switched off there, or a proxy does not pass it: allow EVAL, EVALSHA, PUBLISH and SUBSCRIBE",
    ),
    _Kind(Cause.TOO_MANY_CLIENTS, ("max number of clients",), "raise maxclients of Redis"),
    _Kind(
        Cause.PROTECTED,
        ("DENIED",),
        "Redis is in protected mode, and answers its own machine only: set a password, or bind",
    ),
)
_SIGNS: Final = {kind.cause: re.compile(rf"\b({'|'.join(map(re.escape, kind.signs))})\b") for kind in _KINDS}
_REMEDIES: Final = {kind.cause: kind.remedy for kind in _KINDS}
# Where in a script of ours; the text differs between versions and from call to call.
_PLACE: Final = re.compile(
    r"Error running script \(call to f_[0-9a-f]+\): |@user_script: ?\d+: ?-?|,? ?script: ?(f_)?[0-9a-f]{40}"
    r"|,? on @user_script: ?\d+\.?"
)


def read(error: BaseException) -> Refusal | None:
    """What Redis said; None where nobody refused: it is not there, does not answer, or the connection broke."""
    code = str(getattr(error, "status_code", None) or "")  # which redis-py takes off the words
    text = f"{code} {type(error).__name__} {error}"
    cause = next((cause for cause, signs in _SIGNS.items() if signs.search(text)), None)
    if cause is None and not isinstance(error, ResponseError):
        return None
    words = _PLACE.sub("", str(error)).strip()
    return Refusal(cause or Cause.OTHER, f"{code} {words}" if code not in ("", "ERR") else words)


def remedy(cause: Cause, *, namespace: str, cluster: bool) -> str:
    """What helps; nothing where the cause is not known."""
    rights = RIGHTS.format(namespace) + (_IN_CLUSTER if cluster else "")
    return _REMEDIES.get(cause, "").format(rights=rights)
