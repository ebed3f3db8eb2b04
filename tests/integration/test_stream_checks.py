"""`rebaser doctor` names streams whose writes NATS refuses while it answers other calls."""

import resource

import pytest

from rebaser_core.jetstream import JetStream, NatsUnreachable
from rebaser_server.cluster.nats_writes import _matches
from rebaser_server.doctor.checks import Finding, Severity, streams
from rebaser_server.service.composition import provisioner_of
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


async def found(deployment: Deployment, *, patience: float = 30) -> list[Finding]:
    js = JetStream(deployment.nc, timeout=patience)
    provisioner = provisioner_of(js, deployment.settings)
    return [finding async for finding in streams(provisioner)]


async def is_stored(deployment: Deployment, subject: str, *, patience: float = 0.5) -> bool:
    try:
        await deployment.js.publish(subject, b"", timeout=patience)
    except NatsUnreachable:
        return False
    return True


async def test_a_stream_that_was_written_to_while_the_disk_was_full_is_named(
    deployment: Deployment,
) -> None:
    """It stays silent once there is room again, until NATS is restarted; others are well."""
    process, stream = deployment.nats.process, deployment.streams.commits_stream
    [change_set] = new_change_sets(1)
    subject = deployment.streams.commits(change_set)
    assert await is_stored(deployment, subject, patience=30)
    before = await found(deployment)
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert not await is_stored(deployment, subject)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    [finding] = await found(deployment, patience=3)
    assert not await is_stored(deployment, subject)
    deployment.nats.stop()
    deployment.nats.start()

    assert before == []
    assert (finding.where, finding.severity) == (stream, Severity.ERROR)
    assert finding.what.startswith("NATS does not write to it: ")
    assert finding.remedy.startswith("restart the NATS server")
    await eventually(lambda: is_stored(deployment, subject))
    assert await found(deployment) == []


async def test_the_trial_changes_nothing(deployment: Deployment) -> None:
    names = [deployment.streams.requests_stream, deployment.streams.commits_stream]
    [change_set] = new_change_sets(1)
    await deployment.js.publish(deployment.streams.requests(change_set), b"")
    before = [(await deployment.js.stream_info(name)).state for name in names]

    assert await found(deployment) == []

    assert [(await deployment.js.stream_info(name)).state for name in names] == before


async def test_a_server_that_stands_still_does_not_answer(deployment: Deployment) -> None:
    """Where NATS does not say what may be tried, a note says that nothing was."""
    deployment.nats.freeze()

    [note] = await found(deployment, patience=0.5)

    deployment.nats.thaw()
    assert note.severity is Severity.NOTE
    assert deployment.streams.commits_stream in note.what


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        (">", True),
        ("a.>", True),
        ("a.b.>", True),
        ("a.b.c.>", False),
        ("a.*.c", True),
        ("a.*", False),
        ("a.b.c", True),
        ("b.>", False),
    ],
)
def test_a_permission_is_a_pattern(pattern: str, *, matching: bool) -> None:
    assert _matches(pattern, "a.b.c") is matching
