"""The whole product loses its power, starts on what is left, and has all that it acknowledged."""

import subprocess
import sys

import pytest

from tests.helpers.machine_requirements import lacking
from tests.helpers.paths import ROOT
from tests.powercut.volume import lacked

pytestmark = pytest.mark.long

NONE_LOST = ", 0 of them lost\n"
SEED = "5"
"""Its cuts come at least half a second after the kernel has written everything."""


@pytest.fixture(autouse=True)
def volumes_are_possible() -> None:
    if missing := lacked():
        lacking(*missing)


@pytest.mark.parametrize("servers", ["1", "3"])
def test_nothing_acknowledged_is_lost_where_nats_syncs_always(servers: str) -> None:
    done = powercut("always", servers)

    assert done.returncode == 0, done.stdout + done.stderr
    assert NONE_LOST in done.stdout


def test_a_loss_where_nats_syncs_later_is_seen_and_the_product_says_so() -> None:
    """So the cuts are real, and the test above can fail."""
    done = powercut("default", "1")

    assert "2 cuts; violations after 2, a loss after 2\n" in done.stdout, done.stdout + done.stderr
    assert "neither the start nor doctor says anything of the loss after 0\n" in done.stdout


@pytest.mark.slow
def test_no_commit_names_a_table_that_a_cut_took() -> None:
    """Half of all requests are about tables, whose queries run on real Spark."""
    done = powercut("always", "1", "--tables", "--window", "20")

    assert done.returncode == 0, done.stdout + done.stderr
    assert NONE_LOST in done.stdout


def powercut(sync: str, servers: str, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [
        *(sys.executable, "-m", "tests.powercut"),
        *("--seed", SEED, "--cuts", "2", "--window", "3"),
        *("--sync", sync, "--servers", servers, *more),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
