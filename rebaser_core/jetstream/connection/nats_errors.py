"""Calls of nats-py made honest: its errors become ours, and no cancellation is swallowed."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import nats.errors

from rebaser_core.jetstream.errors import JetStreamError, NatsUnreachable, Oversized, Unsendable

_UNSENDABLE: Final = (
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
)


@contextlib.contextmanager
def propagate_cancellation() -> Iterator[None]:
    """Raise `CancelledError` after a body that swallowed it, as nats-py's flush does."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what nats-py raises into errors of this package."""
    try:
        yield
    except (nats.errors.Error, OSError) as error:
        raise translate_error(error) from error


def translate_error(error: Exception) -> JetStreamError:
    """What an error of nats-py is called here."""
    if isinstance(error, nats.errors.MaxPayloadError):
        return Oversized(str(error))
    kind = Unsendable if isinstance(error, _UNSENDABLE) else NatsUnreachable
    return kind(f"{type(error).__name__}: {error}")
