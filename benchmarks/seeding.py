"""A change set that begins with a checkpoint, as if all in it had come by requests long ago."""

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_server.graph import Graph
from rebaser_server.history.retention import Retention
from rebaser_server.line.ownership import Ownership
from rebaser_server.questions.reading import archive_of
from rebaser_server.settings import Settings
from tests.integration.owner import Owner


async def seed(js: JetStream, settings: Settings, change_set: ChangeSet, graph: Graph) -> None:
    """Save `graph` as what the change set is, which nobody has asked anything of yet."""
    own = await Ownership.take(archive_of(js, settings, change_set), "benchmark")
    own.state.graph = graph
    await Owner(own, Retention.of(settings.history)).checkpoint()
    await own.release()
