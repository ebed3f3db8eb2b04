"""The failure of a dependent values update: its message, and the delay of the next attempt."""

from typing import Final

from rebaser_core.errors import many
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_server.errors import RunEnded
from rebaser_server.runtime.containment import is_transient
from rebaser_server.runtime.failures import EvaluatorAway, JobFailed

FIRST_DELAY: Final = 1.0  # seconds until a failed update is tried again, doubled up to
MAX_DELAY: Final = 60.0
NOT_COMPUTED: Final = "not computed"
"""First words of the message of a value that was not computed although no function failed."""
STORE_DELAY: Final = 15.0  # seconds until an update is tried again after the store failed
MAX_REASON: Final = 1_000
"""Characters of the text of a failure."""


def ends_the_run(error: Exception) -> bool:
    """Whether the error is not the update's: another run owns the change set, or NATS is away."""
    is_of_nats = is_transient(error) and not isinstance(error, OSError)
    return is_of_nats or isinstance(error, RunEnded)


def failure_reason(error: Exception) -> str:
    """Return the reason that users see."""
    name = "" if isinstance(error, JobFailed | EvaluatorAway) else type(error).__name__
    return ": ".join(filter(None, (name, str(error))))[:MAX_REASON]


def give_up_message(reason: str, failures: int) -> str:
    """Return the message of a value that was given up after so many failures."""
    return f"{NOT_COMPUTED}, {many(failures, 'update')} failed: {reason}"[:MAX_REASON]


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return Backoff(FIRST_DELAY, MAX_DELAY).jittered(failures)
