"""Part `questions`: a small request, alone and beside a hundred questions a second of each kind."""

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from ulid import ULID

from benchmarks import processes
from benchmarks.blocks import fan, seed, value_ids
from benchmarks.broker import Broker, broker
from benchmarks.deployment import client_of, running
from benchmarks.peer_worker import ours
from benchmarks.processes import proportional
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_client.reader import FIRST_PART_TIMEOUTS
from rebaser_core.codecs import CBOR
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.messages import OutcomeQuery, OutcomeQueryV1
from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceQueryV1,
    ProvenanceQuery,
    ProvenanceQueryV1,
    RevertQuery,
    RevertQueryV1,
    ValuesQuery,
    ValuesQueryV1,
)
from rebaser_core.query_protocol import ACCEPTS_PIECES, REPLY_TIMEOUT
from rebaser_core.streams import Streams
from rebaser_core.versioning import MessageType
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import new_change_sets

RATE: Final = 100
"""Questions a second."""
REQUESTS: Final = 40
"""Requests of each turn, one after the other."""
PAUSE: Final = 0.05
"""Seconds between two of them."""
SETTLE: Final = 2.0
"""Seconds for which it is asked before the first request."""
_AT_REST: Final = 0.1
"""Part of a core that a daemon takes at most which has nothing left to answer."""
AIM: Final = 3
"""Times as long as alone, at most."""
_COLUMNS: Final = (
    *("asked for", "alone ms", "beside ms", "ratio", "worst beside ms", "messages back"),
    "daemon MiB",
)
_NOTE: Final = """\
{count:,} values, of which one takes all but the first and those each take the first; {rate}
questions a second of one client, and another client's requests to a change set of another
workspace, from the call to the reply: medians of {rounds} rounds of {requests}, in turns. At most
{aim} times as long as alone is the aim. Synced {durability}."""

Say = Callable[[str], None]


class Question(NamedTuple):
    kind: str
    subject: str
    headers: dict[str, str]
    body: bytes


class Times(NamedTuple):
    alone: list[float]
    beside: list[float]
    replies: list[int]
    memory: list[int]


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    """One daemon without Spark; nothing is computed."""
    count = sizes.asked
    found: dict[str, Times] = {}
    with broker(directory / "nats") as server:
        async with client_of(server) as (client, js):
            settings = Settings.model_validate(
                {"nats": {"url": server.url}, "store": {"root": str(directory / "store")}}
            )
            await prepare(js, settings)
            [other] = new_change_sets(1)
            workspace = await client.workspaces.create("asked")
            asked = ChangeSet(workspace.head.workspace_id, workspace.head.change_set_id)
            say("questions: seed")
            await seed(js, settings, asked, await asyncio.to_thread(fan, count))
            with running(server.url, directory, SPARK__WARM="false") as daemon:
                await daemon.ready()
                questions = await _questions(client, js, asked, count)
                probe = _Probe(client, other)
                await probe.times(REQUESTS)
                for number in range(sizes.peer_rounds):
                    for kind, question in questions.items():
                        say(f"questions: round {number + 1} of {sizes.peer_rounds}: {kind}")
                        times = found.setdefault(kind, Times([], [], [], []))
                        times.alone.extend(await probe.times(REQUESTS))
                        async with _asked(server, question) as replies:
                            times.beside.extend(await probe.times(REQUESTS))
                            memory = proportional(daemon.process.pid)
                        times.replies.append(*replies)
                        times.memory.append(memory)
                        await _rest(daemon.process.pid)
        note = _NOTE.format(
            count=count, rate=RATE, rounds=sizes.peer_rounds, requests=REQUESTS, aim=AIM,
            durability=server.durability,
        )  # fmt: skip
    rows = [_row(kind, times) for kind, times in found.items()]
    return [Table("A request beside questions of another workspace", _COLUMNS, rows, [note])]


