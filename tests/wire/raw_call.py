"""A call as `docs/wire.md` has it, in nats-py, JSON and BLAKE3, without a module of ours.

python raw_call.py URL SERVICE KEY HANDLER ARGUMENTS [TIMER]
"""

import asyncio
import json
import secrets
import sys
import time

import nats
from blake3 import blake3
from nats.errors import TimeoutError as NoAnswer
from nats.js.errors import APIError

TASK_IS_THERE = 10077
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(26)))


def digest(*words: str) -> bytes:
    return blake3("\0".join(words).encode()).digest(16)


async def call(
    url: str, service: str, key: str, handler: str, arguments: str, timer: str = "null"
) -> str:
    """Return the result, or the error, as JSON."""
    workspace = ulid(digest("rebaser service", service))
    change_set = ulid(digest("rebaser key", service, key))
    request = ulid(int(time.time() * 1000).to_bytes(6, "big") + secrets.token_bytes(10))
    where = f"{workspace}.{change_set}"
    body = {"id": request, "workspaceId": workspace, "changeSetId": change_set, "handler": handler}
    body |= {"service": service, "key": key, "arguments": json.loads(arguments)}
    payload = json.dumps({"v1": body | {"timer": json.loads(timer)}}).encode()
    nc = await nats.connect(url)
    js, inbox = nc.jetstream(), nc.new_inbox()
    answers = await nc.subscribe(inbox, max_msgs=1)
    headers = {
        "X-CONTENT-TYPE": "application/json",
        "X-MESSAGE-TYPE": "CallRequest",
        "X-MESSAGE-VERSION": "1",
        "Nats-Msg-Id": f"{request}.{digest(where, payload.decode()).hex()}",
        "X-Reply-Inbox": inbox,
    }
    for tries in range(10):
        try:
            await js.publish(f"rebaser.requests.{where}", payload, headers=headers)
            break
        except NoAnswer:
            if tries == 9:
                raise
    while True:
        try:
            await js.publish(f"rebaser.tasks.{where}.process")
        except APIError as error:
            if error.err_code != TASK_IS_THERE:
                raise
        try:
            answer = await answers.next_msg(timeout=60)
            break
        except NoAnswer:
            continue
    await nc.drain()
    [response] = json.loads(answer.data).values()
    status = response["status"]
    return json.dumps(status["success"].get("result") if "success" in status else status["error"])


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(call(*sys.argv[1:])) + "\n")
