"""Files in NATS: whole or not there, and services that need nothing but NATS."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.calls import key_of
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.records import ChangeSetStatus
from rebaser_core.registry import Registry
from rebaser_core.stream_configs import StreamOptions, bucket_configs
from rebaser_core.streams import Streams
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.upkeep import DeletedDataJob
from rebaser_server.commit_log.batch_store import open_batch_store
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.files import (
    IN_NATS,
    TEMP_DIR,
    BatchFiles,
    OrphanFiles,
    SharedFiles,
    StoreInNats,
    change_set_directory,
)
from rebaser_server.handlers import Context, Service
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.nats_files import NatsFiles
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service import daemon
from rebaser_server.service.composition import deployment_id, provisioner_of
from rebaser_server.settings.settings import HistorySettings, Settings, StoreSettings
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT
from tests.helpers.workers import Working

STORE = StoreSettings(root=IN_NATS)
LARGE = bytes(range(256)) * 10_000  # twenty chunks


@pytest.fixture
async def streams(deployment: Deployment) -> Streams:
    """Of a deployment whose store is in NATS."""
    options = StreamOptions(has_store=True)
    for config in bucket_configs(deployment.streams, options):
        await deployment.js.ensure_stream(config)
    return deployment.streams


@pytest.fixture
async def files(streams: Streams) -> NatsFiles:
    return NatsFiles(streams)


async def chunks(files: NatsFiles, streams: Streams) -> dict[str, int]:
    bucket = streams.store_bucket
    return await streams.js.stream_subjects(f"OBJ_{bucket}", f"$O.{bucket}.C.>")


async def test_what_was_stored_last_is_read_and_nothing_else_is_kept(
    files: NatsFiles, streams: Streams
) -> None:
    for payload in (b"", b"one", LARGE, b"last"):
        await asyncio.to_thread(files.put, "a/b/c.json", payload)
        assert await asyncio.to_thread(files.get, "a/b/c.json") == payload

    assert len(await chunks(files, streams)) == 1


async def test_a_missing_file_is_not_found_and_deleted_in_vain(files: NatsFiles) -> None:
    for path in ("never", "a/never"):
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(files.get, path)
        await asyncio.to_thread(files.delete, path)
        assert not await asyncio.to_thread(files.has, path)
    await asyncio.to_thread(files.delete_directory, "a")
    assert await asyncio.to_thread(files.list_names, "a") == []
    assert await asyncio.to_thread(files.list_infos, "a") == []


async def test_a_directory_lists_its_files_and_directories_alone(files: NatsFiles) -> None:
    before = time.time() - 60
    for path in ("a/one.json", "a/ü", "a/in/two", "a/in/three", "ab/four", "five"):
        await asyncio.to_thread(files.put, path, path.encode())

    assert await asyncio.to_thread(files.list_names, "a") == ["in", "one.json", "ü"]
    assert await asyncio.to_thread(files.list_names, "") == ["a", "ab", "five"]
    found = await asyncio.to_thread(files.list_infos, "a")
    assert {info.base_name: (info.size, info.is_directory) for info in found} == {
        "in": (None, True),
        "one.json": (10, False),
        "ü": (4, False),
    }
    assert all(before < (info.mtime_ns or 0) / 1e9 < time.time() + 60 for info in found)
    assert await asyncio.to_thread(files.has, "a/in")
    assert await asyncio.to_thread(files.has, "a/in/two")


async def test_a_deleted_directory_leaves_nothing_of_its_own(
    files: NatsFiles, streams: Streams
) -> None:
    for path in ("a/one", "a/in/two", "ab/three"):
        await asyncio.to_thread(files.put, path, LARGE)

    await asyncio.to_thread(files.delete_directory, "a")

    assert await asyncio.to_thread(files.list_names, "") == ["ab"]
    assert await asyncio.to_thread(files.get, "ab/three") == LARGE
    assert len(await chunks(files, streams)) == 1
    info = await streams.js.stream_info(f"OBJ_{streams.store_bucket}")
    assert info.state.messages == 21  # one description, twenty chunks


async def test_of_several_who_put_a_file_unless_it_is_there_one_wins(
    files: NatsFiles, streams: Streams
) -> None:
    payloads = [bytes([number]) * 300_000 for number in range(5)]

    await asyncio.gather(*(asyncio.to_thread(files.put_if_absent, "a", each) for each in payloads))
    won = await asyncio.to_thread(files.get, "a")
    await asyncio.to_thread(files.put_if_absent, "a", b"late")

    assert won in payloads
    assert await asyncio.to_thread(files.get, "a") == won
    assert len(await chunks(files, streams)) == 1
    await asyncio.to_thread(files.delete, "a")
    await asyncio.to_thread(files.put_if_absent, "a", b"new")
    assert await asyncio.to_thread(files.get, "a") == b"new"


async def test_who_reads_while_others_write_reads_one_version(files: NatsFiles) -> None:
    versions = [bytes([number]) * (400_000 + number) for number in range(8)]
    await asyncio.to_thread(files.put, "a", versions[0])
    writing = asyncio.gather(*(asyncio.to_thread(files.put, "a", each) for each in versions))

    read = [await asyncio.to_thread(files.get, "a") for _ in range(8)]
    await writing

    assert {*read, await asyncio.to_thread(files.get, "a")} <= {*versions}


async def test_more_large_files_than_there_are_threads_are_stored_and_read(
    files: NatsFiles,
) -> None:
    """Their hashes take threads, too."""
    places = [f"large/{number}" for number in range(70)]

    await asyncio.gather(*(asyncio.to_thread(files.put, place, LARGE) for place in places))
    read = await asyncio.gather(*(asyncio.to_thread(files.get, place) for place in places))

    assert read == [LARGE] * 70


async def test_the_loop_that_has_the_connection_is_not_to_wait_for_itself(
    files: NatsFiles,
) -> None:
    for call in (files.list_names, files.get, files.has, files.delete):
        with pytest.raises(RuntimeError, match="call this in a thread"):
            call("a")


async def test_a_bucket_that_is_gone_is_an_error_of_the_store(
    files: NatsFiles, streams: Streams
) -> None:
    """And no file that is missing."""
    await streams.js.delete_stream(f"OBJ_{streams.store_bucket}")

    for call in (files.get, files.list_names, files.list_infos, files.delete, files.has):
        with pytest.raises(OSError, match=r".") as failed:
            await asyncio.to_thread(call, "a")
        assert not isinstance(failed.value, FileNotFoundError)


@pytest.mark.parametrize("path", ["../a", "a.b/c", "a/*/c", "a/>/c", "/a/b", "a//b", "ü/a"])
async def test_a_directory_of_another_name_is_refused(files: NatsFiles, path: str) -> None:
    with pytest.raises(OSError, match="no name of a directory"):
        await asyncio.to_thread(files.put, path, b"")


async def test_what_a_writer_that_died_left_is_found_and_removed_as_unfinished(
    files: NatsFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(files.put, "results/whole.batch", LARGE)
    with monkeypatch.context() as dying:
        dying.setattr(ObjectStore, "_put_meta", _die)
        for path in ("results/a.batch", "top"):
            with pytest.raises(OSError, match="the process ends"):
                await asyncio.to_thread(files.put, path, LARGE)
    assert len(await chunks(files, streams)) == 3
    orphans = OrphanFiles(files)

    found = await asyncio.to_thread(orphans.older_than, time.time() + 60)
    unfinished = [each for each in found if each.key is None]
    await asyncio.to_thread(orphans.remove, unfinished)

    assert len(unfinished) == 2
    assert [each.key for each in found if each.key is not None] == ["whole"]
    assert await asyncio.to_thread(files.list_infos, TEMP_DIR) == []
    assert await asyncio.to_thread(BatchFiles(files).get, "whole") == LARGE


async def _die(*_: Any, **__: Any) -> None:
    raise asyncio.CancelledError


async def test_value_graphs_are_not_kept_in_nats(deployment: Deployment) -> None:
    """Delta takes a folder or an object store; nothing is started."""
    settings = deployment.settings.model_copy(update={"store": STORE})

    with pytest.raises(StoreInNats, match="set REBASER_STORE__ROOT to one"):
        await daemon.run(settings, Shutdown())
    with pytest.raises(StoreInNats):
        SharedFiles(IN_NATS)


# Services


@dataclass
class Count:
    total: int = 0


def counting() -> Service:
    counts = Service("counts")
    counts.state(Count)

    @counts.handler
    def add(ctx: Context[Count], number: int) -> int:
        ctx.state.total += number
        return ctx.state.total

    return counts


CHANGES: dict[str, Any] = {
    "store": STORE,
    "checkpoint_every": 5,
    "history": HistorySettings(retention=timedelta(milliseconds=1), max_commits=0),
}
"""Settings of workers that have their store in NATS, and write checkpoints after few commits."""


class InNats(Working):
    """A deployment whose workers have their store in NATS."""

    @property
    def settings(self) -> Settings:
        return self.deployment.settings.model_copy(update=CHANGES)

    @asynccontextmanager
    async def counter(self) -> AsyncIterator[Any]:
        """A worker for the time of the body, and a key of it."""
        async with self.worker(counting(), **CHANGES):
            yield self.key("counts", "k")

    def application(self) -> HandlerApplication:
        batches = open_batch_store(self.deployment.streams, self.settings)
        return HandlerApplication(self.deployment.streams, batches, {"counts": counting()})


KEY: ChangeSet = key_of("counts", "k")


@pytest.fixture
def in_nats(deployment: Deployment) -> InNats:
    return InNats(deployment)


async def test_a_state_is_loaded_from_nats_and_the_log_before_it_is_purged(
    in_nats: InNats,
) -> None:
    async with in_nats.counter() as key:
        for number in range(1, 24):
            assert await key.call("add", 1) == number
        await in_nats.deployment.at_rest()

    checkpoint = await asyncio.to_thread(in_nats.application().load, KEY)
    oldest = await CommitLog(in_nats.deployment.streams, KEY).oldest()
    assert checkpoint is not None
    assert oldest is not None
    assert oldest.previous > 0  # not the first
    async with in_nats.counter() as key:
        assert await key.call("add", 1) == 24


async def test_nats_and_the_store_in_it_have_one_id(in_nats: InNats) -> None:
    async with in_nats.counter():
        pass

    provisioner = provisioner_of(in_nats.deployment.js, in_nats.settings)
    both = deployment_id(provisioner, in_nats.settings)
    assert await both.in_nats()
    assert await both.in_nats() == await both.in_store()
    assert await both.problem() == ""


async def test_a_deleted_key_has_nothing_left_in_the_store(in_nats: InNats) -> None:
    streams = in_nats.deployment.streams
    registry, files = Registry(streams), NatsFiles(streams)
    async with in_nats.counter() as key:
        for _ in range(12):
            await key.call("add", 1)
        await in_nats.deployment.at_rest()

        async def is_known() -> bool:
            return KEY in [
                ChangeSet(each.workspace_id, each.change_set_id)
                async for each in registry.change_sets(None)
            ]

        await eventually(is_known)
    assert await asyncio.to_thread(files.list_names, change_set_directory(KEY))
    deleted = {"status": ChangeSetStatus.DELETED, "closed_at": "1972-02-22T21:35:54.900Z"}
    await registry.update(KEY, lambda record: record.model_copy(update=deleted))

    gone = await DeletedDataJob(streams, files, Membership(streams, "me"), keep=0).purge()

    assert gone == [KEY]
    assert await asyncio.to_thread(files.list_names, "") == ["deployment.json", "stream_ends.json"]


APP = """
from pathlib import Path
from rebaser_server import Context, Service

