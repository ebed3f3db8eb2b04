"""A workspace with a head and branches, and what people do to them."""

import asyncio

from rebaser_core.ids import ChangeSet
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually


class Team:
    """A workspace whose head has two sources and their sum."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.client = deployment.client
        self.workspaces = deployment.client.workspaces
        self.sum = ExampleGraph()

    async def begin(self) -> "Team":
        workspace = await self.workspaces.create("prices")
        self.id = workspace.record.workspace_id
        self.head = ChangeSet(self.id, workspace.record.head)
        await self.send(self.head, self.sum.define(1, 2))
        return self

    async def send(self, change_set: ChangeSet, updates):
        _, reply = await self.client.enqueue_updates_with_reply(*change_set, updates)
        async with asyncio.timeout(120):
            return (await reply).status

    async def fork(self, name: str = "branch", **how) -> ChangeSet:
        record = await self.workspaces.fork(self.id, name, **how)
        return ChangeSet(self.id, record.change_set_id)

    async def value(self, change_set: ChangeSet, value_id: str):
        graph = await self.deployment.graph(change_set)
        return graph.values[value_id].value if value_id in graph.values else None

    async def becomes(self, change_set: ChangeSet, value_id: str, value) -> None:
        async def is_it() -> bool:
            return bool(await self.value(change_set, value_id) == value)

        await eventually(is_it, within=120)
