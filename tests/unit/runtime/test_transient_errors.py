"""What is waited for and what counts as an attempt, for every error that there is."""

import errno
import importlib
import pkgutil

import pytest

import rebaser_server
from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import ApiError, Full, NatsUnreachable
from rebaser_server.errors import AppendRefused, RunEnded
from rebaser_server.runtime.containment import LONGEST_DELAY, backoff
from rebaser_server.runtime.transient_errors import is_transient

WAITED_FOR = {
    "ConsumerGone",
    "ConsumerNotFound",
    "Full",
    "HeartbeatsMissed",
    "MessagesMissed",
    "NotConfirmed",
    "NotListed",
    "QueueFull",
    "StatusError",
    "StreamFull",
    "StreamNotFound",
    "SubjectFull",
    "TlsFailed",
    "LoginRefused",
    "AccountLimit",
    "NatsUnreachable",
    "NoResponders",
    "Unavailable",
    "Unreachable",
    "WrongLastSequence",
}
"""All others count as attempts: what is waited for without end has to be named here."""


def kinds(base: type[Exception]) -> set[type[Exception]]:
    found = {base}
    for kind in base.__subclasses__():
        found |= kinds(kind)
    return {kind for kind in found if kind.__module__.startswith("rebaser_")}


def every_kind() -> list[type[Exception]]:
    for module in pkgutil.walk_packages(rebaser_server.__path__, "rebaser_server."):
        if not module.name.endswith(("__main__", ".connect_server", ".worker", ".preloaded")):
            importlib.import_module(module.name)
    found = kinds(RebaserError)
    ends = kinds(RunEnded) | {AppendRefused}  # a run's, judged by themselves
    return sorted(found - ends, key=lambda kind: (kind.__module__, kind.__name__))


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_each_error_is_either_waited_for_or_counted(kind: type[Exception]) -> None:
    error = kind(400, 10060, "refused") if issubclass(kind, ApiError) else made(kind)

    assert is_transient(error) is (kind.__name__ in WAITED_FOR)


def made(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "what it says")
    return error


def test_transient_server_errors_are_waited_for_and_refusals_counted() -> None:
    assert is_transient(ApiError(503, 10077, "disk"))
    assert not is_transient(ApiError(400, 10060, "expected stream does not match"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ETIMEDOUT, errno.EACCES])
def test_a_store_that_fails_is_waited_for(number: int) -> None:
    assert is_transient(OSError(number, "no"))
    assert is_transient(TimeoutError())


def test_any_other_error_is_counted() -> None:
    assert not any(map(is_transient, (ValueError(), MemoryError(), KeyError("x"))))


def test_the_delay_doubles_up_to_the_longest_with_jitter() -> None:
    for attempt, most in ((0, 1), (1, 1), (2, 2), (5, 16), (6, LONGEST_DELAY), (10**6, 30)):
        assert {most / 2 <= backoff(attempt) <= most for _ in range(100)} == {True}


@pytest.mark.parametrize(("cause", "waits"), [(Full(503, 10023, "no"), True), (KeyError(), False)])
def test_a_commit_that_was_refused_is_waited_for_if_its_cause_is(
    cause: Exception,
    waits: bool,
) -> None:
    """A full account when a change set is taken over is no fault of its, and no traceback."""
    with pytest.raises(AppendRefused) as refused:
        raise AppendRefused([], cause) from cause

    assert is_transient(refused.value) is waits


def test_a_line_that_was_refused_tells_why_and_which_are_there() -> None:
    error = AppendRefused([7, 8], NatsUnreachable("no answer"))

    assert error.sequences == [7, 8]
    assert "no answer" in str(error)
