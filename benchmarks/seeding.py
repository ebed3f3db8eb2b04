"""A change set that begins with a checkpoint, as if all in it had come by requests long ago."""

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application.content import GraphContent
from rebaser_server.graph_application.state_machine import open_state_loader
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import Graph
from tests.helpers.scripted_owner import Owner


async def seed(js: JetStream, settings: Settings, change_set: ChangeSet, graph: Graph) -> None:
    """Save `graph` as what the change set is, which nobody has asked anything of yet."""
    own = await acquire_ownership(open_state_loader(js, settings, change_set), "benchmark")
    own.state.content = GraphContent(graph)
    await Owner(own, Retention.of(settings.history)).checkpoint()
    await own.release()
