"""Backups as docs/deployment.md tells: what was committed is there, what waits is done once."""

import asyncio
import json
import shutil
import signal
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, connected
from rebaser_server.commands.doctor import examine  # the command, in this process
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.store.checkpoints import APP_ID
from tests.helpers import stream_backup
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, deployed, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running

COMMITTED, WAITING = 12, 5
WELL = (Exit.OK, [])


class Asked:
    """A client, and all that it asked of one change set, in order."""

    def __init__(self, deployment: Deployment, like: "Asked | None" = None) -> None:
        self._deployment = deployment
        self.change_set = like.change_set if like else new_change_sets(1)[0]
        self.values = like.values if like else ExampleGraph()
        self.sent: list[str] = []
        self.answered = 0

    async def ask(self, count: int, *, wait: bool = True) -> None:
        client = self._deployment.client
        for _ in range(count):
            number = len(self.sent)
            batch = [set_to(self.values.net, number)] if number else self.values.define(0, 0)
            request, reply = await client.enqueue_updates_with_reply(*self.change_set, batch)
            self.sent.append(str(request))
            if wait:
                assert (await reply).status
                self.answered += 1
            else:
                reply.close()


LOST = "what NATS had confirmed in between is lost"


@asynccontextmanager
async def fresh(nats: Path, store: Path, directory: Path) -> AsyncIterator[Deployment]:
    """Another machine, with copies of these two directories."""
    shutil.copytree(nats / "jetstream", directory / "nats" / "jetstream")
    shutil.copytree(store, directory / "store")
    with running(NatsServer(directory / "nats")) as server:
        async with deployed(server, directory) as deployment:
            yield deployment


async def doctor(deployment: Deployment, *, repair: bool = False) -> tuple[int, list[str]]:
    """The exit code, and what is found beside the note on durability: nothing if all is well."""
    asked = Namespace(repair=repair, all=True, deep=True, json=True)
    with redirect_stdout(StringIO()) as said:
        code = await examine(deployment.settings, asked)
    found = json.loads(said.getvalue())
    return code, [finding["what"] for finding in found if finding["check"] != "durability"]


async def everything_is_there(
    deployment: Deployment, change_set: ChangeSet, expected: list[str], total: str
) -> None:
    """A daemon that is started there finishes what waits: all of it, each once, in order."""
    async with recording(deployment) as recorder:
        await deployment.start(CHECKPOINT_EVERY="5")
        await deployment.at_rest()
        await eventually(lambda: recorder.settled(change_set) == expected)
    graph = await deployment.graph(change_set)
    assert graph.values[total].value == len(expected) - 1
    assert await doctor(deployment) == WELL


async def saved(deployment: Deployment, change_set: ChangeSet) -> None:
    """Return once it has a checkpoint: those are written beside the requests."""
    checkpoints = checkpoints_of(deployment.archive(change_set))
    await eventually(lambda: checkpoints.metadata(change_set) is not None, within=90)


async def newer_than(archive: StateLoader, commit: int) -> None:
    """Return once there is a checkpoint of a later commit."""

    def is_newer() -> bool:
        last = checkpoints_of(archive).load(archive.change_set)
        return last is not None and last.commit > commit

    await eventually(is_newer, within=90)


async def stop_daemons(deployment: Deployment) -> None:
    for daemon in deployment.daemons:
        daemon.send(signal.SIGTERM)
        assert await daemon.ended() == 0


async def test_a_copy_of_what_was_stopped_is_all_of_it(
    deployment: Deployment, tmp_path: Path
) -> None:
    asked = Asked(deployment)
    await deployment.start(CHECKPOINT_EVERY="5")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)
    await stop_daemons(deployment)
    await asked.ask(WAITING, wait=False)
    deployment.nats.stop()

    async with fresh(tmp_path / "nats", tmp_path / "store", tmp_path / "other") as other:
        assert await doctor(other) == WELL
        await everything_is_there(other, asked.change_set, asked.sent, asked.values.gross)


async def test_streams_are_backed_up_while_clients_go_on_and_rebasers_stand_still(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Requests before the bucket of batches: what a request names was stored before it."""
    asked, names = Asked(deployment), deployment.streams
    await deployment.start(CHECKPOINT_EVERY="5")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)
    await stop_daemons(deployment)
    await asked.ask(WAITING, wait=False)
    first = names.requests_stream
    others = set(await deployment.js.stream_names()) - {first, names.tasks_stream}
    kept = [await stream_backup.backup(deployment.nc, first)]
    expected = list(asked.sent)
    for stream in sorted(others):
        await asked.ask(1, wait=False)  # too late for the backup
        kept.append(await stream_backup.backup(deployment.nc, stream))

    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "store", tmp_path / "other" / "store")
    with running(NatsServer(tmp_path / "other" / "nats")) as server:
        async with connected(ConnectOptions(servers=(server.url,))) as nc:
            for snapshot in kept:
                await stream_backup.restore(nc, snapshot)
        async with deployed(server, tmp_path / "other") as other:
            assert await doctor(other) == (Exit.REPAIRABLE, ["has requests and no task"])
            await everything_is_there(other, asked.change_set, expected, asked.values.gross)


@pytest.mark.long
async def test_a_disk_snapshot_under_load_goes_with_a_later_copy_of_the_store(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The store is ahead of the log then: its tables are turned back to where the log goes on."""
    asked = Asked(deployment)
    daemon = await deployment.start(CHECKPOINT_EVERY="5")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)
    before, copied, over = asked.answered, tmp_path / "copy", asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            await asked.ask(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(load())
        await eventually(lambda: asked.answered > before + 3)
        answered = asked.answered
        deployment.nats.freeze()
        shutil.copytree(tmp_path / "nats" / "jetstream", copied / "nats" / "jetstream")
        deployment.nats.thaw()
        archive = deployment.archive(asked.change_set)
        await newer_than(archive, (await archive.log.last())[0])
        daemon.send(signal.SIGSTOP)
        shutil.copytree(tmp_path / "store", copied / "store")
        daemon.send(signal.SIGCONT)
        over.set()

    async with fresh(copied / "nats", copied / "store", tmp_path / "other") as other:
        code, found = await doctor(other)
        [what] = [what for what in found if LOST not in what]
        assert (code, "the checkpoint is of commit" in what) == (Exit.REPAIRABLE, True)
        assert (await doctor(other, repair=True))[0] == Exit.OK
        checkpoints = checkpoints_of(other.archive(asked.change_set))
        turned_back = checkpoints.load(asked.change_set)
        assert turned_back is not None
        # What comes behind it counts, though the store had checkpoints of later commits.
        table = checkpoints.table(asked.change_set)
        assert table.transaction_version(APP_ID) == turned_back.commit
        async with recording(other) as recorder:
            await other.start(CHECKPOINT_EVERY="5")
            await other.at_rest()
            done = list(recorder.settled(asked.change_set))
            assert done == asked.sent[: len(done)]
            assert len(done) >= answered
            again = Asked(other, asked)
            again.sent = done
            await again.ask(WAITING)
            await stop_daemons(other)
        await everything_is_there(other, asked.change_set, again.sent, asked.values.gross)
