"""What NATS servers say of themselves on their monitoring ports."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import aiohttp

from rebaser_server.settings.settings import redact_url

_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What one server says of its JetStream."""

    server: str
    """Its name."""
    started: datetime
    """When its process was."""
    sync_interval: float
    """Seconds within which it has on its disk what it confirms; 0: before it confirms."""
    stored: int
    """Octets in its files."""
    capacity: int
    """Octets that it lets its files have. Its disk may have less."""


def urls_of(monitoring: str) -> list[str]:
    """The URLs of `REBASER_NATS__MONITORING`."""
    return [url.strip() for url in monitoring.split(",")]


async def read_monitoring(urls: Sequence[str]) -> tuple[list[ServerReport], list[str]]:
    """The servers' reports, and what is wrong with the URLs that gave none."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        answers = await asyncio.gather(*(_ask(session, url) for url in urls))
    reports = [answer for answer in answers if isinstance(answer, ServerReport)]
    return reports, [answer for answer in answers if isinstance(answer, str)]


async def _ask(session: aiohttp.ClientSession, url: str) -> ServerReport | str:
    shown = redact_url(url)
    try:
        async with session.get(f"{url.rstrip('/')}/varz") as answer:
            status = await answer.json(content_type=None)
        jetstream = status["jetstream"]
        config = jetstream["config"]
        always = config.get("sync_always", False)
        return ServerReport(
            server=str(status["server_name"]),
            started=datetime.fromisoformat(status["start"]),
            sync_interval=0.0 if always else config["sync_interval"] / _NANOSECONDS,
            stored=int(jetstream["stats"]["storage"]),
            capacity=int(config["max_storage"]),
        )
    except TimeoutError:
        return f"{shown} does not answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return f"{shown}: {error}"
    except (ValueError, KeyError, TypeError):
        return f"{shown} is no monitoring port of a NATS server with JetStream"