def _row(kind: str, times: Times) -> list[Cell]:
    alone, beside = median(times.alone), median(times.beside)
    figures = MILLI * alone, MILLI * beside, beside / alone, MILLI * max(times.beside)
    return [kind, *figures, sum(times.replies), max(times.memory) >> 20]


async def _questions(
    client: RebaserClient, js: JetStream, change_set: ChangeSet, count: int
) -> dict[str, Question]:
    """One of each kind about the change set, which gets a branch, and a commit to undo."""
    ids, streams, about = value_ids(0, count, count), Streams(js=js), {}
    undone = [{"setValue": {"valueId": ids[0], "value": 0}}]
    request, reply = await client.enqueue_updates_with_reply(*change_set, undone)
    await reply
    commit, _ = await CommitLog(streams, change_set).last()
    record = await client.workspaces.fork(change_set.workspace_id, "branch")
    branch = ChangeSet(change_set.workspace_id, record.change_set_id)
    edit = [{"putValue": {"valueId": str(ULID()), "name": "new", "value": 1}}]
    await (await client.enqueue_updates_with_reply(*branch, edit))[1]

    def ask(kind: str, name: str, message: MessageType[Any], model: Any, **fields: Any) -> None:
        of = fields.pop("of", change_set)
        fields = {"id": RequestId(), **fields}
        query = model(workspace_id=of.workspace_id, change_set_id=of.change_set_id, **fields)
        headers, body = message.encode(query, CBOR)
        more = {ACCEPTS_PIECES: "1"}
        more[REPLY_TIMEOUT] = str(FIRST_PART_TIMEOUTS[0])  # as a client's first one
        subject = streams.join("rebaser", name, *map(str, of))
        about[kind] = Question(kind, subject, headers | more, body)

    ask("one value", "values", ValuesQuery, ValuesQueryV1, which=[ids[0]])
    ask("all values", "values", ValuesQuery, ValuesQueryV1)
    ask("its dependents", "values", ValuesQuery, ValuesQueryV1, which=[ids[0]], dependents=2)
    ask("why", "provenance", ProvenanceQuery, ProvenanceQueryV1, value=ids[-1])
    ask("difference", "differences", DifferenceQuery, DifferenceQueryV1, of=branch, computed=True)
    ask("revert", "reverts", RevertQuery, RevertQueryV1, commit=commit)
    ask("outcome", "outcomes", OutcomeQuery, OutcomeQueryV1, id=request)
    return about


class _Probe:
    """A client that sets the one value of a small change set."""

    def __init__(self, client: RebaserClient, change_set: ChangeSet) -> None:
        self._client = client
        self._change_set = change_set
        self._value = str(ULID())

    async def times(self, count: int) -> list[float]:
        """Seconds of so many requests, each from the call to the reply."""
        took = []
        for number in range(count):
            began = time.perf_counter()
            update = {"putValue": {"valueId": self._value, "value": number}}
            _, reply = await self._client.enqueue_updates_with_reply(*self._change_set, [update])
            await reply
            took.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
        return took


@asynccontextmanager
async def _asked(server: Broker, question: Question) -> AsyncIterator[list[int]]:
    """Have another process ask while the body runs; it adds how many messages came back."""
    said = {"headers": question.headers, "body": base64.b64encode(question.body).decode()}
    replies: list[int] = []
    process = await asyncio.create_subprocess_exec(
        *ours("asking_worker"), server.url, question.subject, str(RATE),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    out, into = process.stdout, process.stdin
    if out is None or into is None:
        raise RuntimeError("the asking process has no pipes")
    try:
        into.write(json.dumps(said).encode() + b"\n")
        await out.readline()
        await asyncio.sleep(SETTLE)
        yield replies
        into.close()
        replies.append(int(await out.readline()))
    finally:
        process.kill()
        await process.wait()


async def _rest(pid: int) -> None:
    """Wait until all questions are answered or dropped, as the process takes hardly any time."""
    used = processes.seconds(pid) or 0.0
    while True:
        await asyncio.sleep(1)
        before, used = used, processes.seconds(pid) or 0.0
        if used - before < _AT_REST:
            return
