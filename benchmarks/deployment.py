"""A daemon in a process of its own with production's settings, and its clients."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import Broker
from benchmarks.commits import following
from benchmarks.lanes import RebaserLane
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, JetStreamError, connected
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import REBASER, Daemon, new_change_sets
from tests.helpers.eventually import eventually

_WITHIN = 60.0  # seconds


async def provide(js: JetStream, server: Broker, subjects: Subjects) -> None:
    """Create what a Rebaser with these subjects needs, if it is not there yet."""
    nats = {"prefix": subjects.prefix, "replicas": server.servers}
    await prepare(js, Settings.model_validate({"nats": nats}))
    await lead(js, server)


async def lead(js: JetStream, server: Broker) -> None:
    """Have the first server lead all streams."""
    if server.servers == 1:
        return
    first = server.name
    await eventually(lambda: _leads(js, first), within=_WITHIN)


async def _leads(js: JetStream, first: str) -> bool:
    """Whether it leads all; those that lead others are asked to step down."""
    all_of_them = True
    for stream in await js.stream_names():
        with suppress(JetStreamError):  # it is being elected
            cluster = (await js.stream_info(stream)).cluster
            if cluster is not None and cluster.leader == first:
                continue
            body = {"placement": {"preferred": first}}
            await js.request(f"STREAM.LEADER.STEPDOWN.{stream}", body)
        all_of_them = False
    return all_of_them


CLIENT = "client"
INSTANCE = "measured"
DAEMON = f"rebaser {INSTANCE}"
"""Names of the two connections that requests travel over."""


class MeasuredDaemon(Daemon):
    """A daemon that is started as users start it; a test's is forked, and costs more as it runs."""

    def __init__(self, name: str, directory: Path, variables: dict[str, str]) -> None:
        super().__init__(name, directory, variables, list(REBASER))


@dataclass(frozen=True, slots=True)
class Deployment:
    """Change sets of a Rebaser, each taken up and with nothing to do."""

    broker: Broker
    daemon_pid: int
    watching: JetStream
    """A connection that is neither the client's nor the daemon's."""
    lanes: list[RebaserLane]


@asynccontextmanager
async def deployed(
    directory: Path, server: Broker, change_sets: int, url: str
) -> AsyncIterator[Deployment]:
    """A daemon and a client that reach `server` at `url`, warm; files are in `directory`."""
    subjects = Subjects()
    async with connected(ConnectOptions(servers=(server.url,), name="watcher")) as watching:
        await provide(JetStream(watching), server, subjects)
        with running(url, directory, server.servers) as daemon:
            await daemon.ready()
            async with (
                connected(ConnectOptions(servers=(url,), name=CLIENT)) as asking,
                RebaserClient.on(asking, JetStream(asking)) as client,
                following(JetStream(watching), subjects.commits_stream) as commits,
            ):
                lanes = [
                    RebaserLane(client, commits, subjects, change_set)
                    for change_set in new_change_sets(change_sets)
                ]
                for lane in lanes:
                    await lane.open()
                yield Deployment(server, daemon.process.pid, JetStream(watching), lanes)


@asynccontextmanager
async def client_of(server: Broker) -> AsyncIterator[tuple[RebaserClient, JetStream]]:
    """A client of its own, and the JetStream below it."""
    async with connected(ConnectOptions(servers=(server.url,), name=CLIENT)) as nc:
        js = JetStream(nc)
        async with RebaserClient.on(nc, js) as client:
            yield client, js


@contextmanager
def running(url: str, directory: Path, replicas: int = 1, **more: str) -> Iterator[MeasuredDaemon]:
    """A daemon at `url` that is starting, with store and all in `directory`, and more settings."""
    variables = {
        "NATS__URL": url,
        "NATS__REPLICAS": str(replicas),
        "STORE__ROOT": str(directory / "store"),
        "SPARK__STATE_DIRECTORY": str(directory / "spark"),
        "INSTANCE_ID": INSTANCE,
        **more,
    }
    daemon = MeasuredDaemon(variables["INSTANCE_ID"], directory, variables)
    try:
        yield daemon
    finally:
        daemon.kill()
