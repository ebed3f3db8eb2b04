"""What a change set takes in memory, as it is taken to take."""

import tracemalloc

import pytest

from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import footprint


def filled(count, text):
    state = State(GraphContent())
    for number in range(count):
        value = graph_of(state).add(f"{number:026}")
        graph_of(state).assign(value, text + str(number))
        graph_of(state).rename(value, f"name {number}")
    return state


@pytest.mark.parametrize(("count", "text"), [(20_000, "x"), (20, "x" * 500_000)])
def test_the_estimate_is_close_to_the_allocation(count, text):
    filled(count, "")  # what is imported for it is no part of it
    tracemalloc.start()
    try:
        state = filled(count, text)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.5 * taken < footprint(state) < 2 * taken


def test_an_empty_change_set_takes_little():
    assert footprint(State(GraphContent())) < 16_000
