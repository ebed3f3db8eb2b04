"""Watchers see what was told, in order, and nothing that they cannot read."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_client.outcomes import ActivityFeed
from rebaser_core.activities import Activity, ActivityKind, ActivityV1
from rebaser_core.jetstream.connection import Connection
from tests.wire.samples import REQUEST, WHERE


def told(kind, **changed):
    activity = ActivityV1(id=REQUEST, **WHERE, kind=kind)
    headers, payload = Activity.encode(activity)
    return Msg(_client=Client(), subject="a", headers={**headers, **changed}, data=payload)


async def test_activities_come_in_the_order_of_their_publication():
    activities = ActivityFeed(Connection.of(Client()))
    for kind in ActivityKind:
        await activities.receive(told(kind))

    assert [(await anext(activities)).kind for _ in ActivityKind] == list(ActivityKind)


async def test_a_newer_version_and_nonsense_are_passed_over():
    activities = ActivityFeed(Connection.of(Client()))

    await activities.receive(told(ActivityKind.TAKEN, **{"X-MESSAGE-VERSION": "2"}))
    await activities.receive(Msg(_client=Client(), subject="a", data=b"\xff"))
    await activities.receive(told(ActivityKind.QUIET))

    assert (await anext(activities)).kind is ActivityKind.QUIET


async def test_a_wait_that_is_given_up_loses_nothing():
    activities = ActivityFeed(Connection.of(Client()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(activities)

    await activities.receive(told(ActivityKind.QUIET))

    assert (await anext(activities)).kind is ActivityKind.QUIET
