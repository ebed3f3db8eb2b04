"""That the checker finds what is there to find, shown on models of a few states."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.model.explorer import Step, explore


@dataclass(frozen=True)
class Arrows:
    """`ab bc` leads from a to b to c, beginning at a; `b!` leads there by a fault."""

    drawn: str
    bad: str = ""
    restless_at: str = ""

    def initial(self) -> str:
        return "a"

    def steps(self, state: str) -> Iterator[Step]:
        for arrow in self.drawn.split():
            if arrow[0] == state:
                yield Step(arrow, arrow[1], fault=arrow.endswith("!"))

    def broken(self, state: str) -> str:
        return "bad" if state in self.bad else ""

    def restless(self, state: str) -> str:
        return "wakeful" if state in self.restless_at else ""


@pytest.mark.parametrize(
    ("arrows", "problem", "trace"),
    [
        pytest.param(Arrows("ab bc ac"), "", (), id="all-well"),
        pytest.param(Arrows("ab bc ac", bad="c"), "bad", ("ac",), id="shortest-way-to-the-bad"),
        pytest.param(Arrows("ab bc!", bad="c"), "bad", ("ab", "bc!"), id="bad-by-a-fault"),
        pytest.param(Arrows("ab", restless_at="b"), "wakeful", ("ab",), id="rests-wrongly"),
        pytest.param(
            Arrows("ab bc!", restless_at="b"), "wakeful", ("ab",), id="no-fault-may-be-relied-on"
        ),
        pytest.param(Arrows("ab ba!"), "", (), id="a-fault-closes-no-circle"),
        pytest.param(
            Arrows("ab bc cb cd"),
            "never rests",
            ("ab", "--- and now round and round:", "bc", "cb"),
            id="a-circle-that-could-be-left",
        ),
    ],
)
def test_a_violation_is_found_with_its_trace(
    arrows: Arrows, problem: str, trace: tuple[str, ...]
) -> None:
    report = explore(arrows)

    assert (report.problem, report.trace) == (problem, trace)


def test_a_world_that_is_too_big_does_not_pass() -> None:
    report = explore(Arrows("ab bc cd"), most=2)

    assert report.problem == "not finished: more than 2 states"
