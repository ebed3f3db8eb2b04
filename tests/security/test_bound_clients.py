"""What a client that is bound to one workspace sees of another one: nothing."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nats.aio.msg import Msg

from rebaser_client import Draft
from rebaser_client.client import RebaserClient, connect
from rebaser_client.outcomes import watching
from rebaser_core.errors import NoSuchChangeSet
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    OutcomeQuery,
    OutcomeQueryV1,
    RequestState,
)
from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceQueryV1,
    ProvenanceQuery,
    ProvenanceQueryV1,
    RevertQuery,
    RevertQueryV1,
    TableDifferenceQuery,
    TableDifferenceQueryV1,
    TableQuery,
    TableQueryV1,
    ValuesQuery,
    ValuesQueryV1,
)
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1, PauseScope
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import REPLY_INBOX
from rebaser_server.cluster.pauses import PauseStore
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.security.roles import ACCOUNTS, API_PREFIX, connected_as, violations, with_accounts
from tests.security.test_permissions import serving

SUBJECTS = Subjects()
OWN = ChangeSet(WorkspaceId(), ChangeSetId())
OTHER = ChangeSet(WorkspaceId(), ChangeSetId())
INBOX = "_INBOX.client.bound"
REGISTRY = "$KV.REBASER_CHANGE_SETS"
GET = f"DIRECT.GET.KV_REBASER_CHANGE_SETS.{REGISTRY}"


def accounts_with_a_bound_client() -> tuple[str, list[str]]:
    """The accounts of deploy/nats with a user more, made as they say; what it may publish."""
    accounts = ACCOUNTS.read_text()
    start = accounts.index("users: [", accounts.index("CLIENTS {")) + len("users: [")
    client = accounts[start : accounts.index("\n    ]", start)]
    large_batches = tuple(f'REBASER_BATCHES.{kind}.*"' for kind in "CM")
    bound = re.sub(
        r'"[^"]+"',
        lambda found: (
            found[0] if found[0].endswith(large_batches) else found[0].replace("*", str(OWN[0]), 1)
        ),
        client,
    )
    bound = bound.replace("_INBOX.client.", f"{INBOX}.")
    bound = bound.replace(
        "user: client, password: $NATS_CLIENT_PASSWORD", "user: bound, password: b-"
    )
    granted = re.findall(r'"([^"]+)"', bound[bound.index("publish:") :])
    return accounts[:start] + bound + accounts[start:], granted


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with with_accounts(tmp_path / "nats", accounts_with_a_bound_client()[0]) as server:
        yield server


@asynccontextmanager
async def bound_client(server: NatsServer) -> AsyncIterator[RebaserClient]:
    async with connect(
        server.url, user="bound", password="b-", inbox_prefix=INBOX, api_prefix=API_PREFIX
    ) as client:
        yield client


@dataclass
class Workspace:
    """A workspace with a branch, and all that its people would not show to strangers."""

    head: ChangeSet
    branch: ChangeSet
    comment: RequestId
    request: RequestId

    @classmethod
    async def make(cls, operator: JetStream, head: ChangeSet, label: str) -> "Workspace":
        async with RebaserClient.on(operator.nc, operator, author=f"{label}-author") as client:
            workspaces = client.workspaces
            await workspaces.create(
                f"{label}-shop", workspace_id=head.workspace_id, head=head.change_set_id
            )
            definition = ExampleGraph().define()
            definition[-1]["putValue"]["name"] = f"{label}-total"
            definition.append(put(new_id(), f"{label}-value"))
            done = await client.change_set(*head).enqueue(definition)
            branch = await workspaces.fork(head.workspace_id, f"{label}-branch")
            comment = await client.change_set(*head).comment(f"{label}-comment")
        return cls(
            head, ChangeSet(head.workspace_id, branch.change_set_id), comment.id, done.request_id
        )

    async def pause(self, operator: JetStream, label: str) -> None:
        store = PauseStore(Streams(js=operator))
        await store.pause(PauseScope(*self.branch), reason=f"{label}-reason", by=f"{label}-author")


Make = Callable[[ChangeSet], tuple[bytes, dict[str, str]]]
"""The payload and the headers of a message about a change set."""


def encoded(kind: Any, model: Any, **fields: Any) -> Make:
    def encode(about: ChangeSet) -> tuple[bytes, dict[str, str]]:
        headers, payload = kind.encode(model(id=RequestId(), **about._asdict(), **fields))
        return payload, dict(headers)

    return encode


def of_queries(kind: str) -> Callable[[ChangeSet], str]:
    return partial(SUBJECTS.queries, kind=kind)


QUESTIONS: dict[Callable[[ChangeSet], str], Make] = {
    of_queries("values"): encoded(ValuesQuery, ValuesQueryV1),
    of_queries("tables"): encoded(TableQuery, TableQueryV1, value="secret-total"),
    of_queries("table-differences"): encoded(
        TableDifferenceQuery, TableDifferenceQueryV1, value="secret-total", since=1
    ),
    of_queries("provenance"): encoded(ProvenanceQuery, ProvenanceQueryV1, value="secret-total"),
    of_queries("differences"): encoded(DifferenceQuery, DifferenceQueryV1, computed=True),
    of_queries("reverts"): encoded(RevertQuery, RevertQueryV1, commit=1),
    SUBJECTS.outcomes: encoded(OutcomeQuery, OutcomeQueryV1),
}
"""Subject → a question that goes there."""

COMMANDS: list[Make] = [
    encoded(
        EnqueueUpdatesRequest,
        EnqueueUpdatesRequestV1,
        updates_address=Inline(inline=InlineBatch(updates=[])),
    ),
    *(
        encoded(ChangeSetRequest, ChangeSetRequestV1, action=action)
        for action in ("refresh", "apply", "abandon", "delete", "checkpoint", "recompute")
    ),
]

ASKING_FOR_OTHERS = [
    json.dumps(body).encode()
    for body in (
        {"seq": 1},
        {"seq": 1, "next_by_subj": ">"},
        {"last_by_subj": f"{REGISTRY}.{OTHER[0]}"},
        {"last_by_subj": f"{REGISTRY}.{OTHER}"},
        {"multi_last": [f"{REGISTRY}.>"], "batch": 100},
        {"seq": 1, "batch": 100, "next_by_subj": f"{REGISTRY}.>"},
    )
]
"""Bodies of requests to the JetStream API that read what others have."""

STREAMS = (
    "REBASER_REQUESTS", "REBASER_TASKS", "REBASER_COMMITS", "REBASER_DEAD_LETTERS",
    "OBJ_REBASER_BATCHES", "KV_REBASER_CHANGE_SETS", "KV_REBASER_PAUSES",
)  # fmt: skip
VERBS = [
    "INFO", "STREAM.NAMES", "STREAM.LIST", "ACCOUNT.PURGE.REBASER", "META.LEADER.STEPDOWN",
    *(
        f"{verb}.{stream}"
        for stream in STREAMS
        for verb in (
            "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE",
            "STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE",
            "STREAM.PEER.REMOVE", "STREAM.LEADER.STEPDOWN", "DIRECT.GET", "CONSUMER.CREATE",
            "CONSUMER.NAMES", "CONSUMER.LIST",
        )
    ),
    *(
        f"{verb}.{stream}.mine"
        for stream in STREAMS
        for verb in (
            "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.INFO", "CONSUMER.DELETE",
            "CONSUMER.PAUSE", "CONSUMER.RESET", "CONSUMER.UNPIN", "CONSUMER.MSG.NEXT",
            "CONSUMER.LEADER.STEPDOWN",
        )
    ),
    f"CONSUMER.CREATE.KV_REBASER_CHANGE_SETS.mine.{REGISTRY}.{OWN[0]}.>",
    *(
        f"{GET}.{key}"
        for key in (OTHER[0], OTHER, f"{OTHER[0]}.>", f"*.{OTHER[1]}", "*", "*.*", ">",
                    "rebaser.deployment.id")
    ),
    f"DIRECT.GET.KV_REBASER_PAUSES.$KV.REBASER_PAUSES.{OTHER}",
    f"DIRECT.GET.REBASER_COMMITS.{SUBJECTS.commits(OTHER)}",
    f"{REGISTRY}.{OTHER}", f"{REGISTRY}.{OWN}", f"$KV.REBASER_PAUSES.{OWN}",
]  # fmt: skip
"""All that the JetStream API of the server knows, and what is stored by a subject."""

NOT_HEARD = [
    f"rebaser.activities.{OTHER[0]}.*", "rebaser.activities.*.*", "rebaser.activities.>",
    f"rebaser.requests.{OWN[0]}.*", f"rebaser.commits.{OWN[0]}.*", "rebaser.dead-letters.>",
    "_INBOX.>", "_INBOX.client.>", "_INBOX.client.*.>", "_INBOX.client.other.>", "_R_.>",
    f"{REGISTRY}.>", f"{REGISTRY}.{OWN[0]}.>", "$O.>", "$JS.>", "$SYS.>", "js.>", ">",
]  # fmt: skip


def refused_subjects(granted: list[str]) -> list[str]:
    """What it may not say: what it may, about others, and all of the API."""
    of_others = [
        subject.replace(str(OWN[0]), workspace).replace("*", str(OTHER[1])).replace(">", "x")
        for subject in granted
        for workspace in (str(OTHER[0]), "*", ">")
        if str(OWN[0]) in subject
    ]
    api = [f"{api}.{verb}" for api in (API_PREFIX, "$JS.API") for verb in VERBS]
    plain = [verb for verb in VERBS if verb.startswith("$KV")]
    return list(dict.fromkeys(of_others + api + plain))


class Listener:
    """All that came to a connection, whatever it was."""

    def __init__(self, js: JetStream) -> None:
        self.js = js
        self.heard: list[Msg] = []

    async def hear(self, message: Msg) -> None:
        self.heard.append(message)

    async def say(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        await self.js.connection.publish(subject, payload, reply=f"{INBOX}.answer", headers=headers)

    async def all_said(self, count: int) -> str:
        """Text of what came by the time that there are `count` messages more; none if 0."""
        await self.js.connection.ping(30)
        await eventually(lambda: len(self.heard) >= count, within=60)
        said = [f"{each.subject} {each.headers} {each.data!r}" for each in self.heard]
        self.heard.clear()
        return "\n".join(said)


@asynccontextmanager
async def listening(client: RebaserClient) -> AsyncIterator[Listener]:
    listener = Listener(client._streams.js)
    await client._streams.js.nc.subscribe(f"{INBOX}.>", cb=listener.hear)
    yield listener


async def test_a_bound_client_does_all_its_work_without_a_violation(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """An operator makes workspaces and branches; all else on them is the client's."""
    async with (
        serving(nats_server, tmp_path, "one"),
        connected_as(nats_server, "operator") as operator,
        bound_client(nats_server) as client,
        watching(client._streams, OWN) as activities,
    ):
        own = await Workspace.make(operator, OWN, "own")
        assert (
            await client.change_set(*OWN).enqueue([put(new_id(), n) for n in range(600)])
        ).commit
        assert (await anext(activities)).change_set_id == OWN.change_set_id
        draft = Draft()
        draft.table("own-table", pa.table({"id": [1]}))
        loaded = await client.change_set(*OWN).load(draft, wait="committed")
        values = await client.change_set(*OWN).values()
        edits = (await client.change_set(*OWN).why("own-total")).edits
        outcome = await client.change_set(*OWN).outcome(own.request)
        addressed = await client.addresses.find("/".join(map(str, own.branch)))
        comment = await client.workspaces.registry.last_comment(OWN)
        on_branch = await client.change_set(*own.branch).enqueue([put(new_id(), "of the branch")])
        difference = await client.change_set(*own.branch).difference(computed=True)
        plan = await client.change_set(*own.branch).plan_revert(on_branch.commit or 0)
        await client.change_set(*own.branch).refresh()
        await client.change_set(*own.branch).checkpoint()
        await client.change_set(*own.branch).apply()
        await client.change_set(*own.branch).delete()
        with pytest.raises(NoSuchChangeSet):
            await client.change_set(OWN.workspace_id, new_id()).describe()

    assert loaded is not None
    assert loaded.corrections == ()
    assert len(values) == 605
    assert [edit.request for edit in edits] == [own.request]
    assert outcome.state is RequestState.SETTLED
    assert addressed.address == "own-shop/own-branch"
    assert comment > 0
    assert (len(difference.updates), len(plan.updates)) == (1, 1)
    assert violations(nats_server) == []


