"""The kinds of rounds: what is as in production, and what is harder."""

from dataclasses import replace
from typing import Any, Final

from tests.chaos.round import Size

SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "accounts": {"accounts": True},
    "full": {"slots": 1, "queue": 100, "change_sets": 12, "pause": 0.005},
    "ids": {"crowded": True},
    "settings": {"settings_differ": True},
    "upgrade": {"upgrading": True, "window": 45.0, "faults": 5},
    "cluster": {"cluster": True, "rest_within": 180.0},
    "spark": {"spark": True, "daemons": 2, "rest_within": 240.0},
    "tables": {"tables": True, "daemons": 2, "rest_within": 240.0},
    "objects": {"tables": True, "objects": True, "daemons": 2, "rest_within": 240.0},
}
"""`accounts`: the accounts of `deploy/nats`; `full`: many change sets, few slots, a full queue of
requests; `ids`: requests that are repeated behind 1,100 others; `settings`: daemons whose settings
differ; `upgrade`: daemons of two releases, exchanged one by one; `cluster`: three NATS servers and
three replicas; `spark`: real Spark in the daemons; `tables`: values that are tables, whose queries
alone run on it; `objects`: likewise, with the store in S3, whose answers are spoiled at times."""

_TURNS: Final = (
    "plain", "accounts", "ids", "full", "plain", "settings", "cluster", "plain", "spark", "tables",
)  # fmt: skip
"""Which of them a round is, where they are mixed: the costly one is rare."""


def sized(size: Size, scenario: str | None, number: int) -> Size:
    """The size of that round; None for a mixture."""
    turns = _TURNS if size.older is None else (*_TURNS, "upgrade")
    name = scenario or turns[number % len(turns)]
    return replace(size, **SCENARIOS[name])
