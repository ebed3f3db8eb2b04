"""What visitors have a Rebaser do takes no more rights than deploy/nats gives its user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.subjects import Subjects
from rebaser_server.processor.dead_letters import DIED_AT, REASON
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.integration.test_action_service import OPERATOR, TOKENS, act, target
from tests.security.roles import client_of, connected_as, violations, with_accounts
from tests.security.test_permissions import serving

SUBJECTS = Subjects()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with with_accounts(tmp_path / "nats") as server:
        yield server


async def dead_letter(server: NatsServer, change_set: ChangeSet) -> None:
    """One that can be replayed: a request of a client, put where a Rebaser puts it."""
    async with connected_as(server, "server") as js:
        stored = await js.get_message(SUBJECTS.requests_stream, sequence=1)
        assert stored is not None
        headers = {k: v for k, v in stored.headers.items() if not k.startswith("Nats-")}
        headers |= {REASON: "why", DIED_AT: "2026-11-22T00:00:00+00:00"}
        await js.publish(SUBJECTS.dead_letters(change_set), stored.payload, headers=headers)


async def test_operators_act_by_the_page_without_a_single_violation(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    [change_set] = new_change_sets(1)
    async with serving(nats_server, tmp_path, "one", OPS__TOKENS=TOKENS) as [daemon]:
        await eventually(lambda: bool(daemon.said("ops endpoint started")))
        assert (await act(daemon, "pause", target(change_set)))[0] == 200
        async with client_of(nats_server) as client:
            await client.enqueue_updates(*change_set, ExampleGraph().define())
            await dead_letter(nats_server, change_set)
            code, said = await act(daemon, "resume", target(change_set), OPERATOR)
            assert (code, said[-1]) == (200, "1")
            code, said = await act(daemon, "replay", {"number": 1})
            assert (code, "enqueued again" in said) == (200, True)
            for action in ("checkpoint", "recompute", "cancel"):
                assert (await act(daemon, action, target(change_set)))[0] == 200, action

    assert violations(nats_server) == []
