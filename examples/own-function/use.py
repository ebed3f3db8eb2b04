"""Values computed by `price`; and what becomes of one that it refuses."""

import asyncio

from ulid import ULID

from rebaser_client import ChangeSetId, WorkspaceId, connect


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

    async with connect() as client, asyncio.timeout(60):
        prices = client.change_set(workspace, change_set)
        for updates in (batch, too_much):
            await prices.enqueue(updates, wait="computed")
            found = (await prices.values("pays"))["pays"]
            print(found.status, found.value, found.message or "")


asyncio.run(main())
