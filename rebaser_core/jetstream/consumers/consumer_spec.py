"""What ADR-15 lets a subscription be, and to which existing consumer it may be bound."""

from dataclasses import dataclass, field, replace
from typing import Final

from rebaser_core.jetstream.configs.config_diff import diff_config
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.errors import Misconfigured
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo

_EXPLICIT: Final = "explicit"


@dataclass(frozen=True, kw_only=True)
class ConsumerSpec:
    """What a caller of subscribe asked for; checked when made.

    Raises:
        Misconfigured: it contradicts itself.
    """

    subject: str | None = None
    stream: str | None = None
    consumer: str | None = None
    """An existing one, to be bound to."""
    durable: str | None = None
    """The same, but created if it is not there."""
    queue: str | None = None
    pull: bool = False
    config: ConsumerConfig = field(default_factory=ConsumerConfig)

    def __post_init__(self) -> None:
        if self.subject is None and self.stream is None:
            raise Misconfigured("neither a subject nor a stream")
        if self.consumer and self.durable and self.consumer != self.durable:
            raise Misconfigured(f"bound to {self.consumer} and durable {self.durable}")
        self._check_filters()
        self._check_deliver_group()
        if self.pull:
            self._check_pull()
        if self.queue:
            self._check_queue()

    def _check_filters(self) -> None:
        """The subject is the filter (ADR-15)."""
        filters = self._filters_of(self.config)
        if self.subject is not None and filters != [self.subject]:
            raise Misconfigured(
                f"subject {self.subject}, but filter {', '.join(filters)}: the subject is the"
                " filter; for others give the stream and no subject"
            )

    def _check_deliver_group(self) -> None:
        group = self.config.deliver_group
        if group and group != self.queue:
            raise Misconfigured(f"deliver_group {group} without queue={group!r}")

    def _check_pull(self) -> None:
        if self.config.ack_policy not in (None, _EXPLICIT):
            raise Misconfigured(f"ack policy {self.config.ack_policy} cannot be pulled")
        if self.queue:
            raise Misconfigured("a queue group is for pushes; pullers share by themselves")
        for field_ in ("deliver_subject", "idle_heartbeat", "flow_control"):
            if getattr(self.config, field_):
                raise Misconfigured(f"{field_} is for pushes")

    def _check_queue(self) -> None:
        if self.config.idle_heartbeat:
            raise Misconfigured("heartbeats would go to random members of the queue group")
        if self.config.flow_control:
            raise Misconfigured("flow control would go to random members of the queue group")

    @property
    def name(self) -> str | None:
        """The consumer's name; the queue's if there is no other, so that its members meet."""
        given = self.config.durable_name or self.config.name
        return self.consumer or self.durable or given or self.queue

    def to_config(self) -> ConsumerConfig:
        """Return the configuration of the consumer to create, but for its deliver subject."""
        config = ConsumerConfig(ack_policy=_EXPLICIT) | self.config
        return config | ConsumerConfig(
            durable_name=self.durable or (self.queue and self.name),
            filter_subject=None if config.filter_subjects else self.subject,
            deliver_group=self.queue,
        )

    def check_compatible(self, info: ConsumerInfo) -> None:
        """See that an existing consumer is what was asked for.

        Raises:
            Misconfigured: it is not; says in which way, field by field.
        """
        name, config = info.name, info.config
        self._check_kind(name, config)
        if not self.pull:
            self._check_group(name, config, bound=info.push_bound)
        self._check_filter(name, config)
        asked = replace(self.config, deliver_subject=None)
        if differing := diff_config(f"consumer {name}", asked, config):
            raise Misconfigured("; ".join(map(str, differing)))

    def _check_kind(self, name: str, config: ConsumerConfig) -> None:
        pushes = bool(config.deliver_subject)
        if self.pull and pushes:
            raise Misconfigured(f"{name} is a push consumer: no pull subscription")
        if not self.pull and not pushes:
            raise Misconfigured(f"{name} is a pull consumer: a pull subscription is required")
        if self.pull and config.ack_policy != _EXPLICIT:
            raise Misconfigured(f"ack policy {config.ack_policy} cannot be pulled")

    def _check_group(self, name: str, config: ConsumerConfig, *, bound: bool) -> None:
        group = config.deliver_group
        if self.queue is None:
            if group:
                raise Misconfigured(f"{name} is for the queue group {group}")
            if bound:
                raise Misconfigured(f"duplicate subscription: {name} has a subscriber")
            return
        if not group:
            raise Misconfigured(f"{name} has no deliver group, and is not for a queue")
        if group != self.queue:
            raise Misconfigured(f"{name} is for the queue group {group}, not {self.queue}")
        if config.flow_control:
            raise Misconfigured(f"{name} has flow control, which a queue group cannot have")
        if config.idle_heartbeat:
            raise Misconfigured(f"{name} has heartbeats, which a queue group cannot have")

    def _check_filter(self, name: str, config: ConsumerConfig) -> None:
        filters = self._filters_of(config)
        if self.subject is not None and filters != [self.subject]:
            raise Misconfigured(f"{name} filters {', '.join(filters)}, not {self.subject}")

    def _filters_of(self, config: ConsumerConfig) -> list[str]:
        """Return the filters that `config` has; without one it is ours."""
        return list(config.filter_subjects or [config.filter_subject or self.subject or ">"])
