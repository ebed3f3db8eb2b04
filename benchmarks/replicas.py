"""Streams with a replica on each server, led by the server that everything connects to.

Else what is compared would differ by where the leader of its stream happens to be.
"""

from contextlib import suppress

from benchmarks.broker import Broker
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
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
