"""What people are shown of an update: some of its values, connected, and how many there are."""

from rebaser_server.compute.plan import MAX_LEVELS, MAX_NAME, MAX_VALUES, GraphPreview, plan
from tests.helpers.graph_builder import Builder


def drawn(build: Builder) -> GraphPreview:
    return plan(build.graph, 2).preview


def names(sketch: GraphPreview, column: int) -> list[str]:
    return [value["name"] for value in sketch.values if value["column"] == column]


def test_a_small_update_is_drawn_whole() -> None:
    build = Builder()
    for value_id in ("net", "tax"):
        build.source(value_id, 1)
    build.dependent("gross", "sum", {"values": ["net", "tax"]})
    build.dependent("rounded", "round", {"value": "gross"})

    sketch = drawn(build)

    assert [names(sketch, column) for column in range(3)] == [
        ["net", "tax"],
        ["gross"],
        ["rounded"],
    ]
    assert sketch.edges == [(0, 2), (1, 2), (2, 3)]
    assert (sketch.sources, sketch.affected, sketch.levels, sketch.sizes) == (2, 2, 2, [2, 1, 1])
    assert [value["function"] for value in sketch.values] == [None, None, "sum", "round"]


def test_what_early_cutoff_may_spare_is_told_apart() -> None:
    build = Builder()
    build.source("one", 1)
    for above, below in (("two", "one"), ("three", "two"), ("four", "three")):
        build.dependent(above, "identity", {"value": below})
    build.update()
    build.source("one", 2)

    assert [value["forced"] for value in drawn(build).values] == [True, True, False, False]


def test_a_root_that_is_computed_is_no_source() -> None:
    build = Builder()
    build.source("one", 1)
    build.dependent("two", "identity", {"value": "one"})
    build.update()
    build.dependent("two", "identity", {"value": "one"})

    sketch = drawn(build)

    assert (sketch.sources, names(sketch, 0), sketch.sizes) == (0, ["two"], [1])


def test_however_large_an_update_is_its_sketch_is_bounded_and_connected() -> None:
    build = Builder()
    build.source("shared", 1)
    for chain in range(200):
        for link in range(3 * MAX_LEVELS):
            below = f"{chain}.{link - 1}" if link else "shared"
            build.dependent(f"{chain}.{link}", "sum", {"values": [below, "shared"]})
    build.update()
    build.source("shared", 2)

    sketch = drawn(build)

    assert len(sketch.values) <= MAX_VALUES
    assert len(sketch.sizes) == MAX_LEVELS
    assert (sketch.sources, sketch.affected, sketch.levels) == (1, 200 * 30, 30)
    assert sketch.sizes == [1] + [200] * (MAX_LEVELS - 1)
    taken = {position for _, position in sketch.edges}
    lonely = [
        v for position, v in enumerate(sketch.values) if position not in taken and v["column"]
    ]
    assert not lonely


def test_long_names_are_cut() -> None:
    build = Builder()
    build.source("one", 1)
    build.graph.rename(build.graph.values["one"], "a" * 500)
    build.dependent("two", "identity", {"value": "one"})

    assert len(drawn(build).values[0]["name"]) == MAX_NAME


def test_without_an_update_nothing_is_drawn() -> None:
    assert drawn(Builder()) == GraphPreview()
