"""An event is one line, whatever it tells of."""

import json
import logging
import time
from collections.abc import Iterator
from math import ceil, log2
from threading import Thread
from typing import Any

import pytest
import structlog

from rebaser_server.telemetry import logs
from tests.helpers.eventually import eventually

HOSTILE = "list[/a]\n12:00:00 [info     ] a forged event\x1b[31m\u202e"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_an_event_for_people_is_one_line_that_controls_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "pretty")

    structlog.get_logger().info(HOSTILE, name=HOSTILE, listed=[HOSTILE], number=7)

    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "\u202e" not in err
    assert r"list[/a]\n12:00:00 [info     ] a forged event\x1b[31m\u202e" in err
    assert "number=7" in err


def test_no_line_of_a_traceback_looks_like_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("a", "pretty")

    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("update failed")

    first, *rest = capsys.readouterr().err.splitlines()
    assert "update failed" in first
    assert r"  ValueError: list[/a]" in rest
    assert all(line.startswith("  ") and line.rstrip().isprintable() for line in rest)


def test_events_below_the_level_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("a", "json", "warning")
    structlog.get_logger().info("told")
    structlog.get_logger().warning("warned")
    logs.configure("a", "json", "debug")
    structlog.get_logger().debug("traced")

    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["warned", "traced"]


def test_an_event_for_programs_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("a", "json")

    structlog.get_logger().info("told", name=HOSTILE)

    err = capsys.readouterr().err
    assert (err.count("\n"), err.isascii()) == (1, True)
    assert json.loads(err)["name"] == HOSTILE


def test_what_a_library_warns_of_is_an_event_like_all_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "json")
    logs.configure("a", "json")  # a second time, which must not say it twice

    logging.getLogger("library").warning("%s is late", HOSTILE)
    logging.getLogger("library").info("not told")

    [line] = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert event["event"] == f"{HOSTILE} is late"
    assert (event["level"], event["logger"]) == ("warning", "library")


def test_the_traceback_that_a_library_logs_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("a", "json")

    try:
        raise ValueError("told")
    except ValueError:
        logging.getLogger("library").exception("failed")

    assert "ValueError: told" in json.loads(capsys.readouterr().err)["exception"]


async def _counted(capsys: pytest.CaptureFixture[str], total: int) -> list[dict[str, Any]]:
    """All lines, once they tell of so many events; not asyncio's remarks that a step was slow."""
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        told.extend(line for line in lines if line.get("logger") != "asyncio")
        return sum(1 + line.get(logs.MORE, 0) for line in told) >= total

    await eventually(is_told)
    assert sum(1 + line.get(logs.MORE, 0) for line in told) == total
    return told


async def test_the_same_line_again_and_again_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "json")

    for attempt in range(5_000):
        structlog.get_logger().warning("round failed", error="no NATS", attempt=attempt)

    first, last = await _counted(capsys, 5_000)
    assert (first["attempt"], logs.MORE in first) == (0, False)
    assert (last["attempt"], last[logs.MORE]) == (4_999, 4_998)
    assert (last["event"], last["error"], last["instance"]) == ("round failed", "no NATS", "a")


async def test_a_line_that_is_left_out_fails_nothing_where_no_thread_may_be_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted all the same, and told with a later one."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    logs.configure("a", "json")
    with monkeypatch.context() as limited:
        limited.setattr(Thread, "start", refuse)
        for _ in range(3):
            structlog.get_logger().warning("round failed", error="no NATS")

    structlog.get_logger().warning("round failed", error="no NATS")

    assert len(await _counted(capsys, 4)) == 2


async def test_lines_of_one_kind_are_counted_beyond_a_number_however_they_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a visitor may choose, as an address, does not flood the log; others are not lost."""
    logs.configure("a", "json")

    for number in range(1_000):
        structlog.get_logger().warning("visitor turned away", address=f"10.0.0.{number}")
        logging.getLogger("library").error("%s is late", f"10.0.0.{number}")
    structlog.get_logger().error("confirmed messages lost")

    told = await _counted(capsys, 2_001)
    assert len(told) <= 2 * (logs.BURST + 3) + 1
    assert [line["event"] for line in told].count("confirmed messages lost") == 1


async def test_a_line_that_differs_from_the_one_before_is_written_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a key, by its error or by its level."""
    logs.configure("a", "json")
    log = structlog.get_logger()

    log.error("item skipped", change_set="one")
    log.error("item skipped", change_set="two")
    for text in ("three", "four"):
        try:
            raise ValueError(text)
        except ValueError:
            log.exception("item skipped")
    log.warning("item skipped", change_set="one")

    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("change_set") for line in told] == ["one", "two", None, None, "one"]
    assert "ValueError: four" in told[3]["exception"]


async def test_the_last_of_the_lines_left_out_says_its_error_without_the_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "json")

    for number in range(logs.BURST + 1):
        try:
            raise ValueError(f"number {number}")
        except ValueError:
            structlog.get_logger().exception("work failed")

    told = await _counted(capsys, logs.BURST + 1)
    assert "exception" in told[-2]
    assert told[-1]["error"] == f"ValueError: number {logs.BURST}"


async def test_the_same_line_comes_again_after_ever_longer_pauses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "json")
    began, total = time.monotonic(), 0

    def is_over() -> bool:
        nonlocal total
        structlog.get_logger().warning("round failed", error="no NATS")
        total += 1
        return time.monotonic() > began + 2.5

    await eventually(is_over)
    took = time.monotonic() - began

    assert len(await _counted(capsys, total)) <= 1 + ceil(log2(1 + took))


def test_events_of_work_that_was_done_are_all_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("a", "json")

    for _ in range(100):
        structlog.get_logger().info("taken")

    assert capsys.readouterr().err.count("taken") == 100
