"""Random frames of a server, with all that clients may put into them, read by a client of ours.

What should come of them is told by a splitter of its own: a regular expression over octets.
For long: `python -m tests.jetstream.random_frames --minutes 60`.
"""

import argparse
import asyncio
import logging
import random
import re
import sys
import time
from collections.abc import Iterator

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from rebaser_core.jetstream.fast_client import FastClient, inline_callback

DIRECT, QUEUED, UNKNOWN = 1, 2, 7
ODD = bytes(octet for octet in range(256) if octet not in b" \t\r\n")
"""What nats-server lets a subject have."""

FRAME = re.compile(
    rb"MSG (?P<s>[^ \r\n]+) (?P<i>[0-9]+)(?: (?P<r>[^ \r\n]+))? (?P<n>[0-9]+)\r\n"
    rb"|HMSG (?P<S>[^ \r\n]+) (?P<I>[0-9]+)(?: (?P<R>[^ \r\n]+))? (?P<H>[0-9]+) (?P<N>[0-9]+)\r\n"
)
Heard = tuple[bytes, bytes, bytes, bytes | None]
"""Subject, reply, payload, and the value of the header `Known`."""


def expected(stream: bytes) -> dict[int, list[Heard]]:
    """What each subscription should hear of a stream of whole frames."""
    found: dict[int, list[Heard]] = {DIRECT: [], QUEUED: []}
    at = 0
    while at < len(stream):
        frame = FRAME.match(stream, at)
        if frame is None:
            at = stream.index(b"\r\n", at) + 2
            continue
        headers = int(frame["H"] or 0)
        size = int(frame["n"] or frame["N"])
        body = stream[frame.end() : frame.end() + size]
        sid = int((frame["i"] or frame["I"])[:9])
        if sid in found and headers <= size:
            subject, reply = frame["s"] or frame["S"], frame["r"] or frame["R"] or b""
            found[sid].append((subject, reply, body[headers:], known(body[:headers])))
        at = frame.end() + size + 2
    return found


def known(block: bytes) -> bytes | None:
    if not block.startswith(b"NATS/1.0"):
        return None
    values = re.findall(rb"(?s)\r\nKnown:(.*?)(?=\r\n|\Z)", block)
    return values[-1].strip() if values else None


def stream(chance: random.Random) -> bytes:
    """Some frames, of which the last is an ordinary message to each subscription."""
    frames = [frame(chance) for _ in range(chance.randint(1, 12))]
    return b"".join([*frames, b"MSG end 1 2\r\nok\r\n", b"MSG end 2 2\r\nok\r\n"])


def frame(chance: random.Random) -> bytes:
    if chance.random() < 0.25:
        return chance.choice(LINES) + b"\r\n"
    subject, reply = odd(chance), odd(chance) if chance.random() < 0.6 else b""
    if chance.random() < 0.3:  # as of a client that means to answer for JetStream
        subject += chance.choice([b"\x0b1", b"\x0c1 ", b"\x1c1", b"\xa01", b"\x851"]).strip(b" ")
    sid = b"%d" % chance.choice([DIRECT, DIRECT, QUEUED, UNKNOWN])
    if chance.random() < 0.05:
        sid = chance.choice([b"x", b"-1", b"1_0", b"\xb2", b"9" * 5000])  # only this one is lost
    payload = octets(chance, chance.choice([0, 0, 5, 40, 3000]))
    if chance.random() < 0.4:
        word, sizes = b"MSG", b"%d" % len(payload)
    else:
        block = headers(chance)
        start = len(block) + (chance.random() < 0.05) * (len(payload) + 1)
        sizes, payload = b"%d %d" % (start, len(block) + len(payload)), block + payload
        word = b"HMSG"
    words = [word, subject, sid, *([reply] if reply else []), sizes]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


LINES = (
    b"PING", b"PONG", b"+OK", b"INFO {}", b"INFO {", b"INFO \xff", b"INFO []",
    b"-ERR 'Permissions Violation for Publish to \"\xff\"'", b"-ERR 'Invalid Subject'",
)  # fmt: skip


