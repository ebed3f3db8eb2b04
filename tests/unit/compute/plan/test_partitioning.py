"""Affected values are found, levelled, kept together by component, and shared out by cost."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.compute import plan as compute_plan
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.plan import UnitLimits, balance, components, plan
from rebaser_server.compute.work_unit import CallLimits
from rebaser_server.values.adjacency import topological_levels
from rebaser_server.values.columns import transpose
from tests.helpers.graph_builder import UNHURRIED, Builder

edges = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20)
    )
)


def ints(numbers):
    return np.array(numbers, np.int32)


@UNHURRIED
@given(edges)
def test_components_are_those_of_an_undirected_graph(drawn):
    count, pairs = drawn
    found = components(count, ints([a for a, _ in pairs]), ints([b for _, b in pairs])).tolist()

    graph = nx.Graph(pairs)
    graph.add_nodes_from(range(count))
    wanted = sorted(nx.connected_components(graph), key=min)
    assert found == [next(i for i, c in enumerate(wanted) if n in c) for n in range(count)]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_long_chain_is_one_component(shuffled):
    count = 20_000
    order = np.random.default_rng(1).permutation(count) if shuffled else np.arange(count)
    chain = order.astype(np.int32)

    assert not components(count, chain[:-1], chain[1:]).any()


@UNHURRIED
@given(edges, st.booleans())
def test_sweeps_find_the_longest_path_to_each(drawn, narrow):
    """Each edge counts as often as it is there; what is on a cycle, or behind one, is left out."""
    count, pairs = drawn
    taken, dependents = ints([a for a, _ in pairs]), ints([b for _, b in pairs])
    widths = np.bincount(dependents, minlength=count)
    by_taker = taken[np.argsort(dependents, kind="stable")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rebaser_server.values.adjacency._NARROW", 100 if narrow else 0)
        order, levels = topological_levels(
            widths.astype(np.int32), *transpose(by_taker, widths, count)
        )

    graph = nx.DiGraph(pairs)
    graph.add_nodes_from(range(count))
    cyclic = {n for c in nx.strongly_connected_components(graph) if len(c) > 1 for n in c}
    cyclic |= {a for a, b in pairs if a == b}
    behind = cyclic.union(*(nx.descendants(graph, n) for n in cyclic))
    graph.remove_nodes_from(behind)
    wanted = dict.fromkeys(behind, -1)
    for level, nodes in enumerate(nx.topological_generations(graph)):
        wanted.update(dict.fromkeys(nodes, level))
    assert levels.tolist() == [wanted[n] for n in range(count)]
    assert order.tolist() == sorted(graph, key=lambda n: (wanted[n], n))


@UNHURRIED
@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 5), st.booleans())
def test_groups_cost_about_the_same(costs, count, dealt):
    """No group is ahead of another by more than the dearest part, or two where they are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute_plan, "_BALANCED_ONE_BY_ONE", 100 if dealt else 0)
        groups = balance(np.array(costs, float), count)

    totals = np.bincount(groups, costs, count)
    assert totals.max() - totals.min() <= (1 if dealt else 2) * max(costs)


def spread(count: int) -> Builder:
    """So many values that have nothing in common but their source."""
    build = Builder()
    build.source("shared", 1)
    for number in range(count):
        build.dependent(f"{number}", "sum" if number % 4 else "max", {"values": ["shared"]})
    return build


def test_few_values_are_shared_out_if_their_function_is_dear():
    build = spread(20)

    assert len(plan(build.graph, 2).units) == 1
    units = plan(build.graph, 2, costs=CostModel({("builtin", "max"): 0.1})).units

    dear = [
        sum(unit.functions[unit.signatures[call][0]][1] == "max" for call in unit.signature_indices)
        for unit in units
    ]
    assert sorted(dear) == [1, 1, 1, 2]
    assert dear[0] == 2, "the dearest comes first"


def test_the_same_plan_is_the_same_bytes():
    units, again = ([u.encode() for u in plan(spread(50).graph, 2, small=1).units] for _ in "ab")

    assert units == again
    assert len(units) == 4


def test_limits_go_with_every_blob():
    limits = CallLimits(seconds=1.5)

    for unit in plan(spread(50).graph, 2, small=1, limits=UnitLimits(limits)).units:
        assert unit.limits == limits
