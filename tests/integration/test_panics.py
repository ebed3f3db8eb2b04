"""A library that panics at one change set's table ends no daemon, and no other change set."""

import sys
from pathlib import Path

import pytest

from tests.helpers import panicking_tables
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


async def test_a_panic_fails_its_own_change_set(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until the store is there again: threads may be wanting now, and not later."""
    bad, good = new_change_sets(2)
    monkeypatch.setenv("PANICS_AT", str(bad.change_set_id))
    program = (sys.executable, Path(panicking_tables.__file__))
    daemon = await deployment.start("panics", program)

    await deployment.client.enqueue_updates(*bad, ExampleGraph().define())
    await eventually(lambda: bool(daemon.said("store failed")), within=60)
    _, reply = await deployment.client.enqueue_updates_with_reply(*good, ExampleGraph().define())
    assert (await reply).status

    assert daemon.process.poll() is None
    daemon.process.kill()
    await daemon.ended()
    await deployment.start("sound")
    await deployment.at_rest()
    assert (await deployment.graph(bad)).values
