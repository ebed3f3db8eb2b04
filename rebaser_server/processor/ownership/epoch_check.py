"""Whether the log still shows a run's own epoch, or a later owner's (W2)."""

from rebaser_core.commits import CommitV1
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import Fenced, NeedsNewerVersion


async def require_epoch(loader: StateLoader, epoch: int) -> tuple[int, CommitV1 | None]:
    """Return the last commit and its sequence; raise `Fenced` if it is of another epoch."""
    try:
        sequence, last = await loader.log.last()
    except NeedsNewerVersion as error:  # our own commits never do
        raise Fenced(f"{loader.change_set} has a new owner: {error}") from error
    if last is not None and last.control.epoch != epoch:
        raise Fenced(f"{loader.change_set} has a new owner")
    return sequence, last
