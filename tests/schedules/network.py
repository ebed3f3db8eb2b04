"""The simulated network: lines that delay and lose what chance says, and break when told to."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Weather:
    """How bad it is; drawn from the seed, and fair again once the faults are over."""

    random: random.Random
    delay: float = 0.001
    """Seconds that a message takes on average."""
    spikes: float = 0.0
    """Share of messages that take `spike` seconds more, on average."""
    spike: float = 0.1
    loss: float = 0.0
    """Share of messages that never arrive."""
    lag: float = 0.0
    """Seconds within which replicas have caught up; 0: a single server."""
    detours: random.Random | None = None
    """Decides which receipts for tasks come late: their leader may be far from the others."""
    detour_seconds: float = 0.3
    """Seconds that such a receipt takes more, on average."""

    def moment(self) -> float:
        seconds = self.random.expovariate(1.0) * self.delay
        if self.spikes and self.random.random() < self.spikes:
            seconds += self.random.expovariate(1.0) * self.spike
        return seconds

    def loses(self) -> bool:
        return self.loss > 0 and self.random.random() < self.loss

    def behind(self) -> float:
        return self.random.random() * self.lag if self.lag else 0.0

    def detour(self) -> float:
        if self.detours is None or self.detours.random() < 0.5:
            return 0.0
        return self.detours.expovariate(1.0) * self.detour_seconds

    def clear_up(self) -> None:
        self.spikes = self.loss = 0.0
        self.detours = None


class Line:
    """First in, first out, each after a while: one direction of a connection, or a queue.

    A connection's messages arrive all or, from where it broke, none. What is lost in
    between is lost by the server, which JetStream's clients must bear as well.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, weather: Weather, context: Any) -> None:
        self._loop = loop
        self._weather = weather
        self._context = context
        self._free_at = 0.0
        self.broken = False

    @property
    def busy(self) -> bool:
        return self._free_at > self._loop.time()

    def send(self, deliver: Callable[..., Any], *args: Any) -> None:
        if not self.broken:
            self._free_at = max(self._free_at, self._loop.time() + self._weather.moment())
            arrive = self._arrive
            self._loop.call_at(self._free_at, arrive, deliver, args, context=self._context)

    def _arrive(self, deliver: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not self.broken:
            deliver(*args)
