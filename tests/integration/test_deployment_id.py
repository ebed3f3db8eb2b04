"""Daemons serve with the store of their NATS, and with no other, until a person decides."""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rebaser_core.jetstream import StreamNotFound
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.errors import DeploymentInconsistent
from rebaser_server.files import DEPLOYMENT
from rebaser_server.service.composition import deployment_id, provisioner_of
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Daemon, Deployment, deployed, new_change_sets
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.scripted_owner import Owner
from tests.integration.test_backup import doctor
from tests.integration.test_other_pasts import make_anew


def id_of(deployment: Deployment, root: Path | None = None) -> DeploymentId:
    settings = deployment.settings if root is None else settings_at(deployment, root)
    return deployment_id(provisioner_of(deployment.js, settings), settings)


def settings_at(deployment: Deployment, root: Path) -> Settings:
    """The deployment's settings, with another store."""
    store = deployment.settings.store.model_copy(update={"root": str(root)})
    return deployment.settings.model_copy(update={"store": store})


async def committed(deployment: Deployment, count: int = 3) -> Owner:
    """Have a change set with commits and a checkpoint."""
    owner = await Owner.of(deployment, new_change_sets(1)[0])
    for number in range(count):
        await owner.commit([put(new_id(), number)])
    await owner.checkpoint()
    return owner


@asynccontextmanager
async def another(tmp_path: Path, directory: Path) -> AsyncIterator[Deployment]:
    """Another deployment, with a NATS of its own, and its store below the directory."""
    with running(NatsServer(tmp_path / "other")) as server:
        async with deployed(server, directory) as other:
            yield other


async def test_a_deployment_has_one_id_and_so_has_its_store(
    deployment: Deployment, tmp_path: Path
) -> None:
    """It gets one also where there are commits already."""
    await committed(deployment)

    await id_of(deployment).ensure()
    await id_of(deployment).ensure()

    kept = await id_of(deployment).in_nats()
    assert kept == await id_of(deployment).in_store()
    assert kept in (tmp_path / "store" / DEPLOYMENT).read_text()


class LookedBefore(DeploymentId):
    """A Rebaser that looked before another gave the id, and cannot read it in NATS yet."""

    looks = itertools.count()

    async def in_store(self) -> str | None:
        return await super().in_store() if next(self.looks) else None

    async def in_nats(self) -> str | None:
        return None


async def test_of_two_that_start_at_once_the_slower_one_takes_the_others_id(
    deployment: Deployment,
) -> None:
    """Whether or not NATS answers it. Or NATS and the store would differ from then on."""
    faster = id_of(deployment)
    await faster.ensure()

    await LookedBefore(faster.streams, faster.files).ensure()

    assert await faster.in_store() == await faster.in_nats()


