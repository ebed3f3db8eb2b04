"""Everything in one process tree, with its data in one directory: for trying out and developing."""

from pathlib import Path
from typing import Final

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.runtime.tasks import Shutdown, on_signals
from rebaser_server.service import daemon
from rebaser_server.service.data_directory import data_directory
from rebaser_server.service.nats_process import NatsAddresses, Sync, nats_server
from rebaser_server.settings.settings import OpsSettings, Role, Settings
from rebaser_server.terminal import lines

_READY = """\
Rebaser is up.
  NATS    {nats}, {synced}
  data    {data}
  Spark   {spark}, starting
  page    {page}
Enqueue with rebaser_client; Ctrl-C stops it and keeps the data.
"""


_SYNCED: Final[dict[Sync, str]] = {
    "always": "on the disk before it confirms",
    "periodic": "on the disk within two minutes",
}


async def run_dev_server(
    settings: Settings, data: Path, port: int, *, sync: Sync = "always", as_json: bool = False
) -> None:
    """Run NATS, a Rebaser and Spark until a signal; a later start continues with the same data.

    It prints their addresses on stderr for people, or in one line on stdout as JSON.

    Raises:
        DirectoryInUse: another `up` has `data`; two NATS servers would overwrite each other's.
    """
    shutdown = Shutdown()
    with data_directory(data) as directory, on_signals(shutdown):
        async with nats_server(
            data / "nats", port, sync=sync, inherited_files=[directory.file]
        ) as nats:
            directory.describe(nats.clients)
            await reset_deliveries(nats.clients, settings.nats.prefix)

            def ready(page: str | None) -> None:
                facts = {
                    "nats": nats.clients,
                    "sync": sync,
                    "data": str(data),
                    "spark": settings.spark.master,
                }
                if as_json:
                    lines.say_json({**facts, "page": page})
                else:
                    ready = _READY.format(
                        **facts, synced=_SYNCED[sync], page=page or "switched off"
                    )
                    lines.complain(*ready.splitlines())

            await daemon.run(settings_in_directory(settings, data, nats), shutdown, ready)


async def reset_deliveries(url: str, prefix: str | None) -> None:
    """Have every task delivered afresh.

    A server that was stopped has forgotten which were given back, and would leave each to
    its former holder for a whole lease. The consumer, and with it that, is made anew (S-3).
    """
    async with connected(ConnectOptions(servers=(url,))) as nc:
        await JetStream(nc).delete_consumer(Subjects(prefix).tasks_stream, TASKS_CONSUMER)


def settings_in_directory(settings: Settings, data: Path, nats: NatsAddresses) -> Settings:
    """`settings` with NATS at these addresses and everything else in `data`.

    Its page lets people on this machine do everything: its NATS does, too.
    """
    return settings.model_copy(
        update={
            "nats": settings.nats.model_copy(
                update={"url": nats.clients, "monitoring": nats.monitoring}
            ),
            "store": settings.store.model_copy(update={"root": str(data / "store")}),
            "spark": settings.spark.model_copy(update={"state_directory": data / "spark"}),
            "ops": _ops_for_one_person(settings.ops),
        }
    )


def _ops_for_one_person(ops: OpsSettings) -> OpsSettings:
    if "local_role" in ops.model_fields_set:
        return ops
    return ops.model_copy(update={"local_role": Role.OPERATOR})
