"""Questions about the past of a sound change set while its oldest commits are purged."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest

from rebaser_client import ReadRefused
from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import ProvenanceQueryV1, ProvenanceReplyV1
from rebaser_server.commit_log.log import CommitLog, LogEnd, NumberedEntry
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor.checks import check_history
from rebaser_server.errors import NotRetained
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.comparisons import changes_of
from rebaser_server.queries.provenance import ProvenanceService
from rebaser_server.queries.reverts import plan_revert
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import Owner
from tests.helpers.workspace import Team

Ask = Callable[[StateLoader], Awaitable[Any]]


class PurgedWhileRead(CommitLog):
    """A log whose commits up to `up_to`, a checkpoint's, are purged before the read `moment`."""

    up_to: int
    moment: int
    reads = 0

    @classmethod
    def of(cls, deployment: Deployment, change_set: ChangeSet, up_to: int, moment: int) -> Any:
        log = cls(deployment.streams, change_set)
        log.up_to, log.moment, log.siblings = up_to, moment, {}
        return log

    async def _step(self) -> None:
        self.reads += 1
        if self.reads == self.moment:
            await self.purge(self.up_to)

    async def end(self, known: NumberedEntry | None = None) -> LogEnd:
        await self._step()
        return await super().end(known)

    async def oldest(self) -> CommitV2 | None:
        await self._step()
        return await super().oldest()

    async def entry(self, sequence: int) -> CommitV2 | None:
        await self._step()
        return await super().entry(sequence)

    async def entries(self, after: int, until: int) -> AsyncIterator[tuple[int, CommitV2]]:
        await self._step()
        async for each in super().entries(after, until):
            yield each

    async def purge(self, up_to: int) -> None:
        self.moment = 0  # `purge` itself reads
        await super().purge(up_to)

    def sibling(self, change_set: ChangeSet) -> CommitLog:
        return self.siblings.get(change_set) or super().sibling(change_set)


class Story:
    """A change set with an edit and a removal in each commit, and a checkpoint behind each."""

    def __init__(self, deployment: Deployment, owner: Owner) -> None:
        self.deployment = deployment
        self.owner = owner
        self.values, self.next = ExampleGraph(), new_id()
        self.commits: list[int] = []
        self.removed: list[str] = []
        """The value that each commit removed."""

    @classmethod
    async def begin(cls, deployment: Deployment) -> "Story":
        [change_set] = new_change_sets(1)
        story = cls(deployment, await Owner.of(deployment, change_set))
        await story.owner.commit([*story.values.define(0, 0), put(story.next, 0)])
        for number in range(6):
            await story.go_on(number)
        return story

    async def go_on(self, number: int) -> None:
        gone, self.next = self.next, new_id()
        edit = set_to(self.values.net if number % 2 else self.values.tax, number)
        removal = {"removeValue": {"valueId": gone}}
        self.commits.append(await self.owner.commit([edit, removal, put(self.next, number)]))
        self.removed.append(gone)
        await self.owner.checkpoint()

    def loader(self, up_to: int, moment: int) -> StateLoader:
        change_set = self.owner.archive.change_set
        log = PurgedWhileRead.of(self.deployment, change_set, up_to, moment)
        return replace(self.owner.archive, log=log)


async def answer(ask: Ask, loader: StateLoader) -> Any:
    """The answer, or that the commit which is asked about is not kept."""
    try:
        return await ask(loader)
    except NotRetained as error:
        return re.sub(r"commit \d+", "commit N", str(error))


