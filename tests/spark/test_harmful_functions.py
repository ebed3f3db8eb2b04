"""On Spark, too, a function harms its own change set only."""

import os
from pathlib import Path

import pytest

from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.harmful_functions import (
    install_harmful,
    require_calls_end_at_their_limit,
    require_sound_beside_hostile,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def harmful(installed: Path) -> None:
    install_harmful(installed)


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
async def test_sound_values_beside_hostile_functions_are_what_they_are_alone(
    executor: SparkExecutor,
) -> None:
    await require_sound_beside_hostile(executor, int(os.environ.get("ROUNDS", "20")))


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
async def test_a_call_ends_at_its_limit_whatever_it_catches_or_switches_off(
    executor: SparkExecutor,
) -> None:
    await require_calls_end_at_their_limit(executor)
