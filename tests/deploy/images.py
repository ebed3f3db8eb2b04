"""`python -m tests.deploy.images`: what `make images` built, run as deploy/compose.yaml says."""

import asyncio
import signal
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rebaser_client.client import connect
from rebaser_core.ids import ChangeSetId, WorkspaceId
from tests.deploy.composed import (
    AGREED,
    LEFT_OUT,
    SECRETS,
    answered,
    of_the_daemon,
    operated,
    up,
)
from tests.deploy.containers import Container, must_be_root
from tests.deploy.network import Network, network
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.eventually import eventually

VALUES: Final = 500
"""Values computed by Spark."""


async def computed(net: Network) -> float:
    """Seconds until a client's batch is committed and computed, and again a changed value."""
    source, func = new_id(), new_id()
    dependents = [new_id() for _ in range(VALUES)]
    batch = [
        {"putFunc": {"funcId": func, "name": "sum", "runtime": "builtin", "code": "sum"}},
        put(source, 20),
        *(
            {"putValue": {"valueId": i, "funcId": func, "inputs": {"values": [source, source]}}}
            for i in dependents
        ),
    ]
    where = WorkspaceId(), ChangeSetId()
    began = time.monotonic()
    async with (
        connect(
            f"nats://{net.names['nats'][0]}:4222",
            user="client",
            password=SECRETS["NATS_CLIENT_PASSWORD"],
            api_prefix="js.rebaser",
            inbox_prefix="_INBOX.client",
        ) as client,
    ):
        reader = client.change_set(*where)
        for updates, value in ((batch, 40), ([set_to(source, 21)], 42)):
            _, reply = await client.enqueue_updates_with_reply(*where, updates)
            await reply

            async def is_current() -> bool:
                return (await reader.values(dependents[0])).may_be_stale is False

            await eventually(is_current, within=AGREED)
            found = await reader.values(*dependents)
            told = {(found[i].value, found[i].message) for i in dependents}
            assert told == {(value, None)}, told
    return time.monotonic() - began


def watched(net: Network, prometheus: Container) -> str:
    """What Prometheus knows by then: each Rebaser, and that something was applied and computed."""
    url = f"http://{net.names['prometheus'][0]}:9090/api/v1/query?query="
    rebasers = len(net.names["rebaser"])
    for query, wanted in (
        ('sum(up{job="rebaser"})', rebasers),
        ("max(rebaser_instances)", rebasers),
        ('sum(rebaser_requests_total{outcome="applied"}) >= bool 2', 1),
        ('sum(rebaser_dvus_total{how="finished"}) >= bool 2', 1),
    ):
        until = time.monotonic() + AGREED
        while True:
            found = answered(url + urllib.parse.quote(query), prometheus)["data"]["result"]
            if found and float(found[0]["value"][1]) == wanted:
                break
            assert time.monotonic() < until, (query, found)
            time.sleep(0.5)
    rules = answered(url.partition("/query")[0] + "/rules", prometheus)["data"]["groups"]
    return f"{rebasers} Rebasers scraped, {sum(len(g['rules']) for g in rules)} rules loaded"


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def stopped(containers: list[Container], wanted: int = 0) -> None:
    for container in containers:
        code, seconds = container.stop()
        say(f"{container.name}: SIGTERM, exit code {code} after {seconds:.1f} s")
        assert code == wanted, container.log.read_text()


@contextmanager
def told_if_it_fails(directory: Path) -> Iterator[None]:
    """With the last lines of every container's output."""
    try:
        yield
    except BaseException:
        for log in sorted(directory.glob("*.log")):
            say(f"== {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]))
        raise


def run(directory: Path) -> None:
    with network() as net, up(net, directory) as running, told_if_it_fails(directory):
        for rebaser in running["rebaser"]:
            say(f"{rebaser.name}: healthy after {rebaser.healthy():.1f} s")
        say(f"computed behind Spark Connect in {asyncio.run(computed(net)):.1f} s")
        say(watched(net, *running["prometheus"]))
        say(f"rebaser queue: {operated(net, directory, 'queue')}")
        stopped(running["rebaser"])
        stopped(running["spark"], 128 + signal.SIGTERM)  # as a JVM does
        alone = of_the_daemon(net, directory)
        try:
            say(f"{alone.name}: healthy after {alone.healthy():.1f} s")
            say(f"computed in it in {asyncio.run(computed(net)):.1f} s")
            stopped([alone])
        finally:
            alone.remove()


def main() -> None:
    must_be_root()
    say(f"not run, since there is no package of it: {', '.join(LEFT_OUT)}")
    with tempfile.TemporaryDirectory(prefix="rebaser-composed-") as name:
        Path(name).chmod(0o755)  # whoever is not root looks for its files there
        run(Path(name))


if __name__ == "__main__":
    main()