def why(name: str, at: int | None = None) -> Ask:
    async def ask(loader: StateLoader) -> ProvenanceReplyV1:
        query = ProvenanceQueryV1(
            id=RequestId.from_str("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
            **loader.change_set._asdict(),
            value=name,
            at=at,
        )
        return await ProvenanceService(lambda _: loader).find(query)

    return ask


def state_at(commit: int) -> Ask:
    async def ask(loader: StateLoader) -> Any:
        return contents(graph_of(await loader.load(commit)))

    return ask


def changes(commit: int) -> Ask:
    return lambda loader: changes_of(loader, commit)


def plan(commit: int) -> Ask:
    return lambda loader: plan_revert(loader, commit)


async def checked(loader: StateLoader) -> Any:
    return await check_history(loader, deep=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("question", "purged"),
    [
        *product(["why", "why at", "removal", "state at", "changes", "revert"], [3, 5]),
        ("doctor", 3),
    ],
)
async def test_a_purge_at_any_moment_of_a_question_refuses_none(
    deployment: Deployment, question: str, purged: int
) -> None:
    """The answer is that of the moment before the purge, or that of the moment after it."""
    story, numbers = await Story.begin(deployment), count(10)
    for moment in count(1):
        for _ in range(purged):
            await story.go_on(next(numbers))
        kept = story.commits[-6:]
        await story.owner.archive.log.purge(kept[0])
        asked_about = kept[3]
        ask = {
            "why": why(story.values.gross),
            "why at": why(story.values.gross, asked_about),
            "removal": why(story.removed[-3]),
            "state at": state_at(asked_about),
            "changes": changes(asked_about),
            "revert": plan(asked_about),
            "doctor": checked,
        }[question]
        before = await answer(ask, story.owner.archive)
        loader = story.loader(kept[purged], moment)

        found = await answer(ask, loader)

        await story.owner.archive.log.purge(kept[purged])
        after = await answer(ask, story.owner.archive)
        if isinstance(found, ProvenanceReplyV1) and found != before and isinstance(after, str):
            assert found.value == before.value
            assert (found.edits, found.kept_from) == ([], kept[4]), "the last commit stays"
        else:
            assert found in (before, after), moment
        if loader.log.moment:
            break
    assert moment > 3


@pytest.mark.long
async def test_a_purge_of_heads_log_at_any_moment_loses_no_edit_that_is_kept(
    deployment: Deployment,
) -> None:
    """Neither of those that a branch was forked with, nor of those that it has merged."""
    await deployment.start(CHECKPOINT_EVERY="1", QUIET_PERIOD="0.1")
    team = await Team(deployment).begin()
    numbers = count(10)

    async def head_goes_on() -> int:
        await team.send(team.head, [set_to(team.sum.net, next(numbers))])
        await deployment.client.change_set(*team.head).checkpoint()
        return (await deployment.archive(team.head).load()).checkpoint_commit

    checkpoints = [await head_goes_on() for _ in range(3)]
    branch = await team.fork()
    for _ in range(2):
        await team.send(branch, [set_to(team.sum.tax, next(numbers))])
        checkpoints.append(await head_goes_on())
        await deployment.client.change_set(*branch).refresh()
    await deployment.at_rest()
    ask, archive = why(team.sum.gross), deployment.archive(branch)
    for moment in count(1):
        checkpoints.append(await head_goes_on())
        await deployment.client.change_set(*branch).refresh()
        await deployment.at_rest()
        before = await answer(ask, archive)
        head = PurgedWhileRead.of(deployment, team.head, checkpoints[moment - 1], moment)
        log = PurgedWhileRead.of(deployment, branch, 0, 0)
        log.siblings[team.head] = head

        found = await answer(ask, replace(archive, log=log))

        await deployment.archive(team.head).log.purge(checkpoints[moment - 1])
        assert found in (before, await answer(ask, archive)), moment
        assert [
            each.changes[0].after
            for each in found.edits
            if each.change_set_id == team.head.change_set_id
        ]
        if head.moment:
            break
    assert moment > 3


@pytest.mark.long
async def test_questions_go_on_while_a_daemon_purges_what_it_is_asked_about(
    deployment: Deployment,
) -> None:
    """Only a past that is gone is refused, and what is answered is what was there."""
    await deployment.start(CHECKPOINT_EVERY="1", HISTORY__MAX_COMMITS="0")
    team = await Team(deployment).begin()
    branch, values = await team.fork(), team.sum
    await team.send(branch, [set_to(values.tax, 5)])
    head, its_branch = (deployment.client.change_set(*each) for each in (team.head, branch))
    done = False

    async def edit() -> None:
        for number in count(1):
            if done:
                return
            await team.send(team.head, [set_to(values.net, number)])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(edit())
        for _ in range(5):
            for handle, name in ((head, values.net), (its_branch, values.tax)):
                why_it = await handle.why(name)
                assert why_it.value is not None
                parts = [part.after for each in why_it.edits for part in each.changes]
                assert (parts or why_it.older) in ([str(why_it.value.value)], 1)
            past = await head.values(values.net)
            with suppress(ReadRefused):
                again = await head.values(values.net, at=past.commit)
                assert again[values.net].value == past[values.net].value
            difference = await its_branch.difference(computed=True)
            assert {each.id: each.branch for each in difference.changes} == {values.tax: 5}
        done = True


async def test_of_a_branch_of_nothing_no_definition_is_older_however_far_head_went_on(
    deployment: Deployment,
) -> None:
    await deployment.start(CHECKPOINT_EVERY="1")
    shop = await deployment.client.workspace("shop").create()
    branch, head = await shop.fork("sale"), await shop.ids()
    async with branch.edit() as graph:
        graph.source("net", 1)
    for number in range(3):
        async with shop.edit() as graph:
            graph.source("other", number)
        await shop.checkpoint()
    await deployment.at_rest()  # or an answer names a commit that ends a run, and the next does not
    before = await branch.why("net")

    log = deployment.archive(ChangeSet(*head)).log
    await log.purge((await log.last())[0])

    assert (before.older, [each.changes[0].after for each in before.edits]) == (0, ["1"])
    assert await branch.why("net") == before
