"""Enqueue what the last checkpoint of a change set holds to another one, which is new.

For when NATS is lost and only the store is left:
python examples/salvage.py STORE WORKSPACE CHANGE_SET
What is computed is computed anew. What was committed after the checkpoint is gone.
"""

import asyncio
import json
import sys
from typing import Any

import polars as pl

from rebaser_client import connect
from rebaser_core.ids import ChangeSetId, WorkspaceId


def batch_of(uri: str) -> list[dict[str, Any]]:
    """The updates that make what the table says is there."""
    rows = pl.scan_delta(uri).sort("commit").group_by("kind", "id").last()
    present = rows.filter(~pl.col("removed")).collect().to_dicts()
    return [_func(row) for row in present if row["kind"] == "func"] + [
        _value(row) for row in present if row["kind"] == "value"
    ]


def _func(row: dict[str, Any]) -> dict[str, Any]:
    return {"putFunc": {"funcId": row["id"], "name": row["name"], **json.loads(row["value"])}}


def _value(row: dict[str, Any]) -> dict[str, Any]:
    put = {"valueId": row["id"], "name": row["name"]}
    if row["func_id"] is None:
        put |= {"value": json.loads(row["value"])}
    else:
        put |= {"funcId": row["func_id"], "inputs": json.loads(row["inputs"] or "{}")}
    return {"putValue": put}


async def main(store: str, workspace: str, change_set: str) -> None:
    batch = batch_of(f"{store}/change_sets/{workspace}/{change_set}")
    fresh = WorkspaceId.from_str(workspace), ChangeSetId()
    async with connect() as client, asyncio.timeout(600):
        _, reply = await client.enqueue_updates_with_reply(*fresh, batch)
        success = (await reply).status.success
        print(len(batch), "updates,", len(success.corrections), "corrected")
        print("in change set:", *fresh)


asyncio.run(main(*sys.argv[1:]))
