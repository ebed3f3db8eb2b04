"""A command's connection to the deployment that the settings name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import JetStream, ObjectStore, connected
from rebaser_core.subjects import Subjects
from rebaser_server.commands.support.permissions import permitted
from rebaser_server.commit_log.batch_store import Batches
from rebaser_server.settings.nats_connection import connect_options, jetstream
from rebaser_server.settings.settings import Settings
from rebaser_server.store.batch_files import Results


@dataclass(frozen=True, slots=True)
class Deployment:
    """Streams and subjects of a deployment, and a client for it, on one connection."""

    js: JetStream
    subjects: Subjects
    client: RebaserClient
    batches: Batches


@asynccontextmanager
async def deployment(settings: Settings) -> AsyncIterator[Deployment]:
    """Connect for the time of the body.

    Raises:
        Unreachable: there is no NATS.
        NotPermitted: NATS refuses something that the body asks.
    """
    prefix = settings.nats.prefix
    async with connected(connect_options(settings)) as nc:
        js = jetstream(nc, settings.nats)
        async with RebaserClient.on(nc, js, prefix=prefix, author=settings.author) as client:
            subjects = Subjects(prefix)
            bucket = ObjectStore(js, subjects.batches_bucket)
            results = Results(settings.store.root, settings.store.options)
            batches = Batches(bucket, results)
            with permitted(settings.nats.user):
                yield Deployment(js, subjects, client, batches)
