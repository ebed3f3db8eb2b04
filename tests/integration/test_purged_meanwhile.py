"""Reads of the past of a change set whose owner purges its log between two steps of the reader.

A slow reader meets that. It must not take the hole for damage: the change set is sound.
"""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from rebaser_core.commits import CommitV2
from rebaser_core.ids import RequestId
from rebaser_core.queries import ProvenanceQueryV1, ProvenanceReplyV1
from rebaser_server.commit_log.log import CommitLog, CommitLogReader
from rebaser_server.commit_log.state import Retention
from rebaser_server.doctor.checks import check_history
from rebaser_server.errors import NotRetained
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.comparisons import changes_of
from rebaser_server.queries.provenance import ProvenanceService
from rebaser_server.queries.reverts import plan_revert
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import NOTHING, Owner

COMMITS_KEPT = Retention(seconds=0, entries=4, batches=10**9)


class Purging:
    """An owner that commits, and purges all but `retention`, whenever its log is about to be read.

    It does so `times` times; each time the value has the next number.
    """

    def __init__(self, owner: Owner, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._owner = owner
        self._value = value
        self._numbers = count(100)
        self._times = 0
        read = CommitLogReader.entries

        async def entries(
            log: CommitLogReader, after: int, until: int
        ) -> AsyncIterator[tuple[int, CommitV2]]:
            if self._times:
                self._times -= 1
                await self._purge()
            async for each in read(log, after, until):
                yield each

        monkeypatch.setattr(CommitLog, "entries", entries)

    def begin(self, times: int) -> None:
        self._times = times

    async def _purge(self) -> None:
        for _ in range(3):
            await self._owner.commit([set_to(self._value, next(self._numbers))])
            await self._owner.checkpoint()


async def edited(deployment: Deployment, retention: Retention) -> tuple[Owner, str, list[int]]:
    """A change set with a checkpoint behind every second edit of one value, and these edits."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, retention)
    commits = [await owner.commit([put(value, 0)])]
    for number in range(1, 8):
        if number % 2:
            await owner.checkpoint()
        commits.append(await owner.commit([set_to(value, number)]))
    return owner, value, commits


async def why(
    deployment: Deployment, owner: Owner, value: str, at: int | None = None
) -> ProvenanceReplyV1:
    change_set = owner.archive.change_set
    query = ProvenanceQueryV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        value=value,
        at=at,
    )
    return await ProvenanceService(deployment.archive).find(query)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_edits_are_named_as_far_back_as_the_log_goes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The answer is of one commit; that lies before the past which is left, or behind it."""
    owner, value, commits = await edited(deployment, COMMITS_KEPT)
    assert [edit.commit for edit in (await why(deployment, owner, value)).edits] == commits[-1:]
    purging = Purging(owner, value, monkeypatch)

    purging.begin(times)
    found = await why(deployment, owner, value)

    assert found.error is None
    assert found.kept_from > 0
    assert (found.edits != []) == (found.kept_from < found.commit)
    assert found.older == 1  # its creation


async def test_the_removal_of_a_value_is_found_or_forgotten(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, value, _ = await edited(deployment, NOTHING)
    other = new_id()
    await owner.commit([put(other, 1)])
    await owner.commit([{"removeValue": {"valueId": other}}])
    [before] = (await why(deployment, owner, other)).edits
    purging = Purging(owner, value, monkeypatch)

    purging.begin(3)
    forgotten = await why(deployment, owner, other)

    assert before.changes[0].what == "removal"
    assert (forgotten.edits, forgotten.is_missing) == ([], True)


async def test_a_commit_that_is_purged_is_said_not_to_be_kept(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For reads of one commit, too; one that is kept is read."""
    owner, value, commits = await edited(deployment, NOTHING)
    loader = deployment.archive(owner.archive.change_set)
    plan = await plan_revert(loader, commits[-1])
    purging = Purging(owner, value, monkeypatch)

    assert plan.now == commits[-1]
    for read in (plan_revert, changes_of):
        commit = await owner.commit([set_to(value, read.__name__)])
        purging.begin(1)
        with pytest.raises(NotRetained, match="and with it the state as of commit"):
            await read(loader, commit)
    purging.begin(2)
    now = await loader.load()
    assert contents(graph_of(now))  # of the last checkpoint, or of a commit behind it
    assert now.commit == now.checkpoint_commit


async def test_the_doctor_finds_a_change_set_sound(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, value, _ = await edited(deployment, COMMITS_KEPT)
    loader = deployment.archive(owner.archive.change_set)
    assert await check_history(loader, deep=True) is None
    purging = Purging(owner, value, monkeypatch)

    for times in range(1, 5):
        purging.begin(times)
        assert await check_history(loader, deep=True) is None
