"""Finds the values that end their evaluator, or never return, and fails them alone.

For a run that broke down: a crash tells the run that failed, not the value. The run is repeated
with a guard in front of each blob, who finds the value where it is computed. Where that breaks
down, too, each blob is run by itself; one that fails is bisected by prefixes, which are
blobs themselves, since a value's inputs come before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from rebaser_server.compute.errors import RunFailed, Stalled
from rebaser_server.compute.runs.executor import Executor, OnProgress
from rebaser_server.compute.runs.progress_deadline import ProgressDeadline
from rebaser_server.compute.units.culprits import MOST_CULPRITS, TOO_MANY, failing, prefix
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.unit_result import Outcome
from rebaser_server.compute.units.work_unit import Blob, Limits, limited, limits_of, size

log: Final = structlog.get_logger()


async def run_isolated(
    executor: Executor,
    blobs: Sequence[bytes | memoryview],
    *,
    limit: float,
    shelf: Shelf | None = None,
    on_progress: OnProgress | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[Outcome | Stored]:
    """The outcome of each blob, with the values failed that cannot be computed.

    Costs one run in most cases; else about log₂ of a blob's values in runs for each of those
    values. Cancelled, it ends the run in hand.

    Args:
        executor: one that may break down and is sound for the next run.
        blobs: as `Executor.run` takes them.
        limit: seconds in which a run of one blob gets on, if it is sound, and for a call of a
            function if it has no limit of its own.
        shelf: as `Executor.run` takes it.
        on_progress: as `Executor.run` takes it.
        on_step: called when a value that ends its evaluator is found, or nearly.

    Raises:
        RunFailed, Stalled: it fails too often for it to be the values.
        SessionFailed: there is nothing to run on.
    """
    try:
        guarded = [limited(blob, _guarded(limits_of(blob), limit)) for blob in blobs]
        return await executor.run(guarded, shelf=shelf, on_progress=on_progress)
    except RunFailed as error:
        if TOO_MANY in str(error):
            raise
        log.error("guarded run failed", reason=str(error))
    search = _Search(executor, limit, on_progress, on_step)
    search.in_all = sum(map(size, blobs))
    return [await search.isolated(Blob.decode(blob), shelf) for blob in blobs]


def _guarded(limits: Limits, limit: float) -> Limits:
    return replace(limits, seconds=limits.seconds or limit, is_guarded=True)


@dataclass(slots=True)
class _Search:
    """For the values that end their evaluator, blob by blob."""

    executor: Executor
    limit: float
    on_progress: OnProgress | None
    on_step: Callable[[], None]
    in_all: int = 0
    before: int = 0
    """Values of the blobs that were run."""

    async def isolated(self, blob: Blob, shelf: Shelf | None) -> Outcome | Stored:
        culprits: dict[int, str] = {}
        while True:
            try:
                found = await self._run(failing(blob, culprits), shelf)
            except (RunFailed, Stalled) as error:
                if len(culprits) == MOST_CULPRITS:
                    raise
                index = await self._first_culprit(failing(blob, culprits))
                reason = "it did not return" if isinstance(error, Stalled) else str(error)
                log.error("value ends its evaluator", value=blob.ids[index].as_py(), reason=reason)
                culprits[index] = f"computing it ended the evaluator: {reason}"
            else:
                self.before += len(blob)
                return found

    async def _first_culprit(self, blob: Blob) -> int:
        """The first value without which the blob's prefix runs and with which it does not."""
        sound, broken = 0, len(blob)
        while broken - sound > 1:
            middle = (sound + broken) // 2
            try:
                await self._run(prefix(blob, middle))
            except (RunFailed, Stalled):
                broken = middle
            else:
                sound = middle
            self.on_step()
        return broken - 1

    async def _run(self, blob: Blob, shelf: Shelf | None = None) -> Outcome | Stored:
        deadline = ProgressDeadline(self.limit)

        def told(done: int, in_all: int) -> None:
            deadline.progressed(done, in_all)
            if self.on_progress is not None:
                self.on_progress(self.before + done, self.in_all)

        async with deadline.limits():
            [outcome] = await self.executor.run([blob.encode()], shelf=shelf, on_progress=told)
        self.on_step()
        return outcome
