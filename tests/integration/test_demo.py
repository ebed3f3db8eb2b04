"""The main job on real input and real Spark, beside a computation that knows no Rebaser."""

import json
from typing import Any

import pytest

from debian_demo.client import DemoClient, demo_client
from debian_demo.graph import Packages, load_packages
from rebaser_core.subjects import TASKS_CONSUMER
from tests.helpers.demo_reference import counts
from tests.helpers.deployment import Deployment
from tests.integration.test_command_line import installed_rebaser

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_the_demo_prints_what_an_independent_computation_finds() -> None:
    expected = counts("libc6")

    done = installed_rebaser("demo", "--package", "libc6", "--json", timeout=300)

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


@pytest.mark.long
async def test_each_package_fixed_in_turn_changes_what_it_should(deployment: Deployment) -> None:
    """One change set, many edits: each answer starts from what the one before left."""
    packages = load_packages()
    # a lease of the size that goes with such a batch; the daemon makes the consumer with it
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    await deployment.start(SPARK__MIN_AFFECTED="0", ACK_WAIT="60")
    async with demo_client(deployment.settings) as visitor:
        await (await visitor.enqueue(packages.batch()))
        await visitor.dvu_finished(lambda _: None)

        for name in ("python3.11", "tzdata"):
            before = await _distances(visitor, packages)
            await _set_own(visitor, packages, name, value=False)
            after = await _distances(visitor, packages)
            await _set_own(visitor, packages, name, value=True)

            expected = counts(name)
            assert sum(d is not None for d in before) == expected.exposed_before
            assert sum(d is not None for d in after) == expected.exposed_after
            changed = sum(a != b for a, b in zip(before, after, strict=True))
            assert changed == expected.distance_changed


async def _distances(visitor: DemoClient, packages: Packages) -> list[Any]:
    graph = await visitor.graph()
    return [graph.values[value_id].value for value_id in packages.distance_ids]


async def _set_own(visitor: DemoClient, packages: Packages, name: str, *, value: bool) -> None:
    change = {"setValue": {"valueId": packages.own_id(name), "value": value}}
    await (await visitor.enqueue([change]))
    await visitor.dvu_finished(lambda _: None)
