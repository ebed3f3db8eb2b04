"""A plain JetStream worker: pulls, does nothing, acks. No order per key.

`python -m benchmarks.pull_worker URL STREAM COUNT`; says "ready", then "done" for each `COUNT`.
"""

import asyncio
import sys

import nats

AT_ONCE = 64
DURABLE = "bench"


async def work(url: str, stream: str, count: int) -> None:
    nc = await nats.connect(url)
    js = nc.jetstream()
    subscription = await js.pull_subscribe_bind(DURABLE, stream=stream)
    print("ready", flush=True)
    settled = 0
    while True:
        try:
            messages = await subscription.fetch(AT_ONCE, timeout=5)
        except TimeoutError:
            continue
        for message in messages:
            await message.ack()
        await nc.flush()
        settled += len(messages)
        if settled >= count:
            settled -= count
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
