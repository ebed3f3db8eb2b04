"""The claim of an update: made from the state that it covers, given up after too many failures."""

from pathlib import Path
from typing import Any

from rebaser_server.processor.dvu import FIRST_DELAY, MAX_DELAY, claim_update, retry_delay
from rebaser_server.processor.ownership import Ownership, acquire_ownership
from rebaser_server.runtime.failures import JobFailed
from tests.helpers.deployment import new_change_sets
from tests.helpers.simulated_nats import Nats, simulated


class Planner:
    """Plans nothing, and notes what it was asked; or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._error = error

    def prepare(self, content: Any, after: int, **options: Any) -> None:
        self.asked.append({"after": after, **options})
        if self._error is not None:
            raise self._error


async def owner(nats: Nats, **control: Any) -> Ownership:
    [change_set] = new_change_sets(1)
    own = await acquire_ownership(nats.loader(change_set), "owner")
    await own.write(**control)
    return own


def test_nothing_is_claimed_where_nothing_is_due(tmp_path: Path) -> None:
    async def test(nats: Nats) -> None:
        own, planner = await owner(nats, dirty_sequence=3, clean_sequence=3), Planner()

        assert await claim_update(own, planner, 5) is None
        assert (own.state.control.claim, planner.asked) == (None, [])

    simulated(tmp_path, test)


def test_a_claim_covers_all_that_is_due_and_replaces_that_of_an_earlier_run(tmp_path: Path) -> None:
    """D2: what is planned again is known to be a repetition."""

    async def test(nats: Nats) -> None:
        own, planner = await owner(nats, dirty_sequence=3, clean_sequence=1), Planner()

        first = await claim_update(own, planner, 5)
        await own.write(dirty_sequence=4)
        second = await claim_update(own, planner, 5)

        assert first is not None
        assert second is not None
        assert (first.claim.covers, second.claim.covers) == (3, 4)
        assert (second.after, second.base) == (1, own.state.commit)
        assert own.state.control.claim == second.claim != first.claim
        assert [asked["is_repeated"] for asked in planner.asked] == [False, True]

    simulated(tmp_path, test)


def test_after_too_many_failures_it_is_claimed_and_not_planned(tmp_path: Path) -> None:
    """D6: planning it may be what fells the process."""

    async def test(nats: Nats) -> None:
        own, planner = await owner(nats, dirty_sequence=1, dvu_failures=5), Planner()

        update = await claim_update(own, planner, 5)

        assert update is not None
        assert isinstance(update.error, JobFailed)
        assert planner.asked == []

    simulated(tmp_path, test)


def test_a_plan_that_fails_is_a_failed_update_under_its_claim(tmp_path: Path) -> None:
    async def test(nats: Nats) -> None:
        own, error = await owner(nats, dirty_sequence=1), MemoryError("no room for a plan")

        update = await claim_update(own, Planner(error), 5)

        assert update is not None
        assert (update.job, update.error) == (None, error)
        assert own.state.control.claim == update.claim

    simulated(tmp_path, test)


def test_the_delay_of_an_update_grows_with_its_failures() -> None:
    """D6: to a minute, at most."""
    assert retry_delay(1) <= FIRST_DELAY < retry_delay(20) <= MAX_DELAY
