"""Whatever the order of things and whatever breaks, the real code keeps what the protocol promises.

Each seed is a schedule of its own: one event loop for several Rebasers and clients, virtual
time, a simulated NATS, faults. What happened is judged by the judge of the chaos runs. One that
fails shows its trace; `run(seed)` repeats it, step by step.
"""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from structlog.contextvars import bound_contextvars

from rebaser_server.runtime.tasks import Permits
from rebaser_server.service import composition
from tests.schedules.__main__ import main, series
from tests.schedules.mutations import (
    MUTATIONS,
    OF_CALLS,
    Mutation,
    presuming_every_other_dead,
    without_tasks_from_clients,
)
from tests.schedules.result import Verdict
from tests.schedules.simulation import run

AT_ONCE = 25
FAST = 25
"""Schedules of each kind that `make test` runs; `make test-long` runs more, `make slow` 10,000."""
WRONG = 5
"""Schedules in which every member is presumed dead."""
SEEDS_TO_FIND = 400
"""Schedules within which the loss of any rule shows."""


def first_of(count: int) -> pytest.MarkDecorator:
    """Parameters: the first of each `AT_ONCE` schedules, of `count` in all."""
    seeds = [
        pytest.param(seed, marks=pytest.mark.long if seed >= FAST else (), id=f"from-{seed}")
        for seed in range(0, count, AT_ONCE)
    ]
    return pytest.mark.parametrize("first", seeds)


@first_of(150)
def test_every_schedule_ends_as_it_must(first: int, tmp_path: Path) -> None:
    """S1 to S6, the values, the replies: for each order that chance makes of it."""
    figures = series(range(first, first + AT_ONCE), tmp_path)

    shown = "\n\n".join(report.read_text() for report in tmp_path.iterdir())
    assert not figures.failed, shown
    assert figures.requests > AT_ONCE, "something happened at all"


def test_two_branches_that_are_applied_at_once_share_one_slot_with_head() -> None:
    """NATS is slow, and each has its turn until head's task is next."""
    verdict = run(300090)

    assert verdict.plan.settings["concurrency"] == 1
    assert not verdict.violations, verdict.report()
    applied = [line for line in verdict.lines() if "'status': 'applied'" in line]
    assert len(applied) > 1, "branches were applied at all"


def test_a_refresh_that_is_under_way_when_its_branch_goes_quiet_has_a_task() -> None:
    """There is no reconciler here that would find it."""
    verdict = run(300320)

    assert verdict.plan.settings["reconcile_interval"] > verdict.seconds
    assert not verdict.violations, verdict.report()


@first_of(75)
def test_every_schedule_of_a_bank_ends_as_it_must(first: int, tmp_path: Path) -> None:
    """What a call changes, answers and sends is one commit, and takes effect once, in order."""
    figures = series(range(first, first + AT_ONCE), tmp_path, bank=True)

    shown = "\n\n".join(report.read_text() for report in tmp_path.iterdir())
    assert not figures.failed, shown
    assert figures.requests > AT_ONCE


@pytest.mark.parametrize("seed", [22, 97, 126])
def test_a_refused_call_that_is_sent_again_is_refused_for_good(seed: int) -> None:
    """A run goes on with what another one sent, and the ids are forgotten by then (O4)."""
    verdict = run(seed, bank=True)

    assert not verdict.violations, verdict.report()
    assert any("'outcome': 'refused'" in line for line in verdict.lines())


def test_a_stop_waits_for_no_answer_that_was_lost() -> None:
    """To the question whether a log without a last commit has commits."""
    verdict = run(5064)

    assert not verdict.violations, verdict.report()


def test_a_key_that_two_workers_enter_at_once_ends_neither() -> None:
    """The registry refuses the second one, and does not show the first one's record yet."""
    verdict = run(920, bank=True)

    assert not verdict.violations, verdict.report()


def test_wrong_presumptions_of_death_cost_takeovers_and_nothing_else() -> None:
    """F6 says how often they arise; what it promises otherwise holds whenever they do."""
    with presuming_every_other_dead():
        verdicts = [run(seed) for seed in range(WRONG)]

    assert [violation for verdict in verdicts for violation in verdict.violations] == []
    said = [str(step) for verdict in verdicts for step in verdict.trace]
    assert any("member presumed dead" in step for step in said)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
)
def test_rebasers_without_processor_time_go_on_handling_requests(seed: int) -> None:
    """Ten times too much is asked of them, and none outlives a lease: in each half of that time
    some requests are handled, and afterwards all comes to rest."""
    verdict = run(seed, starved=True)

    assert not verdict.violations, verdict.report()


@pytest.mark.long
def test_who_takes_more_tasks_than_can_begin_handles_fewer_requests() -> None:
    """They lose their leases before they have begun, and begin again and again."""
    with mock.patch.object(Permits, "room", 1_000):
        everything = run(3, starved=True)

    assert _handled(everything) < _handled(run(3, starved=True)) / 2


def _handled(verdict: Verdict) -> int:
    """Requests that were handled in the second half of the time without processor time."""
    return next(sum(step[2][1:]) for step in verdict.trace if step[1] == "starved")


def test_a_schedule_ends_though_its_rebasers_always_fail() -> None:
    """Each Rebaser is started again, so the schedule would go on without end."""
    with mock.patch.object(composition, "query_service", side_effect=ValueError):
        verdict = run(0)

    assert "STUCK one violation after another, and no end" in verdict.violations


@pytest.mark.slow
def test_ten_thousand_schedules_end_as_they_must() -> None:
    """`python -m tests.schedules` says which failed, and where their traces are."""
    assert main(count=10_400, jobs=os.cpu_count() or 1) == 0


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, id=each.__name__) for each in (*MUTATIONS, *OF_CALLS)],
)
def test_a_rule_put_out_of_force_is_missed(mutation: Mutation) -> None:
    """Otherwise the schedules would prove nothing: each rule is needed by one of the first.

    That the mutated code fails of itself does not count.
    """
    with mutation():
        seeds = *(MUTATIONS | OF_CALLS)[mutation], *range(SEEDS_TO_FIND)
        found = any(
            not violation.startswith("UNFORESEEN")
            for seed in seeds
            for violation in run(seed, bank=mutation in OF_CALLS).violations
        )

    assert found


def test_the_same_seed_is_the_same_schedule_everywhere() -> None:
    """Or a failure could not be looked into: no hash of a string and no test before decides it."""
    code = "from tests.schedules.simulation import run; print([run(n).digest for n in range(4)])"

    there = subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "1"}, text=True
    )

    with bound_contextvars(instance="of a test before"):
        here = [run(seed).digest for seed in range(4)]
    assert there == f"{here}\n"


def test_a_failure_shows_what_happened() -> None:
    """With the seed, the plan, and every step of the way."""
    with without_tasks_from_clients():
        verdict = next(v for v in map(run, range(SEEDS_TO_FIND)) if v.violations)

    report = verdict.report()

    assert report.startswith(f"seed {verdict.seed}: Plan(trouble=")
    assert "store rebaser.requests." in report
    assert report.endswith("\n".join(verdict.violations))
