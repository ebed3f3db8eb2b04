"""What all runs of a process share, and what answers its questions, made from the settings."""

from collections.abc import Awaitable, Callable

from nats.aio.client import Client

from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.commit_log.batch_store import BatchStore, open_batch_store
from rebaser_server.commit_log.log import GroupCommit
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import ReleasedStates
from rebaser_server.processor.application import Application
from rebaser_server.processor.context import (
    MAX_STARTUPS,
    STARTUP_SHARE,
    FormerOwners,
    ProcessorSettings,
    Services,
    never_stopped,
)
from rebaser_server.processor.outcomes import Notifier, OutcomeLookup
from rebaser_server.queries.query_service import QueryService
from rebaser_server.queries.values import QueryBounds
from rebaser_server.runtime.tasks import Permits
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry.work_stats import WorkStats

MakeApplication = Callable[[JetStream, Subjects, BatchStore, WorkStats], Application]
"""Makes the application of a process."""


def build_services(
    nc: Client,
    provisioner: Provisioner,
    settings: Settings,
    make_application: MakeApplication,
    members: Membership,
    why_stopped: Callable[[], Awaitable[str | None]] = never_stopped,
) -> Services:
    """What all runs of this process, one of the `members`, share."""
    js, subjects = provisioner.js, provisioner.subjects
    batches = open_batch_store(js, subjects, settings)
    notifier = Notifier(nc, subjects)
    return Services(
        members.instance,
        js,
        subjects,
        GroupCommit(js, subjects.commits_stream),
        batches,
        make_application(js, subjects, batches, notifier.stats),
        notifier,
        FormerOwners(members.is_gone),
        ProcessorSettings(
            quiet_period=settings.quiet_period.total_seconds(),
            confirm_every=settings.ack_wait.total_seconds() / 2,
            attempts=settings.max_attempts,
            checkpoint_every=settings.checkpoint_every,
            retention=Retention.of(settings.history),
            dvu_attempts=settings.dvu_max_attempts,
            batch_limits=settings.limits,
        ),
        ReleasedStates(settings.released_bytes),
        why_stopped=why_stopped,
        startup_permits=Permits(MAX_STARTUPS, settings.ack_wait.total_seconds() * STARTUP_SHARE),
    )


def query_service(services: Services, settings: Settings) -> QueryService:
    outcomes = OutcomeLookup(services.js, services.subjects, services.application)
    queries = settings.queries
    bounds = QueryBounds(
        queries.max_waiting,
        queries.max_waiting_bytes,
        queries.max_reply_bytes,
        queries.cache_bytes,
    )
    return QueryService(services.subjects, services.loader, outcomes, bounds, services.held)
