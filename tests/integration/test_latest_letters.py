"""The latest dead letters are found across the numbers of those that were replayed or purged."""

import random

import pytest

from rebaser_server.ops.dead_letters import latest
from rebaser_server.ops.status import QueueWatch
from tests.helpers.deployment import Deployment, new_change_sets


async def test_a_hole_of_thousands_of_numbers_costs_few_reads(deployment: Deployment) -> None:
    [kept, purged], streams, js = new_change_sets(2), deployment.streams, deployment.js
    await js.publish(streams.dead_letters(kept))
    receipts = [await js.publish_async(streams.dead_letters(purged)) for _ in range(5000)]
    for receipt in receipts:
        await receipt.result(60)
    await js.publish(streams.dead_letters(kept))
    await js.purge(streams.dead_letters_stream, subject=streams.dead_letters(purged))
    before = js.nc.stats["out_msgs"]

    letters = await latest(streams, 10)
    on_the_page = (await QueueWatch(streams).look()).latest_dead

    assert [letter.sequence for letter in letters] == [5002, 1]
    assert [letter["sequence"] for letter in on_the_page] == [5002, 1]
    assert js.nc.stats["out_msgs"] - before < 60


@pytest.mark.parametrize("seed", range(5))
async def test_the_latest_come_first_whatever_was_purged(deployment: Deployment, seed: int) -> None:
    [change_set], streams, js = new_change_sets(1), deployment.streams, deployment.js
    draw, numbers = random.Random(seed), range(1, 61)
    for _ in numbers:
        await js.publish(streams.dead_letters(change_set))
    gone = {n for n in numbers if draw.random() < (0.2, 0.5, 0.9, 0.97, 1.0)[seed]}
    for number in gone:
        await js.delete_message(streams.dead_letters_stream, number)
    left = sorted(set(numbers) - gone, reverse=True)

    for most in (1, 7, 100):
        assert [letter.sequence for letter in await latest(streams, most)] == left[:most]
