"""Whether the owner that did not release a change set counts as dead (L1, D6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rebaser_core.commits import CommitV2, ControlState, DvuClaim, FailedAttempts
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.requests import ensure_task
from rebaser_server.cluster.membership import ANSWERS, present
from rebaser_server.processor.ownership import LOST_LEASES_PER_DEATH, FormerOwners
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets, recording


@asynccontextmanager
async def former(deployment: Deployment, *, lives: bool) -> AsyncIterator[str]:
    """The owner that the log names, whose process answers in the body if it `lives`."""
    if lives:
        async with present(deployment.streams, "alive/1") as instance:
            yield f"{instance}/{RequestId()}"
    else:
        yield f"dead/1{ANSWERS}/{RequestId()}"


@pytest.mark.parametrize("lives", [False, True])
async def test_a_request_is_given_up_for_deaths_and_not_for_a_lost_lease(
    deployment: Deployment, *, lives: bool
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define())
    async with former(deployment, lives=lives) as owner:
        attempts = FailedAttempts(sequence=1, deaths=1)
        control = ControlState(epoch=1, owner=owner, attempts=attempts)
        line = CommitV2(id=RequestId(), previous=0, control=control)
        await deployment.archive(change_set).log.append([line])

        await deployment.start(MAX_ATTEMPTS="1")
        await deployment.at_rest()

    letters = await deployment.dead_letters(change_set)
    assert len(letters) == (0 if lives else 1)


@pytest.mark.parametrize("lives", [False, True])
async def test_an_update_fails_by_a_death_and_not_by_a_lost_lease(
    deployment: Deployment, *, lives: bool
) -> None:
    [change_set] = new_change_sets(1)
    async with former(deployment, lives=lives) as owner, recording(deployment) as recorder:
        claim = DvuClaim(id=RequestId(), covers=1)
        control = ControlState(epoch=1, owner=owner, dirty_sequence=1, claim=claim)
        line = CommitV2(id=RequestId(), previous=0, control=control)
        await deployment.archive(change_set).log.append([line])
        await ensure_task(deployment.streams, change_set)

        await deployment.start()
        await deployment.at_rest()

    failures = [commit.control.dvu_failures for commit in recorder.lines[change_set]]
    assert max(failures) == (0 if lives else 1)


async def test_the_last_of_many_lost_leases_without_a_release_counts_as_a_death() -> None:
    [one, other] = new_change_sets(2)
    alive = FormerOwners(is_gone)

    async def deaths(change_set: ChangeSet, times: int) -> list[bool]:
        return [await alive.counts_as_death(change_set, "alive/1-p/run") for _ in range(times)]

    few = LOST_LEASES_PER_DEATH - 1
    assert await deaths(one, few) == [False] * few
    assert await deaths(other, few) == [False] * few
    alive.forget(other)
    assert await deaths(one, LOST_LEASES_PER_DEATH) == [True] + [False] * few
    assert await deaths(other, few) == [False] * few
    assert await alive.counts_as_death(other, "dead/1-p/run")


async def is_gone(instance: str) -> bool:
    return instance == "dead/1-p"
