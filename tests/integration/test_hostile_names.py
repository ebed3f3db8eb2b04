"""Names and texts that are markup, escape sequences or lines of their own, in every command."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.processor.dead_letters import ATTEMPTS, DIED_AT
from rebaser_server.processor.dead_letters import REASON as WHY
from tests.helpers.batches import new_id
from tests.helpers.command_line import Commands, Done
from tests.helpers.deployment import Deployment
from tests.integration.test_change_set_commands import run

NAMES: Final = {
    "price[eur]": "price[eur]",
    "list[/a]": "list[/a]",
    "[bold]hi[/bold] x": "[bold]hi[/bold] x",
    "esc\x1b[31m": r"esc\x1b[31m",
    "new\nline": r"new\nline",
    "back\u202ewards": r"back\u202ewards",
    "c1\x9b31m": r"c1\x9b31m",
}
"""Names of values, and how they are shown."""

LABEL: Final = "list[/a]\u202e[bold]"
SHOWN: Final = r"list[/a]\u202e[bold]"
"""A name of what may have no line break: a workspace, a branch."""

REASON: Final = "why[/a]\x1b[31m\nnot"
REASON_SHOWN: Final = r"why[/a]\x1b[31m\nnot"


def is_text(done: Done, code: int = 0) -> str:
    """What it says, in which nothing controls a terminal."""
    assert done.code == code, (done.out, done.err)
    said = done.out + done.err
    assert "Traceback" not in said
    assert all(character == "\n" or character.isprintable() for character in said), repr(said)
    return said


def define() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A batch of values of these names, computed ones that fail among them; ids by name."""
    ids = {name: new_id() for name in NAMES}
    func = new_id()
    batch: list[dict[str, Any]] = [
        {"putFunc": {"funcId": func, "name": LABEL, "runtime": "cel", "code": "names[0] + 1"}}
    ]
    for name, value_id in ids.items():
        batch.append({"putValue": {"valueId": value_id, "name": name, "value": name}})
        computed = {"valueId": new_id(), "name": f"of {name}", "funcId": func}
        batch.append({"putValue": {**computed, "inputs": {"names": [value_id]}}})
    return batch, ids


@pytest.fixture
def commands(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("LOGNAME", "ada")
    return Commands(deployment)


async def test_no_command_takes_a_name_or_a_text_for_more_than_text(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    await deployment.start(QUIET_PERIOD="30")
    workspaces, (batch, ids) = deployment.client.workspaces, define()
    workspace, head = await workspaces.create(LABEL)
    change_set = ChangeSet(workspace.workspace_id, head.change_set_id)
    file = tmp_path / "batch.json"
    file.write_text(json.dumps(batch))
    said = [is_text(await commands.give("workspaces", "list"))]
    await commands.give("enqueue", *change_set, file, "--wait")

    values = is_text(await commands.give("values", *change_set))
    tree = is_text(await commands.give("values", "--tree", *change_set))
    failed = is_text(await commands.give("dvu", "status", *change_set))
    fork = await commands.give("change-sets", "fork", workspace.workspace_id, LABEL)
    said.append(is_text(fork))
    said.append(is_text(await commands.give("change-sets", "list", workspace.workspace_id)))
    its = await deployment.client.change_set(f"{workspace.workspace_id}/{LABEL}").ids()
    edit = [{"setValue": {"valueId": each, "value": REASON}} for each in ids.values()]
    file.write_text(json.dumps(edit))
    await commands.give("enqueue", *its, file, "--wait")
    diff = is_text(await commands.give("diff", workspace.workspace_id, LABEL, "--all"))
    said.append(is_text(await commands.give("change-sets", "describe", its[0], LABEL)))
    is_text(await commands.give("log", *change_set))
    is_text(await commands.give("queue"))
    is_text(await commands.give("queue", "--tasks"))
    doctor = await commands.give("doctor")
    is_text(doctor, code=doctor.code)

    for name, shown in NAMES.items():
        assert shown in values, name
        assert shown in tree, name
        assert shown in diff, name
    assert f"of {NAMES['list[/a]']}" in failed
    assert r"why[/a]\u001b[31m\nnot" in diff, "a value is shown as JSON"
    assert all(SHOWN in each for each in said), said
    assert {row["name"] for row in await commands.read("values", *change_set)} >= NAMES.keys()


async def test_reasons_of_operators_and_clients_are_shown_as_text(
    deployment: Deployment, commands: Commands
) -> None:
    change_set = ChangeSet(WorkspaceId(), ChangeSetId())
    await deployment.start()
    headers = {WHY: "list[/a]\u202e", DIED_AT: "[/b]", ATTEMPTS: "1"}
    subject = deployment.streams.dead_letters(change_set)
    await deployment.js.publish(subject, b"\xff\x1b", headers=headers)

    paused = is_text(await commands.give("pause", *change_set, "--reason", REASON))
    pauses = is_text(await commands.give("pause"))
    letters = is_text(await commands.give("dead-letters"))
    letter = is_text(await commands.give("dead-letters", "show", 1))

    assert "is paused" in paused
    assert REASON_SHOWN in pauses
    assert r"list[/a]\u202e" in letters
    assert json.loads(letter)["reason"] == "list[/a]\u202e"


async def test_an_error_that_quotes_what_came_from_outside_is_one_line_of_text(
    deployment: Deployment, commands: Commands
) -> None:
    workspace, _ = await deployment.client.workspaces.create(LABEL)

    done = await commands.give("diff", workspace.workspace_id, "no\x1b[31m\nsuch[/a]")

    assert is_text(done, code=1).count("\n") == 2, "the error, and what to do"


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["C", "latin-1"],
)
async def test_an_encoding_that_lacks_a_character_is_no_traceback(
    deployment: Deployment, variables: dict[str, str]
) -> None:
    await deployment.client.workspaces.create("価格 √2 …")

    done = await run(deployment, "workspaces", "list", **variables)

    assert done.returncode == 0, done.stderr
    assert r"\u4fa1\u683c \u221a2 \u2026" in done.stdout