counts = Service("counts")

@counts.state
class Count:
    total: int = 0

@counts.handler
def add(ctx: Context[Count], number: int) -> int:
    ctx.state.total += number
    return ctx.state.total
"""


async def test_a_killed_worker_that_needs_nothing_but_nats_is_followed_by_another(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Its settings name no store."""
    (tmp_path / "counting.py").write_text(APP)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "REBASER_NATS__URL": deployment.nats.url,
        "REBASER_ACK_WAIT": "PT2S",
        "REBASER_QUIET_PERIOD": "PT0.3S",
        "REBASER_RECONCILE_INTERVAL": "PT1S",
        "REBASER_CHECKPOINT_EVERY": "5",
        "REBASER_HISTORY__RETENTION": "PT0.001S",
        "REBASER_HISTORY__MAX_COMMITS": "0",
    }
    command = sys.executable, "-m", "rebaser_server", "serve", "--app", "counting:counts"
    key = deployment.client.service("counts").key("k")
    for round_number in range(3):
        worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment)
        try:
            await eventually(lambda: has_service(deployment), within=120)
            for number in range(1, 14):
                assert await key.call("add", 1) == 13 * round_number + number
        finally:
            worker.kill()
            await worker.wait()

    assert not left_in(tmp_path) - {"counting.py", "__pycache__", "nats"}
    files = NatsFiles(Streams(js=JetStream(deployment.nc)))
    assert await asyncio.to_thread(files.list_names, change_set_directory(KEY))


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def has_service(deployment: Deployment) -> bool:
    return "counts" in {each.name for each in await deployment.client.workspaces.services()}
