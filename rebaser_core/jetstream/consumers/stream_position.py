"""Which messages of a stream a reader wants, and how far it has come with them (ADR-17)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig, DeliverPolicy
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo
from rebaser_core.jetstream.messages.delivery import Delivery

_BY_SEQUENCE: Final = "by_start_sequence"
_BY_TIME: Final = "by_start_time"
_NOT_A_POSITION: Final = "last_per_subject"  # the one policy that is not a place in the stream


class StreamPosition:
    """A cursor; or a deliver policy, until the server has said which position that is.

    Raises:
        ValueError: a start that the policy does not use.
    """

    def __init__(
        self,
        subjects: str | Sequence[str],
        policy: DeliverPolicy | None,
        opt_start_seq: int | None,
        opt_start_time: datetime | None,
    ) -> None:
        if opt_start_seq is not None and policy not in (None, _BY_SEQUENCE):
            raise ValueError(f"opt_start_seq is for deliver_policy {_BY_SEQUENCE}, not {policy}")
        if (opt_start_time is None) is (policy == _BY_TIME):
            raise ValueError(f"opt_start_time and deliver_policy {_BY_TIME} go together")
        self.subjects = (subjects,) if isinstance(subjects, str) else tuple(subjects)
        self.cursor = 0 if opt_start_seq is None else opt_start_seq - 1
        """The stream sequence of the last message handed out; all before it were."""
        self._policy: ConsumerConfig | None = None
        if policy and policy != _BY_SEQUENCE:
            self._policy = ConsumerConfig(deliver_policy=policy, opt_start_time=opt_start_time)

    def advance(self, delivery: Delivery) -> None:
        self.cursor = delivery.stream_sequence
        self._policy = None

    def sync(self, info: ConsumerInfo) -> None:
        """Learn from a new consumer's info: a reset must not move `new` to a later place."""
        if self._policy and self._policy.deliver_policy != _NOT_A_POSITION:
            self.cursor, self._policy = info.delivered.stream_seq, None

    def to_config(self) -> ConsumerConfig:
        """Return what a consumer needs to begin here."""
        start = self._policy or ConsumerConfig(
            deliver_policy=_BY_SEQUENCE, opt_start_seq=self.cursor + 1
        )
        if len(self.subjects) == 1:
            return start | ConsumerConfig(filter_subject=self.subjects[0])
        return start | ConsumerConfig(filter_subjects=self.subjects)
