"""What must hold of branches, and what they must come to: judged from the logs and what was sent.

Pure, as the judge. The values of a branch are head's as far as it has come, with the batches of the
branch and of its parent applied to them, less what was corrected away. So it is where a value is
never removed, nor made of another kind: what is asked of branches here does neither.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from rebaser_core.ids import RequestId
from rebaser_server.graph_application.commands import head_request_id
from tests.chaos.functions import DEADLY
from tests.chaos.tables import query

Update = dict[str, Any]


@dataclass
class _Value:
    value: Any = None
    func: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)


class ChangeSetModel:
    """Batches in, one after another; all values out, computed from scratch."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._funcs: dict[str, tuple[str, str]] = {}

    def apply(self, batch: Sequence[Update]) -> None:
        for update in batch:  # may be taken as inputs before they are defined
            if "putValue" in update:
                self._values.setdefault(update["putValue"]["valueId"], _Value())
        for update in batch:
            [(kind, body)] = update.items()
            getattr(self, f"_{kind}")(body)

    def take(self, before: "ChangeSetModel", after: "ChangeSetModel") -> None:
        """Take over what differs between two that have the same values, and nothing else."""
        self._funcs |= {i: f for i, f in after._funcs.items() if before._funcs.get(i) != f}
        for value_id, value in after._values.items():
            was = before._values.get(value_id)
            if was != value:
                self._values[value_id] = replace(value)

    def values(self) -> dict[str, list[Any]]:
        """Value id → status and value, which is None where there is none."""
        done: dict[str, list[Any]] = {}
        for value_id in self._values:
            self._compute(value_id, done)
        return done

    def _putFunc(self, body: Update) -> None:  # noqa: N802 - as on the wire, and so below
        self._funcs[body["funcId"]] = (body["runtime"], body["code"])

    def _removeFunc(self, body: Update) -> None:  # noqa: N802
        self._funcs.pop(body["funcId"], None)

    def _putValue(self, body: Update) -> None:  # noqa: N802
        value = self._values[body["valueId"]]
        value.func = body.get("funcId")
        value.inputs = self._existing(body.get("inputs") or {}) if value.func else {}
        value.value = None if value.func else body.get("value")

    def _setValue(self, body: Update) -> None:  # noqa: N802
        value = self._values.get(body["valueId"])
        if value is not None and value.func is None:
            value.value = body["value"]

    def _setInputs(self, body: Update) -> None:  # noqa: N802
        value = self._values.get(body["valueId"])
        if value is not None and value.func is not None:
            value.inputs = self._existing(body["inputs"])

    def _removeValue(self, body: Update) -> None:  # noqa: N802
        if self._values.pop(body["valueId"], None) is not None:
            for value in self._values.values():
                value.inputs = self._existing(value.inputs)

    def _setComputed(self, body: Update) -> None:  # noqa: N802
        """Not for clients: it does nothing."""

    def _existing(self, inputs: dict[str, Any]) -> dict[str, Any]:
        there = self._values
        lists = {k: [i for i in v if i in there] for k, v in inputs.items() if isinstance(v, list)}
        return lists | {k: v for k, v in inputs.items() if isinstance(v, str) and v in there}

    def _compute(self, value_id: str, done: dict[str, list[Any]]) -> list[Any]:
        if value_id not in done:
            value = self._values[value_id]
            done[value_id] = ["ok", value.value] if value.func is None else self._call(value, done)
        return done[value_id]

    def _call(self, value: _Value, done: dict[str, list[Any]]) -> list[Any]:
        arguments: dict[str, Any] = {}
        for name, target in value.inputs.items():
            ids = target if isinstance(target, list) else [target]
            cells = [self._compute(value_id, done) for value_id in ids]
            if any(status != "ok" for status, _ in cells):
                return ["blocked", None]
            found = [data for _, data in cells]
            arguments[name] = found if isinstance(target, list) else found[0]
        try:
            runtime, code = self._funcs[value.func or ""]
            function = query(code) if runtime == "sql" else _FUNCTIONS[runtime, code]
            return ["ok", function(**arguments)]
        except (KeyError, TypeError, ZeroDivisionError):
            return ["failed", None]


