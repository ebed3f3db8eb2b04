"""Whatever else is left to chance, drawn from the seed: ids, names, jitter, and what is logged.

So are the clocks by which costs are measured, and what a process remembers of its log: a schedule
is a function of its seed, whatever ran before it and however busy the machine is.
"""

import gc
import itertools
import logging
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import structlog
import ulid

from rebaser_core import ids as core_ids
from rebaser_server.runtime import containment
from tests.schedules.loop import Loop

_EPOCH = 1_767_225_600_000  # 2026, in milliseconds
_A_LOOK: Final = 1e-6
"""Seconds that pass between two looks at a clock, while virtual time stands still."""


@contextmanager
def settled(seed: object, loop: Loop) -> Iterator[None]:
    """Ids follow virtual time, names and jitter follow the seed, garbage is left for afterwards."""
    rng = random.Random(f"ids {seed}")
    names = random.Random(f"names {seed}")
    before, generator = random.getstate(), ulid.default_generator
    random.seed(f"jitter {seed}")
    ulid.default_generator = ids = ulid.ULIDGenerator(
        clock=lambda: _EPOCH + round(loop.time() * 1000),
        randomness=lambda _: rng.randbytes(10),
        policy=ulid.PureRandomPolicy(),
    )
    enabled = gc.isenabled()
    gc.disable()
    looks = itertools.count()

    def clock() -> float:
        return loop.time() + next(looks) * _A_LOOK

    try:
        with ExitStack() as stack:
            for module, name, replacement in (
                (core_ids, "octets", lambda millis=None: ids.generate(millis).bytes),
                (secrets, "token_hex", lambda octets: names.randbytes(octets).hex()),
                (uuid, "uuid4", lambda: uuid.UUID(bytes=names.randbytes(16), version=4)),
                (time, "monotonic", clock),
                (time, "perf_counter", clock),
                (containment, "_log_limiter", containment._LogLimiter()),
            ):
                stack.enter_context(mock.patch.object(module, name, replacement))
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
    before = structlog.get_config()
    structlog.reset_defaults()  # lines of all levels
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, listen])
    try:
        yield
    finally:
        structlog.configure(**before)
