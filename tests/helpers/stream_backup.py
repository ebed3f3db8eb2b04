"""What `nats stream backup` and `nats stream restore` do: JetStream's snapshots, over its API."""

import json
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client

TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class Snapshot:
    """A stream with its messages, sequences and consumers, as of one moment."""

    told: dict[str, Any]
    chunks: list[bytes]


async def backup(nc: Client, stream: str) -> Snapshot:
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    told = await _asked(nc, f"SNAPSHOT.{stream}", {"deliver_subject": inbox})
    chunks = []
    while (message := await subscription.next_msg(TIMEOUT)).data:
        chunks.append(message.data)
        if message.reply:
            await message.respond(b"")
    await subscription.unsubscribe()
    return Snapshot(told, chunks)


async def restore(nc: Client, snapshot: Snapshot) -> None:
    what = {key: snapshot.told[key] for key in ("config", "state")}
    place = (await _asked(nc, f"RESTORE.{what['config']['name']}", what))["deliver_subject"]
    for chunk in (*snapshot.chunks, b""):
        answer = await nc.request(place, chunk, timeout=TIMEOUT)
    assert "error" not in json.loads(answer.data), answer.data


async def _asked(nc: Client, what: str, body: dict[str, Any]) -> dict[str, Any]:
    subject = f"$JS.API.STREAM.{what}"
    answer = await nc.request(subject, json.dumps(body).encode(), timeout=TIMEOUT)
    told: dict[str, Any] = json.loads(answer.data)
    assert "error" not in told, told
    return told