def _there(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _crash(value: Any) -> Any:
    """What ends its evaluator fails, and nothing else does."""
    if value in DEADLY:
        raise TypeError
    return value


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtin", "identity"): lambda value: value,
    ("builtin", "sum"): lambda values: sum(_there(values)),
    ("builtin", "product"): lambda values: math.prod(_there(values)),
    ("builtin", "max"): lambda values: max(_there(values), default=None),
    ("builtin", "count"): lambda values: len(_there(values)),
    ("builtin", "divide"): lambda left, right: left / right,
    ("python", "chaos-slow"): lambda value, seconds: value,
    ("python", "chaos-crash"): _crash,
    ("python", "chaos-counted"): lambda value: [value, value],
}


FINAL = ("applied", "abandoned", "deleted")
_NEXT = {
    None: ("applying", *FINAL),
    "applying": ("applied", None),
    "applied": ("deleted",),
    "abandoned": ("deleted",),
    "deleted": (),
}
"""How a change set may stand after it stood so."""


class Line(Protocol):
    """Of a commit log."""

    sequence: int
    head: dict[str, Any]
    settled: dict[str, Any] | None


def status(head: Mapping[str, Any]) -> str | None:
    closing = head.get("closing")
    return closing["status"] if closing else None


def is_over(head: Mapping[str, Any]) -> bool:
    """Whether it is closed for good."""
    return status(head) in FINAL


