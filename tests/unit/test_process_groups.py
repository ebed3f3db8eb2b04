"""Tests of one group run in one process of several, or each process starts what they share."""

import os

import pytest


@pytest.mark.xdist_group("one")
def test_of_several_processes_one_has_the_tests_of_a_group(request: pytest.FixtureRequest) -> None:
    """`--dist loadgroup` goes by the end of a test's id, which not every pytest lets it write."""
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ

    assert request.node.nodeid.endswith("@one") == is_one_of_several
