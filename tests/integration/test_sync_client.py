"""The client without `await`: the same methods, called from a thread that has no loop."""

import asyncio
import inspect
from typing import Any

import pytest

from rebaser_client import ChangeSetHandle, RebaserClient, Unreachable, WorkspaceHandle, sync
from rebaser_client.draft import builtin
from rebaser_client.services import KeyHandle, ServiceHandle
from rebaser_client.workspaces import AddressBook, Workspaces
from tests.helpers.deployment import Deployment

PAIRS = [
    (RebaserClient, sync.SyncClient),
    (Workspaces, sync.SyncWorkspaces),
    (AddressBook, sync.SyncAddressBook),
    (ChangeSetHandle, sync.SyncChangeSet),
    (WorkspaceHandle, sync.SyncWorkspace),
    (ServiceHandle, sync.SyncService),
    (KeyHandle, sync.SyncKey),
]

LEFT_OUT = {
    "enqueue_with_reply": "what it returns can be awaited alone",
    "enqueue_updates_with_reply": "as enqueue_with_reply",
    "enqueue_updates_from_change_set_with_reply": "as enqueue_with_reply",
    "on": "makes a client",
}


def is_asynchronous(method: Any) -> bool:
    plain = inspect.unwrap(method)
    return inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda each: each.__name__)
def test_each_asynchronous_method_has_its_like(asynchronous: type, blocking: type) -> None:
    """A method that is added to the one and not to the other fails here."""
    methods = {
        name
        for name, method in inspect.getmembers(asynchronous, inspect.isfunction)
        if not name.startswith("_") and is_asynchronous(method)
    }

    assert {name for name in methods if not hasattr(blocking, name)} <= LEFT_OUT.keys()


def use(url: str) -> dict[str, Any]:
    """What a script does."""
    with sync.connect(url) as client:
        shop = client.workspace("shop").create()
        with shop.edit() as g:
            g.value("gross", builtin("sum"), g.source("net", 1), g.source("tax", 2))
        branch = shop.fork("winter")
        with branch.edit() as cheaper:
            cheaper.source("net", 0)
        found = {
            "failed": g.outcome.failed,
            "steps": len(list(shop.progress())),
            "differences": [(row.name, row.head, row.branch) for row in branch.differences()],
            "applied": branch.apply().status.value,
            "settled": shop.settled().failed,
            "values": {value.name: value.value for value in shop.values().values()},
            "log": len(client.change_set("shop/head").log()) > 0,
            "workspaces": [record.name for record in client.workspaces.all()],
        }
        with pytest.raises(ZeroDivisionError), shop.edit() as bad:
            bad.source("net", 1 / 0)
        return found


async def test_a_script_uses_it_from_a_thread_of_its_own(deployment: Deployment) -> None:
    """Edits, branches, progress and differences, and it ends with its connection."""
    await deployment.start()
    await deployment.client.workspace("other").create()

    found = await asyncio.to_thread(use, deployment.nats.url)

    assert found == {
        "failed": (),
        "steps": 1,
        "differences": [("gross", 3, 2), ("net", 1, 0)],
        "applied": "applied",
        "settled": (),
        "values": {"net": 0, "tax": 2, "gross": 2},
        "log": True,
        "workspaces": ["other", "shop"],
    }


def test_a_server_that_does_not_answer_raises_and_leaves_no_thread() -> None:
    """The error is that of the asynchronous client."""
    with pytest.raises(Unreachable):
        sync.connect("nats://127.0.0.1:1", connect_timeout=0.2)
