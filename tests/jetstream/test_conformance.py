"""Whatever breaks: nothing lost, nothing twice, nothing out of order, never falsely quiet, no rest.

The reader's connection and the writer's meet the same fault half-way. The writer
repeats what was not confirmed with the same message id; the reader deletes what
it has read, some way behind, as a queue does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.jetstream import (
    ConnectOptions,
    Delivery,
    JetStream,
    NatsUnreachable,
    OrderedPullConsumer,
    OrderedPushConsumer,
    PullConsumer,
    StreamConfig,
    Unavailable,
    connected,
)
from rebaser_core.jetstream.ordered import OrderedReader
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.jetstream.conftest import V2_ACKS
from tests.jetstream.stalling_proxy import DeafProxy
from tests.jetstream.steps import STREAM, consumers, durable, numbers

# each refused reconnect through the proxy leaves nats-py a writer that it never closes
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HEARTBEAT = 0.2  # seconds; all else follows from it
MESSAGES = 300
BEHIND = 30  # messages that stay in the stream after they were read


@dataclass
class Scene:
    """A server, a deaf-able way to it, a reader's and a writer's JetStream."""

    server: NatsServer
    proxy: DeafProxy
    reading: JetStream
    writing: JetStream
    total: int = MESSAGES
    stored: int = 0
    found: list[Delivery] = field(default_factory=list)

    async def write(self) -> None:
        for number in range(self.total):
            while True:
                try:
                    await self.writing.publish("s.a", b"%d" % number, message_id=f"{number}")
                except (NatsUnreachable, Unavailable):
                    continue
                self.stored = number + 1
                break

    async def got_to(self, share: float) -> None:
        """Return when that share of the messages was read."""
        await eventually(lambda: len(self.found) > share * self.total, within=120)

    async def clear_up(self) -> None:
        """Delete what was read some way behind, so that the stream has holes."""
        if len(self.found) > BEHIND:
            try:
                await self.writing.delete_message("S", self.found[-BEHIND].stream_sequence)
            except (NatsUnreachable, Unavailable):
                return


@asynccontextmanager
async def scene(directory: Path, config: str, **stream: Any) -> AsyncIterator[Scene]:
    with running(NatsServer(directory / "nats", config)) as server:
        async with DeafProxy(server.port) as proxy:
            through = ConnectOptions(servers=(proxy.url,), probe_interval=1, probe_timeout=1)
            async with (
                connected(through) as near,
                connected(ConnectOptions(servers=(server.url,))) as far,
            ):
                js = JetStream(far, timeout=2)
                await js.create_stream(STREAM | StreamConfig(**stream))
                yield Scene(server, proxy, JetStream(near, timeout=2), js)


async def nothing(_: Scene) -> None:
    """The control: if this fails, the test is at fault."""


async def restart_by_term(scene: Scene) -> None:
    scene.server.stop()
    await asyncio.to_thread(scene.server.start)


async def restart_by_kill(scene: Scene) -> None:
    scene.server.kill()
    await asyncio.sleep(HEARTBEAT)  # for a while there is no server
    await asyncio.to_thread(scene.server.start)


async def delete_the_consumer(scene: Scene) -> None:
    for name in await consumers(scene.writing):
        if name != "d":
            await scene.writing.delete_consumer("S", name)


async def freeze_the_server(scene: Scene) -> None:
    scene.server.freeze()
    await asyncio.sleep(5 * HEARTBEAT)  # so that readers miss heartbeats
    scene.server.thaw()


async def go_deaf_for_a_while(scene: Scene) -> None:
    scene.proxy.deaf = True
    await asyncio.sleep(5 * HEARTBEAT)  # so that readers miss heartbeats
    scene.proxy.deaf = False


async def go_deaf_for_good(scene: Scene) -> None:
    """The reader's connection never says anything again; a new one works."""
    scene.proxy.deaf = True
    scene.proxy.hear_new_connections()


Fault = Callable[[Scene], Awaitable[None]]
FAULTS: list[Fault] = [
    nothing,
    restart_by_term,
    restart_by_kill,
    delete_the_consumer,
    freeze_the_server,
    go_deaf_for_a_while,
    go_deaf_for_good,
]
RESTARTS = (restart_by_term, restart_by_kill)
QUICK = (nothing, restart_by_kill, go_deaf_for_good)
SLOW = [pytest.mark.slow]
PLACES = [
    pytest.param("", "file", id="v1-file"),
    pytest.param(V2_ACKS, "file", id="v2-file", marks=pytest.mark.slow),
    pytest.param("", "memory", id="v1-memory", marks=pytest.mark.slow),
    pytest.param(V2_ACKS, "memory", id="v2-memory", marks=pytest.mark.slow),
]


