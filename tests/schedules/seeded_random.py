"""Whatever else is left to chance, drawn from the seed: ids, names, jitter, and what is logged."""

import gc
import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import structlog
import ulid

from tests.schedules.loop import Loop

_EPOCH = 1_767_225_600_000  # 2026, in milliseconds


@contextmanager
def settled(seed: object, loop: Loop) -> Iterator[None]:
    """Ids follow virtual time, names and jitter follow the seed, garbage is left for afterwards."""
    rng = random.Random(f"ids {seed}")
    names = random.Random(f"names {seed}")
    before, generator = random.getstate(), ulid.default_generator
    random.seed(f"jitter {seed}")
    ulid.default_generator = ulid.ULIDGenerator(
        clock=lambda: _EPOCH + round(loop.time() * 1000),
        randomness=lambda _: rng.randbytes(10),
        policy=ulid.PureRandomPolicy(),
    )
    enabled = gc.isenabled()
    gc.disable()
    try:
        with mock.patch.object(secrets, "token_hex", lambda octets: names.randbytes(octets).hex()):
            yield
    finally:
        random.setstate(before)
        ulid.default_generator = generator
        if enabled:
            gc.enable()


@contextmanager
def told(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `listener` with each line that the product logs, in place of writing it."""

    def listen(logger: Any, method: str, event: dict[str, Any]) -> Any:
        listener(event)
        raise structlog.DropEvent

    logging.getLogger("rebaser_core").addHandler(logging.NullHandler())  # or it goes to stderr
    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [structlog.contextvars.merge_contextvars, listen]
    try:
        yield
    finally:
        processors[:] = before
