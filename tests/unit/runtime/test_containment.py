"""One bad item of many: skipped, counted, and logged once."""

import asyncio

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from rebaser_core.errors import MalformedMessage
from rebaser_server.runtime.containment import MAX_LINES, contained
from tests.helpers.panicking_tables import PANIC, PanicException


def skipped(what):
    return REGISTRY.get_sample_value("rebaser_items_skipped_total", {"what": what})


def test_the_other_items_are_dealt_with():
    done = []
    before = skipped("record")
    for item in (1, 0, 2):
        with contained("record", number=f"others-{item}"):
            done.append(2 / item)

    assert done == [2, 1]
    assert skipped("record") == before + 1


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_errors_that_end_the_process_pass(error):
    with pytest.raises(error), contained("record"):
        raise error


def test_a_panic_of_a_library_concerns_its_item_alone():
    """Though it is a `BaseException`."""
    with contained("record", number="panic"):
        raise PanicException(PANIC)


def test_errors_of_all_items_pass():
    with pytest.raises(BrokenPipeError), contained("record", passing=(OSError,)):
        raise BrokenPipeError


def test_the_same_item_is_logged_once_and_counted_each_time():
    before = skipped("record")
    with capture_logs() as logs:
        for _ in range(3):
            with contained("record", subject="same"):
                raise MalformedMessage("no line")

    assert [(each["event"], each["what"], each["subject"]) for each in logs] == [
        ("item skipped", "record", "same")
    ]
    assert skipped("record") == before + 3


def test_a_crowd_of_bad_items_does_not_fill_the_log():
    with capture_logs() as logs:
        for number in range(10 * MAX_LINES):
            with contained("object", number=number):
                raise ValueError

    assert len(logs) == MAX_LINES


def test_control_characters_are_escaped():
    with capture_logs() as logs, contained("subject", subject="a.\udcff\x1b[31m.b"):
        raise ValueError("\udcfe\n")

    [line] = logs
    assert line["subject"] == r"a.\udcff\x1b[31m.b"
    assert line["error"] == r"ValueError: \udcfe\n"
