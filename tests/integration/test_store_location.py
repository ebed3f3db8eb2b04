"""Commands that no setting tells where the store is find it, or say so and leave all as it is."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.files import DEPLOYMENT, batch_file
from rebaser_server.service.composition import deployment_id, provisioner_of
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.command_line import Done, run_command
from tests.helpers.deployment import SCALED, Deployment, deployed, new_change_sets
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.workspace import Team


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that has not been the Rebasers'."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def is_empty(directory: Path) -> bool:
    return not list(directory.iterdir())


async def give(deployment: Deployment, *words: object, **variables: str) -> Done:
    """Run a command with no other setting than the address of NATS."""
    scaled = {f"REBASER_{name}": SCALED[name] for name in ("ACK_WAIT",)}
    environment = {"REBASER_NATS__URL": deployment.nats.url, **scaled, **variables}
    return await asyncio.to_thread(run_command, list(map(str, words)), environment)


def problems(done: Done) -> list[Mapping[str, str]]:
    return [row for row in json.loads(done.out) if row["severity"] != "note"]


async def worked_on(
    deployment: Deployment, **variables: str
) -> tuple[ChangeSet, ExampleGraph, int]:
    """A change set whose first commits only the store has, its last batch's, and a Rebaser."""
    [change_set], graph = new_change_sets(1), ExampleGraph()
    history = {"HISTORY__MAX_COMMITS": "0", "OPS__PORT": "0"}
    await deployment.start(**history | variables)
    root = {"REBASER_STORE__ROOT": deployment.settings.store.root}
    commit = 0
    for updates in (graph.define(20, 22), [set_to(graph.net, 40)], [set_to(graph.net, 30)]):
        if commit:
            assert (await give(deployment, "checkpoint", *change_set, **root)).code == Exit.OK
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, updates)
        commit = (await reply).status.success.commit
    await deployment.at_rest()
    assert 1 < await deployment.archive(change_set).earliest_commit() < commit
    return change_set, graph, commit


async def test_a_command_reads_the_store_that_a_running_rebaser_has(
    deployment: Deployment, elsewhere: Path
) -> None:
    """As with `rebaser up --data`, in a directory of its own."""
    change_set, graph, commit = await worked_on(deployment)

    doctor = await give(deployment, "doctor", "--all", "--deep", "--json")
    values = await give(deployment, "values", *change_set, graph.gross, "--json")
    revert = await give(deployment, "revert", *change_set, commit, "--dry-run", "--json")
    checkpoint = await give(deployment, "checkpoint", *change_set)

    assert (doctor.code, problems(doctor)) == (Exit.OK, [])
    assert [row["value"] for row in json.loads(values.out)] == [52]
    assert '"value":40' in revert.out.replace(" ", "")
    assert f"is stored at {deployment.settings.store.root}" in checkpoint.out
    assert is_empty(elsewhere)


async def test_without_a_word_of_the_store_doctor_does_not_call_it_lost(
    deployment: Deployment, elsewhere: Path
) -> None:
    """And repairs nothing; a Rebaser without an ops endpoint does not say where it is."""
    change_set, _, commit = await worked_on(deployment, OPS__ENABLED="false")
    [waiting] = new_change_sets(1)
    for daemon in deployment.daemons:
        daemon.send(15)
        await daemon.ended()
    await deployment.js.publish(deployment.streams.requests(waiting), b"")

    doctor = await give(deployment, "doctor", "--repair", "--json")
    revert = await give(deployment, "revert", *change_set, commit)

    [store, task] = problems(doctor)
    assert (doctor.code, store["check"], task["check"]) == (Exit.DAMAGED, "store", "tasks")
    assert "the store is not known here: REBASER_STORE__ROOT is not set" in store["what"]
    assert "set REBASER_STORE__ROOT to what the daemons have" in store["remedy"]
    assert not any(row["repairable"] or row["repaired"] for row in json.loads(doctor.out))
    assert (revert.code, "is not known here" in revert.err) == (Exit.FAILED, True)
    assert "Set REBASER_STORE__ROOT" in revert.err
    tasks = await deployment.js.stream_subjects(deployment.streams.tasks_stream)
    assert deployment.streams.task(waiting) not in tasks
    assert is_empty(elsewhere)


async def test_values_come_from_a_rebaser_where_its_store_is_not_seen(
    deployment: Deployment,
) -> None:
    """And a checkpoint is made without a wait for it."""
    change_set, graph, _ = await worked_on(deployment, OPS__ENABLED="false")

    values = await give(deployment, "values", *change_set, graph.gross, "--json")
    checkpoint = await give(deployment, "checkpoint", *change_set)

    assert [row["value"] for row in json.loads(values.out)] == [52]
    assert (checkpoint.code, "with REBASER_STORE__ROOT set" in checkpoint.out) == (Exit.OK, True)


async def test_a_branch_is_compared_by_a_rebaser_where_its_store_is_not_seen(
    deployment: Deployment,
) -> None:
    """And so is what undoes a commit found, and what `apply` shows before it asks."""
    await deployment.start(OPS__ENABLED="false")
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    [define] = [entry.commit for entry in await deployment.client.change_set(*team.head).log()][:1]

    diff = await give(deployment, "diff", "prices/branch", "--json")
    revert = await give(deployment, "revert", "prices", define, "--dry-run")

    shown = json.loads(diff.out)
    [change] = shown["changes"]
    assert (change["head"], change["branch"], change["name"]) == (1, 40, None)
    assert [each["id"] for each in shown["computed"]] in ([], [team.sum.gross])
    assert len(shown["digest"]) == 64
    assert f"{team.sum.net} is removed" in revert.out


async def test_the_default_directory_is_taken_if_it_has_the_deployments_id(
    deployment: Deployment, elsewhere: Path
) -> None:
    """As after `rebaser serve` in the same directory: no Rebaser needs to run."""
    id_ = deployment_id(provisioner_of(deployment.js, deployment.settings), deployment.settings)
    await id_.ensure()
    store = elsewhere / "rebaser-data" / "store"
    store.mkdir(parents=True)
    (store / DEPLOYMENT).write_bytes(bytes(id_.files.get(DEPLOYMENT)))

    doctor = await give(deployment, "doctor", "--json")

    assert (doctor.code, problems(doctor)) == (Exit.OK, [])


async def test_nothing_of_another_deployments_store_is_offered_for_repair(
    deployment: Deployment, tmp_path: Path
) -> None:
    """What its logs refer to would pass for garbage here."""
    own = deployment_id(provisioner_of(deployment.js, deployment.settings), deployment.settings)
    await own.ensure()
    batch = tmp_path / "store" / batch_file("0" * 64)
    batch.parent.mkdir()
    batch.write_bytes(b"")
    os.utime(batch, (0, 0))
    with running(NatsServer(tmp_path / "other")) as server:
        async with deployed(server, tmp_path / "b") as other:
            id_ = deployment_id(provisioner_of(other.js, other.settings), other.settings)
            await id_.ensure()
            await other.js.publish(other.streams.requests(new_change_sets(1)[0]), b"")
            theirs = {"REBASER_STORE__ROOT": deployment.settings.store.root}

            doctor = await give(other, "doctor", "--repair", "--json", **theirs)

    store, task = problems(doctor)
    assert (task["check"], task["repairable"], task["repaired"]) == ("tasks", False, False)
    assert (doctor.code, store["check"], store["repairable"]) == (Exit.DAMAGED, "store", False)
    assert batch.exists()
