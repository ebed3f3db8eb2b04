"""The lease is what the server takes it to be."""

from rebaser_core.jetstream import Drift
from rebaser_server.cluster.task_lease import LeaseSettings, LeaseTerms

OURS = LeaseSettings(120.0, 30.0)


def of_consumer(seconds: float) -> list[Drift]:
    return [Drift("consumer TASKS/rebasers", "ack_wait", 120e9, seconds * 1e9)]


def test_the_shorter_lease_of_the_consumer_is_in_force_until_it_is_set_back() -> None:
    terms = LeaseTerms(OURS)

    terms.heed(of_consumer(20))
    assert terms.settings == LeaseSettings(20.0, 5.0)

    terms.heed([])
    assert terms.settings == OURS


def test_our_shorter_lease_stays_in_force() -> None:
    terms = LeaseTerms(OURS)

    terms.heed(of_consumer(600))

    assert terms.settings == OURS
