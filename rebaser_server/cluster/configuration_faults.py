"""Meaning of a difference in the configuration of NATS: what it loses or holds up, what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rebaser_core.jetstream import Drift
from rebaser_core.stream_configs import is_more

MISSING: Final = Drift("", "existence", expected=True, actual=False)
"""Difference of a stream that is missing."""
PURGED: Final = Drift("", "messages", expected="the last of each log", actual=0)
"""Difference of a stream of commits that had some: no log ever loses its last commit by itself."""
_GONE: Final = {MISSING.field: "it was deleted", PURGED.field: "it was purged"}
"""Meanings of the differences that only a backup undoes, by field."""


class Effect(StrEnum):
    STOPS = "stops"
    """Commits, or batches that they name, would be lost or refused: new work is not begun."""
    LOSES = "loses"
    """Confirmed requests of clients would be lost: they are handled while they are there."""
    DIFFERS = "differs"
    """Rebasers go on."""


@dataclass(frozen=True, slots=True)
class Fault:
    drift: Drift
    meaning: str
    """Consequence: what NATS does because of it."""
    effect: Effect
    can_be_mended: bool
    """Whether setting it back is safe, and undoes nothing that operators may choose."""
    remedy: str
    """Remedy: what a person can do about it."""

    def __str__(self) -> str:
        what = self.drift.name if self.drift.field in _GONE else self.drift
        return f"{what}: {self.meaning}"


_MEANINGS: Final[Mapping[str, str]] = {
    # of streams
    "max_age": "what is stored vanishes after that time",
    "max_msgs": "once it is full, new messages are refused",
    "max_bytes": "once it is full, new messages are refused",
    "max_msgs_per_subject": "NATS drops the oldest messages of each subject",
    "max_msg_size": "larger messages are refused",
    "discard": "once a limit is reached, the oldest messages are dropped",
    "discard_new_per_subject": "the oldest message of a subject makes room for a new one",
    "retention": "messages are dropped once no consumer wants them",
    "storage": "what is stored is gone when NATS ends",
    "num_replicas": "fewer servers have what NATS confirms",
    "no_ack": "NATS confirms nothing that is stored",
    "duplicate_window": "a message that is sent again is stored again",
    "sealed": "NATS takes nothing more, and deletes nothing",
    "deny_delete": "NATS deletes no message, so what is done with stays there",
    "deny_purge": "NATS purges nothing, so it only grows",
    "mirror": "it takes what another stream has, and nothing else",
    "sources": "messages of other streams come in between",
    "subjects": "what is sent to other subjects is not stored, or what is not ours is",
    "subject_transform": "messages are stored under other subjects, where they are not found",
    "republish": "a copy of each message goes to other subjects",
    "allow_rollup_hdrs": "one message with a header of NATS wipes what others stored",
    "allow_msg_ttl": "a message whose header says so vanishes",
    "subject_delete_marker_ttl": "NATS writes messages of its own where one vanished",
    "allow_msg_counter": "NATS takes nothing but counters",
    "allow_msg_schedules": "a message may have NATS send others later",
    "persist_mode": "NATS confirms what it has not written",
    "max_consumers": "fewer change sets can be in work at a time",
    "consumer_limits": "NATS refuses readers, which want no acks",
    "allow_direct": "reads that need no leader fail",
    # of the tasks' consumer
    "ack_wait": "tasks are taken for lost after another time",
    "max_deliver": "a task that was delivered so often is given out no more, and bars the next",
    "max_ack_pending": "no more change sets than that are in work at a time",
    "pause_until": "no Rebaser is given a task",
    "filter_subject": "other tasks are given to no Rebaser",
    "filter_subjects": "other tasks are given to no Rebaser",
    "rate_limit_bps": "tasks are given out slowly",
    "replay_policy": "tasks are given out as slowly as they came",
    "deliver_subject": "tasks are sent to a subject, and Rebasers pull them",
    "priority_groups": "Rebasers pull in no group, and are refused",
    "inactive_threshold": "NATS deletes it when no Rebaser runs for so long",
    "mem_storage": "which tasks are in work is forgotten when NATS ends",
}
_UNKNOWN: Final = "Rebaser does not count on it"

_DROPPED_WHEN_FULL: Final = "once it is full, the oldest messages are dropped"

_LOSING: Final = frozenset(
    {"max_age", "max_msgs_per_subject", "retention", "storage", "persist_mode", "subject_transform"}
)
"""Fields of a stream each of which can make NATS lose what it confirmed."""

_REFUSING: Final = frozenset(
    {"max_msg_size", "no_ack", "sealed", "mirror", "sources", "subjects", "allow_msg_counter"}
    | {"consumer_limits"}
)
"""Fields that make NATS refuse reads or writes, or mix our messages with others."""

_FINAL: Final = frozenset(
    {"sealed", "deny_delete", "deny_purge", "storage", "mirror", "allow_msg_ttl"}
    | {"allow_msg_counter", "allow_msg_schedules", "persist_mode"}
)
"""Fields that NATS does not take back."""

_SETTINGS: Final = {
    "ack_wait": "REBASER_ACK_WAIT",
    "num_replicas": "REBASER_NATS__REPLICAS",
    "allow_rollup_hdrs": "REBASER_NATS__BATCHES_ROLLUP",
    **dict.fromkeys(
        ("max_msgs", "max_msgs_per_subject", "discard_new_per_subject"), "REBASER_QUEUE__REQUESTS"
    ),
}
"""Settings of the fields that operators choose, by field: one of the stream of requests, of the
stream of batches, of the consumer, or, as `num_replicas`, of every stream."""
_STREAM_BYTES: Final = "REBASER_NATS__STREAM_BYTES"
"""Setting of `max_bytes` of every stream, which a larger one satisfies."""


def judge(differences: Sequence[Drift]) -> list[Fault]:
    """Return the meaning of each difference, alone and with the others of its stream."""
    return [
        _fault(
            each, {other.field: other.actual for other in differences if other.name == each.name}
        )
        for each in differences
    ]


def worst(faults: Sequence[Fault]) -> Fault | None:
    """The first fault that stops work, else the first that loses requests; None if neither is."""
    for effect in (Effect.STOPS, Effect.LOSES):
        for fault in faults:
            if fault.effect is effect:
                return fault
    return None


def _fault(drift: Drift, fields: Mapping[str, Any]) -> Fault:
    """Return the meaning of a difference.

    `fields`: what the stream has of each field that differs.
    """
    field = drift.field.partition(".")[0]
    meaning = _MEANINGS.get(field, _UNKNOWN)
    if field in ("max_msgs", "max_bytes") and "discard" in fields:
        meaning = _DROPPED_WHEN_FULL
    elif _is_limit_of_requests(drift, fields):
        meaning = "another number of requests may wait"
    elif field == "num_replicas" and is_more(drift):
        meaning = "more servers have what NATS confirms"
    elif field == "allow_rollup_hdrs" and not drift.actual:
        meaning = "NATS refuses the header by which all of a subject is replaced"
    return Fault(
        drift,
        _GONE.get(drift.field, meaning),
        _effect(drift, field, fields),
        _can_be_mended(drift, field),
        _remedy(drift, field),
    )


def _is_limit_of_requests(drift: Drift, fields: Mapping[str, Any]) -> bool:
    """Whether it is a limit that operators set, and that makes NATS refuse new messages."""
    if not drift.name.endswith("REBASER_REQUESTS"):
        return False
    if drift.field == "max_msgs_per_subject":
        return bool(fields.get("discard_new_per_subject", drift.expected > 0))
    if drift.field == "discard_new_per_subject":
        return bool(drift.actual)
    return drift.field in ("max_msgs", "max_bytes") and "discard" not in fields


def _effect(drift: Drift, field: str, fields: Mapping[str, Any]) -> Effect:
    if drift.field in _GONE:
        # What is in memory goes to the store: a stream made anew would begin the change set anew.
        is_needed = drift.name.endswith(("REBASER_COMMITS", "REBASER_REQUESTS"))
        return Effect.STOPS if is_needed else Effect.DIFFERS
    is_losing = field in _LOSING or (field in ("max_msgs", "max_bytes") and "discard" in fields)
    if drift.name.endswith(("REBASER_COMMITS", "OBJ_REBASER_BATCHES")):
        return Effect.STOPS if is_losing or field in _REFUSING else Effect.DIFFERS
    if not drift.name.endswith("REBASER_REQUESTS") or _is_limit_of_requests(drift, fields):
        return Effect.DIFFERS
    if field in ("sealed", "deny_delete", "consumer_limits"):  # they are neither read nor deleted
        return Effect.STOPS
    is_losing = is_losing or field in ("discard", "discard_new_per_subject")
    return Effect.LOSES if is_losing or field in _REFUSING else Effect.DIFFERS


def _can_be_mended(drift: Drift, field: str) -> bool:
    if drift.field in _GONE or field in _FINAL:
        return False
    if field == "retention" and "workqueue" in (drift.expected, drift.actual):
        return False
    is_stricter = field == "allow_rollup_hdrs" and "OBJ_" in drift.name and not drift.actual
    return not is_stricter and not (_is_choice(drift.name, field) and is_more(drift))


def _remedy(drift: Drift, field: str) -> str:
    if drift.field in _GONE:
        return remedy_of_missing(drift.name)
    if drift.field == "pause_until":
        return "resume it with `nats consumer resume`; to pause work, there is `rebaser pause`"
    kind, _, name = drift.name.partition(" ")
    if field in _FINAL and kind == "stream":
        return (
            f"NATS does not take that back: stop the Rebasers, `nats stream backup {name} DIR`, "
            f'change "{field}" in the "config" of DIR/backup.json, `nats stream rm {name}`, and '
            "`nats stream restore DIR`"
        )
    remedy = f"set it back with `nats {kind} edit`"
    if _is_choice(drift.name, field):
        return f"{remedy}, or set {_SETTINGS[field]} to match for all Rebasers"
    if field == "max_bytes":
        return f"{remedy}, or set {_STREAM_BYTES} to the least of all streams for all Rebasers"
    return remedy


def _is_choice(name: str, field: str) -> bool:
    """Whether the field of a stream or consumer is a choice of operators."""
    if field == "allow_rollup_hdrs":
        return name.endswith("OBJ_REBASER_BATCHES")
    is_of_all = field in ("ack_wait", "num_replicas")
    return is_of_all or (field in _SETTINGS and name.endswith("REBASER_REQUESTS"))


def remedy_of_missing(name: str) -> str:
    """Return what a person can do about a stream or bucket that is gone."""
    remedy = "stop the Rebasers, and restore it from a backup"
    if "REQUESTS" in name:
        return (
            f"{remedy}; or `rebaser doctor --repair` makes an empty one, with a first_seq above "
            "the last one handled (S-5)"
        )
    if name.endswith("REBASER_ALARMS"):
        return (
            "`rebaser doctor --repair` makes an empty one, and sets the alarms of all timers again"
        )
    if "COMMITS" in name:
        return (
            f"{remedy} of the same time as the store's; without one, the store has the values of "
            "each change set's last checkpoint"
        )
    return f"{remedy}, or start them again to have an empty one"
