"""Readers of the log tell of its requests, and refuse a log that ends too early."""

import asyncio
from datetime import timedelta

import pytest

from rebaser_client.reader import read_log
from rebaser_server.commit_log import log as commit_log
from rebaser_server.errors import HistoryInconsistent
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.scripted_owner import Owner


async def test_a_log_that_ends_before_the_commit_it_is_read_to_is_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the servers have lost the end of the log since the last commit was asked for."""
    owner = await Owner.of(deployment, new_change_sets(1)[0])
    log, last = owner.archive.log, await owner.commit([put(new_id(), 1)])
    entries = log.entries(0, last + 100)

    async with asyncio.timeout(60):
        while (await anext(entries))[0] < last:
            pass
        monkeypatch.setattr(commit_log, "_MISSING_AFTER", 0.1)
        with pytest.raises(HistoryInconsistent, match=f"ends at {last}, not at {last + 100}"):
            await anext(entries)


async def test_an_entry_says_when_its_request_was_stored_and_when_it_was_settled(
    deployment: Deployment,
) -> None:
    change_set = new_change_sets(1)[0]
    await deployment.client.enqueue_updates(*change_set, [put(new_id(), 1)])
    streams = deployment.streams
    request = await deployment.js.get_message(streams.requests_stream, sequence=1)
    await deployment.start()
    await deployment.at_rest()

    [entry] = await read_log(streams, change_set, limit=None)

    assert request is not None
    assert abs(entry.stored - request.time) < timedelta(milliseconds=2)
    assert entry.time > entry.stored
