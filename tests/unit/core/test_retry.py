"""What is tried again, for how long, and what is not."""

import pytest

from rebaser_core.jetstream import NatsUnreachable, SubjectFull, Unavailable
from rebaser_core.requests import retry


def calls(*outcomes):
    """A call with these outcomes, one after the other; what is left shows how often it was made."""
    left = list(outcomes)

    async def call():
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return call, left


def error(kind):
    return kind.__new__(kind)


async def test_a_call_that_succeeds_is_made_once():
    call, left = calls(1, 2)

    assert await retry(call, retry_for=60) == 1
    assert left == [2]


@pytest.mark.parametrize("kind", [NatsUnreachable, Unavailable])
async def test_a_call_is_repeated_while_the_server_is_not_well(kind):
    call, left = calls(error(kind), "done")

    assert await retry(call, retry_for=60) == "done"
    assert left == []


async def test_the_last_error_is_raised_when_the_time_is_over():
    call, left = calls(error(NatsUnreachable), "too late")

    with pytest.raises(NatsUnreachable):
        await retry(call, retry_for=0)

    assert left == ["too late"]


@pytest.mark.parametrize("kind", [SubjectFull, ValueError])
async def test_a_permanent_error_is_raised_at_once(kind):
    call, left = calls(error(kind), "never")

    with pytest.raises(kind):
        await retry(call, retry_for=60)

    assert left == ["never"]
