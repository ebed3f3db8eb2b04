"""The protocol as built, explored completely in small worlds, with each rule and without."""

from functools import cache

import pytest

from tests.model.__main__ import main
from tests.model.explorer import Model, Report, explore
from tests.model.instances import BIG, FLAWED, REFERENCE, SMALL, model

SLOW = {"W7", "W12-order", "X2"}
"""Rules whose world is too big to be explored to its end in every run of the tests."""


@cache
def explored(one: Model) -> Report:
    return explore(one)


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_protocol_loses_a_wake_up_without_any_fault(name: str) -> None:
    report = explored(model(name))

    assert report.problem.startswith("S1")
    assert "the client publishes a task: refused, there is one" in report.trace
    assert report.trace[-1] == "the worker acks its task, which is deleted"


@pytest.mark.parametrize("name", SMALL)
def test_ours_keeps_all_invariants_and_comes_to_rest(name: str) -> None:
    report = explored(model(name))

    assert not report.problem, report


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_ours_does_so_in_bigger_worlds(name: str) -> None:
    report = explored(model(name))

    assert not report.problem, report


@pytest.mark.parametrize("rule", FLAWED)
def test_without_a_rule_there_is_a_counterexample(rule: str) -> None:
    report = explored(model(f"without-{rule}"))

    assert report.problem.startswith(FLAWED[rule].problem), report
    assert report.trace


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.slow if rule in SLOW else pytest.mark.long)
        for rule in FLAWED
    ],
)
def test_with_that_rule_there_is_none_in_the_same_world(rule: str) -> None:
    report = explored(model(f"with-{rule}"))

    assert not report.problem, report


def test_the_command_lists_the_worlds_with_what_they_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The names alone would not say what is explored."""
    assert main([]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert "ahead-crash: Instance, clients=pp, crashes=1, at_once=2, pipelined=True" in shown
    assert "without-D5: Instance, clients=dd, covers=False" in shown


def test_the_command_shows_the_shortest_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client-crash", "without-X1"]) == 1

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(": holds")
    assert shown[1].endswith("S1: requests are left, and no run will handle them")
    assert shown[2:] == [
        "   1. client 1 stores request 1",
        "   2. client 1 dies before it publishes a task",
    ]
