"""The acquisition of a change set: one commit takes it from every earlier owner (W2)."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from rebaser_core.commits import CommitV1, ControlState
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.deadlines import within
from rebaser_server.commit_log.log import LogEnd
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import Fenced, HistoryInconsistent
from rebaser_server.processor.ownership.epoch_check import require_epoch
from rebaser_server.processor.ownership.ownership import Ownership

_RELEASE_TIMEOUT: Final = 2.0  # seconds


async def _empty_control() -> ControlState:
    return ControlState()


async def acquire_ownership(
    loader: StateLoader,
    instance: str,
    initial_control: Callable[[], Awaitable[ControlState]] = _empty_control,
    end: LogEnd | None = None,
) -> Ownership:
    """Become the owner: from then on every earlier owner's writes fail (W2).

    Args:
        loader: of the change set.
        instance: the process that owns it from then on.
        initial_control: returns the control record of a change set without commits.
        end: the log's last commit, if the caller has read it.
    """
    while True:
        end = end or await loader.log.end()
        previous, last, trace, _ = end
        if last is None:
            await loader.log.require_readable()
        control = await initial_control() if last is None else last.control
        own_id = RequestId()
        own_control = control.model_copy(
            update={"epoch": control.epoch + 1, "owner": f"{instance}/{own_id}"}
        )
        try:
            entry = CommitV1(id=own_id, previous=previous, control=own_control)
            [sequence] = await loader.log.append([entry], {own_id: trace})
        except Fenced:
            end = None
            continue
        try:
            loaded = await loader.load_own(end, (sequence, entry))
            ownership = Ownership(loader, loaded)
        except HistoryInconsistent:
            # To a slow reader, a checkpoint and purge by a successor look the same.
            await require_epoch(loader, own_control.epoch)
            raise
        except Exception:
            released = own_control.model_copy(update={"owner": ""})
            await _release_if_possible(
                loader, CommitV1(id=RequestId(), previous=sequence, control=released)
            )
            raise
        ownership.unreleased_owner = control.owner
        if ownership.spans.on:
            ownership.pending_dvu.restore(trace)
        return ownership


async def _release_if_possible(loader: StateLoader, entry: CommitV1) -> None:
    """End in order if that is possible, so that the next owner counts no death (W14)."""
    with suppress(Fenced, JetStreamError, TimeoutError):
        async with within(_RELEASE_TIMEOUT):
            await loader.log.append([entry])
