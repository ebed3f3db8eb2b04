"""The live parts of a Rebaser that the endpoint looks at."""

from dataclasses import dataclass

from nats.aio.client import Client

from rebaser_core.subjects import Subjects
from rebaser_server.board import Board
from rebaser_server.fleet.members import Members
from rebaser_server.lifetimes import Shutdown
from rebaser_server.line.slots import Slots
from rebaser_server.ops.pulse import Pulse
from rebaser_server.ops.queues import QueueWatch
from rebaser_server.ops.status import Status


@dataclass(frozen=True, slots=True)
class Watched:
    """Looked at, never changed."""

    nc: Client
    subjects: Subjects
    shutdown: Shutdown
    board: Board
    slots: Slots
    members: Members
    queues: QueueWatch
    pulse: Pulse
    status: Status