def situations(quick: Sequence[Fault]) -> list[Any]:
    """Each fault in each place, but for those by which the stream itself is lost."""
    return [
        pytest.param(
            fault,
            *place.values,
            id=f"{place.id}-{fault.__name__}",
            marks=[*place.marks, *(() if fault in quick else SLOW)],
        )
        for place in PLACES
        for fault in FAULTS
        if fault not in RESTARTS or "memory" not in place.values
    ]


KINDS = [OrderedPushConsumer, pytest.param(OrderedPullConsumer, marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "config", "storage"), situations(FAULTS))
async def test_an_ordered_reader_misses_and_repeats_nothing(
    tmp_path: Path, kind: type[OrderedReader], fault: Fault, config: str, storage: str
) -> None:
    async with scene(tmp_path, config, storage=storage) as here:
        async with kind(here.reading, "S", "s.a", idle_heartbeat=HEARTBEAT) as reader:
            async with asyncio.timeout(150), asyncio.TaskGroup() as group:
                group.create_task(here.write())
                group.create_task(broken_half_way(here, fault))
                await read_all(here, reader)
            assert await reader.next(idle_timeout=0) is None
        assert numbers(here.found) == list(range(here.total))
        await eventually(lambda: no_consumers(here))


async def read_all(scene: Scene, reader: OrderedReader) -> None:
    while len(scene.found) < scene.total:
        stored = scene.stored
        delivery = await reader.next(idle_timeout=0.02)
        if delivery is None:
            assert len(scene.found) >= stored, "falsely quiet"
        else:
            scene.found.append(delivery)
            await scene.clear_up()


async def broken_half_way(scene: Scene, fault: Fault) -> None:
    await scene.got_to(1 / 3)
    await fault(scene)


@pytest.mark.parametrize(("fault", "config", "storage"), situations(QUICK))
async def test_work_is_done_by_one_or_the_other_and_none_is_left(
    tmp_path: Path, fault: Fault, config: str, storage: str
) -> None:
    """Two workers; each message done at least once, and again only if it was delivered again."""
    async with scene(tmp_path, config, storage=storage, retention="workqueue") as here:
        await durable(here.writing, ack_wait=timedelta(seconds=1))

        async def work(js: JetStream) -> None:
            async with PullConsumer(js, "S", "d", idle_heartbeat=HEARTBEAT) as pull:
                while True:
                    delivery = await pull.take(4)
                    here.found.append(delivery)
                    await delivery.ack()

        workers = [asyncio.create_task(work(js)) for js in (here.reading, here.writing)]
        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            group.create_task(here.write())
            group.create_task(broken_half_way(here, fault))
            group.create_task(eventually(lambda: nothing_left(here), within=110))
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)

        done = [delivery for delivery in here.found if delivery.delivered == 1]
        assert {int(delivery.payload) for delivery in here.found} == set(range(here.total))
        assert len(numbers(done)) == len(set(numbers(done))) or fault in RESTARTS


async def no_consumers(scene: Scene) -> bool:
    return await consumers(scene.writing) == []


async def nothing_left(scene: Scene) -> bool:
    try:
        info = await scene.writing.stream_info("S")
    except (NatsUnreachable, Unavailable):
        return False
    return scene.stored == scene.total and info.state.messages == 0


@pytest.mark.slow
async def test_a_handler_that_stands_still_before_400_megabytes(tmp_path: Path) -> None:
    """nats-py loses a third of them; here they wait at the server."""
    async with scene(tmp_path, "") as here:
        for number in range(39_999):
            await here.writing.connection.publish("s.a", b"%09d" % number + bytes(9_991))
        await here.writing.publish("s.a", b"%09d" % 39_999 + bytes(9_991), timeout=60)

        async with OrderedPushConsumer(here.reading, "S", "s.a", idle_heartbeat=1) as reader:
            first = await anext(reader)
            await asyncio.sleep(10)  # time in which the server sends as much as it may
            held = here.reading.nc.stats["in_bytes"]
            found = [int(first.payload[:9])]
            while (delivery := await reader.next(idle_timeout=0)) is not None:
                found.append(int(delivery.payload[:9]))

        assert found == list(range(40_000))
        assert held < 40_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OrderedPushConsumer, OrderedPullConsumer])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_the_same_with_many_faults_one_after_the_other(
    tmp_path: Path, kind: type[OrderedReader], fault: Fault
) -> None:
    async with scene(tmp_path, V2_ACKS) as here:
        here.total = 6000
        async with kind(here.reading, "S", "s.a", idle_heartbeat=HEARTBEAT) as reader:
            async with asyncio.timeout(180), asyncio.TaskGroup() as group:
                group.create_task(here.write())
                group.create_task(broken_again_and_again(here, fault))
                await read_all(here, reader)
            assert await reader.next(idle_timeout=0) is None
        assert numbers(here.found) == list(range(here.total))
        await eventually(lambda: no_consumers(here))


async def broken_again_and_again(scene: Scene, fault: Fault) -> None:
    for share in range(1, 9):
        await scene.got_to(share / 10)
        await fault(scene)
