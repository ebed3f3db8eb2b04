"""Request ids are remembered by number and by time, whatever comes first."""

import json

import pytest

from rebaser_core.commits import CommitV2, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_server.commit_log import state as commit_log_state
from rebaser_server.commit_log.state import (
    MIN_REMEMBERED,
    REMEMBERED_FOR,
    RecentRequest,
    RecentRequests,
    State,
)
from rebaser_server.graph_application.content import GraphContent

BEGINNING = 1_700_000_000_000
IDS = [RequestId.from_int(number << 64) for number in range(1, MIN_REMEMBERED + 6)]


def remembering(ids, stored=BEGINNING, requests=None):
    requests = RecentRequests() if requests is None else requests
    for commit, request_id in enumerate(ids, 1):
        requests.remember(request_id, commit, RequestOutcome.APPLIED, stored)
    return requests


def test_ids_stored_within_twice_the_horizon_are_all_remembered():
    requests = remembering(IDS)

    remembering([RequestId.from_int(7)], BEGINNING + REMEMBERED_FOR, requests)

    assert len(requests) == len(IDS) + 1
    assert IDS[0] in requests


def test_an_old_id_is_remembered_while_few_others_follow():
    requests = remembering(IDS[:9])

    remembering([RequestId.from_int(7)], 2 * BEGINNING, requests)

    assert list(requests) == [*IDS[:9], RequestId.from_int(7)]


def test_the_oldest_are_forgotten_once_they_are_old_and_many_followed():
    requests = remembering(IDS)

    remembering([RequestId.from_int(7)], BEGINNING + REMEMBERED_FOR + 1, requests)

    assert list(requests) == [*IDS[-MIN_REMEMBERED + 1 :], RequestId.from_int(7)]
    assert requests.get(IDS[0]) is None
    assert requests[IDS[-1]] == RecentRequest(len(IDS), RequestOutcome.APPLIED)


def test_memory_is_given_back_for_forgotten_ids(monkeypatch):
    monkeypatch.setattr(commit_log_state, "MIN_REMEMBERED", 2)
    requests = RecentRequests()

    for number, request_id in enumerate(IDS):
        remembering([request_id], BEGINNING + number * 2 * REMEMBERED_FOR, requests)

    assert list(requests) == IDS[-2:]
    assert len(requests._ids) <= 16 * 5
    assert requests[IDS[-1]].commit == 1


def test_the_time_between_two_requests_is_that_between_their_storing():
    """However late a commit is: a repetition may wait in the queue for as long as its run sleeps.

    So the time is in the commit's id, and a replay forgets what the run before forgot.
    """
    live, replayed = State(GraphContent()), State(GraphContent())
    for sequence, request_id in enumerate([*IDS, RequestId()], 1):
        settled = SettledRequest(id=request_id, sequence=sequence, outcome=RequestOutcome.APPLIED)
        commit = CommitV2(
            id=RequestId.from_timestamp(BEGINNING / 1000),
            previous=sequence - 1,
            control=ControlState(),
            settled=settled,
        )
        for state in (live, replayed):
            state.advance(commit, sequence)

    assert IDS[0] in live.recent
    assert live.recent == replayed.recent


@pytest.mark.parametrize("count", [0, 1, len(IDS)])
def test_a_checkpoint_keeps_ids_commits_outcomes_and_times(count):
    requests = remembering(IDS[:count])
    remembering([RequestId()], BEGINNING + 1, requests)

    again = RecentRequests.from_metadata(json.loads(json.dumps(requests.metadata())))

    assert list(again.items()) == list(requests.items())
    assert again._stored == requests._stored
    assert again.metadata() == requests.metadata()


def test_a_checkpoint_keeps_the_digests_that_are_known():
    requests, digests = RecentRequests(), ["01234567", "", "89abcdef"]
    for commit, (request_id, digest) in enumerate(zip(IDS[:3], digests, strict=True), 1):
        requests.remember(request_id, commit, RequestOutcome.APPLIED, BEGINNING, digest)

    again = RecentRequests.from_metadata(json.loads(json.dumps(requests.metadata())))

    assert [again[each].digest for each in IDS[:3]] == digests


def test_digests_are_forgotten_with_their_ids(monkeypatch):
    monkeypatch.setattr(commit_log_state, "MIN_REMEMBERED", 2)
    requests = RecentRequests()

    for number, request_id in enumerate(IDS):
        stored = BEGINNING + number * 2 * REMEMBERED_FOR
        requests.remember(request_id, number, RequestOutcome.APPLIED, stored, f"{number + 1:08x}")

    assert requests[IDS[-1]].digest == f"{len(IDS):08x}"
    assert RecentRequests.from_metadata(requests.metadata()) == requests
    assert len(requests._digests) <= 4 * 5
