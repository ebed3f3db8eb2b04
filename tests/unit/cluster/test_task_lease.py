"""The lease is what the server takes it to be."""

from typing import cast

import pytest

from rebaser_core.jetstream import Delivery, Drift
from rebaser_server.cluster.tasks import LeaseSettings, LeaseTerms, TaskLease

OURS = LeaseSettings(120.0, 24.0)


def of_consumer(seconds: float) -> list[Drift]:
    return [Drift("consumer TASKS/rebasers", "ack_wait", 120e9, seconds * 1e9)]


def test_the_shorter_lease_of_the_consumer_is_in_force_until_it_is_set_back() -> None:
    terms = LeaseTerms(OURS)

    terms.heed(of_consumer(20))
    assert terms.settings == LeaseSettings(20.0, 4.0)

    terms.heed([])
    assert terms.settings == OURS


def test_our_shorter_lease_stays_in_force() -> None:
    terms = LeaseTerms(OURS)

    terms.heed(of_consumer(600))

    assert terms.settings == OURS


@pytest.mark.parametrize(("ack_wait", "seconds"), [(120.0, 1.0), (4.0, 0.4), (1.0, 0.1)])
async def test_the_first_report_comes_within_an_eighth_of_the_lease(
    ack_wait: float, seconds: float
) -> None:
    """W1: and within a second, since it is not known how long the task was under way."""
    terms = LeaseTerms(LeaseSettings(ack_wait, 30.0))
    terms.heed([])

    assert TaskLease(cast("Delivery", None), terms).first_report_after == seconds
