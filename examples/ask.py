"""Enqueue a batch, await the reply, and read the value that is computed from it."""

import asyncio
import os

from ulid import ULID

from rebaser_client import connect
from rebaser_core.ids import ChangeSetId, WorkspaceId

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


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
    async with connect(URL) as client, asyncio.timeout(60):
        _, reply = await client.enqueue_updates_with_reply(workspace, change_set, batch)
        print("committed:", (await reply).status.success.commit)

        reader = client.reader(workspace, change_set)
        while (found := (await reader.values("gross"))["gross"]).status == "pending":
            await asyncio.sleep(0.1)
        print("gross:", found.value)
        print("in change set:", workspace, change_set)


asyncio.run(main())
