"""The application of a Rebaser's daemon: the value graph, its tables, and what computes values."""

from collections.abc import Callable
from dataclasses import dataclass

from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.executors import Executor
from rebaser_server.compute.plan import UnitLimits
from rebaser_server.compute.work_unit import CallLimits
from rebaser_server.graph_application.application import GraphApplication
from rebaser_server.graph_application.dvu import DvuServices
from rebaser_server.graph_application.state_machine import TableMaintenance, open_checkpoints
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry.work_stats import SparkAbsence, WorkStats


@dataclass(frozen=True, slots=True)
class ValueGraph:
    """Makes the value graph's application, as the settings have it."""

    settings: Settings
    executor: Executor
    slots: int
    """Units that the executor computes at a time."""
    costs: CostModel
    """Of functions, as the executor knows them."""
    spark_absence: Callable[[], SparkAbsence | None] = lambda: None
    """Whether there is a Spark to compute on, where there should be one."""

    def __call__(
        self, js: JetStream, subjects: Subjects, batches: BatchStore, stats: WorkStats
    ) -> GraphApplication:
        settings = self.settings
        stats.spark_absence = self.spark_absence
        tables = open_checkpoints(settings.store)
        return GraphApplication(
            js,
            subjects,
            TableMaintenance(tables, settings.store.replaced_file_retention.total_seconds()),
            DvuServices(
                self.executor,
                self.slots,
                self.costs,
                UnitLimits(call_limits(settings), settings.dvu_work_unit_bytes),
                settings.dvu_deadline,
                batches,
                stats,
            ),
            look_every=settings.ack_wait.total_seconds() / 2,
        )


def call_limits(settings: Settings) -> CallLimits:
    """What a call of a function may take and return."""
    return CallLimits(
        settings.functions.timeout.total_seconds(),
        settings.functions.memory,
        value_bytes=settings.limits.value_bytes,
    )
