"""The live parts of a Rebaser that the endpoint serves."""

from dataclasses import dataclass

from nats.aio.client import Client

from rebaser_client.registry import Registry
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.slots import SlotPool
from rebaser_server.ops.actions.action_service import ActionService
from rebaser_server.ops.auth import Guard
from rebaser_server.ops.change_set_page import ChangeSetPage
from rebaser_server.ops.health import HealthMonitor
from rebaser_server.ops.name_cache import NameCache
from rebaser_server.ops.onlookers import Onlookers
from rebaser_server.ops.operator_page import OperatorPage
from rebaser_server.ops.queues import QueueWatch
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.telemetry.work_stats import WorkStats


@dataclass(frozen=True, slots=True)
class OpsContext:
    """Read by the endpoint; only `actions` change anything."""

    instance: str
    store: str
    """Where the store is, without secrets."""
    guard: Guard
    nc: Client
    subjects: Subjects
    shutdown: Shutdown
    stats: WorkStats
    slots: SlotPool
    members: Membership
    queues: QueueWatch
    health: HealthMonitor
    registry: Registry
    names: NameCache
    onlookers: Onlookers
    change_sets: ChangeSetPage
    operator: OperatorPage
    actions: ActionService