def headers(chance: random.Random) -> bytes:
    match chance.randint(0, 5):
        case 0:
            return octets(chance, chance.randint(0, 12))
        case 1:
            return b"NATS/1.0 " + octets(chance, 6) + b"\r\n\r\n"
        case 2:
            return b"NATS/1.0 100 Idle Heartbeat\r\nKnown: 1\r\n\r\n"
        case 3:
            return b"NATS/1.0\r\n" + odd(chance) * chance.choice([1, 2000]) + b": v\r\n\r\n"
    lines = [odd(chance) + b":" + odd(chance), b"Known: " + b"v\xff" + odd(chance), b":", b""]
    chance.shuffle(lines)
    return b"NATS/1.0\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"


def odd(chance: random.Random) -> bytes:
    """Octets of a token; no colon, and nothing that would look like the known header."""
    found = bytes(chance.choice(ODD) for _ in range(chance.randint(1, 8)))
    return found.replace(b":", b";")


def octets(chance: random.Random, size: int) -> bytes:
    return chance.randbytes(size)


def pieces(chance: random.Random, whole: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(whole):
        end = at + chance.choice([1, 2, 7, 60, 1000, len(whole)])
        yield whole[at:end]
        at = end


async def heard(chance: random.Random, whole: bytes) -> dict[int, list[Heard]]:
    """What a client's subscriptions hear, which reads it in pieces as they come."""
    client, found = offline(FastClient()), {DIRECT: [], QUEUED: []}

    def hear(sid: int, message: Msg) -> None:
        value = (message.headers or {}).get("Known")
        found[sid].append((
            message.subject.encode(errors="surrogateescape"),
            message.reply.encode(errors="surrogateescape"),
            message.data,
            value if value is None else value.encode(),
        ))  # fmt: skip

    async def queued(message: Msg) -> None:
        hear(QUEUED, message)

    for sid, callback in {
        DIRECT: inline_callback(lambda m: hear(DIRECT, m)),
        QUEUED: queued,
    }.items():
        client._subs[sid] = Subscription(client, sid, ">", cb=callback)
        client._subs[sid]._start(None)
    reading = asyncio.create_task(client._read_loop())
    await asyncio.sleep(0)
    for piece in pieces(chance, whole):
        client._transport._io_reader.feed_data(piece)
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    for _ in range(200):  # turns of the loop; most are not needed
        if all(each and each[-1][0] == b"end" for each in found.values()) or reading.done():
            break
        await asyncio.sleep(0)
    assert not reading.done(), "the reading ended"
    reading.cancel()
    await asyncio.wait([reading])
    for subscription in client._subs.values():
        subscription._stop_processing()
    return found


def offline(client: Client) -> Client:
    """As after `connect`, but nothing is ever written."""

    async def told(error: Exception) -> None:
        """Of no interest."""

    client._status = Client.CONNECTED
    client._error_cb = told
    client._current_server = client  # that there is one is all that is asked
    client._flush_queue = asyncio.Queue()
    client._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
    client._transport = TcpTransport()
    client._transport._io_reader = asyncio.StreamReader()
    client._transport._io_writer = client
    return client


def replaced(found: dict[int, list[Heard]]) -> dict[int, list[Heard]]:
    """Values of headers are legible: what is no UTF-8 is replaced."""

    def legible(value: bytes | None) -> bytes | None:
        return value if value is None else value.decode(errors="replace").strip().encode()

    return {sid: [(*most, legible(value)) for *most, value in each] for sid, each in found.items()}


async def check(seed: int) -> None:
    """Raise `AssertionError` if the client hears anything else than it should."""
    chance = random.Random(seed)
    whole = stream(chance)
    assert replaced(await heard(chance, whole)) == replaced(expected(whole)), seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    end = time.monotonic() + 60 * parser.parse_args().minutes
    logging.disable()
    seed = random.SystemRandom().randrange(10**9)
    first = seed
    while time.monotonic() < end:
        asyncio.run(check(seed))
        seed += 1
    sys.stdout.write(f"{seed - first} streams from seed {first}: none heard otherwise\n")


if __name__ == "__main__":
    main()
