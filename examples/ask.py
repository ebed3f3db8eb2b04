"""Enqueue a batch, wait until what depends on it is computed, and read that."""

import asyncio

from ulid import ULID

from rebaser_client import ChangeSetId, WorkspaceId, connect


async def main() -> None:
    workspace, change_set = WorkspaceId(), ChangeSetId()
    net, tax, gross, add = (str(ULID()) for _ in range(4))
    inputs = {"values": [net, tax]}
    batch = [
        {"putFunc": {"funcId": add, "name": "add", "runtime": "builtin", "code": "sum"}},
        {"putValue": {"valueId": net, "name": "net", "value": 100}},
        {"putValue": {"valueId": tax, "name": "tax", "value": 19}},
        {"putValue": {"valueId": gross, "name": "gross", "funcId": add, "inputs": inputs}},
    ]
    async with connect() as client, asyncio.timeout(60):
        prices = client.change_set(workspace, change_set)
        outcome = await prices.enqueue(batch, wait="computed")
        print("committed:", outcome.commit)
        values = await prices.values("gross")
        print("gross:", values["gross"].value)
        print("in change set:", workspace, change_set)


asyncio.run(main())
