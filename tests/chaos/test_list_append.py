"""A history for a checker of somebody else's says what clients knew, and what the logs have."""

import json
from pathlib import Path
from typing import Any

from tests.chaos.list_append import operations, save_operations
from tests.chaos.test_checker import Story


def told(story: Story) -> list[tuple[str, Any]]:
    return [(each["type"], each["value"][0]) for each in operations(story.history)]


def test_what_is_stored_is_appended_and_what_the_log_has_is_read() -> None:
    story = Story()
    story.sent("a")
    story.stored("a", 1)
    story.sent("b")
    story.taken(1)
    story.applied("a", 1)
    story.applied("b", 2)
    story.sent("p", expected="dead")
    story.rest(2)

    assert told(story) == [
        ("invoke", ["append", 1, 1]),
        ("ok", ["append", 1, 1]),
        ("invoke", ["append", 1, 2]),
        ("info", ["append", 1, 2]),
        ("invoke", ["r", 1, None]),
        ("ok", ["r", 1, [1, 2]]),
    ]


def test_what_took_effect_twice_is_there_twice() -> None:
    story = Story()
    story.sent("a")
    story.stored("a", 1)
    story.stored("a", 2)
    story.taken(1)
    story.applied("a", 1)
    story.applied("a", 2)
    story.rest(2)

    assert told(story)[-1] == ("ok", ["r", 1, [1, 1]])


def test_a_run_without_a_rest_reads_nothing(tmp_path: Path) -> None:
    story = Story()
    story.sent("a")
    story.stored("a", 1)

    save_operations(story.history, tmp_path / "operations.jsonl")

    lines = map(json.loads, (tmp_path / "operations.jsonl").read_text().splitlines())
    assert [(line["index"], line["type"], line["process"]) for line in lines] == [
        (0, "invoke", 1),
        (1, "ok", 1),
    ]
