"""The smallest application of Rebaser's core: a change set counts the updates that it was sent.

The core takes the requests of a change set in order, applies each once whatever dies, answers,
deletes, writes checkpoints and takes over from the dead. What is in a change set is a number here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import Correction, EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.updates import AnyUpdate, BatchLimits
from rebaser_server.commit_log.state import Batch, Checkpoint, Content, Snapshot, State
from rebaser_server.graph_application.batches import BatchApplier, is_batchable
from rebaser_server.processor.application import Application, Applied, RequestMessage
from rebaser_server.processor.ownership import Ownership


@dataclass
class Counter(Content):
    """The content of a change set: how many updates it was sent."""

    total: int = 0

    async def apply(self, sequence: int, batch: Batch, covers: int | None = None) -> "Counted":
        self.total += len(batch.updates)
        return Counted(batch.updates)


@dataclass(frozen=True)
class Counted:
    """A batch as performed: as it is, for there is nothing to correct and nothing to compute."""

    updates: Sequence[AnyUpdate]
    corrections: Sequence[Correction] = ()
    dirty: bool = False
    failed: int = 0
    failing: int = 0


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint."""

    commit: int
    total: int
    metadata: dict[str, Any]

    def __len__(self) -> int:
        return 1


class Files(Protocol):
    """What checkpoints need of `SharedFiles`."""

    def put(self, path: str, data: bytes) -> None: ...
    def get(self, path: str) -> Any: ...
    def list_names(self, directory: str) -> list[str]: ...


class CounterApplication(Application):
    """Counters, with a checkpoint file for each commit that has one."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def empty(self) -> Counter:
        return Counter()

    def take(self, state: State, metadata: dict[str, Any], *, whole: bool) -> Saved:
        return Saved(state.commit, total_of(state), metadata)

    def save(self, change_set: ChangeSet, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, Saved)
        data = {"total": snapshot.total, "metadata": snapshot.metadata}
        self._files.put(f"{_directory(change_set)}/{snapshot.commit}", json.dumps(data).encode())

    def load(self, change_set: ChangeSet, at: int | None = None) -> Checkpoint | None:
        directory = _directory(change_set)
        commits = [int(name) for name in self._files.list_names(directory)]
        commit = max((each for each in commits if at is None or each <= at), default=None)
        if commit is None:
            return None
        data = json.loads(bytes(self._files.get(f"{directory}/{commit}")))
        return Checkpoint(commit, data["metadata"], Counter(data["total"]))

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        checkpoint = self.load(change_set)
        return checkpoint and checkpoint.metadata

    def read(self, request: Delivery) -> EnqueueUpdatesRequestV1:
        return EnqueueUpdatesRequest.decode(request.headers, request.payload)

    def is_batchable(self, message: RequestMessage) -> bool:
        assert isinstance(message, EnqueueUpdatesRequestV1)
        return is_batchable(message)

    async def apply(
        self, ownership: Ownership, request: Delivery, message: RequestMessage
    ) -> Applied:
        assert isinstance(message, EnqueueUpdatesRequestV1)
        return await BatchApplier(BatchLimits(), _adopt_nothing).apply(ownership, request, message)


async def _adopt_nothing(_: ChangeSet, __: Batch) -> None:
    return None


def total_of(state: State) -> int:
    """What a change set has counted."""
    assert isinstance(state.content, Counter)
    return state.content.total


def _directory(change_set: ChangeSet) -> str:
    return f"counters/{change_set.workspace_id}/{change_set.change_set_id}"
