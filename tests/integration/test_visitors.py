"""What visitors of a daemon's endpoint may cost it, before it is known who they are."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import REBASER, Daemon, Deployment, new_change_sets
from tests.helpers.machine_requirements import lacking
from tests.integration.test_ops_endpoint import get, url_of

DESCRIPTORS = 1024
"""As systemd gives a service, here as a limit that cannot be raised."""
HELD = 1_100
_LIMITED = ("sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$0" "$@"', *REBASER)


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * HELD:
        lacking(f"{2 * HELD} descriptors for a process", f"ulimit -Hn {2 * HELD}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * HELD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _half_said(url: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections with half a header on each."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            held.append(stack.enter_context(socket.create_connection((host, int(port)), 60)))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: local")
        yield held


async def _is_handled(deployment: Deployment, change_set: ChangeSet) -> bool:
    graph = ExampleGraph()
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, graph.define())
    await asyncio.wait_for(reply, 60)
    return True


def _descriptors(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


@pytest.mark.usefixtures("_many_descriptors")
async def test_a_daemon_hears_probes_and_requests_beside_connections_that_say_nothing(
    deployment: Deployment,
) -> None:
    """More of them than it may have descriptors; most of these are kept back for its work."""
    daemon = await deployment.start(command=_LIMITED, OPS__PORT="0")
    url, [change_set] = url_of(daemon), new_change_sets(1)

    def hold() -> tuple[ExitStack, int]:
        stack = ExitStack()
        stack.enter_context(_half_said(url, HELD))
        return stack, _descriptors(daemon)

    stack, taken = await asyncio.to_thread(hold)
    with stack:
        healthy = [await get(url + "healthz") for _ in range(3)]
        settled = await _is_handled(deployment, change_set)

    assert [status for status, _ in healthy] == [200] * 3
    assert settled
    assert taken < DESCRIPTORS / 2
    assert len(daemon.said_in_all()) < 50_000


async def test_a_daemon_raises_the_limit_of_its_descriptors_at_its_start(
    deployment: Deployment,
) -> None:
    command = ("sh", "-c", 'ulimit -S -n 300 && exec "$0" "$@"', *REBASER)

    daemon = await deployment.start(command=command)

    soft, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
