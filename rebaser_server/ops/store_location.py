"""Search for the deployment's store, for a command whose settings do not name it.

The default is a directory below the one where the command was started, which is rarely the
Rebasers'.
"""

from typing import Final

from rebaser_core.jetstream import JetStream
from rebaser_core.streams import Streams
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.errors import StoreNotKnown
from rebaser_server.files import IN_NATS, SharedFiles, local_path
from rebaser_server.ops.answers import Answer, statuses
from rebaser_server.settings.settings import Settings

_TIMEOUT: Final = 1.0  # seconds for a Rebaser to say where its store is
_ROOT: Final = "REBASER_STORE__ROOT"


async def settings_with_store(js: JetStream, settings: Settings) -> Settings:
    """The settings, with the store of this deployment.

    The store is the one that the settings name; the default one, if it has the deployment's id; or
    what a Rebaser reports: NATS, or a directory that has the deployment's id on this machine.

    Raises:
        StoreNotKnown: none of these is the deployment's store.
        OSError: the default one cannot be read.
    """
    streams = Streams(settings.nats.prefix, js=js)
    if "root" in settings.store.model_fields_set or await _is_ours(streams, settings.store.root):
        return settings
    roots = await _roots_of_rebasers(streams)
    for root in roots:
        if root == IN_NATS or (_is_directory(root) and await _is_ours(streams, root)):
            store = settings.store.model_copy(update={"root": root})
            return settings.model_copy(update={"store": store})
    where = (
        f"Rebasers have it at {', '.join(roots)}, where this machine does not see it"
        if roots
        else "no Rebaser says where it is"
    )
    default = SharedFiles(settings.store.root).root
    raise StoreNotKnown(
        f"the store is not known here: {_ROOT} is not set, {default} is not the store of this "
        f"deployment, and {where}"
    )


async def _is_ours(streams: Streams, root: str) -> bool:
    return not await DeploymentId(streams, SharedFiles(root)).problem()


async def _roots_of_rebasers(streams: Streams) -> list[str]:
    """Locations of running Rebasers' stores: the first that this machine sees, or all of them."""
    answers = await statuses(
        streams,
        _TIMEOUT,
        enough=lambda answer: _root(answer) == IN_NATS or _is_directory(_root(answer)),
    )
    return sorted(filter(None, {_root(answer) for answer in answers}))


def _root(answer: Answer) -> str:
    """Location of the answering Rebaser's store; empty if an older Rebaser does not report it."""
    return str(answer.get("store") or "")


def _is_directory(root: str) -> bool:
    """Whether it is a directory of this machine; an object store takes options, too."""
    path = local_path(root) if root else None
    return path is not None and path.is_dir()
