"""When several commits are appended as one atomic batch (W7, ADR-50)."""

import asyncio
import math
from typing import Final

from rebaser_core.jetstream import JetStream, JetStreamError

MAX_COMMITS: Final = 64
"""Commits that are appended together, at most."""

ON_REPLICAS: Final = 2
"""Commits from which on a batch is faster than one after the other, where a quorum confirms."""

ON_ONE_SERVER: Final = 32
"""The same on one server, which keeps a file for each batch while it comes in. If as many can be
sent ahead of their receipts, that is faster."""

NEVER: Final = MAX_COMMITS + 1

_ASK_AGAIN_AFTER: Final = 10.0  # seconds after a batch was refused, which may be for the moment


class GroupCommit:
    """What the stream of commits takes. All logs of a process share one."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._min_size = NEVER
        self._known_until = 0.0
        self.replicated = False
        """Whether a quorum confirms each commit, as far as known."""

    @property
    def min_size(self) -> int:
        """From how many commits on a batch is worth it; `NEVER` is more than are ever appended."""
        return self._min_size

    @property
    def is_known(self) -> bool:
        """Whether `refresh` would change nothing until a batch is refused."""
        return self._known_until == math.inf

    async def refresh(self) -> None:
        """Learn it from the stream's configuration, unless it is known."""
        if asyncio.get_running_loop().time() < self._known_until:
            return
        try:
            config = await self._js.stream_config(self._stream)
        except JetStreamError:
            return  # the append that follows says so, or is well
        self.replicated = (config.num_replicas or 1) > 1
        batches = ON_REPLICAS if self.replicated else ON_ONE_SERVER
        self._min_size = batches if config.allow_atomic else NEVER
        self._known_until = math.inf

    def on_refused(self) -> None:
        """Note that the server takes no batch now."""
        self._min_size, self._known_until = (
            NEVER,
            asyncio.get_running_loop().time() + _ASK_AGAIN_AFTER,
        )
