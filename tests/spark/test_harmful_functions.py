"""On Spark, too, a function harms its own value only."""

import asyncio
import random
from pathlib import Path

import pytest

from rebaser_server.compute.results import RunStore
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from tests.helpers.harmful_functions import (
    ENDED,
    ENDLESS,
    PUT_BACK,
    REPLACED,
    SOUND,
    compute,
    install_harmful,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def harmful(installed: Path) -> None:
    install_harmful(installed)


def new_store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path / "store")), random.randbytes(32).hex())


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
async def test_sound_values_beside_harmful_ones_are_what_they_are_alone(
    executor: SparkExecutor, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    alone = {name: result for name, *result in await compute(executor, SOUND, None)}
    names = rng.choices([*PUT_BACK, *ENDED, *SOUND * 3], k=rng.choice([40, 200]))
    for name in rng.sample(REPLACED, 2):
        names.insert(rng.randrange(len(names)), name)

    results = await asyncio.wait_for(compute(executor, names, new_store(tmp_path)), 240)

    assert [name for name, *_ in results] == names
    assert all(result == alone[name] for name, *result in results if name in alone)
    for _ in range(3):
        again = await asyncio.gather(*(compute(executor, SOUND, None) for _ in range(2)))
        assert [{name: result for name, *result in each} for each in again] == [alone, alone]


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
@pytest.mark.parametrize("name", [*ENDED, *REPLACED])
async def test_what_a_function_leaves_behind_holds_no_run_up(
    executor: SparkExecutor, tmp_path: Path, name: str
) -> None:
    alone = await compute(executor, SOUND, None)

    results = await asyncio.wait_for(
        compute(executor, [*SOUND, name, *SOUND], new_store(tmp_path)), 120
    )

    assert [results[: len(SOUND)], results[len(SOUND) + 1 :]] == [alone, alone]
    assert await compute(executor, SOUND, None) == alone


@pytest.mark.usefixtures("harmful")
@pytest.mark.long
async def test_a_call_ends_at_its_limit_whatever_it_catches_or_switches_off(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    alone = await compute(executor, SOUND, None)

    results = await asyncio.wait_for(
        compute(executor, [*ENDLESS, *SOUND], new_store(tmp_path), seconds=0.4), 120
    )

    for _, status, message in results[: len(ENDLESS)]:
        assert status == "failed"
        assert "it did not return" in message
    assert results[len(ENDLESS) :] == alone
    assert await compute(executor, SOUND, None) == alone
