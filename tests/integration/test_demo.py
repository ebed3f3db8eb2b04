"""The main job on real input and real Spark, beside a computation that knows no Rebaser."""

import json

import pytest

from tests.helpers.demo_reference import counts
from tests.integration.test_command_line import installed_rebaser

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_the_demo_prints_what_an_independent_computation_finds() -> None:
    expected = counts("libc6")

    done = installed_rebaser("demo", "--package", "libc6", "--json", timeout=600)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["packages"] == 63_436
    assert told["exposed_before"] == expected.exposed_before == 49_089
    assert told["exposed_after"] == expected.exposed_after == 38_744
    assert told["distance_changed"] == expected.distance_changed
    assert told["recomputed_first"] > told["recomputed_second"] > 0


def test_a_package_that_does_not_exist_is_refused_with_what_was_probably_meant() -> None:
    done = installed_rebaser("demo", "--package", "libc7")

    assert done.returncode == 1
    assert "libc7" in done.stderr
    assert "did you mean" in done.stderr
