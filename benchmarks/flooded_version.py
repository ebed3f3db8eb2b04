"""Floods of one checkout of Rebaser, one for each line on stdin: see `versions.py`.

It is run as a script in the checkout that is measured, and uses what each has had since f85d0ad.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.broker import broker
from benchmarks.deployment import deployed
from benchmarks.lanes import flood
from benchmarks.processes import seconds

WARM_UP = 30
"""Requests for each change set before the first flood."""


async def main(change_sets: int, requests: int) -> None:
    with tempfile.TemporaryDirectory() as files, broker(Path(files) / "nats") as server:
        async with deployed(Path(files), server, change_sets, server.url) as deployment:
            await flood(deployment.lanes, WARM_UP)
            print("ready", flush=True)
            processes = (os.getpid(), deployment.daemon_pid, server.pid)
            while await asyncio.to_thread(sys.stdin.readline):
                before = [seconds(each) or 0.0 for each in processes]
                await flood(deployment.lanes, requests)
                after = [seconds(each) or 0.0 for each in processes]
                took = [end - begin for begin, end in zip(before, after, strict=True)]
                print(*[1e6 * each / change_sets / requests for each in took], flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
