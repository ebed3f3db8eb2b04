"""Whatever breaks: no request is lost, applied twice or overtaken, and all comes to rest."""

import random
from pathlib import Path

import pytest

from tests.chaos.checker import judge
from tests.chaos.faults import drawn, rolls
from tests.chaos.history import History
from tests.chaos.round import Size, run_round
from tests.chaos.scenarios import sized

SHORT = Size(window=6, faults=4, clients=3, change_sets=4)

SEEDS = [
    pytest.param(
        "calm",
        Size(window=3, faults=0, clients=3, change_sets=4),
        id="no fault at all",
        marks=pytest.mark.long,
    ),
    pytest.param("1", SHORT, id="seed 1", marks=pytest.mark.long),
    pytest.param("4", SHORT, id="seed 4", marks=pytest.mark.long),
    pytest.param(
        "2",
        sized(SHORT, "accounts", 0),
        id="the accounts of a deployment",
        marks=pytest.mark.long,
    ),
    pytest.param(
        "6", sized(SHORT, "full", 0), id="a full queue and few slots", marks=pytest.mark.long
    ),
    pytest.param("7", sized(SHORT, "spark", 0), id="on Spark", marks=pytest.mark.slow),
    pytest.param("17", sized(SHORT, "tables", 0), id="tables", marks=pytest.mark.long),
    pytest.param("18", sized(SHORT, "objects", 0), id="tables in S3", marks=pytest.mark.slow),
    pytest.param("8", Size(window=30, faults=20), id="long", marks=pytest.mark.slow),
    pytest.param(
        "16", Size(lease=60), id="as long a lease as in production", marks=pytest.mark.slow
    ),
    pytest.param(
        "5",
        Size(window=30, faults=12, cluster=True, rest_within=180),
        id="cluster",
        marks=pytest.mark.slow,
    ),
]


def test_a_seed_breaks_the_same_things_each_time() -> None:
    first, again = (
        drawn(random.Random("1"), count=20, window=10, seats=3, lease=2) for _ in range(2)
    )

    assert first == again
    assert first != drawn(random.Random("2"), count=20, window=10, seats=3, lease=2)


def test_an_upgrade_and_its_rollback_exchange_every_daemon_in_turn_within_the_window() -> None:
    exchanges = rolls(2, window=10, seats=3)

    assert [exchange.victim for exchange in exchanges] == [0, 1, 2, 0, 1, 2]
    assert [exchange.at for exchange in exchanges] == sorted(e.at for e in exchanges)
    assert 0 < exchanges[0].at < exchanges[-1].at < 10


@pytest.mark.parametrize(("seed", "size"), SEEDS)
async def test_a_round_loses_nothing_and_ends_idle(seed: str, size: Size, tmp_path: Path) -> None:
    history = History()
    try:
        await run_round(seed, tmp_path, size, history)
    finally:
        history.save(tmp_path / "history.jsonl")

    assert not judge(history), f"judge it again: {tmp_path / 'history.jsonl'}"
