"""A consumer's priority group: what its pulls say, and the pin of its client (ADR-42)."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from nats.aio.msg import Msg

from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.errors import Misconfigured

_NAME: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_PIN_ID: Final = "Nats-Pin-Id"
_LOWEST_PRIORITY: Final = 9
_POLICIES: Final = {
    "min_pending": "overflow",
    "min_ack_pending": "overflow",
    "priority": "prioritized",
}


@dataclass(frozen=True, slots=True)
class PriorityGroup:
    """The group that pulls belong to, and what its consumer's policy lets them say.

    With the policy `pinned_client` the name is all: one client gets everything until it has made
    no pull for the consumer's `priority_timeout`, or is unpinned. The pin is kept by itself.

    Raises:
        Misconfigured: no such name or number, or options of two policies.
    """

    name: str
    """1 to 16 letters, digits and `/_=-`."""
    _: KW_ONLY
    min_pending: int | None = None
    """With `overflow`: get messages only while so many or more were never delivered."""
    min_ack_pending: int | None = None
    """The same, while so many or more wait for their acks. If both are given, one is enough."""
    priority: int | None = None
    """With `prioritized`: 0 (the default) to 9. A pull waits while one of a lower number does."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Misconfigured(f"group {self.name!r}: give 1 to 16 letters, digits and /_=-")
        for option in ("min_pending", "min_ack_pending"):
            if (least := getattr(self, option)) is not None and least < 1:
                raise Misconfigured(f"{option}={least} is no condition: give 1 or more")
        if self.priority is not None and not 0 <= self.priority <= _LOWEST_PRIORITY:
            raise Misconfigured(f"priority={self.priority}: give 0, served first, to 9")
        if len({_POLICIES[option] for option in _given(self)}) > 1:
            said = " and ".join(_given(self))
            raise Misconfigured(f"{said} are of different policies: give the consumer's only")


def _given(group: PriorityGroup) -> dict[str, int]:
    return {name: value for name in _POLICIES if (value := getattr(group, name)) is not None}


@dataclass(slots=True)
class Pin:
    """How the server knows the client that it pinned: all pulls of that client say it."""

    id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One client of a group, in one of its readings.

    Its `pin` is the same in all of them; None where the policy pins no client.
    """

    group: PriorityGroup
    pin: Pin | None

    def to_pull(self) -> dict[str, Any]:
        """Return what a pull has to say now."""
        said = {"group": self.group.name} | _given(self.group)
        return said | ({"id": self.pin.id} if self.pin and self.pin.id else {})

    def on_message(self, message: Msg) -> bool:
        """Keep the pin that comes with a message; return whether it is another one.

        If so, pulls without it that are under way bring nothing before the client has lost it.
        """
        pin_id = (message.headers or {}).get(_PIN_ID)
        if self.pin is None or pin_id in (None, self.pin.id):
            return False
        self.pin.id = pin_id
        return True

    def on_wrong_pin(self) -> None:
        """Forget the pin: another client has one, or this one will be given another."""
        if self.pin is not None:
            self.pin.id = None


def join_group(group: PriorityGroup | None, config: ConsumerConfig, pin: Pin) -> GroupMember | None:
    """Return who pulls the consumer in this group, or None if it is pulled in none.

    Raises:
        Misconfigured: the consumer has other groups, or none, or its policy does not look at an
            option. Some such pulls the server would serve, as if nothing was said.
    """
    groups = config.priority_groups or ()
    if group is None:
        if groups:
            raise Misconfigured(f"the consumer is pulled in groups: give one of {_list(groups)}")
        return None
    if not groups:
        raise Misconfigured(f"the consumer has no priority groups: leave {group.name} out")
    if group.name not in groups:
        raise Misconfigured(f"the consumer has no group {group.name}: give one of {_list(groups)}")
    for option in _given(group):
        if _POLICIES[option] != config.priority_policy:
            raise Misconfigured(
                f"{option} is for the policy {_POLICIES[option]}, and the consumer's is"
                f" {config.priority_policy}: leave it out"
            )
    # elsewhere the header of the pin is what a client stored, and a pull with an id is refused
    return GroupMember(group, pin if config.priority_policy == "pinned_client" else None)


def _list(groups: Sequence[str]) -> str:
    return ", ".join(groups)
