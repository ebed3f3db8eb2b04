"""Owners of a change set that commit and write checkpoints, and are killed at one step."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application.state_machine import checkpoints_of, open_state_loader
from rebaser_server.settings.settings import Settings
from rebaser_server.store import checkpoints, compaction
from rebaser_server.store.checkpoints import Checkpoints
from tests.helpers.batches import put
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.scripted_owner import Owner

STEPS: dict[str, tuple[Any, str]] = {
    "commit": (CommitLog, "append"),
    "checkpoint": (Checkpoints, "save"),
    "the checkpoint's write": (checkpoints, "write_deltalake"),
    "purge": (CommitLog, "purge"),
    "deleting a batch": (BatchStore, "delete_with_results"),
    "compaction": (compaction, "compact"),
    "dropping rows": (compaction, "write_deltalake"),
    "deleting files": (DeltaTable, "vacuum"),
}
"""What is done in each round, once or more."""

VALUE = ulid(1)
LARGE = 501
ROUNDS = 3
"""Before it dies; so many that the past begins behind the first checkpoint."""
KEPT = Retention(seconds=0, entries=4, batches=10**6)


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str, *, after: bool) -> None:
    """Have the process die at the next such step."""
    where, name = STEPS[step]
    real = getattr(where, name)
    setattr(where, name, _dying_after(real) if after else die)


def _dying_after(real: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if not asyncio.iscoroutine(result):
            die()

        async def awaited() -> None:
            await result
            die()

        return awaited()

    return called


async def one_round(owner: Owner, number: int) -> None:
    """Two commits, one of them large, a checkpoint, and tidying."""
    await owner.commit([put(VALUE, number)])
    print(number, flush=True)  # noqa: T201 - what is committed for certain
    await owner.commit([put(ulid(n), number) for n in range(2, LARGE + 2)])
    await owner.checkpoint()
    archive = owner.archive
    await asyncio.to_thread(
        compaction.compact,
        checkpoints_of(archive),
        archive.change_set,
        owner.own.state.checkpoints[0].commit,
        7200,
    )


async def main(url: str, root: str, change_set: ChangeSet, step: str, when: str) -> None:
    settings = Settings.model_validate({"nats": {"url": url}, "store": {"root": root}})
    async with connected(ConnectOptions(servers=(url,))) as nc:
        owner = await Owner.over(open_state_loader(JetStream(nc), settings, change_set), KEPT)
        for number in range(100):
            if number == ROUNDS:
                arm(step, after=when != "before")
            await one_round(owner, number)


def serve() -> None:
    """For each line of arguments let a fork of this process die, and say how it did.

    It has imported everything, which takes longer than the rest, and started nothing.
    """
    for line in sys.stdin:
        child = os.fork()
        if not child:
            url, root, workspace, name, step, when = line.rstrip("\n").split("\t")
            change_set = ChangeSet(WorkspaceId.from_str(workspace), ChangeSetId.from_str(name))
            asyncio.run(main(url, root, change_set, step, when))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("ended by", os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