class Families:
    """Heads and their branches."""

    def __init__(
        self, logs: Mapping[str, list[Any]], sent: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> None:
        self.logs = logs
        self.sent = sent
        self._models: dict[tuple[str, int | None], ChangeSetModel] = {}
        """Each once: a difference needs head as it was, and head all differences before."""
        self.at_head: dict[str, tuple[str, Line]] = {}
        """Id of a request that takes a difference to head → whose, and the line that says so."""
        for change_set, log in logs.items():
            for before, line in pairwise([None, *log]):
                if status(line.head) == "applying" and (
                    before is None or status(before.head) != "applying"
                ):
                    request = RequestId.from_str(line.head["closing"]["request"])
                    self.at_head[str(head_request_id(request))] = change_set, line

    def branch(self, change_set: str) -> dict[str, Any] | None:
        """What its head says of it as a branch."""
        log = self.logs.get(change_set)
        return log[-1].head.get("branch") if log else None

    def sibling(self, change_set: str, other: str) -> str:
        return f"{change_set.partition('.')[0]}.{other}"

    def head_of(self, change_set: str) -> str:
        branch = self.branch(change_set)
        return change_set if branch is None else self.sibling(change_set, branch["head"])

    def related(self, change_set: str) -> set[str]:
        """All of its workspace that have a log."""
        workspace = change_set.partition(".")[0]
        return {other for other in self.logs if other.partition(".")[0] == workspace}

    def model(self, change_set: str, until: int | None = None) -> ChangeSetModel:
        """What it is by that line, or by the last; the caller's own."""
        key = change_set, until
        if key not in self._models:
            self._models[key] = self._modelled(change_set, until)
        return deepcopy(self._models[key])

    def _modelled(self, change_set: str, until: int | None) -> ChangeSetModel:
        log = self._until(change_set, until)
        branch = log[-1].head.get("branch") if log else None
        if branch is not None:
            model = self.model(self.sibling(change_set, branch["head"]), branch.get("cursor") or 0)
            for batch in self._edits(change_set, until):
                model.apply(batch)
            return model
        model = ChangeSetModel()
        for line in log:
            settled = line.settled
            if settled is None or settled["outcome"] != "applied":
                continue
            if settled["id"] in self.at_head:
                other, closing = self.at_head[settled["id"]]
                cursor = min(closing.head["branch"]["cursor"], line.sequence - 1)
                model.take(self.model(change_set, cursor), self.model(other, closing.sequence))
            elif (change_set, settled["id"]) in self.sent:
                model.apply(self.sent[change_set, settled["id"]]["batch"] or ())
        return model

    def _until(self, change_set: str, until: int | None) -> list[Any]:
        log = self.logs.get(change_set, [])
        return log if until is None else [line for line in log if line.sequence <= until]

    def _edits(self, change_set: str, until: int | None) -> Iterator[list[dict[str, Any]]]:
        log = self._until(change_set, until)
        branch = log[-1].head.get("branch") if log else None
        if branch is None:
            return
        base = branch["base"]
        if base["changeSetId"] != branch["head"]:
            yield from self._edits(self.sibling(change_set, base["changeSetId"]), base["commit"])
        for line in log:
            settled = line.settled
            if not settled or settled["outcome"] != "applied":
                continue
            if sent := self.sent.get((change_set, settled["id"])):
                gone = {correction["index"] for correction in settled.get("corrections", ())}
                batch = sent["batch"] or []
                yield [update for index, update in enumerate(batch) if index not in gone]


def wrong_with(
    families: Families, change_set: str, record: Mapping[str, Any] | None
) -> Iterator[str]:
    """What is wrong with it, if it is a branch."""
    log = families.logs[change_set]
    if families.branch(change_set) is None:
        yield from _taken_twice(families, log)
        return
    for before, line in pairwise([None, *log]):
        sent = families.sent.get((change_set, line.settled["id"]), {}) if line.settled else {}
        yield from _wrong_step(before.head if before else {}, line, sent)
    yield from _not_reached(families, change_set)
    yield from _wrong_end(families, change_set)
    if record is not None and record["status"] != (status(log[-1].head) or "open"):
        yield f"registered as {record['status']}, but is {status(log[-1].head) or 'open'}"


def _taken_twice(families: Families, log: list[Any]) -> Iterator[str]:
    taken = [
        line.settled["id"]
        for line in log
        if line.settled
        and line.settled["id"] in families.at_head
        and line.settled["outcome"] == "applied"
    ]
    for request in sorted({request for request in taken if taken.count(request) > 1}):
        yield f"the difference {request} was taken {taken.count(request)} times"


def _wrong_step(before: Mapping[str, Any], line: Line, sent: Mapping[str, Any]) -> Iterator[str]:
    """`sent`: what the line settles, if a client asked for it."""
    was, now = status(before), status(line.head)
    if now != was and now not in _NEXT[was]:
        yield f"line {line.sequence}: {now or 'open'} after {was}"
    if (line.head["branch"].get("cursor") or 0) < (before.get("branch", {}).get("cursor") or 0):
        yield f"line {line.sequence}: its place in head's log goes back"
    settled = line.settled
    if settled is None:
        return
    if was == "applying" and settled.get("covers") is not None:
        return  # head may not have it, and then it is open again
    if was is not None and settled["outcome"] == "applied" and sent.get("action") != "delete":
        yield f"line {line.sequence}: {settled['id']} took effect although it is {was}"
    if was is None and settled["outcome"] == "refused" and sent.get("batch"):
        yield f"line {line.sequence}: {settled['id']} was refused although it is open"


def _not_reached(families: Families, change_set: str) -> Iterator[str]:
    """At rest each open branch was told to refresh after everything else."""
    head = families.logs[change_set][-1].head
    if head.get("closing"):
        return
    cursor = head["branch"].get("cursor") or 0
    at_head = families.head_of(change_set)
    for line in families.logs.get(at_head, ()):
        settled = line.settled
        if settled and settled["outcome"] == "applied" and line.sequence > cursor:
            known = settled["id"] in families.at_head
            if known or families.sent.get((at_head, settled["id"]), {}).get("batch"):
                yield f"head's line {line.sequence} never came to it, only those up to {cursor}"
                return


def _wrong_end(families: Families, change_set: str) -> Iterator[str]:
    closing = families.logs[change_set][-1].head.get("closing")
    applied = {
        line.settled["id"]: line.sequence
        for line in families.logs.get(families.head_of(change_set), ())
        if line.settled and line.settled["outcome"] == "applied"
    }
    if closing and closing["status"] == "applying":
        yield "it never came to head"
    mine = [request for request, (who, _) in families.at_head.items() if who == change_set]
    said = [
        (str(head_request_id(RequestId.from_str(line.head["closing"]["request"]))), line)
        for line in families.logs[change_set]
        if status(line.head) == "applied"
    ]
    for request in mine:
        commits = {line.head["closing"].get("commit") for who, line in said if who == request}
        if commits != ({applied[request]} if request in applied else set()):
            yield f"difference {request} is applied in one of the two logs alone"
