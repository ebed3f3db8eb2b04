"""What loses its power: volumes with NATS and the store, and the servers on them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.processes import nats_servers
from tests.helpers.nats_process import MONITORING, NatsServer
from tests.powercut.volume import Volume, copy_image, mounted, new_volume

SYNC: Final = {"always": "jetstream { sync_interval: always }\n", "default": ""}
"""When NATS has on the disk what it acknowledged: before, or within two minutes."""

_PLACES: Final = {1: (".",), 3: ("nats-0", "nats-1", "nats-2", "store")}
"""By the number of servers, what is on a volume of its own: all, or each server and the store."""


@dataclass(frozen=True)
class Machines:
    """`directory` has NATS in `nats`, or `nats-0` to `nats-2`, and the store in `store`."""

    directory: Path
    volumes: Sequence[Volume]
    servers: Sequence[NatsServer]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.servers)


@contextmanager
def new_volumes(images: Path, directory: Path, servers: int) -> Iterator[list[Volume]]:
    """Empty ones. Their files are in `images`, named as those that `copied_volumes` finds."""
    images.mkdir()
    with ExitStack() as stack:
        yield [
            stack.enter_context(new_volume(images / f"{number}", directory / place))
            for number, place in enumerate(_PLACES[servers])
        ]


@contextmanager
def copied_volumes(
    images: Path, copies: Path, directory: Path, servers: int
) -> Iterator[list[Volume]]:
    """Those that a cut left, copied once more: what is done to them is not done to its images."""
    with ExitStack() as stack:
        volumes = []
        for number, place in enumerate(_PLACES[servers]):
            copy_image(images / f"{number}", copies / f"{number}")
            volumes.append(stack.enter_context(mounted(copies / f"{number}", directory / place)))
        yield volumes


@asynccontextmanager
async def powered(
    volumes: Sequence[Volume], directory: Path, *, servers: int, sync: str
) -> AsyncIterator[Machines]:
    """NATS runs on the volumes."""
    config = MONITORING + SYNC[sync]
    async with nats_servers(directory, cluster=servers > 1, config=config) as started:
        yield Machines(directory, volumes, started)
