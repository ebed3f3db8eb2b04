"""A branch's difference takes effect at head once, whatever either has forgotten meanwhile."""

from dataclasses import dataclass

import pytest

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import StoredMessage
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.state import RecentRequests
from rebaser_server.graph_application.commands import head_request_id
from rebaser_server.graph_application.content import content_of
from rebaser_server.queries.comparisons import diff
from tests.helpers.batches import set_to
from tests.helpers.deployment import Deployment
from tests.helpers.workspace import Team
from tests.integration.test_killed_branches import Mortal, ask, times_in_head

OF_BRANCH, LATER, LAST = 40, 3, 4
"""Values of one source: the branch's, and what head makes of it afterwards."""


async def sleeping_branch(deployment: Deployment) -> tuple[Team, ChangeSet]:
    """A branch with one edit, and no daemon any more."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    change_set = await team.fork()
    await team.send(change_set, [set_to(team.sum.net, OF_BRANCH)])
    await deployment.at_rest()
    daemon.kill()
    return team, change_set


@dataclass
class AppliedOnce:
    """Head has applied the difference and a later edit, and forgotten the difference's id."""

    team: Team
    branch: Mortal
    head: Mortal
    request: RequestId
    difference: StoredMessage

    @classmethod
    async def of(cls, deployment: Deployment) -> "AppliedOnce":
        team, change_set = await sleeping_branch(deployment)
        request = await ask(deployment, change_set, "apply")
        branch = await Mortal.of(deployment, change_set)
        await branch.handle()
        await branch.send()
        difference = await deployment.js.get_message(
            deployment.streams.requests_stream,
            last_by_subject=deployment.streams.requests(team.head),
        )
        assert difference is not None
        scene = cls(team, branch, await Mortal.of(deployment, team.head), request, difference)
        await scene.edit_head(LATER)
        scene.forget()
        return scene

    async def edit_head(self, value: int) -> None:
        await self.team.client.enqueue_updates(*self.team.head, [set_to(self.team.sum.net, value)])
        await self.head.handle()

    def forget(self) -> None:
        self.head.own.state.recent = RecentRequests()

    async def purge(self) -> None:
        """Have head's log begin behind the difference."""
        await self.head.checkpointing.write()
        await self.edit_head(LAST)
        await self.head.checkpointing.write()

    async def send_again(self) -> None:
        """As a run of the branch that slept would, when the server has forgotten the id, too."""
        headers = {k: v for k, v in self.difference.headers.items() if k != MESSAGE_ID}
        await self.team.deployment.js.publish(
            self.difference.subject,
            self.difference.payload,
            headers=headers,
            message_id=f"{head_request_id(self.request)}.{RequestId()}",
        )
        await self.head.handle()

    async def at_head(self) -> tuple[int, int]:
        """How often it took effect, as far as head's log tells, and the value at head."""
        times = await times_in_head(self.team, head_request_id(self.request))
        return times, await self.team.value(self.team.head, self.team.sum.net)


async def test_a_difference_that_is_sent_again_is_found_in_heads_log(
    deployment: Deployment,
) -> None:
    """B1: from the branch's cursor on, however many requests came since."""
    scene = await AppliedOnce.of(deployment)

    await scene.send_again()

    assert await scene.at_head() == (1, LATER)
    await scene.branch.deliver()
    assert scene.branch.own.state.control.closing.status == "applied"


@pytest.mark.long
async def test_a_difference_is_not_applied_once_its_branch_is(deployment: Deployment) -> None:
    """B1: a run of the branch slept for longer than anything is remembered."""
    scene = await AppliedOnce.of(deployment)
    await scene.branch.deliver()
    await scene.purge()

    await scene.send_again()

    assert await scene.at_head() == (0, LAST)


async def test_a_branch_is_opened_again_if_heads_log_does_not_tell_whether_it_was_applied(
    deployment: Deployment,
) -> None:
    """B1: a person looks at the difference then; and what a late run sends is refused."""
    scene = await AppliedOnce.of(deployment)
    await scene.purge()

    await scene.send_again()
    await scene.branch.deliver()

    assert await scene.at_head() == (0, LAST)
    assert scene.branch.own.state.control.closing is None
    record = await scene.team.client.change_set(*scene.branch.change_set).describe()
    assert record.status == "open"
    assert "apply it again" in record.problem

    scene.forget()
    await scene.send_again()
    assert await scene.at_head() == (0, LAST)


async def test_what_head_changed_since_the_review_is_merged_before_a_branch_is_applied(
    deployment: Deployment,
) -> None:
    """The difference is another one then; the branch has head's change although it is refused."""
    team, change_set = await sleeping_branch(deployment)
    reviewed = (await diff(deployment.archive(change_set))).digest
    head, branch = [await Mortal.of(deployment, each) for each in (team.head, change_set)]
    await team.client.enqueue_updates(*team.head, [set_to(team.sum.net, LATER)])
    await head.handle()

    await ask(deployment, change_set, "apply", reviewed)
    await branch.handle()

    state = await deployment.archive(change_set).load()
    assert state.control.closing is None
    assert state.control.branch.cursor == head.own.state.commit
    assert content_of(state).edits.theirs[team.sum.net].value == LATER


async def test_a_batch_taken_from_another_change_set_is_applied(deployment: Deployment) -> None:
    """It is no branch's difference, and its change set need not be closed."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    branch: ChangeSet = await team.fork()
    _, reply = await team.client.enqueue_updates_from_change_set_with_reply(
        *team.head, branch.change_set_id, [set_to(team.sum.net, LATER)]
    )
    await reply

    assert await team.value(team.head, team.sum.net) == LATER
    daemon.kill()
