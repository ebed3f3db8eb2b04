"""A worker of a service whose handler does nothing; it says when it has handled all messages."""

import sys
from typing import Any

from rebaser_server.handlers import Context, Service
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.worker import serve
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry import logs

NAME = "bench"
PREFIX = "handlers"
"""Sets its streams apart from those of the value graphs."""


def service(messages: int) -> Service:
    """The service."""
    bench, handled = Service(NAME), [0]

    @bench.handler
    async def nothing(ctx: Context[Any], payload: str) -> None:
        del ctx, payload
        handled[0] += 1
        if handled[0] % messages == 0:
            print("done", flush=True)

    return bench


async def main(url: str, messages: int, replicas: int) -> None:
    """Serve it until killed."""
    nats = {"url": url, "prefix": PREFIX, "replicas": replicas}
    settings = Settings.model_validate({"nats": nats, "ops": {"port": 0}, "log_level": "warning"})
    logs.configure(settings.instance_id, level=settings.log_level)
    await serve(settings, [service(messages)], Shutdown(), lambda _: print("ready", flush=True))


if __name__ == "__main__":
    import asyncio

    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
