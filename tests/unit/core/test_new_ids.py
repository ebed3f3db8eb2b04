"""New ids are in order of time, and no two are the same."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rebaser_core.ids import MAX_MILLISECONDS, NewIds, octets

MANY = 1_000


def test_an_id_begins_with_its_time() -> None:
    """Ids of another time differ in the rest, too."""
    first, second = octets(1_800_000_000_000), octets(1_800_000_000_001)

    assert int.from_bytes(first[:6], "big") + 1 == int.from_bytes(second[:6], "big")
    assert first[6:] != second[6:]


def test_ids_of_one_millisecond_are_in_order() -> None:
    """Each is the one before plus one."""
    ids = NewIds()

    made = [int.from_bytes(ids.make(5), "big") for _ in range(MANY)]

    assert made == list(range(made[0], made[0] + MANY))


def test_ids_that_threads_make_at_once_differ() -> None:
    """Whether of one time or of many."""
    ids = NewIds()

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ids.make, [number // 3 for number in range(MANY)]))

    assert len(set(made)) == MANY


def test_a_forked_process_makes_other_ids() -> None:
    """It has what its parent read and did not use in its memory."""
    forking = "import os; from rebaser_core.ids import octets; octets(1); os.fork()"

    made = subprocess.check_output([sys.executable, "-c", f"{forking}; os.write(1, octets(2))"])

    assert len(made) == 32
    assert made[:16] != made[16:]


@pytest.mark.parametrize("milliseconds", [-1, MAX_MILLISECONDS + 1])
def test_a_time_that_no_id_can_say_is_refused(milliseconds: int) -> None:
    """Before chance is read for it."""
    with pytest.raises(ValueError, match="beyond what an id can say"):
        octets(milliseconds)
