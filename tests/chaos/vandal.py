"""A client that does whatever its rights let it: nothing of it may harm anything of others."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Self

import cbor2
from nats.aio.msg import Msg

from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from tests.chaos.access import Access
from tests.chaos.fuzz import fuzzed
from tests.chaos.history import History, Kind
from tests.chaos.workload import Values, new_id
from tests.helpers.poison_data import (
    meta_subject,
    poison_heartbeat,
    poison_meta,
    poison_record,
    poison_subject,
)
from tests.helpers.raw_client import RawClient
from tests.security.roles import API_PREFIX, password

WAIT: Final = 5.0  # seconds for the server to read a message


class RawConnection:
    """Publishes any octets; once the server closed the connection, over a new one."""

    def __init__(self, port: int, **login: str) -> None:
        self._port, self._login = port, login
        self._stack = AsyncExitStack()
        self._client: RawClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._close()

    async def publish(
        self, subject: bytes, payload: bytes = b"", *, headers: bytes = b"", reply: bytes = b""
    ) -> None:
        """Hand it to the server, if that is there. `headers`: whole lines, each with its end."""
        block = b"NATS/1.0\r\n" + headers + b"\r\n" if headers else b""
        try:
            async with asyncio.timeout(WAIT):
                if self._client is None:
                    self._client = await self._stack.enter_async_context(self._new())
                self._client.publish(subject, payload, reply=reply, block=block)
                await self._client.arrived()
        except OSError:  # a deadline, too
            await self._close()

    def _new(self) -> RawClient:
        return RawClient(self._port, **self._login)

    async def _close(self) -> None:
        self._client = None
        await self._stack.aclose()


MAX_PAYLOAD: Final = 1 << 20
"""Octets, headers included, that a NATS server takes by default."""

FLOOD: Final = 300
"""Questions asked at a time."""

LIGHT: Final = 5
"""Acts that cost little, for one that costs much."""

_HEADERS: Final = (
    b"Nats-Expected-Stream: REBASER_REQUESTS", b"Nats-Expected-Last-Msg-Id: ", b"a(b): v",
    b'"q": v', b"a;b: 1", b"a/b: 1", b"\xff\xfe: x", b": x", b"X-Reply-Inbox: " + 5_000 * b"a",
    b"X-Reply-Inbox: a\x0bb", b"X-Author: \x1b[31m\xff", b"X-Author: " + 60_000 * b"x",
    b"X-Reply-Version: 999999999999", b"Traceparent: \xff", b"Status: 503", b"no colon",
)  # fmt: skip


class Vandal:
    """Acts on the change sets of others, one act after another, each drawn from the seed."""

    def __init__(
        self,
        connection: RawConnection,
        subjects: Subjects,
        history: History,
        rng: random.Random,
        change_sets: Sequence[ChangeSet],
        *,
        api_prefix: str | None,
    ) -> None:
        """With an `api_prefix` it is a client of another account, with no rights on records."""
        self._connection = connection
        self._subjects = subjects
        self._history = history
        self._rng = rng
        self._change_sets = change_sets
        self._prefix = f"{api_prefix}." if api_prefix else ""
        self._claims: dict[ChangeSet, str] = {}
        light = [
            self._damaged_request, self._strange_headers, self._forged_result, self._stray,
            self._forged_answer, self._meta, self._question,
        ]  # fmt: skip
        heavy = [
            self._nearly_too_large, self._many_corrections, self._short_floats, self._nested,
            self._flood,
        ]  # fmt: skip
        if not api_prefix:
            light += [self._record, self._heartbeat]
        self._acts: list[Callable[[], Awaitable[None]]] = LIGHT * light + heavy

    async def act(self, until: asyncio.Event, pause: float) -> None:
        while not until.is_set():
            act = self._rng.choice(self._acts)
            self._history.add(Kind.VANDAL, act=act.__name__.strip("_").replace("_", " "))
            await act()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(0, 2 * pause)):
                    await until.wait()

    async def heard(self, message: Msg) -> None:
        """An activity: it names the claim of an update."""
        with suppress(MessageError):
            told = Activity.decode(message.headers or {}, message.data)
            if told.kind is ActivityKind.DVU_STARTED and told.request_id is not None:
                change_set = ChangeSet(told.workspace_id, told.change_set_id)
                self._claims[change_set] = str(told.request_id)

    async def _request(
        self, change_set: ChangeSet, payload: bytes, headers: dict[str, str], *more: bytes
    ) -> None:
        """Store it, with a task for it."""
        lines = [f"{name}: {value}".encode() for name, value in headers.items()]
        block = b"".join(line + b"\r\n" for line in (*lines, *more))
        await self._connection.publish(
            self._subjects.requests(change_set).encode(), payload, headers=block
        )
        await self._connection.publish(self._subjects.task(change_set).encode())

    async def _updates(
        self, change_set: ChangeSet, updates: list[Any], *, as_json: bool = False, **more: Any
    ) -> None:
        request = {
            "id": new_id(self._rng),
            "workspaceId": str(change_set.workspace_id),
            "changeSetId": str(change_set.change_set_id),
            "updatesAddress": {"inline": {"updates": updates, **more}},
        }
        body = {"v1": request}
        payload = json.dumps(body).encode() if as_json else cbor2.dumps(body)
        await self._request(change_set, payload, _headers(request["id"], as_json=as_json))

    def _one(self) -> ChangeSet:
        return self._rng.choice(self._change_sets)

    async def _damaged_request(self) -> None:
        change_set = self._one()
        headers, payload = fuzzed(self._rng, change_set, Values(self._rng))
        if b"v1" in payload:  # it may be applied, and the judge would not know what it does
            payload = payload.replace(b"v1", b"vv")
        await self._request(change_set, payload, headers)

    async def _strange_headers(self) -> None:
        more = self._rng.sample(_HEADERS, self._rng.randrange(1, 4))
        payload = self._rng.choice((b"", b"no request", self._rng.randbytes(100)))
        headers = _headers(new_id(self._rng), as_json=False)
        await self._request(self._one(), payload, headers, *more)

    async def _nearly_too_large(self) -> None:
        """A request that is none, of just the size that the server takes, or little less."""
        headers = _headers(new_id(self._rng), as_json=False)
        block = 12 + sum(len(name) + len(value) + 4 for name, value in headers.items())
        size = MAX_PAYLOAD - block - self._rng.choice((0, 1, 20, 300, 1_000, 5_000))
        await self._request(self._one(), b"\xff" * size, headers)

    async def _many_corrections(self) -> None:
        missing = [{"removeValue": {"valueId": new_id(self._rng)}} for _ in range(15_000)]
        await self._updates(self._one(), missing)

    async def _short_floats(self) -> None:
        """As JSON far smaller than as CBOR."""
        value = [self._rng.randrange(10) / 10 for _ in range(170_000)]
        update = {"setValue": {"valueId": new_id(self._rng), "value": value}}
        await self._updates(self._one(), [update], as_json=True)

    async def _nested(self) -> None:
        """Far more objects than octets would let one think."""
        update = {"setValue": {"valueId": new_id(self._rng), "value": [[]] * 400_000}}
        await self._updates(self._one(), [update])

    async def _forged_result(self) -> None:
        change_set = self._one()
        claim = self._claims.get(change_set, new_id(self._rng))
        computed = {"claim": claim, "covers": 2**40, "commit": 0}
        update = {"setComputed": {"valueId": new_id(self._rng), "value": 666}}
        await self._updates(change_set, [update], computed=computed)

    async def _stray(self) -> None:
        kind, end = self._rng.choice((("requests", ()), ("tasks", ("process",))))
        await self._connection.publish(poison_subject(self._rng, kind, end), b"stray")

    async def _forged_answer(self) -> None:
        """A blank to some and a letter to others: what is behind it may be read as an answer's."""
        blank = self._rng.choice((b"\x0b", b"\x0c", b"\x1c", b"\x1f", b"\x85", b"\xa0"))
        kind = self._rng.choice((b"values", b"outcomes", b"activities"))
        token = str(self._rng.randrange(300)).encode()
        answer = {"seq": 2**40, "last_seq": 2**40, "stream": "REBASER_COMMITS", "success": True}
        subject = b"rebaser.%s.A.%s%s1" % (kind, token, blank)
        await self._connection.publish(subject, json.dumps(answer).encode())

    async def _meta(self) -> None:
        name = self._rng.choice((new_id(self._rng), "", "x" * 300))
        subject = self._prefix + meta_subject(name)
        await self._connection.publish(subject.encode(), poison_meta(self._rng, name))

    async def _question(self) -> None:
        asked, told = self._one(), self._one()
        await self._ask(asked, told, reply=b"_INBOX.client.vandal")

    async def _flood(self) -> None:
        change_set = self._one()
        for _ in range(FLOOD):
            await self._ask(change_set, change_set, reply=b"_INBOX.client.vandal")

    async def _ask(self, asked: ChangeSet, told: ChangeSet, *, reply: bytes) -> None:
        """A question whose subject and body may differ, or whose body is damaged."""
        body = {"v1": {
            "id": new_id(self._rng), "workspaceId": str(told.workspace_id),
            "changeSetId": str(told.change_set_id), "which": [new_id(self._rng)],
            "requestId": new_id(self._rng),
        }}  # fmt: skip
        payload = cbor2.dumps(body)
        if self._rng.random() < 0.3:
            payload = payload[: self._rng.randrange(len(payload))]
        kind, subject = self._rng.choice(
            (
                ("ValuesQuery", self._subjects.values(asked)),
                ("OutcomeQuery", self._subjects.outcomes(asked)),
            )
        )
        headers = _headers(body["v1"]["id"], as_json=False, kind=kind)
        block = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        await self._connection.publish(subject.encode(), payload, headers=block, reply=reply)

    async def _record(self) -> None:
        """Of no change set that there is: what is paused by right does not move."""
        bucket = self._rng.choice(("REBASER_PAUSES", "REBASER_CHANGE_SETS"))
        key = f"{new_id(self._rng)}.{self._rng.choice((new_id(self._rng), 'x', '*'))}"
        subject = f"$KV.{bucket}.{key}"
        await self._connection.publish(subject.encode(), poison_record(self._rng))

    async def _heartbeat(self) -> None:
        name = self._rng.choice((b"vandal", b"\xff", b"a\x0b1"))
        await self._connection.publish(b"rebaser.members." + name, poison_heartbeat(self._rng))


def _headers(
    request_id: str, *, as_json: bool, kind: str = "EnqueueUpdatesRequest"
) -> dict[str, str]:
    return {
        "X-CONTENT-TYPE": "application/json" if as_json else "application/cbor",
        "X-MESSAGE-TYPE": kind,
        "X-MESSAGE-VERSION": "1",
        "Nats-Msg-Id": request_id,
    }


@asynccontextmanager
async def vandal(
    port: int,
    access: Access,
    listening: JetStream,
    history: History,
    rng: random.Random,
    change_sets: Sequence[ChangeSet],
) -> AsyncIterator[Vandal]:
    """One that hears activities over `listening`."""
    login = {"user": "client", "pass": password("client")} if access.accounts else {}
    prefix = API_PREFIX if access.accounts else None
    subjects = Subjects()
    async with RawConnection(port, **login) as connection:
        made = Vandal(connection, subjects, history, rng, change_sets, api_prefix=prefix)
        hears = await listening.nc.subscribe("rebaser.activities.*.*", cb=made.heard)
        try:
            yield made
        finally:
            await hears.unsubscribe()
