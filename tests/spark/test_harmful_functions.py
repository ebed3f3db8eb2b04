"""On Spark, too, a function harms its own change set only."""

import asyncio
import random
from pathlib import Path

import pytest

from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.harmful_functions import ENDLESS, HARMFUL, QUICK, SOUND, compute, install_harmful

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def harmful(installed: Path) -> None:
    install_harmful(installed)


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
async def test_sound_values_beside_hostile_functions_are_what_they_are_alone(
    executor: SparkExecutor,
) -> None:
    rng = random.Random(1)
    alone = {name: (await compute(executor, [name]))[0] for name in SOUND}
    for _ in range(20):
        hostile = [*rng.sample(SOUND, 2), *rng.choices(HARMFUL, k=rng.choice([1, 3]))]
        sound = rng.sample(SOUND, 5)

        found = await asyncio.wait_for(
            asyncio.gather(*(compute(executor, each) for each in (hostile, sound))), 240
        )

        for kept in (found[0][:2], found[1]):
            assert kept == [alone[name] for name, *_ in kept], hostile


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
async def test_a_call_ends_at_its_limit_whatever_it_catches_or_switches_off(
    executor: SparkExecutor,
) -> None:
    alone = await compute(executor, QUICK)

    results = await asyncio.wait_for(compute(executor, [*ENDLESS, *QUICK], seconds=0.4), 120)

    late = "it did not return within 0.4 s"
    assert results[: len(ENDLESS)] == [(name, "failed", late) for name in ENDLESS]
    assert results[len(ENDLESS) :] == alone
