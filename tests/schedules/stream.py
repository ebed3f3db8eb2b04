"""A stream of the simulated server: what is stored, what is refused, what is remembered."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_ID = "Nats-Expected-Last-Msg-Id"
BATCH, BATCH_SEQUENCE, BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"

Message = tuple[str, dict[str, str], bytes]
"""Subject, headers, payload."""

Reply = dict[str, Any]


def failure(code: int, err_code: int, description: str) -> Reply:
    return {"error": {"code": code, "err_code": err_code, "description": description}}


def matches(pattern: str, subject: str) -> bool:
    if pattern in (">", subject):
        return True
    wanted, found = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(found) > index
        if index >= len(found) or token not in ("*", found[index]):
            return False
    return len(wanted) == len(found)


@dataclass(slots=True)
class Stored:
    sequence: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    time: float
    visible_at: float
    """Until then only consumers see it: its publisher has no receipt yet (F23).

    Not before the message before it: the leader applies them in order.
    """


class Stream:
    """Sequences only grow; a subject's last one is forgotten with its last message (F8)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config["name"]
        self.window = config.get("duplicate_window", 120e9) / 1e9
        self.last_sequence = 0
        self._last_time = 0.0
        self.visible_at = 0.0
        """From when on all that is stored can be read."""
        self.messages: dict[int, Stored] = {}
        self.by_subject: dict[str, dict[int, Stored]] = {}
        self.consumers: dict[str, Any] = {}
        self._ids: dict[str, tuple[int, float]] = {}
        self._batches: dict[str, list[Message]] = {}
        """Of each batch that has begun what came in of it, in order, without a gap."""
        self._last_id: str | None = None
        """Of the last message stored, also if it is gone."""

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config["subjects"])

    def store(
        self, subject: str, headers: dict[str, str], payload: bytes, now: float, behind: float
    ) -> Reply:
        """The receipt, or why there is none: expectation first, then duplicates, then limits."""
        there = self.by_subject.get(subject)
        if (expected := headers.get(EXPECTED)) is not None:
            last = next(reversed(there)) if there else 0
            if last != int(expected):
                return failure(400, 10071, f"wrong last sequence: {last}")
        if headers.get(EXPECTED_ID, self._last_id) != self._last_id:
            return failure(400, 10070, f"wrong last msg ID: {self._last_id}")
        message_id = headers.get(MESSAGE_ID)
        if message_id is not None:
            known, until = self._ids.get(message_id, (0, 0.0))
            if until > now:
                return {"stream": self.name, "seq": known, "duplicate": True}
        most = self.config.get("max_msgs_per_subject", 0)
        if there and 0 < most <= len(there):
            if self.config.get("discard_new_per_subject"):
                return failure(503, 10077, "maximum messages per subject exceeded")
            self.delete(next(iter(there)))  # as a bucket does with a former value of a key
        self.last_sequence = sequence = self.last_sequence + 1
        self.visible_at = max(self.visible_at, now + behind)
        stored = Stored(sequence, subject, headers, payload, now, self.visible_at)
        self._last_time = now
        self._last_id = message_id
        self.messages[sequence] = stored
        self.by_subject.setdefault(subject, {})[sequence] = stored
        if message_id is not None:
            self._ids[message_id] = sequence, now + self.window
        return {"stream": self.name, "seq": sequence}

    def collect(self, message: Message) -> list[Message] | None:
        """Take a message of a batch; all of the batch once its last one is here, else None.

        An empty list: one of them was lost on the way.
        """
        _, headers, _ = message
        number = int(headers[BATCH_SEQUENCE])
        waiting = self._batches.setdefault(headers[BATCH], [])
        if number == len(waiting) + 1:
            waiting.append(message)
        if BATCH_COMMIT not in headers:
            return None
        del self._batches[headers[BATCH]]
        return waiting if len(waiting) == number else []

    def store_batch(self, batch: list[Message], now: float, behind: float) -> Reply:
        """Store all or none: duplicates first, then the first one's expectation."""
        ids = [headers.get(MESSAGE_ID, "") for _, headers, _ in batch]
        if any(self._ids.get(message_id, (0, 0.0))[1] > now for message_id in ids):
            return failure(400, 10201, "atomic publish batch contains duplicate message id")
        subject, headers, _ = batch[0]
        there = self.by_subject.get(subject)
        last = next(reversed(there)) if there else 0
        if EXPECTED in headers and last != int(headers[EXPECTED]):
            return failure(400, 10071, f"wrong last sequence: {last}")
        for number, (subject, headers, payload) in enumerate(batch):
            plain = headers if number else {k: v for k, v in headers.items() if k != EXPECTED}
            answer = self.store(subject, plain, payload, now, behind)
        return {**answer, "batch": headers[BATCH], "count": len(batch)}

    def delete(self, sequence: int) -> bool:
        """Whether it was there."""
        stored = self.messages.pop(sequence, None)
        if stored is None:
            return False
        there = self.by_subject[stored.subject]
        del there[sequence]
        if not there:
            del self.by_subject[stored.subject]
        for consumer in self.consumers.values():
            consumer.deleted(sequence)
        return True

    def forget_ids(self) -> None:
        """What a restart does: ids are read from the messages that are still there (F6b).

        Batches that are not complete are gone.
        """
        self._batches.clear()
        ids = (stored.headers.get(MESSAGE_ID) for stored in self.messages.values())
        there = {message_id for message_id in ids if message_id is not None}
        self._ids = {known: value for known, value in self._ids.items() if known in there}
        last = self.messages.get(self.last_sequence)
        self._last_id = last.headers.get(MESSAGE_ID) if last else None

    def find(self, asked: dict[str, Any], now: float) -> Stored | None:
        """What `STREAM.MSG.GET` means."""
        if (subject := asked.get("last_by_subj")) is not None:
            found = [m for m in self.by_subject.get(subject, {}).values() if m.visible_at <= now]
            return found[-1] if found else None
        first = asked.get("seq", 0)
        if (pattern := asked.get("next_by_subj")) is None:
            return self.messages.get(first)
        for stored in self.by_subject.get(pattern, self.messages).values():
            if (
                stored.sequence >= first
                and stored.visible_at <= now
                and matches(pattern, stored.subject)
            ):
                return stored
        return None

    def following(self, sequence: int, pattern: str) -> list[Stored]:
        """Messages from `sequence` on, in order."""
        if pattern in self.by_subject:
            found = self.by_subject[pattern].values()
            return [stored for stored in found if stored.sequence >= sequence]
        return [
            stored
            for stored in self.messages.values()
            if stored.sequence >= sequence and matches(pattern, stored.subject)
        ]

    def info(self, pattern: str | None, now: float) -> Reply:
        first = next(iter(self.messages.values()), None)
        state: Reply = {
            "messages": len(self.messages),
            "bytes": sum(len(stored.payload) for stored in self.messages.values()),
            "first_seq": first.sequence if first else self.last_sequence + 1,
            "first_ts": date(first.time if first else 0.0),
            "last_seq": self.last_sequence,
            "last_ts": date(self._last_time),
            "consumer_count": len(self.consumers),
        }
        if pattern is not None:
            subjects = self.by_subject.items()
            state["subjects"] = {s: len(there) for s, there in subjects if matches(pattern, s)}
        total = len(state.get("subjects", ()))
        created, told = date(0.0), date(now)
        return {
            "config": self.config,
            "created": created,
            "state": state,
            "total": total,
            "ts": told,
        }


def date(seconds: float) -> str:
    """As the server writes it; virtual time begins in 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
