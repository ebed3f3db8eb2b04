"""What a change set must come to: a second, tiny implementation that shares no code with the first.

It knows the few functions and updates that the workload uses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
