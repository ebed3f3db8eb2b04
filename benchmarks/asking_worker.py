"""A client that asks the same question again and again, and throws the answers away.

`python -m benchmarks.asking_worker URL SUBJECT A_SECOND`; the question's headers and body are a
line of JSON on stdin. Says "asking", and at the end of stdin how many messages came back.
"""

import asyncio
import base64
import itertools
import json
import sys

from nats.aio.msg import Msg

from rebaser_core.jetstream import ConnectOptions, connected


async def ask(url: str, subject: str, rate: float) -> None:
    loop, replies = asyncio.get_running_loop(), 0
    said = json.loads(sys.stdin.readline())
    body = base64.b64decode(said["body"])

    async def count(_: Msg) -> None:
        nonlocal replies
        replies += 1

    end = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with connected(ConnectOptions(servers=(url,), name="asking")) as nc:
        inbox = nc.new_inbox()
        await nc.subscribe(inbox, cb=count)
        began = loop.time()
        print("asking", flush=True)
        for number in itertools.count():
            if end.done():
                break
            await nc.publish(subject, body, reply=inbox, headers=said["headers"])
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
    print(replies, flush=True)


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2], float(sys.argv[3])))
