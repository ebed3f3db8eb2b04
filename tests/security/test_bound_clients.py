"""What a client that is bound to one workspace can do to another one's: nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import ConnectOptions, connected
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.security.roles import ACCOUNTS, connected_as, violations, with_accounts

SUBJECTS = Subjects()
OWN = ChangeSet(WorkspaceId(), ChangeSetId())
OTHER = ChangeSet(WorkspaceId(), ChangeSetId())

BOUND = f"""
      {{
        user: bound, password: bound-secret
        permissions: {{
          subscribe: ["_INBOX.client.bound.>", "rebaser.activities.{OWN.workspace_id}.*"]
          publish: [
            "rebaser.requests.{OWN.workspace_id}.*", "rebaser.tasks.{OWN.workspace_id}.*.process"
            "rebaser.outcomes.{OWN.workspace_id}.*", "rebaser.values.{OWN.workspace_id}.*"
            "rebaser.provenance.{OWN.workspace_id}.*"
            "rebaser.differences.{OWN.workspace_id}.*", "rebaser.reverts.{OWN.workspace_id}.*"
            "js.rebaser.$O.REBASER_BATCHES.>"
          ]
        }}
      }}
"""


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    accounts = ACCOUNTS.read_text()
    clients = accounts.index("users: [", accounts.index("CLIENTS {")) + len("users: [")
    with with_accounts(
        tmp_path / "nats", accounts[:clients] + BOUND + accounts[clients:]
    ) as server:
        yield server


@pytest.mark.parametrize(
    "subject",
    [
        SUBJECTS.requests,
        SUBJECTS.task,
        SUBJECTS.values,
        SUBJECTS.provenance,
        SUBJECTS.differences,
        SUBJECTS.reverts,
        SUBJECTS.outcomes,
    ],
    ids=["enqueue", "poke", "read values", "ask why", "compare", "plan", "ask for outcomes"],
)
async def test_subjects_of_another_workspace_are_refused(nats_server: NatsServer, subject) -> None:
    options = ConnectOptions(
        servers=(nats_server.url,),
        user="bound",
        password="bound-secret",
        inbox_prefix="_INBOX.client.bound",
    )
    async with connected_as(nats_server, "server") as server, connected(options) as bound:
        await prepare(server, Settings())
        await bound.publish(subject(OTHER))
        await bound.publish(subject(OWN))
        await bound.flush()

        async def refused() -> bool:
            await asyncio.sleep(0)
            return len(violations(nats_server)) == 1

        await eventually(refused)
        assert subject(OTHER) in violations(nats_server)[0]
