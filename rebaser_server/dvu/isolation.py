"""Finds the values that end their evaluator, or never return, and fails them alone.

For a run that broke down and broke down again: a crash tells the run that failed,
not the value. Each blob is run by itself; one that fails is bisected by prefixes,
which are blobs themselves, since a value's inputs come before it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import structlog

from rebaser_server.dvu.blob import Blob
from rebaser_server.dvu.errors import RunFailed
from rebaser_server.dvu.evaluate import FAILED_RUNTIME, Outcome
from rebaser_server.dvu.executor import Executor

log: Final = structlog.get_logger()

MOST_CULPRITS: Final = 16
"""In one blob. Where there are more it is not the values."""


async def run_isolated(
    executor: Executor, blobs: Sequence[bytes], *, limit: float
) -> list[Outcome]:
    """The outcome of each blob, with the values failed that cannot be computed.

    Costs about log₂ of a blob's values in runs for each of those. Cancelled, it ends
    the run in hand.

    Args:
        executor: one that may break down and is sound for the next run.
        blobs: as `Executor.run` takes them.
        limit: seconds for a run of one blob, more than a sound one needs.

    Raises:
        RunFailed, TimeoutError: it fails too often for it to be the values.
        SessionFailed: there is nothing to run on.
    """
    return [await _isolated(executor, Blob.decode(blob), limit) for blob in blobs]


async def _isolated(executor: Executor, blob: Blob, limit: float) -> Outcome:
    culprits: dict[int, str] = {}
    while True:
        try:
            return await _run(executor, failing(blob, culprits), limit)
        except (RunFailed, TimeoutError) as error:
            if len(culprits) == MOST_CULPRITS:
                raise
            index = await _first_culprit(executor, failing(blob, culprits), limit)
            reason = "it did not return" if isinstance(error, TimeoutError) else str(error)
            log.error("value ends its evaluator", value=blob.ids[index], reason=reason)
            culprits[index] = f"computing it ended the evaluator: {reason}"


async def _first_culprit(executor: Executor, blob: Blob, limit: float) -> int:
    """The first value without which the blob's prefix runs and with which it does not."""
    sound, broken = 0, len(blob.ids)
    while broken - sound > 1:
        middle = (sound + broken) // 2
        try:
            await _run(executor, prefix(blob, middle), limit)
        except (RunFailed, TimeoutError):
            broken = middle
        else:
            sound = middle
    return broken - 1


async def _run(executor: Executor, blob: Blob, limit: float) -> Outcome:
    async with asyncio.timeout(limit):
        [outcome] = await executor.run([blob.encode()])
        return outcome


def prefix(blob: Blob, count: int) -> Blob:
    """The first `count` values of a blob, as a blob."""
    refs = sum(_widths(blob)[:count])
    return Blob(
        blob.functions,
        blob.signatures,
        blob.constants,
        blob.ids[:count],
        blob.calls[:count],
        blob.refs[:refs],
        blob.statuses[:count],
        blob.before[:count],
        blob.forced[:count],
    )


def failing(blob: Blob, messages: Mapping[int, str]) -> Blob:
    """A blob in which some values, by their position, fail with a message instead."""
    functions, signatures = list(blob.functions), list(blob.signatures)
    calls, forced, refs = list(blob.calls), list(blob.forced), []
    widths = _widths(blob)
    ends = list(accumulate(widths))
    for index, (width, end) in enumerate(zip(widths, ends, strict=True)):
        if index in messages:
            functions.append((FAILED_RUNTIME, messages[index]))
            signatures.append((len(functions) - 1, []))
            calls[index], forced[index] = len(signatures) - 1, True
        else:
            refs += blob.refs[end - width : end]
    return Blob(
        functions,
        signatures,
        blob.constants,
        blob.ids,
        calls,
        refs,
        blob.statuses,
        blob.before,
        forced,
    )


def _widths(blob: Blob) -> list[int]:
    """How many cells each value takes."""
    by_call = [sum(1 if n is None else n for _, n in shape) for _, shape in blob.signatures]
    return [by_call[call] for call in blob.calls]
