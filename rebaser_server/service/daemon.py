"""A Rebaser with its Spark, from settings: what `serve` and `up` run.

Its application is the value graph, with its tables and the executors that compute values.
"""

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rebaser_core.errors import RebaserError, is_text
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.streams import Streams
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import DvuError
from rebaser_server.compute.executors import ChildProcessExecutor, RoutingExecutor
from rebaser_server.compute.memo import Memo
from rebaser_server.compute.plan import UnitLimits
from rebaser_server.compute.run import Executor
from rebaser_server.compute.spark.launch import spark_home
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import TableExecutor
from rebaser_server.compute.work_unit import CallLimits
from rebaser_server.files import TABLES, SharedFiles, local_path, shared_files
from rebaser_server.graph_application.application import GraphApplication
from rebaser_server.graph_application.dvu import DvuServices
from rebaser_server.graph_application.openlineage import LineageEvents
from rebaser_server.graph_application.publisher import Publisher
from rebaser_server.graph_application.state_machine import TableMaintenance, open_checkpoints
from rebaser_server.graph_application.tables import Tables
from rebaser_server.ops.pages import ValuePresentation
from rebaser_server.processor.outcomes import Notifier
from rebaser_server.runtime.late_pandas import defer_pandas
from rebaser_server.runtime.memory import collect_rarely, exempt_modules, limit_kept_memory
from rebaser_server.runtime.tasks import (
    Shutdown,
    WorkThreads,
    background,
    switch_often,
    wait_forever,
)
from rebaser_server.service import composition
from rebaser_server.settings.settings import Settings, SparkSettings
from rebaser_server.store.publications import Publications
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles
from rebaser_server.telemetry.work_stats import SparkAbsence


@dataclass(frozen=True, slots=True)
class ValueGraph:
    settings: Settings
    executor: Executor
    slots: Callable[[], int]
    """Function that returns the number of units that the executor computes at a time."""
    costs: CostModel
    """Costs of functions, as the executor knows them."""
    spark_absence: Callable[[], SparkAbsence | None] = lambda: None
    """Reason why there is no Spark to compute on, where there should be one; else None."""
    spark_is_ready: Callable[[], bool] = lambda: False
    """Whether there is a Spark that has computed."""
    of_tables: Executor | None = None
    """Executor of units that have functions of tables."""

    def __call__(
        self, streams: Streams, batches: BatchStore, notifier: Notifier
    ) -> GraphApplication:
        settings = self.settings
        notifier.stats.spark_absence = self.spark_absence
        notifier.stats.spark_is_ready = self.spark_is_ready
        tables, files = open_checkpoints(settings.store), shared_files(batches.files)
        keep_replaced = max(3600.0, settings.store.orphan_retention.total_seconds())
        look_every = settings.ack_wait.total_seconds() / 2
        publisher = lineage = None
        if settings.store.published is not None:
            publications = Publications(settings.store.published, TableFiles(files), keep_replaced)
            publisher = Publisher(publications, streams, files, look_every)
        if settings.lineage.target is not None:
            lineage = LineageEvents(settings.lineage, TableFiles(files))
            notifier.observe = lineage.on_activity
        sources = Sources(settings.store.sources, settings.functions.table_bytes)
        allowed = settings.functions.sql_workspaces
        extension = Tables(batches, self.of_tables, sources, allowed, publisher, lineage)
        return GraphApplication(
            streams,
            TableMaintenance(tables, keep_replaced),
            DvuServices(
                self.executor,
                self.slots,
                self.costs,
                UnitLimits(_call_limits(settings)),
                settings.dvu_deadline,
                batches,
                Memo(files, settings.functions.memo_bytes),
                notifier,
                extension,
            ),
            look_every,
            settings.limits,
        )


def _call_limits(settings: Settings) -> CallLimits:
    return CallLimits(
        settings.functions.timeout.total_seconds(),
        settings.functions.memory,
        value_bytes=settings.limits.value_bytes,
    )


log: Final = structlog.get_logger()


class FolderRefused(RebaserError):
    """A folder's name makes it unusable; nothing was started. The message says what to do."""


_WARM_AFTER: Final = 1.0  # seconds from when tasks are taken
_WARM_RETRY_AFTER: Final = 2.0  # seconds, doubled up to
_WARM_RETRY_EVERY: Final = 60.0


