"""Whoever forks or applies may die at any step: the next one finishes it, once."""

from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import OrderedPushConsumer
from rebaser_core.messages import OutcomeQueryV1
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1
from rebaser_core.registry import Registry
from rebaser_core.requests import publish_request
from rebaser_server.cluster.membership import Membership
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.graph_application.branches import BranchCloser, BranchRunner
from rebaser_server.graph_application.commands import head_request_id
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import Ownership, acquire_ownership
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.processor.requests import RequestHandler
from rebaser_server.processor.run import initial_control
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.composition import build_services, provisioner_of
from rebaser_server.service.daemon import ValueGraph
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import NOTHING
from tests.helpers.workspace import Team


class Mortal:
    """Does what a daemon does for one change set, step by step, and says no farewell."""

    def __init__(self, deployment: Deployment, change_set: ChangeSet, own: Ownership) -> None:
        self.deployment = deployment
        self.change_set = change_set
        self.own = own
        streams = deployment.streams
        outcomes = OutcomeLookup(streams, own.loader.machine)
        self.checkpointing = Checkpointer(own, 10**9, NOTHING)
        self.branching = BranchRunner(streams, own, outcomes, self.checkpointing, 60)
        self.closer = BranchCloser(streams, own, outcomes)

    @classmethod
    async def of(cls, deployment: Deployment, change_set: ChangeSet) -> "Mortal":
        registry = Registry(deployment.streams)
        archive = deployment.archive(change_set)
        first = await acquire_ownership(
            archive, "mortal", lambda: initial_control(registry, change_set)
        )
        return cls(deployment, change_set, first)

    async def handle(self) -> None:
        """Begin, if that is to be done, and handle all requests that are there."""
        await self.branching.start()
        js, settings = self.deployment.js, self.deployment.settings
        value_graph = ValueGraph(settings, self.deployment.executor, lambda: 1, CostModel())
        streams = self.deployment.streams
        members = Membership(streams, "mortal")
        services = build_services(provisioner_of(js, settings), settings, value_graph, members)
        slot = SlotLease(self.change_set.workspace_id)
        queue = RequestQueue(self.deployment.streams, self.change_set)
        handler = RequestHandler(RunContext(services, self.own, Shutdown(), slot), queue)
        async with queue:
            while (request := await queue.next(0)) is not None:
                await handler.handle([request])
            await queue.handled.wait()

    async def send(self) -> None:
        """Have the difference in head's queue."""
        closing, branch = self.own.state.control.closing, self.own.state.control.branch
        head = ChangeSet(self.change_set.workspace_id, branch.head)
        query = OutcomeQueryV1(
            id=head_request_id(closing.request),
            workspace_id=head.workspace_id,
            change_set_id=branch.head,
        )
        await self.closer._send(closing, head, self.change_set, query)

    async def deliver(self) -> None:
        """Have it in head, and say so in the branch's log, but not in the registry."""
        await self.closer._apply_to_head(self.own.state.control.closing)


async def ask(
    deployment: Deployment, change_set: ChangeSet, action: str, reviewed: str | None = None
) -> RequestId:
    """Store the request and do not wait."""
    message = ChangeSetRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        action=action,
        reviewed=reviewed,
    )
    headers, payload = ChangeSetRequest.encode(message)
    await publish_request(deployment.streams, change_set, headers, payload)
    return message.id


async def times_in_head(team: Team, request: RequestId) -> int:
    """How often the log of head says that it took effect."""
    deployment = team.deployment
    reader = OrderedPushConsumer(
        deployment.js,
        deployment.streams.commits_stream,
        deployment.streams.commits(team.head),
    )
    count = 0
    async with reader:
        while (line := await reader.next(idle_timeout=0)) is not None:
            settled = Commit.decode(line.headers, line.payload).settled
            count += settled is not None and settled.id == request and settled.updates is not None
    return count


async def test_a_branch_is_what_it_was_forked_from_wherever_who_began_it_died(
    deployment: Deployment,
) -> None:
    """Before its first line, behind it, its checkpoint, and the line that says it has begun."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    await deployment.at_rest()
    daemon.kill()
    branches = [await team.fork(str(number)) for number in range(4)]
    await Mortal.of(deployment, branches[1])
    await (await Mortal.of(deployment, branches[2])).checkpointing.write()
    await (await Mortal.of(deployment, branches[3])).branching.start()
    stored = [deployment.archive(each).machine.metadata(each) is not None for each in branches]
    assert stored == [False, False, True, True]

    await deployment.start()
    for number, branch in enumerate(branches):
        await team.send(branch, [set_to(team.sum.net, 10 * number)])

    for number, branch in enumerate(branches):
        await team.becomes(branch, team.sum.gross, 10 * number + 2)
    await team.send(team.head, [set_to(team.sum.tax, 5)])
    for number, branch in enumerate(branches):
        await team.client.change_set(*branch).refresh()
        await team.becomes(branch, team.sum.gross, 10 * number + 5)


async def test_a_branch_is_applied_once_wherever_who_applied_it_died(
    deployment: Deployment,
) -> None:
    """Before the line that closes it, behind it, with the difference in head's queue, in head's
    log, and with the branch applied but the registry not told."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    added = [new_id() for _ in range(5)]
    branches = [await team.fork(f"{number}") for number in range(5)]
    for branch, value in zip(branches, added, strict=True):
        await team.send(branch, [put(value, "new")])
    await deployment.at_rest()
    daemon.kill()
    requests = [await ask(deployment, branch, "apply") for branch in branches]
    _, closed, sent, settled, told = branches

    await (await Mortal.of(deployment, closed)).handle()
    for branch in (sent, settled, told):
        mortal = await Mortal.of(deployment, branch)
        await mortal.handle()
        await mortal.send()
        if branch is not sent:
            await (await Mortal.of(deployment, team.head)).handle()
        if branch is told:
            await mortal.deliver()

    await deployment.start()

    async def all_applied() -> bool:
        records = [await team.client.change_set(*branch).describe() for branch in branches]
        return all(record.status == "applied" for record in records)

    await eventually(all_applied, within=90)
    await deployment.at_rest()
    assert [await times_in_head(team, head_request_id(request)) for request in requests] == [1] * 5
    assert [await team.value(team.head, value) for value in added] == ["new"] * 5
