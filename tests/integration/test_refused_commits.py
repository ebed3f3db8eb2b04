"""A line of the commit log that the server refuses for good: its request alone is put away."""

from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from rebaser_core.commits import RequestOutcome
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import StreamConfig
from rebaser_server.commit_log import log
from rebaser_server.errors import RetryLater
from rebaser_server.processor.context import Services
from rebaser_server.processor.run import process
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Shutdown
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.services import services_of

LARGEST_LINE = 5 * 1024
"""Octets that the stream takes of a line here: enough for one without corrections."""
BEFORE = 24
"""Requests before the culprit. After so many lines of a single writer several go at once."""
BEHIND = 3
AHEAD = "Nats-Expected-Last-Msg-Id"
"""Header of a line that is sent without awaiting the receipt of the one before it."""


async def test_of_lines_sent_ahead_only_the_refused_one_is_not_applied(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await limit_lines(deployment, max_msg_size=LARGEST_LINE)
    unknown = [{"removeValue": {"valueId": str(RequestId())}} for _ in range(100)]
    batches = [
        values.define(0, 0),
        *([set_to(values.net, number)] for number in range(BEFORE)),
        unknown,  # a line with 100 corrections
        *([set_to(values.tax, number)] for number in range(BEHIND)),
    ]
    ids = [str(await deployment.client.enqueue_updates(*change_set, batch)) for batch in batches]
    culprit = ids[BEFORE + 1]
    sent: list[Any] = []

    async def see(message: Any) -> None:
        sent.append(message)

    await deployment.nc.subscribe(deployment.streams.commits(change_set), cb=see)
    services = services_of(deployment, attempts=2)  # a daemon would begin nothing (X3)
    async with recording(deployment) as recorder:
        with capture_logs() as said:
            await worked_off(services, change_set)
        await eventually(lambda: recorder.settled(change_set) == ids)

    refused = [at for at, line in enumerate(sent) if len(line.data) > LARGEST_LINE]
    assert any(AHEAD in line.headers for at in refused for line in sent[at : at + 2])
    lines = [line.settled for line in recorder.lines[change_set] if line.settled]
    assert [str(each.id) for each in lines if each.outcome is RequestOutcome.DEAD] == [culprit]
    assert len(await deployment.dead_letters(change_set)) == 1
    assert len([line for line in said if line["event"] == "request failed"]) == 2
    total = (await deployment.graph(change_set)).values[values.gross].value
    assert total == BEFORE - 1 + BEHIND - 1


@pytest.mark.parametrize("together", [True, False])
async def test_of_a_group_that_meets_a_limit_of_nats_each_request_is_applied_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """L1: what is refused for want of room has not failed, and what was stored before it stands.

    As one batch, or each sent ahead of the receipt of the one before it.
    """
    monkeypatch.setattr(log, "ON_ONE_SERVER", 2 if together else log.NEVER)
    [change_set], values = new_change_sets(1), ExampleGraph()
    batches = [values.define(0, 0), *([set_to(values.net, number)] for number in range(60))]
    ids = [str(await deployment.client.enqueue_updates(*change_set, batch)) for batch in batches]
    services = services_of(deployment, attempts=1)
    await limit_lines(deployment, max_bytes=20_000)
    async with recording(deployment) as recorder:
        with pytest.raises(RetryLater, match="maximum bytes exceeded"):
            await process(services, change_set, Shutdown(), SlotLease(change_set.workspace_id))
        await eventually(lambda: bool(recorder.settled(change_set)))
        assert len(recorder.settled(change_set)) < len(ids)
        await limit_lines(deployment, max_bytes=-1)

        await worked_off(services, change_set)
        await eventually(lambda: recorder.settled(change_set) == ids)

    assert await deployment.dead_letters(change_set) == []
    assert (await deployment.graph(change_set)).values[values.gross].value == 59


async def worked_off(services: Services, change_set: ChangeSet) -> None:
    """Runs of the change set, each after the one before ended, until one finds nothing left."""
    while True:
        with suppress(RetryLater):
            await process(services, change_set, Shutdown(), SlotLease(change_set.workspace_id))
            return


async def limit_lines(deployment: Deployment, **limits: int) -> None:
    stream = deployment.streams.commits_stream
    config = await deployment.js.stream_config(stream)
    await deployment.js.update_stream(config | StreamConfig(**limits))
