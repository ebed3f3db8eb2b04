"""A large update is planned round by round: it computes what early cutoff needs, and no more."""

import random
from pathlib import Path

import pytest

from rebaser_server.compute.affected import RoundSizes, closure
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import Rounds, UnitLimits, UpdatePlanner
from rebaser_server.compute.results import RunStore, UnitResult, decode_result
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import Builder

CODES = ("max", "any", "min", "sum")
LENGTH = 6_000
"""Values of a chain: more edges than an update that is planned at once may have."""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path)), "ab" * 32)


def woven(seed: int) -> Builder:
    """400 values above ten sources, most of which do not notice a change."""
    chosen = random.Random(seed)
    build = Builder()
    everything = [f"source {number}" for number in range(10)]
    for value_id in everything:
        build.source(value_id, chosen.randrange(2))
    for number in range(400):
        below = chosen.choices(everything[-60:], k=chosen.randint(1, 4))
        build.dependent(str(number), chosen.choice(CODES), {"values": below})
        everything.append(str(number))
    build.update()
    return build


@pytest.mark.parametrize("seed", range(12))
def test_rounds_come_to_what_one_plan_does(seed: int, store: RunStore) -> None:
    """And compute as many values, none twice, on whichever edges a round ends."""
    chosen, at_once, in_rounds = random.Random(seed), woven(seed), woven(seed)
    sizes = RoundSizes(
        chosen.choice([0, 2, 30]),
        growth=chosen.choice([1, 2]),
        behind=chosen.choice([0, 1_000]),
        steps=chosen.choice([1, 4, 100]),
        values=chosen.choice([0.2, 1.0]),
    )
    for _ in range(6):
        for number in chosen.sample(range(10), 2):
            data = chosen.choice([0, 1, 2])
            at_once.source(f"source {number}", data)
            in_rounds.source(f"source {number}", data)
        if chosen.random() < 0.3:  # one that fails, and blocks others
            value_id = str(chosen.randrange(400))
            inputs = at_once.graph.values[value_id].inputs
            at_once.dependent(value_id, "no such function", inputs)
            in_rounds.dependent(value_id, "no such function", inputs)

        expected = at_once.update()
        found = in_rounds.update_in_rounds(sizes, store)

        assert in_rounds.state() == at_once.state()
        assert _recomputed(found) == _recomputed(expected)
        results = [value_id for each in found for value_id, *_ in each.value_results]
        assert len(set(results)) == len(results)


def _recomputed(outcomes: list[UnitResult]) -> int:
    return sum(outcome.recomputed for outcome in outcomes)


def chain(ends_at: int) -> Builder:
    """A chain behind a source that changes; all values after the one at `ends_at` stay the same."""
    build = Builder()
    build.source("source", 0)
    build.source("seven", 7)
    for number in range(LENGTH):
        below = str(number - 1) if number else "source"
        code, inputs = ("max", [below, "seven"]) if number == ends_at else ("max", [below])
        build.dependent(str(number), code, {"values": inputs})
    build.update()
    build.source("source", 1)
    return build


def rounds_of(build: Builder, store: RunStore) -> Rounds:
    planner = UpdatePlanner(2, UnitLimits(), CostModel())
    rounds = planner.prepare(build.graph, 1, store, is_repeated=False)
    return rounds() if callable(rounds) else rounds


def run_round(rounds: Rounds, store: RunStore) -> list[UnitResult]:
    outcomes = [decode_result(evaluate(unit.encode())) for unit in rounds.units]
    rounds.record(outcomes, store)
    return outcomes


def test_of_a_long_chain_that_ends_early_little_is_looked_at(store: RunStore) -> None:
    rounds = rounds_of(chain(ends_at=4), store)

    outcomes = run_round(rounds, store)

    assert not rounds.units
    assert (_recomputed(outcomes), rounds.affected < LENGTH / 10) == (5, True)


def test_a_long_chain_that_changes_takes_few_rounds(store: RunStore) -> None:
    rounds, recomputed, count = rounds_of(chain(ends_at=LENGTH), store), 0, 0

    while rounds.units:
        recomputed, count = recomputed + _recomputed(run_round(rounds, store)), count + 1

    assert recomputed == rounds.affected == LENGTH
    assert 1 < count < 6


def test_what_takes_a_value_that_fails_or_is_right_again_is_in_the_next_round(
    store: RunStore,
) -> None:
    build = Builder()
    build.source("source", 1)
    for number in range(9):
        build.dependent(f"{number}", "sum", {"values": [f"{number - 1}" if number else "source"]})
    build.update()
    for value, last in (("one", ("blocked", "7")), (1, ("ok", 1))):
        build.source("source", value)
        build.update_in_rounds(RoundSizes(0, growth=1, values=1.0), store)

        assert build.state()["8"] == last


@pytest.mark.parametrize("over", [0, 1])
def test_what_no_round_has_yet_is_known_if_the_update_is_given_up(
    over: int, store: RunStore
) -> None:
    build = chain(ends_at=LENGTH)
    everything = closure(build.graph)
    everything.release(build.graph)
    rounds = rounds_of(build, store)
    for _ in range(over):
        run_round(rounds, store)

    rest = rounds.rest()

    assert len(rest) + rounds.affected == len(everything.indices)
    assert len(set(rest.to_pylist())) == len(rest)
