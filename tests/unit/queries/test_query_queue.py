"""Turns of workspaces whose questions wait, and the room that each of them has."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from rebaser_server.queries.query_service import QueryBounds, _Queue, _QueuedQuery

_NO_MESSAGE: Any = None


def query(size: int = 1) -> _QueuedQuery:
    return _QueuedQuery(_NO_MESSAGE, size, 0.0)


def test_a_workspace_has_as_many_places_as_are_left_free() -> None:
    queue = _Queue(QueryBounds(waiting=8))

    assert [queue.put("one", query()) for _ in range(5)] == [True] * 4 + [False]
    assert queue.put("other", query())


def test_a_workspace_has_as_many_bytes_as_are_left_free() -> None:
    queue = _Queue(QueryBounds(waiting_bytes=100))

    assert [queue.put("one", query(40)) for _ in range(3)] == [True, True, False]
    assert not queue.put("one", query(1))
    assert [queue.put("other", query(size)) for size in (30, 10)] == [False, True]


async def test_workspaces_take_turns_and_leave_an_answerer_to_others() -> None:
    queue, asked = _Queue(QueryBounds()), [query(size) for size in range(1, 7)]
    for workspace, each in zip("aaaaab", asked, strict=True):
        queue.put(workspace, each)

    async with AsyncExitStack() as in_hand:
        taken = [await in_hand.enter_async_context(queue.next()) for _ in range(4)]
        assert taken == [asked[place] for place in (0, 5, 1, 2)]
        waiting = asyncio.ensure_future(in_hand.enter_async_context(queue.next()))
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.put("b", last := query())
        assert await waiting is last
    assert queue.bytes == 4 + 5
