"""Calls of nats-py made honest: its errors become ours, and no cancellation is swallowed."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import nats.errors

from rebaser_core.jetstream.errors import JetStreamError, Oversized, Unreachable, Unsendable

_CALLERS_FAULT: Final = (
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
)


@contextlib.contextmanager
def honest_cancellation() -> Iterator[None]:
    """Raise `CancelledError` after a body that swallowed it, as nats-py's flush does."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn what nats-py raises into errors of this package."""
    try:
        yield
    except (nats.errors.Error, OSError) as error:
        raise translation(error) from error


def translation(error: Exception) -> JetStreamError:
    """What an error of nats-py is called here."""
    if isinstance(error, nats.errors.MaxPayloadError):
        return Oversized(str(error))
    kind = Unsendable if isinstance(error, _CALLERS_FAULT) else Unreachable
    return kind(f"{type(error).__name__}: {error}")
