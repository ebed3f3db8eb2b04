"""Steps that many tests of this package take."""

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator
from typing import Any, Final

from nats.aio.msg import Msg

from rebaser_core.jetstream import (
    ConsumerConfig,
    ConsumerInfo,
    Delivery,
    JetStream,
    StreamConfig,
)

ANY: Final = ConsumerConfig()
STREAM: Final = StreamConfig(name="S", subjects=["s.>"])


async def filled(js: JetStream, *subjects: str, **config: Any) -> None:
    """Have a stream S with an empty message on each subject; payloads are their numbers."""
    await js.create_stream(STREAM | StreamConfig(**config))
    for number, subject in enumerate(subjects, 1):
        await js.publish(subject, b"%d" % number)


async def stored(js: JetStream, **which: Any) -> tuple[str, int] | None:
    message = await js.get_message("S", **which)
    return message and (message.subject, message.sequence)


async def publish_many(js: JetStream, numbers: range, subject: str = "s.a") -> None:
    """Publish each number as a payload, fast, and return when the last one is stored."""
    for number in numbers[:-1]:
        await js.connection.publish(subject, b"%d" % number)
    await js.publish(subject, b"%d" % numbers[-1])


async def durable(
    js: JetStream, name: str = "d", given: ConsumerConfig = ANY, **config: Any
) -> None:
    wanted = ConsumerConfig(durable_name=name, ack_policy="explicit", max_deliver=-1)
    assert await js.ensure_consumer("S", wanted | given | ConsumerConfig(**config)) == []


async def consumers(js: JetStream, stream: str = "S") -> list[str]:
    """Return the names of all consumers that the server has."""
    reply = await js.request(f"CONSUMER.NAMES.{stream}")
    return list(reply.get("consumers") or [])


async def has_consumers(js: JetStream, count: int) -> bool:
    """Whether the server has so many; one that replaces another is made first, or after it."""
    return len(await consumers(js)) == count


async def state(js: JetStream, consumer: str = "d") -> ConsumerInfo:
    return await js.consumer_info("S", consumer)


async def has_pending(js: JetStream, count: int) -> bool:
    """Whether the consumer knows of so many, which it learns a moment after the stream has them.

    Until then a pull that does not wait ends without them.
    """
    return (await state(js)).num_pending == count


async def waiting_pulls(js: JetStream, number: int = 1) -> bool:
    """Whether the server has so many pull requests of the consumer waiting."""
    return bool((await state(js)).num_waiting == number)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.payload) for delivery in deliveries]


@contextlib.asynccontextmanager
async def spied(js: JetStream, subject: str) -> AsyncIterator[list[Any]]:
    """Collect what is sent on the subject, as JSON where it is, while the body runs."""
    seen: list[Any] = []

    async def see(message: Msg) -> None:
        try:
            seen.append(json.loads(message.data))
        except ValueError:
            seen.append(message.data)

    subscription = await js.nc.subscribe(subject, cb=see)
    await js.connection.ping(30)
    yield seen
    await js.connection.ping(30)  # what was sent in the body has come by the answer
    await subscription.unsubscribe()


async def send_status(
    js: JetStream, subject: str, line: str, reply: str = "", **headers: str
) -> None:
    """Send a status message as the server would; nats-py has no call for it."""
    head = f"NATS/1.0 {line}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
    size = len(head.encode())
    command = f"HPUB {subject} {reply} {size} {size}\r\n{head}\r\n"
    await js.nc._send_command(command.encode())
    await js.nc._flush_pending()


async def run_example(example: str, url: str) -> None:
    """Run an example of the documents against the server, with half a minute for it."""
    body = example.replace("nats://127.0.0.1:4222", url)
    steps: dict[str, Any] = {}
    exec(f"async def run():\n{textwrap.indent(body, '    ')}", steps)  # noqa: S102 - our own

    async with asyncio.timeout(30):
        await steps["run"]()
