"""The types of the graph: a value's status, its inputs, a function."""

from dataclasses import dataclass
from enum import StrEnum

Inputs = dict[str, str | list[str]]
"""Argument name → the id of one value, or a list of ids in the caller's order."""


class ValueStatus(StrEnum):
    """How a value came to be what it is. Sources are always `OK`."""

    OK = "ok"
    FAILED = "failed"  # its function raised; the message says what
    BLOCKED = "blocked"  # an input is failed or blocked; the message names it
    PENDING = "pending"  # defined, never computed since


@dataclass(slots=True, eq=False)
class Func:
    """A function as a request defined it; what `code` means depends on `runtime`."""

    id: str
    name: str
    runtime: str
    code: str


def ids_in(inputs: Inputs) -> list[str]:
    """Every value id in `inputs`, in order; one taken twice comes twice."""
    ids: list[str] = []
    for target in inputs.values():
        if isinstance(target, str):
            ids.append(target)
        else:
            ids += target
    return ids


def without(inputs: Inputs, removed: set[str]) -> Inputs:
    """`inputs` less the ids in `gone`: an argument of one value goes with it, a list shrinks."""
    kept: Inputs = {}
    for argument, target in inputs.items():
        if isinstance(target, list):
            kept[argument] = [value_id for value_id in target if value_id not in removed]
        elif target not in removed:
            kept[argument] = target
    return kept
