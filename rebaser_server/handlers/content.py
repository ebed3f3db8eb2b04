"""The content of a key: its state, its timers, the calls that it sends, and the senders it heard.

Only `KeyContent.take` changes it, by the effect of a call. Commits keep effects, so that a replay
calls no handler.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rebaser_core.calls import Origin
from rebaser_core.commits import CallEffect, SettledRequest
from rebaser_server.commit_log.state import AppliedBatch, Batch, Content
from rebaser_server.errors import HistoryInconsistent

MAX_SENDERS: Final = 10_000
"""Number of senders of which a key knows how far it heard them: a repetition comes soon after a
call, when a run goes on that another one began, and rarely behind calls of that many others."""


class Timer(NamedTuple):
    """A call that is due at a time."""

    handler: str
    arguments: str
    """A list or an object, as JSON."""
    next: str
    """Time of the next call, in ISO 8601."""
    set_by: int
    """Sequence of the request that set this time."""
    every: str | None = None
    zone: str | None = None
    missed: str = "once"
    version: int = 1
    """Version of the service whose handler is meant."""

    def to_json(self) -> list[Any]:
        return list(self)


class Outgoing(NamedTuple):
    """A call that is sent, and not confirmed yet."""

    sequence: int
    """Sequence of the request whose handler sent it."""
    number: int
    """Number among the calls that this handler sent."""
    service: str
    key: str
    handler: str
    arguments: str
    timer: dict[str, Any] | None = None
    """A `TimerChange`, as the wire has it."""
    version: int = 1
    """Version of the sender's service, if it is the target's, too."""
    id: str = ""
    """Id of the request."""


Place = tuple[int, int]
"""Place among the calls of one sender: sequence and index."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Change of a key's content by a call."""

    name: tuple[str, str] | None = None
    """Service and key; only in the first effect of a key."""
    state: str | None = None
    """New state, as JSON; None: it stays."""
    version: int = 1
    """Version of the state's shape."""
    timers: dict[str, Timer | None] = field(default_factory=dict)
    """Timers that are set, and those that are over, by name."""
    sends: list[Outgoing] = field(default_factory=list)
    """Calls that it sends: in the commit of the change (O1)."""
    heard: Origin | None = None
    """Place of the call among those of its sender."""

    @property
    def is_dirty(self) -> bool:
        """Whether the background job has something to do: calls to send, alarms to set."""
        return bool(self.sends) or any(self.timers.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as commits have it: what is absent did not change."""
        said: dict[str, Any] = {}
        if self.name is not None:
            said["name"] = list(self.name)
        if self.state is not None:
            said["state"], said["version"] = self.state, self.version
        if self.timers:
            said["timers"] = {
                name: None if each is None else each.to_json() for name, each in self.timers.items()
            }
        if self.sends:
            said["sends"] = [list(each) for each in self.sends]
        if self.heard is not None:
            said["heard"] = self.heard.to_wire()
        return said

    @classmethod
    def from_json(cls, said: Any) -> "KeyChange":
        """Read `to_json`."""
        return cls(
            tuple(said["name"]) if "name" in said else None,
            said.get("state"),
            said.get("version", 1),
            {
                name: None if each is None else Timer(*each)
                for name, each in said.get("timers", {}).items()
            },
            [Outgoing(*each) for each in said.get("sends", ())],
            Origin.from_wire(said["heard"]) if "heard" in said else None,
        )


@dataclass(slots=True)
class KeyContent(Content):
    """The content of one key."""

    service: str = ""
    key: str = ""
    state: str | None = None
    """State as JSON; None: the key was never called with effect."""
    version: int = 1
    """Version of the state's shape."""
    timers: dict[str, Timer] = field(default_factory=dict)
    outgoing: list[Outgoing] = field(default_factory=list)
    """Calls that are not known to be stored yet, in order."""
    heard: dict[str, Place] = field(default_factory=dict)
    """Place of the last call that took effect or was refused, by sender, the one heard last at the
    end."""

    async def apply(self, sequence: int, batch: Batch, covers: int | None = None) -> AppliedBatch:
        """Refuse a batch of updates."""
        del sequence, batch, covers
        raise HistoryInconsistent(
            f"{self.service}/{self.key}: the log has updates of a value graph"
        )

    def take_over(self, settled: SettledRequest, call: CallEffect) -> None:
        del settled
        self.take(KeyChange.from_json(call.effect))

    def take(self, effect: KeyChange) -> None:
        """Change as a call did."""
        if effect.name is not None:
            self.service, self.key = effect.name
        if effect.state is not None:
            self.state, self.version = effect.state, effect.version
        for name, timer in effect.timers.items():
            if timer is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = timer
        self.outgoing += effect.sends
        if effect.heard is not None:
            sender = str(effect.heard.change_set_id)
            self.heard.pop(sender, None)
            self.heard[sender] = effect.heard.sequence, effect.heard.index
            if len(self.heard) > MAX_SENDERS:
                del self.heard[next(iter(self.heard))]

    def why_kept(self) -> str | None:
        # Its id follows from its name, so that what is deleted could never be called again; and
        # what it has yet to send would be lost (O3).
        return "a key of a service cannot be deleted: have a handler empty its state"

    def complete(self, covers: int) -> None:
        self.outgoing = [each for each in self.outgoing if each.sequence > covers]

    def has_heard(self, origin: Origin) -> bool:
        """Whether that call, or a later one of its sender, took effect or was refused (O4)."""
        last = self.heard.get(str(origin.change_set_id))
        return last is not None and (origin.sequence, origin.index) <= last

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "service": self.service,
            "key": self.key,
            "state": self.state,
            "version": self.version,
            "timers": {name: each.to_json() for name, each in self.timers.items()},
            "outgoing": [list(each) for each in self.outgoing],
            "heard": {sender: list(place) for sender, place in self.heard.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "KeyContent":
        """Read `to_json`."""
        return cls(
            data["service"],
            data["key"],
            data["state"],
            data["version"],
            {name: Timer(*each) for name, each in data["timers"].items()},
            [Outgoing(*each) for each in data["outgoing"]],
            {sender: (place[0], place[1]) for sender, place in data["heard"].items()},
        )
