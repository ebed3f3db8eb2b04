"""The smallest application of Rebaser's core: a change set counts the updates that it was sent.

The core takes the requests of a change set in order, applies each once whatever dies, answers,
deletes, writes checkpoints and takes over from the dead. An application says what a batch of
updates means. Rebaser's own is a graph of values; this one is a number.

    nats-server -js &
    python examples/counter.py nats://127.0.0.1:4222 /tmp/counters

Then enqueue batches as for any Rebaser, with `rebaser enqueue` or the client; its prefix is
`counters`: set REBASER_NATS__PREFIX=counters, or use `connect(…, prefix="counters")`. With
`rebaser up` its NATS will do; use a directory of its own.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rebaser_core.ids import ChangeSet
from rebaser_core.messages import Correction
from rebaser_core.updates import AnyUpdate
from rebaser_server.commit_log.state import Batch, Checkpoint, Content, Snapshot, State
from rebaser_server.files import SharedFiles
from rebaser_server.processor.application import Application
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.composition import serve
from rebaser_server.settings.settings import Settings

PREFIX = "counters"
"""Sets its streams and subjects apart, so that it runs on the NATS of another Rebaser as well."""


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
    """What a checkpoint writes."""

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


def total_of(state: State) -> int:
    """What a change set has counted."""
    assert isinstance(state.content, Counter)
    return state.content.total


def _directory(change_set: ChangeSet) -> str:
    return f"counters/{change_set.workspace_id}/{change_set.change_set_id}"


async def main(nats: str, directory: str) -> None:
    settings = Settings.model_validate(
        {"nats": {"url": nats, "prefix": PREFIX}, "store": {"root": directory}}
    )
    await serve(settings, lambda *_: CounterApplication(SharedFiles(directory)), Shutdown())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
