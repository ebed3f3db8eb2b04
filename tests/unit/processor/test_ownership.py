"""One owner at a time: what it stages is written in order, and nothing after a takeover."""

from pathlib import Path

import pytest

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_server.errors import Fenced
from rebaser_server.processor.ownership import acquire_ownership, require_epoch
from tests.helpers.deployment import new_change_sets
from tests.helpers.simulated_nats import Nats, simulated


def settles(number: int) -> SettledRequest:
    return SettledRequest(
        id=RequestId.from_int(number), sequence=number, outcome=RequestOutcome.APPLIED
    )


def test_staged_commits_are_written_in_order_and_told_one_by_one(tmp_path: Path) -> None:
    """The control record is the one that will hold once all of them are written."""

    async def test(nats: Nats) -> None:
        [change_set] = new_change_sets(1)
        own = await acquire_ownership(nats.loader(change_set), "first")
        seen = list[RequestId]()
        own.on_commit = lambda entry: seen.append(entry.entry.settled.id)
        for number in (1, 2):
            own.stage(settles(number), last_sequence=number)

        assert own.has_staged(RequestId.from_int(2))
        assert (own.control.last_sequence, own.state.control.last_sequence) == (2, 0)

        await own.flush()

        assert seen == [RequestId.from_int(1), RequestId.from_int(2)]
        assert own.state.control.last_sequence == 2
        assert not own.has_staged(RequestId.from_int(2))

    simulated(tmp_path, test)


def test_whoever_is_overtaken_is_fenced_and_its_state_is_spoiled(tmp_path: Path) -> None:
    """W2: the newcomer's first commit has a higher epoch, and names who never released."""

    async def test(nats: Nats) -> None:
        [change_set] = new_change_sets(1)
        first = await acquire_ownership(nats.loader(change_set), "first")
        second = await acquire_ownership(nats.loader(change_set), "second")

        with pytest.raises(Fenced):
            await first.write(settles(1), last_sequence=1)

        assert first.spoiled
        assert second.state.control.epoch == first.state.control.epoch + 1
        assert second.unreleased_owner.startswith("first/")
        await second.write(settles(1), last_sequence=1)
        with pytest.raises(Fenced):
            await require_epoch(second.loader, first.state.control.epoch)

    simulated(tmp_path, test)


def test_what_was_released_has_no_owner_that_died(tmp_path: Path) -> None:
    """W10: the next owner counts no death."""

    async def test(nats: Nats) -> None:
        [change_set] = new_change_sets(1)
        await (await acquire_ownership(nats.loader(change_set), "first")).release()

        second = await acquire_ownership(nats.loader(change_set), "second")

        assert second.unreleased_owner == ""

    simulated(tmp_path, test)
