"""`/metrics`: the counters of `telemetry.metrics`, and gauges read at the scrape."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rebaser_server.cluster.slots import SlotPool
from rebaser_server.ops.queues import Queues
from rebaser_server.telemetry.work_stats import WorkStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Now(Collector):
    """Gauges, as of the scrape."""

    def __init__(
        self, stats: WorkStats, slots: SlotPool, queues: Queues | None, instances: int
    ) -> None:
        self._stats = stats
        self._slots = slots
        self._queues = queues
        self._instances = instances

    def collect(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily("rebaser_slots", "SlotPool of this process", labels=["state"])
        slots.add_metric(["busy"], self._slots.busy)
        slots.add_metric(["free"], self._slots.free)
        yield slots
        held = self._stats.held
        yield _gauge("change_sets", "Change sets in slots of this process", len(held))
        running = [holding.update for holding in held.values() if holding.update]
        yield _gauge("dvus_running", "Running dependent values updates", len(running))
        since = min((update.since for update in running), default=None)
        longest = 0.0 if since is None else (datetime.now(UTC) - since).total_seconds()
        yield _gauge("dvu_longest_seconds", "Runtime of the oldest running update", longest)
        absence = self._stats.spark_absence()
        yield _gauge("spark_up", "Whether Spark can compute, as far as is known", absence is None)
        yield _gauge("instances", "Live Rebasers of the deployment", self._instances)
        queues = self._queues
        yield _gauge("nats_up", "Whether NATS answered this scrape", queues is not None)
        if queues is not None:
            yield _gauge(
                "queue_requests", "Requests that wait, of all change sets", queues.requests
            )
            yield _gauge(
                "queue_oldest_seconds", "Age of the oldest waiting request", queues.oldest_age
            )
            waiting = queues.change_sets_waiting
            yield _gauge("queue_change_sets", "Change sets with requests that wait", waiting)
            yield _gauge("tasks_waiting", "Tasks that wait for a Rebaser", queues.tasks_waiting)
            yield _gauge("tasks_in_hand", "Tasks that a Rebaser works on", queues.tasks_in_hand)
            yield _gauge("dead_letters", "Requests in the dead letters", queues.dead_letters)


def exposition(stats: WorkStats, slots: SlotPool, queues: Queues | None, instances: int) -> bytes:
    """All metrics in Prometheus's text format; `queues` is None while NATS does not answer."""
    now = CollectorRegistry()
    now.register(_Now(stats, slots, queues, instances))
    return generate_latest(REGISTRY) + generate_latest(now)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rebaser_{name}", what, value=value)
