"""Changes of a change set as a program hears them, and values that it sets by name."""

import asyncio

import pytest

from rebaser_client import InvalidDraft, NoSuchValue, ReadRefused
from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.draft import builtin
from rebaser_client.reader import LogEntry
from rebaser_core.commits import CommitV2, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_server.commit_log.log import ON_ONE_SERVER
from rebaser_server.processor.ownership import acquire_ownership
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets


async def first(count: int, handle: ChangeSetHandle, after: int = 0) -> list[LogEntry]:
    found = list[LogEntry]()
    async with asyncio.timeout(60):
        async for entry in handle.changes(after=after):
            found.append(entry)
            if len(found) == count:
                break
    return found


async def test_changes_are_those_behind_a_commit_and_then_each_new_one(
    deployment: Deployment,
) -> None:
    """Also while NATS is away for a moment."""
    [change_set], value = new_change_sets(1), new_id()
    await deployment.start()
    shop = deployment.client.change_set(*change_set)
    kept = [(await shop.enqueue([put(value, number)])).commit for number in range(3)]

    heard = asyncio.create_task(first(4, shop, after=kept[0]))
    kept.append((await shop.enqueue([set_to(value, 3)])).commit)
    deployment.nats.stop()
    deployment.nats.start()
    kept.append((await shop.enqueue([set_to(value, 4)])).commit)

    assert [entry.commit for entry in await heard] == kept[1:]
    assert [entry.commit for entry in await first(1, shop, after=kept[-2])] == kept[-1:]
    frame = (await shop.log(last=2)).to_pandas()
    assert frame["commit"].to_list() == kept[-2:]
    assert set(frame["outcome"]) == {"applied"}


async def test_changes_that_are_not_kept_any_more_are_missed_aloud(deployment: Deployment) -> None:
    [change_set], value = new_change_sets(1), new_id()
    await deployment.start()
    shop = deployment.client.change_set(*change_set)
    one, other, last = [(await shop.enqueue([put(value, number)])).commit for number in range(3)]
    streams = deployment.streams
    await deployment.js.purge(
        streams.commits_stream, subject=streams.commits(change_set), below_sequence=last
    )

    with pytest.raises(ReadRefused, match=f"after commit {one}; read the values"):
        await first(1, shop, after=one)
    assert [entry.commit for entry in await first(1, shop)] == [last]
    assert [entry.commit for entry in await first(1, shop, after=other)] == [last]


async def test_commits_that_were_written_together_have_no_gap(deployment: Deployment) -> None:
    """They name the commits that their writer expected: another change set's came between."""
    change_set, other = new_change_sets(2)
    owner = await acquire_ownership(deployment.archive(change_set), "owner")
    await acquire_ownership(deployment.archive(other), "other")
    start, request = owner.state.commit, RequestId()
    settled = SettledRequest(id=request, sequence=1, outcome=RequestOutcome.APPLIED)
    commits = [
        CommitV2(
            id=RequestId(),
            previous=start + number,
            control=owner.state.control,
            settled=settled if number == ON_ONE_SERVER - 1 else None,
        )
        for number in range(ON_ONE_SERVER)
    ]
    await deployment.archive(change_set).log.append(commits)

    [heard] = await first(1, deployment.client.change_set(*change_set), after=start)

    assert heard.request == request


async def test_a_source_is_set_by_its_name_and_a_formula_is_not(deployment: Deployment) -> None:
    await deployment.start()
    await deployment.client.workspace("shop").create()
    shop = deployment.client.change_set("shop")
    async with shop.edit() as draft:
        draft.source("net", 1)
        draft.value("gross", builtin("sum"), "net")

    outcome = await shop.set_value("net", 5, wait="computed")

    assert not outcome.corrections
    assert (await shop.values("gross"))["gross"].value == 5
    assert [(one.value, one.status) for one in await shop.history("gross")] == [
        (1, "ok"),
        (5, "ok"),
    ]
    with pytest.raises(NoSuchValue, match="none of the last 20 requests is there a value 'nett'"):
        await shop.history("nett")
    with pytest.raises(InvalidDraft, match="'gross' is computed; set its inputs instead: net"):
        await shop.set_value("gross", 3)
    with pytest.raises(NoSuchValue, match="there is 'net'"):
        await shop.set_value("nett", 3)
    with pytest.raises(NoSuchValue, match=r"none of the last 20 requests is there a value 'n\*t'"):
        await shop.history("n*t")
    with pytest.raises(NoSuchValue, match=r"there is no value 'n\*t' in shop"):
        await shop.set_value("n*t", 3)
    assert (await shop.values("gross"))["gross"].func_id is not None
