"""A plan holds all that its values need and nothing else, in units of similar size."""

import pytest

from rebaser_server.compute.plan import Plan, plan
from tests.helpers.graph_builder import Builder


def chains(count: int, length: int) -> Builder:
    """`count` chains over one shared source; all values are ok, and there are no roots."""
    build = Builder()
    build.source("shared", 1)
    for chain in range(count):
        for link in range(length):
            below = f"{chain}.{link - 1}" if link else "shared"
            build.dependent(f"{chain}.{link}", "sum", {"values": [below, "shared"]})
    build.update()
    return build


def planned_ids(planned: Plan) -> list[list[str]]:
    return [unit.ids.to_pylist() for unit in planned.units]


def test_a_blob_holds_only_what_its_values_need() -> None:
    build = chains(3, 4)
    build.dependent("2.4", "max", {"values": ["2.3", "1.0"]})

    (unit,) = plan(build.graph, slots=1).units

    assert unit.ids.to_pylist() == ["2.4"]
    assert [tuple(function) for function in unit.functions] == [("builtin", "max")]
    assert sorted(unit.constant_ids.to_pylist()) == ["1.0", "2.3"]


def test_connected_values_stay_together_level_by_level() -> None:
    """And sources, which everything shares, connect nothing."""
    build = chains(6, 5)
    build.graph.mark_root(build.graph.values["shared"], 1)

    found = planned_ids(plan(build.graph, slots=2, small=0))

    assert sorted(map(len, found)) == [5, 5, 10, 10]
    for ids in found:
        chain_of = [value_id.split(".")[0] for value_id in ids]
        assert ids == [f"{chain}.{link}" for link in range(5) for chain in dict.fromkeys(chain_of)]


def test_components_that_meet_late_are_one() -> None:
    build = chains(4, 5)
    build.dependent("0 and 1", "sum", {"values": ["0.4", "1.4"]})
    build.dependent("2 and 3", "sum", {"values": ["2.4", "3.0"]})
    build.dependent("all", "sum", {"values": ["0 and 1", "2 and 3"]})
    build.graph.mark_root(build.graph.values["shared"], 1)

    (unit,) = plan(build.graph, slots=2, small=0).units

    assert len(unit) == 23


def test_few_values_are_not_shared_out() -> None:
    build = chains(6, 5)
    build.graph.mark_root(build.graph.values["shared"], 1)

    assert len(plan(build.graph, slots=2).units) == 1


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_blobs_are_of_similar_size(slots: int) -> None:
    build = chains(400, 3)
    build.graph.mark_root(build.graph.values["shared"], 1)

    planned = plan(build.graph, slots=slots, small=50)

    sizes = list(map(len, planned.units))
    assert sum(sizes) == planned.affected == 1200
    assert len(sizes) >= slots
    assert max(sizes) - min(sizes) <= 3
