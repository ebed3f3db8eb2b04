"""The past begins at a checkpoint: as late as it must, as early as it may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.commit_log.state import CheckpointRef, Retention

NOW = 1_000.0
ALL = 10**9


def checkpoints(count):
    """One each 10 seconds, the last one now; of commits 10, 20, …; 5 lines between two."""
    return [CheckpointRef(10 * n, NOW - 10 * (count - n), 5) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("retention", "batches", "start"),
    [
        (Retention(ALL, ALL, ALL), [], 0),
        (Retention(0, ALL, ALL), [], 50),  # the checkpoint before the last, in any case
        (Retention(ALL, 0, ALL), [], 50),
        (Retention(ALL, ALL, 0), [12, 55], 50),
        (Retention(25, ALL, ALL), [], 30),  # what is 25 s old is still to be had
        (Retention(20, ALL, ALL), [], 40),
        (Retention(ALL, 12, ALL), [], 40),  # two times 5 lines behind it
        (Retention(ALL, ALL, 1), [12, 35, 55], 40),
        (Retention(ALL, ALL, 1), [12, 55], 20),
        (Retention(ALL, 30, ALL), [], 0),
        (Retention(ALL, 29, ALL), [], 10),
    ],
)
def test_the_first_limit_that_is_exceeded_counts(retention, batches, start):
    assert retention.purge_point(checkpoints(6), batches, NOW) == start


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_checkpoint_before_the_last_nothing_is_forgotten(count):
    assert Retention(0, 0, 0).purge_point(checkpoints(count), [], NOW) == 0


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), max_size=8),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 5),
    st.lists(st.integers(1, 400), max_size=9),
)
def test_within_the_limits_as_much_is_kept_as_may_be(gaps, seconds, lines, batches, stored):
    """And going on from where the past began before never brings it back."""
    kept, time = [], 0.0
    for commit, (gap, between) in enumerate(gaps, 1):
        time += gap
        kept.append(CheckpointRef(50 * commit, time, between))
    retention = Retention(seconds, lines, batches)

    start = retention.purge_point(kept, stored, time)

    left = [checkpoint for checkpoint in kept if checkpoint.commit > start]
    late = len(kept) < 2 or start == kept[-2].commit
    assert late or sum(checkpoint.entries for checkpoint in left) <= lines
    assert late or sum(line > start for line in stored) <= batches
    assert len(left) >= min(len(kept), 1)
    rest = [checkpoint for checkpoint in kept if checkpoint.commit >= start]
    assert retention.purge_point(rest, stored, time) in (0, start)
