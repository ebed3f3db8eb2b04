"""An event is one line, whatever it tells of."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from rebaser_server.telemetry import logs

HOSTILE = "list[/a]\n12:00:00 [info     ] a forged event\x1b[31m\u202e"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers
    structlog.reset_defaults()


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
