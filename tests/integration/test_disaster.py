"""What is left when the store or NATS is lost, as docs/deployment.md tells."""

import asyncio
import shutil
import signal
from pathlib import Path

from rebaser_server.commands.support.arguments import Exit
from rebaser_server.files import DEPLOYMENT
from rebaser_server.graph_application.state_machine import checkpoints_of
from tests.helpers.deployment import Deployment, deployed
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.integration.test_backup import (
    COMMITTED,
    WAITING,
    WELL,
    Asked,
    doctor,
    everything_is_there,
    saved,
    stop_daemons,
)


async def asked_and_stopped(deployment: Deployment, *, purged: bool = False) -> Asked:
    """A change set with checkpoints, a log that was purged or not, and requests that wait."""
    asked = Asked(deployment)
    await deployment.start(CHECKPOINT_EVERY="3", HISTORY__MAX_COMMITS="0" if purged else "10000")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)
    async with asyncio.timeout(120):
        while purged and not await deployment.archive(asked.change_set).earliest_commit():
            await asked.ask(1)
    await stop_daemons(deployment)
    await asked.ask(WAITING, wait=False)
    return asked


async def test_an_older_copy_of_the_store_and_the_log_as_it_is_make_everything(
    deployment: Deployment, tmp_path: Path
) -> None:
    asked = Asked(deployment)
    daemon = await deployment.start(CHECKPOINT_EVERY="3")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)
    daemon.send(signal.SIGSTOP)  # the copy is of one moment
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    daemon.send(signal.SIGCONT)
    await asked.ask(COMMITTED)
    await stop_daemons(deployment)
    await asked.ask(WAITING, wait=False)

    shutil.rmtree(tmp_path / "store")
    (tmp_path / "copy").rename(tmp_path / "store")

    assert await doctor(deployment) == WELL
    await everything_is_there(deployment, asked.change_set, asked.sent, asked.values.gross)


async def test_without_a_store_the_log_is_everything_while_it_goes_back_to_the_beginning(
    deployment: Deployment, tmp_path: Path
) -> None:
    asked = await asked_and_stopped(deployment)

    shutil.rmtree(tmp_path / "store")

    code, [what] = await doctor(deployment)
    assert (code, "has no id" in what) == (Exit.REPAIRABLE, True)
    assert (await doctor(deployment, repair=True))[0] == Exit.OK
    await everything_is_there(deployment, asked.change_set, asked.sent, asked.values.gross)


async def test_without_a_store_a_log_that_was_purged_is_refused_and_requests_wait(
    deployment: Deployment, tmp_path: Path
) -> None:
    asked = await asked_and_stopped(deployment, purged=True)
    waiting = await requests(deployment)

    shutil.rmtree(tmp_path / "store")

    code, [lost, what] = await doctor(deployment, repair=True)
    assert (code, "has no id" in lost) == (Exit.DAMAGED, True)
    assert "HistoryInconsistent" in what
    daemon = await deployment.start()
    await eventually(lambda: bool(daemon.said("history broken")))
    assert await requests(deployment) == waiting == WAITING
    assert str(asked.change_set) in daemon.said("history broken")[0]["reason"]


async def test_with_another_nats_a_table_is_neither_gone_on_with_nor_emptied(
    deployment: Deployment, tmp_path: Path
) -> None:
    asked = await asked_and_stopped(deployment)
    before = stored_value(deployment, asked)
    with running(NatsServer(tmp_path / "other")) as server:
        async with deployed(server, tmp_path) as other:
            again = Asked(other, asked)
            await again.ask(1, wait=False)
            code, found = await doctor(other, repair=True)
            assert (code, any("NATS of none" in what for what in found)) == (Exit.DAMAGED, True)

            (tmp_path / "store" / DEPLOYMENT).unlink()  # a person insists

            daemon = await other.start("other")
            await eventually(lambda: bool(daemon.said("history broken")))
            daemon.kill()

            code, found = await doctor(other, repair=True)

            assert code == Exit.DAMAGED
            assert any("was the stream restored from an older backup" in what for what in found)
    assert stored_value(deployment, asked) == before
    assert before < COMMITTED


def stored_value(deployment: Deployment, asked: Asked) -> float:
    """The source that is set with each request, as the last checkpoint has it."""
    checkpoint = checkpoints_of(deployment.archive(asked.change_set)).load(asked.change_set)
    assert checkpoint is not None
    value = checkpoint.graph.values[asked.values.net].value
    assert isinstance(value, int | float)
    return value


async def requests(deployment: Deployment) -> int:
    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    return int(info.state.messages)