async def run(
    settings: Settings,
    shutdown: Shutdown,
    ready: Callable[[str | None], None] = lambda _: None,
    spark_ready: Callable[[], None] = lambda: log.info("spark is ready"),
    *,
    warm_after: float = _WARM_AFTER,
) -> None:
    """Serve until `shutdown`; Spark starts beside it or with the first update, and ends with this.

    `ready` is called with the URL of the status page, or None; `spark_ready` once Spark, started
    before an update needs it, can compute. It starts `warm_after` seconds
    after tasks are taken, since its start keeps them waiting.

    Raises:
        FolderRefused, StoreInNats: values could not be computed, or not be kept; nothing was
            started.
        NatsUnreachable, GraceExceeded: as `composition.serve`.
    """
    files = SharedFiles(settings.store.root, settings.store.options)
    _require_usable_folders(settings)
    _raise_descriptor_limit()
    asyncio.get_running_loop().set_default_executor(WorkThreads(thread_name_prefix="work"))
    switch_often()
    collect_rarely()
    limit_kept_memory()
    defer_pandas()
    costs = CostModel()
    spark = SparkExecutor(spark_options(settings), has_tables=lambda: files.has(TABLES))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    children = min(spark.slots, cores or 1)
    functions = RoutingExecutor(
        ChildProcessExecutor(children), spark, costs, large_from=_large_from(settings.spark)
    )
    max_bytes = settings.functions.table_bytes
    of_tables = TableExecutor(functions, SparkQueries(spark), TableFiles(files), max_bytes)
    begins = asyncio.Event()

    def is_ready(page: str | None) -> None:
        exempt_modules()
        ready(page)
        begins.set()

    try:
        async with (
            background(composition.collect_garbage(begins)),
            background(
                _warm_up(functions, begins, warm_after, spark_ready)
                if settings.spark.warm
                else wait_forever()
            ),
        ):
            value_graph = ValueGraph(
                settings,
                functions,
                lambda: spark.slots,
                costs,
                lambda: spark.absence,
                lambda: spark.is_ready,
                of_tables,
            )
            await composition.serve(
                settings, value_graph, shutdown, ready=is_ready, make_presentation=ValuePresentation
            )
    finally:
        await functions.close()


def _large_from(spark: SparkSettings) -> int | None:
    """Number of values from which a run is Spark's, see `RoutingExecutor`; None: by duration."""
    if spark.min_affected is None and not spark.master.startswith("local"):
        return 0
    return spark.min_affected


def _raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as the system grants it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # not all systems grant what they name
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _require_usable_folders(settings: Settings) -> None:
    """Raise `FolderRefused` for a folder that the libraries do not take, even quoted."""
    folders = {
        "REBASER_STORE__ROOT": local_path(settings.store.root),
        "REBASER_SPARK__STATE_DIRECTORY": settings.spark.state_directory.absolute(),
    }
    if settings.store.published is not None:
        folders["REBASER_STORE__PUBLISHED"] = settings.store.published.absolute()
    for variable, folder in folders.items():
        if not is_text(str(folder)):
            raise FolderRefused(
                f"the name of the folder {str(folder)!a} is not text in UTF-8, and files in "
                f"it cannot be named to Spark and Delta: rename it, or set {variable} to another "
                "one (`rebaser up` has --data)"
            )
    if not settings.spark.master.startswith("sc://") and os.pathsep in str(spark_home()):
        raise FolderRefused(
            f"Spark is installed at {spark_home()}, and Java cannot load it from a folder with a "
            f"{os.pathsep!r} in its name, so that no value would be computed: install "
            "`rebaser[server]` into a virtual environment in another folder"
        )


def spark_options(settings: Settings) -> SparkOptions:
    spark = settings.spark
    return SparkOptions(
        state_directory=spark.state_directory.absolute(),
        master=spark.master,
        extra=spark.conf,
    )


async def _warm_up(
    executor: RoutingExecutor, begins: asyncio.Event, after: float, ready: Callable[[], None]
) -> Never:
    """Start the executor and call `ready`; if it fails, try again later, as updates do, too.

    The start waits until tasks are taken, which its imports would hold up.
    """
    await begins.wait()
    await asyncio.sleep(after)
    for delay in Backoff(_WARM_RETRY_AFTER, _WARM_RETRY_EVERY):
        try:
            await executor.start()
        except (DvuError, OSError) as error:
            log.warning("spark warm-up failed", reason=str(error))
        else:
            ready()
            break
        await asyncio.sleep(delay)
    await wait_forever()