async def test_nothing_of_other_workspaces_comes_back_to_a_bound_client(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """It knows ids of another's head, and says all that it may, and all that it may not."""
    refused = refused_subjects(accounts_with_a_bound_client()[1])
    foreign = ChangeSet(OWN.workspace_id, OTHER.change_set_id)
    async with (
        serving(nats_server, tmp_path, "one"),
        connected_as(nats_server, "operator") as operator,
        bound_client(nats_server) as client,
        listening(client) as bound,
    ):
        await Workspace.make(operator, OWN, "own")
        other = await Workspace.make(operator, OTHER, "secret")
        await other.pause(operator, "secret")
        words = ("shop", "branch", "author", "comment", "value", "reason")
        secrets = [f"secret-{word}" for word in words]
        secrets += map(str, (other.branch.change_set_id, other.comment, other.request))
        heard = []

        for subject in NOT_HEARD:
            await client._streams.js.nc.subscribe(subject, cb=bound.hear)
        for subject in refused:
            await bound.say(subject, ASKING_FOR_OTHERS[0])
        assert await bound.all_said(0) == ""
        assert len(violations(nats_server)) == len(NOT_HEARD) + len(refused)

        for subject_of, encode in QUESTIONS.items():
            for about in (OTHER, foreign):
                await bound.say(subject_of(OWN), *encode(about))
                await bound.say(subject_of(foreign), *encode(about))
            await bound.say(subject_of(OWN).replace(str(OWN[1]), "*"), *encode(OWN))
        heard.append(await bound.all_said(5 * len(QUESTIONS)))

        keys = [f"{OWN[0]}", f"{OWN}", f"{OWN[0]}.*", f"{OWN[0]}.>", f"{foreign}"]
        for payload in (b"", *ASKING_FOR_OTHERS):
            for key in keys:
                await bound.say(f"{API_PREFIX}.{GET}.{key}", payload)
        heard.append(await bound.all_said(len(keys) * (1 + len(ASKING_FOR_OTHERS))))

        for encode in COMMANDS:
            for about in (OTHER, foreign):
                for change_set in (OWN, foreign):
                    payload, headers = encode(about)
                    headers |= {REPLY_INBOX: f"{INBOX}.replies"}
                    await bound.say(SUBJECTS.requests(change_set), payload, headers)
                    await bound.say(SUBJECTS.task(change_set))
        heard.append(await bound.all_said(4 * 3 * len(COMMANDS)))

    text = "\n".join(heard)
    assert "own-" in text, "it hears of its own"
    assert [secret for secret in secrets if secret in text] == []
