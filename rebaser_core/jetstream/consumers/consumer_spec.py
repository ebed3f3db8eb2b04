"""What ADR-15 lets a subscription be, and to which existing consumer it may be bound."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rebaser_core.jetstream.config_diff import diff_config
from rebaser_core.jetstream.errors import Misconfigured

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
    config: Mapping[str, Any] = field(default_factory=dict)

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
        config = self.config
        filters = config.get("filter_subjects") or [config.get("filter_subject") or self.subject]
        if self.subject is not None and list(filters) != [self.subject]:
            raise Misconfigured(
                f"subject {self.subject}, but filter {', '.join(filters)}: the subject is the"
                " filter; for others give the stream and no subject"
            )

    def _check_deliver_group(self) -> None:
        group = self.config.get("deliver_group")
        if group and group != self.queue:
            raise Misconfigured(f"deliver_group {group} without queue={group!r}")

    def _check_pull(self) -> None:
        if self.config.get("ack_policy", _EXPLICIT) != _EXPLICIT:
            raise Misconfigured(f"ack policy {self.config['ack_policy']} cannot be pulled")
        if self.queue:
            raise Misconfigured("a queue group is for pushes; pullers share by themselves")
        for field_ in ("deliver_subject", "idle_heartbeat", "flow_control"):
            if self.config.get(field_):
                raise Misconfigured(f"{field_} is for pushes")

    def _check_queue(self) -> None:
        if self.config.get("idle_heartbeat"):
            raise Misconfigured("heartbeats would go to random members of the queue group")
        if self.config.get("flow_control"):
            raise Misconfigured("flow control would go to random members of the queue group")

    @property
    def name(self) -> str | None:
        """The consumer's name; the queue's if there is no other, so that its members meet."""
        given = self.config.get("durable_name") or self.config.get("name")
        return self.consumer or self.durable or given or self.queue

    def to_config(self) -> dict[str, Any]:
        """Return the configuration of the consumer to create, but for its deliver subject."""
        config = {"ack_policy": _EXPLICIT, **self.config}
        durable = self.durable or (self.queue and self.name)
        if durable:
            config["durable_name"] = durable
        if self.subject and not config.get("filter_subjects"):
            config["filter_subject"] = self.subject
        if self.queue:
            config["deliver_group"] = self.queue
        return config

    def check_compatible(self, info: Mapping[str, Any]) -> None:
        """See that an existing consumer is what was asked for.

        Raises:
            Misconfigured: it is not; says in which way, field by field.
        """
        config: Mapping[str, Any] = info["config"]
        self._check_kind(info["name"], config)
        if not self.pull:
            self._check_group(info["name"], config, bound=bool(info.get("push_bound")))
        self._check_filter(info["name"], config)
        asked = {name: value for name, value in self.config.items() if name != "deliver_subject"}
        if differing := diff_config(f"consumer {info['name']}", asked, config):
            raise Misconfigured("; ".join(map(str, differing)))

    def _check_kind(self, name: str, config: Mapping[str, Any]) -> None:
        pushes = bool(config.get("deliver_subject"))
        if self.pull and pushes:
            raise Misconfigured(f"{name} is a push consumer: no pull subscription")
        if not self.pull and not pushes:
            raise Misconfigured(f"{name} is a pull consumer: a pull subscription is required")
        if self.pull and config.get("ack_policy", "none") != _EXPLICIT:
            raise Misconfigured(f"ack policy {config.get('ack_policy')} cannot be pulled")

    def _check_group(self, name: str, config: Mapping[str, Any], *, bound: bool) -> None:
        group = config.get("deliver_group")
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
        if config.get("flow_control"):
            raise Misconfigured(f"{name} has flow control, which a queue group cannot have")
        if config.get("idle_heartbeat"):
            raise Misconfigured(f"{name} has heartbeats, which a queue group cannot have")

    def _check_filter(self, name: str, config: Mapping[str, Any]) -> None:
        found = config.get("filter_subjects") or [config.get("filter_subject") or self.subject]
        if self.subject is not None and list(found) != [self.subject]:
            raise Misconfigured(f"{name} filters {', '.join(found)}, not {self.subject}")
