"""A change set as a child would keep it: what is defined, and each value worked out when asked.

Shares no code with the product: not its functions, not its JSON, not its order of things.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)

LIMIT = 2**63


class Wrong(Exception):
    """A function that has no result."""


def numbers_in(values: Any) -> list[Any]:
    there = [value for value in values if value is not None]
    if any(type(value) not in (int, float) for value in there):
        raise Wrong
    return there


def add(values: Any) -> Any:
    there = numbers_in(values)
    if any(type(value) is float for value in there):
        return float(sum(Fraction(float(value)) for value in there))
    return sum(there)


def largest(values: Any) -> Any:
    there = [value for value in values if value is not None]
    if there and all(type(value) is str for value in there):
        return max(there)
    best = None
    for value in numbers_in(values):
        if best is None or Fraction(value) > Fraction(best):
            best = value
    return best


def difference(left: Any, right: Any) -> Any:
    if len(numbers_in([left, right])) < 2:
        raise Wrong
    if type(left) is int and type(right) is int:
        return left - right
    return float(Fraction(float(left)) - Fraction(float(right)))


def first(values: Any) -> Any:
    for value in values:
        if value is not None:
            return value
    return None


FUNCTIONS = {
    "sum": add,
    "max": largest,
    "count": lambda values: len([value for value in values if value is not None]),
    "coalesce": first,
    "collect": lambda values: values,
    "subtract": difference,
}


class Sheet:
    """Takes updates as performed, which means that they fit."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> None:
        """`functions`: by code."""
        self.functions = functions
        self.codes: dict[str, str] = {}
        self.sources: dict[str, Any] = {}
        self.formulas: dict[str, tuple[str, dict[str, Any]]] = {}

    def take(self, updates: list[AnyUpdate]) -> None:
        for update in updates:
            self._take(update)

    def _take(self, update: AnyUpdate) -> None:
        match update:
            case PutFunc():
                self.codes[update.func_id] = update.code
            case RemoveFunc():
                del self.codes[update.func_id]
            case PutValue(func_id=None):
                self.formulas.pop(update.value_id, None)
                self.sources[update.value_id] = update.value
            case PutValue():
                self.sources.pop(update.value_id, None)
                self.formulas[update.value_id] = (str(update.func_id), dict(update.inputs or {}))
            case SetValue():
                self.sources[update.value_id] = update.value
            case SetInputs():
                func_id, _ = self.formulas[update.value_id]
                self.formulas[update.value_id] = (func_id, dict(update.inputs))
            case RemoveValue():
                self._remove(update.value_id)
            case _:
                raise AssertionError(update)

    def _remove(self, gone: str) -> None:
        self.sources.pop(gone, None)
        self.formulas.pop(gone, None)
        for value_id, (func_id, inputs) in self.formulas.items():
            kept = {
                name: [v for v in target if v != gone] if isinstance(target, list) else target
                for name, target in inputs.items()
                if target != gone
            }
            self.formulas[value_id] = (func_id, kept)

    def worked_out(self) -> dict[str, tuple[str, Any]]:
        """Of each value with a formula: `ok` and what it is, `failed`, or `blocked` and by whom."""
        known: dict[str, tuple[str, Any]] = {}
        for value_id in self.formulas:
            self._work_out(value_id, known)
        return {value_id: known[value_id] for value_id in self.formulas}

    def _work_out(self, value_id: str, known: dict[str, tuple[str, Any]]) -> tuple[str, Any]:
        if value_id in self.sources:
            return "ok", self.sources[value_id]
        if value_id not in known:
            known[value_id] = ("a cycle", None)
            known[value_id] = self._called(*self.formulas[value_id], known)
        assert known[value_id][0] != "a cycle"
        return known[value_id]

    def _called(
        self, func_id: str, inputs: dict[str, Any], known: dict[str, tuple[str, Any]]
    ) -> tuple[str, Any]:
        arguments: dict[str, Any] = {}
        for name, target in inputs.items():
            taken = []
            for input_id in target if isinstance(target, list) else [target]:
                status, found = self._work_out(input_id, known)
                if status != "ok":
                    return "blocked", input_id
                taken.append(found)
            arguments[name] = taken if isinstance(target, list) else taken[0]
        try:
            result = self.functions[self.codes[func_id]](**arguments)
        except (Wrong, KeyError, TypeError, OverflowError):
            return "failed", None
        if type(result) is int and not -LIMIT <= result < LIMIT:
            return "failed", None
        return "ok", result
