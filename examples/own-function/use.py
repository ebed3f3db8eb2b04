"""Values computed by `price`; and what becomes of one that it refuses."""

import asyncio
import os

from ulid import ULID

from rebaser_client import connect
from rebaser_core.ids import ChangeSetId, WorkspaceId

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


def source(value_id: str, value: float) -> dict:
    return {"putValue": {"valueId": value_id, "value": value}}


async def main() -> None:
    workspace, change_set = WorkspaceId(), ChangeSetId()
    price, net, rate, voucher, pays = (str(ULID()) for _ in range(5))
    inputs = {"net": net, "rate": rate, "discounts": [voucher]}
    batch = [
        {"putFunc": {"funcId": price, "name": "price", "runtime": "python", "code": "price"}},
        *(source(net, 100.0), source(rate, 0.19), source(voucher, 20.0)),
        {"putValue": {"valueId": pays, "name": "pays", "funcId": price, "inputs": inputs}},
    ]
    too_much = [{"setValue": {"valueId": voucher, "value": 120.0}}]

    async with connect(URL) as client, asyncio.timeout(60):
        reader = client.reader(workspace, change_set)
        before = None
        for updates in (batch, too_much):
            _, reply = await client.enqueue_updates_with_reply(workspace, change_set, updates)
            await reply
            while (found := (await reader.values("pays"))["pays"]).value == before:
                await asyncio.sleep(0.1)  # what was computed stays until it is computed anew
            before = found.value
            print(found.status, found.value, found.message or "")


asyncio.run(main())
