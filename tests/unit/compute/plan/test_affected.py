"""What is affected, and its levels, are those that a plain walk finds, however wide a level is."""

import random

import pytest

from rebaser_server.compute.affected import closure, small_closure
from rebaser_server.values.graph import Graph
from tests.helpers.graph_builder import Builder

WIDTHS = [1, 1, 3, 1, 70, 200, 2, 1, 1, 65, 1, 1]
"""Of the levels: narrow ones are walked one by one, wide ones as arrays."""


def layered(seed: int) -> Builder:
    """Each value takes one of the level below, and perhaps more of any level."""
    chosen = random.Random(seed)
    build = Builder()
    build.source("0.0", 1)
    build.source("other", 1)
    below = ["0.0"]
    everything = ["0.0", "other"]
    for level, width in enumerate(WIDTHS, 1):
        here = [f"{level}.{number}" for number in range(width)]
        for value_id in here:
            more = chosen.choices(everything, k=chosen.randrange(3))
            build.dependent(value_id, "sum", {"values": [chosen.choice(below), *more]})
        everything += here
        below = here
    build.update()
    return build


def levels_found(graph: Graph) -> dict[str, int]:
    affected = closure(graph)
    levels = affected.levels.tolist()
    assert levels == sorted(levels)
    affected.release(graph)
    ids = map(graph.id_at, affected.indices.tolist())
    return dict(zip(ids, levels, strict=True))


def levels_expected(graph: Graph, root: str) -> dict[str, int]:
    """The longest way from the root to each value that it reaches."""
    longest = {root: 0}
    for value in sorted(graph.values.values(), key=lambda value: value.rank):
        ways = [longest[i] + 1 for i in value.input_ids() if i in longest]
        if ways:
            longest[value.id] = max(ways)
    del longest[root]
    return longest


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_levels_are_the_longest_ways_from_the_root(seed: int, is_compacted: bool) -> None:
    graph = layered(seed).graph
    if is_compacted:
        graph.adjacency.compact()
        graph.set_inputs(graph.values["5.7"], {"values": ["4.3", "1.0"]})  # and one edge since
    graph.mark_root(graph.values["0.0"], 2)

    assert levels_found(graph) == levels_expected(graph, "0.0")


def test_a_chain_is_as_deep_as_it_is_long() -> None:
    build = Builder()
    build.source("0", 1)
    for link in range(1, 300):
        build.dependent(str(link), "sum", {"values": [str(link - 1)]})
    build.update()
    build.graph.mark_root(build.graph.values["0"], 2)

    assert levels_found(build.graph) == {str(link): link for link in range(1, 300)}


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_that_ends_early_leaves_nothing_behind(seed: int) -> None:
    """Many edges are too many for it; with room for all of them it finds what is found without."""
    graph = layered(seed).graph
    graph.mark_root(graph.values["0.0"], 2)
    wanted = closure(graph).indices.tolist()
    edges = sum(len(value.input_ids()) for value in graph.values.values())
    found = {}
    for most in (0, 1, 5, 50, 500, edges):
        affected = small_closure(graph, most)
        scratch = graph.borrow_scratch()
        if affected is not None:
            found[most] = affected.indices.tolist()
            scratch = affected.positions
            scratch[affected.indices] = 0
        assert not scratch.any()
        graph.return_scratch(scratch)

    assert found == {edges: wanted}
