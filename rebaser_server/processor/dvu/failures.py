"""What follows when a dependent values update fails: how it is told, and when it is tried again."""

import random
from typing import Final

from rebaser_server.compute.errors import DvuError
from rebaser_server.compute.failure_text import MAX_MESSAGE, describe
from rebaser_server.errors import RunEnded
from rebaser_server.runtime.transient_errors import is_transient

FIRST_DELAY: Final = 1.0  # seconds until a failed update is tried again, doubled up to
MAX_DELAY: Final = 60.0
NOT_COMPUTED: Final = "not computed"
"""How the message of a value begins that was not computed although its function did not fail."""
STORE_DELAY: Final = 15.0  # seconds until an update is tried again that the store held up
_MAX_DOUBLINGS: Final = 10
"""Times, at most: the longest delay is reached before."""


def ends_the_run(error: Exception) -> bool:
    """Whether it is no fault of the update: the change set is another's, or NATS is away."""
    is_of_nats = is_transient(error) and not isinstance(error, OSError)
    return is_of_nats or isinstance(error, RunEnded)


def failure_reason(error: Exception) -> str:
    """What a user is told of it."""
    return str(error) if isinstance(error, DvuError) else describe(error)


def give_up_message(reason: str, failures: int) -> str:
    """Of a value that was given up after so many failures."""
    return f"{NOT_COMPUTED}, {failures} updates failed: {reason}"[:MAX_MESSAGE]


def retry_delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    delay = min(FIRST_DELAY * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), MAX_DELAY)
    return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
