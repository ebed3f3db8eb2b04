"""A history as operations on lists, for a checker of somebody else's: Elle's `list-append`.

Each change set is a list, and each request appends its number to it. In the end each list is read,
as the log has it. One operation a line, as JSON with the keys that Jepsen has.
"""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.chaos.history import History, Kind
from tests.chaos.indexed_history import Asked, Case

_NANOSECONDS = 1e9


def save_operations(history: History, path: Path) -> None:
    """Write them to the file."""
    lines = (json.dumps({"index": n, **each}) for n, each in enumerate(operations(history)))
    path.write_text("".join(f"{line}\n" for line in lines))


def operations(history: History) -> Iterator[dict[str, Any]]:
    """Every request that should take effect, and a read of each list.

    An append is *ok* once a client knows its request to be stored, since requests take effect in
    that order; *info* if no client ever knows. Each is a process of its own, as none waits for
    another. Without a rest, and of a log that was not recorded whole, nothing is read.
    """
    case, numbers, keys = Case(history), count(1), count(1)
    appends: dict[Asked, dict[str, Any]] = {}
    lists: dict[str, int] = {}
    known: set[Asked] = set()
    at = 0.0
    for event in history.events:
        at = event.at
        if event.kind not in (Kind.SENT, Kind.STORED, Kind.REPLY):
            continue
        request = case.asked(event.data)
        if event.kind is Kind.SENT and _takes_effect(event.data) and request not in appends:
            change_set = event.data["change_set"]
            if change_set not in lists:
                lists[change_set] = next(keys)
            number = next(numbers)
            appends[request] = _operation(number, ["append", lists[change_set], number])
            yield _typed("invoke", at, appends[request])
        elif _says_stored(event.kind, event.data) and request in appends.keys() - known:
            known.add(request)
            yield _typed("ok", at, appends[request])
    for request in appends.keys() - known:
        yield _typed("info", at, appends[request])
    for change_set in sorted(case.complete & lists.keys() if case.rest else ()):
        found = [
            appends[change_set, line.settled["id"]]["process"]
            for line in case.logs[change_set]
            if line.settled and line.settled["outcome"] == "applied"
            if (change_set, line.settled["id"]) in appends
        ]
        process = next(numbers)
        for kind, value in (("invoke", None), ("ok", found)):
            yield _typed(kind, at, _operation(process, ["r", lists[change_set], value]))


def _takes_effect(sent: dict[str, Any]) -> bool:
    return sent["request"] is not None and sent.get("expected", ["applied"]) == ["applied"]


def _says_stored(kind: Kind, data: dict[str, Any]) -> bool:
    return kind is Kind.STORED or (kind is Kind.REPLY and data["ok"])


def _operation(process: int, access: list[Any]) -> dict[str, Any]:
    return {"process": process, "f": "txn", "value": [access]}


def _typed(kind: str, at: float, operation: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "time": round(at * _NANOSECONDS), **operation}
