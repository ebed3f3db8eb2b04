"""No unit has more text than it may; what depends on more of it fails, and nothing else."""

from typing import Any

from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import UnitLimits, plan
from rebaser_server.compute.results import decode_result
from rebaser_server.compute.work_unit import WorkUnit
from tests.helpers.graph_builder import Builder

MOST = 4096


def planned(build: Builder, slots: int = 2, small: int = 0) -> list[bytes]:
    return plan(build.graph, slots, small=small, limits=UnitLimits(text_bytes=MOST)).units


def results(units: list[WorkUnit]) -> dict[str, tuple[str, Any]]:
    found = [decode_result(evaluate(unit.encode())).value_results for unit in units]
    return {value_id: (status, what) for each in found for value_id, status, what in each}


def text_in(unit: WorkUnit) -> int:
    columns = (unit.texts, unit.constant_texts)
    return sum(len(text) for column in columns for text in column.to_pylist())


def test_blobs_are_cut_by_the_text_that_they_hold() -> None:
    build = Builder()
    for n in range(40):
        build.source(f"s{n}", "x" * 1000)
        build.dependent(f"v{n}", "count", {"values": [f"s{n}"]})

    units = planned(build)

    assert len(units) >= 10
    assert max(map(text_in, units)) <= MOST
    assert results(units) == {f"v{n}": ("ok", 1) for n in range(40)}


def test_values_that_need_too_much_together_fail_with_the_name_of_the_setting() -> None:
    build = Builder()
    for n in range(10):
        build.source(f"s{n}", "x" * 1000)
    build.dependent("large", "count", {"values": [f"s{n}" for n in range(10)]})
    build.dependent("after", "identity", {"value": "large"})
    build.dependent("fine", "count", {"values": ["s0"]})

    found = results(planned(build, slots=1))

    assert found["fine"] == ("ok", 1)
    for value_id in ("large", "after"):
        assert found[value_id][0] == "failed"
        assert "(REBASER_DVU_WORK_UNIT_BYTES)" in found[value_id][1]


def test_what_many_take_counts_once() -> None:
    build = Builder()
    build.source("shared", "x" * 3000)
    for n in range(100):
        build.dependent(f"v{n}", "count", {"values": ["shared"]})
        build.dependent(f"w{n}", "count", {"values": [f"w{n - 1}" if n else "shared", "shared"]})

    found = results(planned(build))

    assert found == {
        f"{each}{n}": ("ok", count) for n in range(100) for each, count in (("v", 1), ("w", 2))
    }
