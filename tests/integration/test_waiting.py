"""`--wait` says what came of a request, by an exit code of its own for each end."""

import json
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.arguments import Exit
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.command_line import Commands, Done
from tests.helpers.deployment import Deployment


class Waiting:
    """Gives batches to one change set and waits."""

    def __init__(self, commands: Commands, change_set: ChangeSet, file: Path) -> None:
        self.commands = commands
        self.change_set = change_set
        self._file = file

    async def enqueue(self, batch: list[dict[str, Any]], *options: str) -> Done:
        self._file.write_text(json.dumps(batch))
        return await self.commands.give("enqueue", *self.change_set, self._file, "--wait", *options)


@pytest.fixture
async def waiting(deployment: Deployment, tmp_path: Path) -> Waiting:
    await deployment.start(QUIET_PERIOD="30")
    workspace, head = await deployment.client.workspaces.create("shop")
    change_set = ChangeSet(workspace.workspace_id, head.change_set_id)
    return Waiting(Commands(deployment), change_set, tmp_path / "batch.json")


def summed(values: ExampleGraph, name: str) -> list[dict[str, Any]]:
    batch = values.define()
    batch[3]["putValue"]["name"] = name
    return batch


async def test_values_that_a_request_makes_fail_are_named_and_are_no_success(
    waiting: Waiting,
) -> None:
    pays, other, commands = ExampleGraph(), ExampleGraph(), waiting.commands
    good = await waiting.enqueue(summed(pays, "pays") + summed(other, "other"))

    failed = await waiting.enqueue([set_to(pays.net, "text")])
    as_json = await waiting.enqueue([set_to(pays.net, "more")], "--json")
    unrelated = await waiting.enqueue([set_to(other.net, 5)])
    by_set = await commands.give(
        "values", "set", *waiting.change_set, pays.net, "7.x", "--text", "--wait"
    )
    again = await commands.give("dvu", "run", *waiting.change_set, "--failed", "--wait")
    mended = await waiting.enqueue([set_to(pays.net, 1)])

    assert (good.code, good.out.count("\n")) == (Exit.OK, 1)
    assert "its values are up to date" in good.out
    assert failed.code == Exit.VALUES_FAILED
    assert "its values are computed\n1 value failed by this, 0 blocked:\n  pays: " in failed.out
    assert "up to date" not in failed.out
    assert as_json.code == Exit.VALUES_FAILED
    told = json.loads(as_json.out)["values"]
    assert (told["failed"], told["failedByThis"][0]["name"]) == (1, "pays")
    assert unrelated.code == Exit.OK
    assert "1 value of this change set had failed before" in unrelated.out
    assert by_set.code == Exit.VALUES_FAILED
    assert again.code == Exit.VALUES_FAILED
    assert mended.code == Exit.OK


async def test_updates_that_do_not_fit_are_counted_and_none_that_fits_is_no_success(
    waiting: Waiting,
) -> None:
    there = new_id()

    nothing = await waiting.enqueue([set_to(new_id(), 1), set_to(new_id(), 2)])
    partly = await waiting.enqueue([put(there, 1), set_to(new_id(), 2)])
    strictly = await waiting.enqueue([set_to(there, 3), set_to(new_id(), 2)], "--strict")
    fitting = await waiting.enqueue([set_to(there, 4)], "--strict")
    empty = await waiting.enqueue([])

    assert nothing.code == Exit.CORRECTED
    assert "Rebaser left out all updates, and changed nothing" in nothing.out
    assert "2 of 2 updates did not fit" in nothing.out
    assert partly.code == Exit.OK
    assert "1 of 2 updates did not fit; Rebaser changed or left out:" in partly.out
    assert strictly.code == Exit.CORRECTED
    assert (fitting.code, empty.code) == (Exit.OK, Exit.OK)


async def test_strict_without_a_reply_is_refused(waiting: Waiting, tmp_path: Path) -> None:
    said = await waiting.commands.tell(
        "enqueue", *waiting.change_set, tmp_path / "none.json", "--strict", code=2
    )

    assert "--strict needs --wait" in said


async def test_applying_and_reverting_wait_for_values_and_a_timeout_ends_a_wait(
    waiting: Waiting,
) -> None:
    pays, commands = ExampleGraph(), waiting.commands
    await waiting.enqueue(summed(pays, "pays"))
    await commands.tell("change-sets", "fork", "shop", "bad")
    await commands.tell("values", "set", "shop/bad", pays.net, "x", "--text", "--wait", code=5)

    applied = await commands.give("change-sets", "apply", "shop/bad", "--yes", "--wait")
    batch = next(
        entry["commit"]
        for entry in reversed(json.loads(await commands.tell("log", "shop", "--json")))
        if not entry["computed"]
    )
    reverted = await commands.give("revert", "shop", batch, "--wait", "--json")
    await commands.tell("pause", "shop")
    late = await commands.give("values", "set", "shop", pays.net, "3", "--wait", "--timeout", "4")
    nonsense = await commands.tell("dvu", "run", "shop", "--failed", "--timeout", "0", code=2)

    assert applied.code == Exit.VALUES_FAILED
    assert "1 value failed by this, 0 blocked:\n  pays: " in applied.err
    assert reverted.code == Exit.OK
    assert json.loads(reverted.out)["values"]["failed"] == 0
    assert late.code == Exit.NOT_IN_TIME
    assert "is paused: the request waits for `rebaser resume shop`" in late.err
    assert "timeout of 4 s is over; requests that were sent are not taken back" in late.err
    assert "'0' is not a number of seconds above 0" in nonsense
    await commands.tell("resume", "shop")
