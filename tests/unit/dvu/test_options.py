"""Settings of the session: what a user says is stronger."""

import os
from pathlib import Path

import pytest

from rebaser_server.dvu.options import SparkOptions

HERE = Path("/state")


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("spark://somewhere:7077", 16),
    ],
)
def test_slots_follow_the_master(master: str, slots: int) -> None:
    assert SparkOptions(HERE, master=master).slots == slots


def test_a_clusters_slots_can_be_said() -> None:
    options = SparkOptions(HERE, master="spark://a:7077", extra={"spark.cores.max": "40"})

    assert options.slots == 40


def test_the_users_settings_are_stronger() -> None:
    options = SparkOptions(HERE, extra={"spark.ui.enabled": "true"})

    assert options.settings()["spark.ui.enabled"] == "true"


def test_only_a_local_session_stays_on_loopback() -> None:
    local = SparkOptions(HERE).settings()
    cluster = SparkOptions(HERE, master="spark://somewhere:7077").settings()

    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in cluster
    assert "SerialGC" not in cluster["spark.driver.extraJavaOptions"]