async def test_an_id_that_another_rebaser_gave_the_store_is_the_one_of_nats(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that died before it told NATS."""
    monkeypatch.setattr(LookedBefore, "looks", itertools.count())
    one = id_of(deployment)
    one.files.put_if_absent(DEPLOYMENT, b'{"deployment": "another\'s"}')

    await LookedBefore(one.streams, one.files).ensure()

    assert await one.in_nats() == "another's"


async def test_a_store_at_another_path_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    """As of a host where a relative path leads elsewhere."""
    await id_of(deployment).ensure()

    with pytest.raises(DeploymentInconsistent, match="it is another directory, or was lost"):
        await id_of(deployment, tmp_path / "elsewhere").ensure()


async def test_another_deployments_store_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    await id_of(deployment).ensure()
    async with another(tmp_path, tmp_path / "b") as other:
        await id_of(other).ensure()

        with pytest.raises(DeploymentInconsistent, match=r"is of deployment .* NATS is of"):
            await id_of(other, tmp_path / "store").ensure()


async def test_an_empty_nats_under_a_store_with_change_sets_is_refused(
    deployment: Deployment, tmp_path: Path
) -> None:
    await committed(deployment)
    await id_of(deployment).ensure()
    async with another(tmp_path, tmp_path) as other:
        with pytest.raises(DeploymentInconsistent, match="NATS of none"):
            await id_of(other).ensure()


async def test_a_store_that_was_lost_is_taken_when_a_person_says_so(
    deployment: Deployment, tmp_path: Path
) -> None:
    await id_of(deployment).ensure()
    (tmp_path / "store" / DEPLOYMENT).unlink()

    code, [what] = await doctor(deployment)

    assert (code, "has no id" in what) == (Exit.REPAIRABLE, True)
    assert (await doctor(deployment, repair=True))[0] == Exit.OK
    assert await doctor(deployment) == (Exit.OK, [])


async def test_no_directory_becomes_the_store_while_a_rebaser_has_one(
    deployment: Deployment, tmp_path: Path
) -> None:
    """An empty one below a missing mount would share out one history with the store."""
    daemon = await deployment.start()
    deployment.settings = settings_at(deployment, tmp_path / "elsewhere")

    code, found = await doctor(deployment, repair=True)

    assert code == Exit.DAMAGED
    assert any("it is another directory" in what for what in found)
    assert await id_of(deployment).in_store() is None
    daemon.send(signal.SIGTERM)
    assert await daemon.ended() == 0
    assert (await doctor(deployment, repair=True))[0] == Exit.OK


async def test_a_store_of_other_change_sets_becomes_nobody_elses(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Also if its id is lost, and all of its files look like garbage from here."""
    await committed(deployment)
    await id_of(deployment).ensure()
    async with another(tmp_path, tmp_path / "b") as other:
        await committed(other)
    deployment.settings = settings_at(deployment, tmp_path / "b" / "store")

    code, [what] = await doctor(deployment, repair=True)

    assert (code, "has no id" in what) == (Exit.DAMAGED, True)
    assert await id_of(deployment).in_store() is None


async def test_a_nats_that_was_emptied_gets_no_streams_from_a_daemon_that_does_not_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Daemons that still run would begin their change sets anew in such streams."""
    await committed(deployment)
    await id_of(deployment).ensure()
    for stream in await deployment.js.stream_names():
        await deployment.js.delete_stream(stream)

    root = deployment.settings.store.root
    daemon = Daemon("second", tmp_path, {"NATS__URL": deployment.nats.url, "STORE__ROOT": root})

    assert await daemon.ended() == Exit.FAILED
    assert "NATS of none, and empty" in daemon.said_in_all()
    assert await deployment.js.stream_names() == []
    code, found = await doctor(deployment, repair=True)
    assert code == Exit.DAMAGED
    assert any("NATS of none, and empty" in what for what in found)


async def test_a_daemon_with_another_store_ends_and_says_why(
    deployment: Deployment, tmp_path: Path
) -> None:
    await id_of(deployment).ensure()

    daemon = Daemon(
        "astray",
        tmp_path,
        {"NATS__URL": deployment.nats.url, "STORE__ROOT": str(tmp_path / "elsewhere")},
    )

    assert await daemon.ended() == Exit.FAILED
    assert "it is another directory, or was lost" in daemon.said_in_all()


async def test_lost_requests_are_not_made_anew_unless_a_person_says_so(
    deployment: Deployment,
) -> None:
    """Then they begin above what was handled (S-5)."""
    await committed(deployment, 7)
    provisioner = provisioner_of(deployment.js, deployment.settings)
    requests = deployment.streams.requests_stream
    await deployment.js.delete_stream(requests)

    with pytest.raises(DeploymentInconsistent, match=f"{requests} is gone"):
        await provisioner.ensure()
    with pytest.raises(StreamNotFound):
        await deployment.js.stream_info(requests)
    await doctor(deployment, repair=True)

    await provisioner.ensure()
    assert (await deployment.js.stream_info(requests)).state.last_seq == 7
    assert await doctor(deployment) == (Exit.OK, [])


async def test_lost_logs_are_not_made_anew(deployment: Deployment) -> None:
    [change_set], names = new_change_sets(1), deployment.streams
    await deployment.js.publish(names.requests(change_set), b"")
    await deployment.js.delete_stream(names.commits_stream)

    with pytest.raises(DeploymentInconsistent, match=f"{names.commits_stream} is gone"):
        await provisioner_of(deployment.js, deployment.settings).ensure()

    await make_anew(deployment, names.requests_stream)  # nothing was ever done here
    await provisioner_of(deployment.js, deployment.settings).ensure()


async def test_rebasers_that_start_at_once_agree(deployment: Deployment) -> None:
    """Each may have given the store an id of its own before one of them is NATS's."""
    await asyncio.gather(*(id_of(deployment).ensure() for _ in range(8)))

    assert await id_of(deployment).problem() == ""
