"""A procrastinate worker: jobs in PostgreSQL, of each lock one at a time, in their order.

`python -m benchmarks.locked_worker WHERE CONCURRENCY COUNT`; says "ready", then "done" for each
`COUNT` jobs that it handled. A handler does nothing but count.
"""

import asyncio
import itertools
import sys

from procrastinate import App, PsycopgConnector


def application(where: str, connections: int) -> App:
    return App(connector=PsycopgConnector(conninfo=where, min_size=4, max_size=connections))


async def work(where: str, concurrency: int, count: int) -> None:
    app = application(where, 20)
    numbers = itertools.count(1)

    @app.task(name="nothing")
    async def nothing(number: int) -> None:  # noqa: ARG001 - what it is about
        if not next(numbers) % count:
            print("done", flush=True)

    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(
            concurrency=concurrency,
            fetch_job_polling_interval=0.05,
            delete_jobs="always",
            install_signal_handlers=False,
        )


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
