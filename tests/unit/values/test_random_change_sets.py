"""Whatever happens between updates, after the last one every dependent value is right.

A value may be wrong only while a root says so. If ever a result were taken that is not right,
or a root settled that was not covered, a value would stay wrong until somebody touched it.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.in_memory_change_set import ChangeSet, recomputed, stored
from tests.helpers.random_batches import (
    batches,
    computable,
    contents,
    edits,
    examples,
    require_consistent,
)

steps = st.lists(
    st.one_of(
        st.lists(edits, min_size=1, max_size=4),
        st.sampled_from([ChangeSet.start_update, ChangeSet.finish_update]),
        st.just(ChangeSet.finish_update),
        st.sampled_from([ChangeSet.checkpoint, ChangeSet.restart]),
        batches,
    ),
    min_size=3,
    max_size=14,
)


def take(change_set, step):
    if isinstance(step, list):
        change_set.request(step)
    else:
        step(change_set)


@given(computable, steps)
@examples(300)
def test_every_dependent_value_is_what_its_function_makes_of_its_inputs(first, steps):
    """Checkpoints and the log behind them are the whole state: a restart misses nothing."""
    change_set = ChangeSet()
    change_set.request(first)
    for step in steps:
        take(change_set, step)

    before = contents(change_set.graph)
    head, recent = change_set.state.control, change_set.state.recent
    change_set.restart()

    assert contents(change_set.graph) == before
    assert (change_set.state.control, change_set.state.recent) == (head, recent)
    require_consistent(change_set.graph)
    change_set.update_until_right()
    assert not change_set.graph.roots
    assert stored(change_set.graph) == recomputed(change_set.graph)
    require_consistent(change_set.graph)


def test_values_that_fail_and_values_that_are_right_both_occur():
    """Else the tests above would show nothing."""
    seen = Counter()

    @given(computable, st.lists(edits, max_size=4))
    @examples(500, database=None, derandomize=True)
    def count(first, later):
        change_set = ChangeSet()
        change_set.request(first)
        change_set.request(later)
        change_set.update_until_right()
        seen.update(status for status, _ in stored(change_set.graph).values())

    count()

    assert seen.keys() == {"ok", "failed", "blocked"}
    assert seen["ok"] > sum(seen.values()) / 2
