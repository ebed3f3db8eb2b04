"""Finds the values that end their evaluator, or never return, and fails them alone.

For a run that broke down: a crash tells the run that failed, not the value. The run is repeated
with a guard in front of each blob, who finds the value where it is computed. Where that breaks
down, too, each blob is run by itself; one that fails is bisected by prefixes, which are
blobs themselves, since a value's inputs come before it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from rebaser_core import deadlines
from rebaser_server.dvu.blob import Blob
from rebaser_server.dvu.culprits import MOST_CULPRITS, TOO_MANY, failing, prefix
from rebaser_server.dvu.errors import RunFailed
from rebaser_server.dvu.executor import Executor
from rebaser_server.dvu.outcome import Outcome
from rebaser_server.dvu.shelf import Shelf, Stored

log: Final = structlog.get_logger()


async def run_isolated(
    executor: Executor, blobs: Sequence[bytes], *, limit: float, shelf: Shelf | None = None
) -> list[Outcome | Stored]:
    """The outcome of each blob, with the values failed that cannot be computed.

    Costs one run in most cases; else about log₂ of a blob's values in runs for each of those
    values. Cancelled, it ends the run in hand.

    Args:
        executor: one that may break down and is sound for the next run.
        blobs: as `Executor.run` takes them.
        limit: seconds for a run of one blob, more than a sound one needs, and for a call of a
            function if it has no limit of its own.
        shelf: as `Executor.run` takes it.

    Raises:
        RunFailed, TimeoutError: it fails too often for it to be the values.
        SessionFailed: there is nothing to run on.
    """
    decoded = [Blob.decode(blob) for blob in blobs]
    try:
        guarded = [_guarded(blob, limit).encode() for blob in decoded]
        return await executor.run(guarded, shelf=shelf)
    except RunFailed as error:
        if TOO_MANY in str(error):
            raise
        log.error("guarded run failed", reason=str(error))
    return [await _isolated(executor, blob, limit, shelf) for blob in decoded]


def _guarded(blob: Blob, limit: float) -> Blob:
    seconds = blob.limits.seconds or limit
    return replace(blob, limits=replace(blob.limits, seconds=seconds, is_guarded=True))


async def _isolated(
    executor: Executor, blob: Blob, limit: float, shelf: Shelf | None
) -> Outcome | Stored:
    culprits: dict[int, str] = {}
    while True:
        try:
            return await _run(executor, failing(blob, culprits), limit, shelf)
        except (RunFailed, TimeoutError) as error:
            if len(culprits) == MOST_CULPRITS:
                raise
            index = await _first_culprit(executor, failing(blob, culprits), limit)
            reason = "it did not return" if isinstance(error, TimeoutError) else str(error)
            log.error("value ends its evaluator", value=blob.ids[index].as_py(), reason=reason)
            culprits[index] = f"computing it ended the evaluator: {reason}"


async def _first_culprit(executor: Executor, blob: Blob, limit: float) -> int:
    """The first value without which the blob's prefix runs and with which it does not."""
    sound, broken = 0, len(blob)
    while broken - sound > 1:
        middle = (sound + broken) // 2
        try:
            await _run(executor, prefix(blob, middle), limit)
        except (RunFailed, TimeoutError):
            broken = middle
        else:
            sound = middle
    return broken - 1


async def _run(
    executor: Executor, blob: Blob, limit: float, shelf: Shelf | None = None
) -> Outcome | Stored:
    async with deadlines.within(limit):
        [outcome] = await executor.run([blob.encode()], shelf=shelf)
        return outcome
