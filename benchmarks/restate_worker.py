"""A worker of Restate's in an environment of its own: of each key one message at a time, in order.

`python restate_worker.py FD COUNT`: serves the socket FD, which is bound; says "done" for each
`COUNT` messages that it handled. A handler does nothing but count, and Restate keeps nothing of
a message that is handled.
"""

import asyncio
import itertools
import sys
from datetime import timedelta

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from restate.serde import BytesSerde


async def work(fd: int, count: int) -> None:
    numbers = itertools.count(1)
    keyed = restate.VirtualObject("Keyed", journal_retention=timedelta(0))

    @keyed.handler(accept="application/octet-stream", input_serde=BytesSerde())
    async def nothing(_: restate.ObjectContext, body: bytes) -> None:  # noqa: ARG001 - not looked at
        if not next(numbers) % count:
            print("done", flush=True)

    config = Config()
    config.bind = [f"fd://{fd}"]
    config.loglevel = "ERROR"  # else it says that the SDK has no lifespan
    await serve(restate.app([keyed]), config)


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1]), int(sys.argv[2])))
