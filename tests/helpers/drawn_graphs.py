"""Graphs drawn at random, their changes, and functions of all runtimes that can be upgraded.

Functions in Python come in versions of two distributions, which compute different things. Each
function stands beside what it is in plain Python, for `reference_spreadsheet`.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.graph import Graph
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.graph_builder import install
from tests.helpers.reference_spreadsheet import FUNCTIONS, Sheet, Wrong

SOURCES: Final = {
    "drawn_first": """
import time

def raised(*, values):
    numbers = [value for value in values if value is not None]
    if any(type(value) is not int for value in numbers):
        raise TypeError("not a whole number")
    {pause}
    return sum(numbers) + {version}

def parity(*, value):
    {pause}
    return value % 2 if type(value) is int else {version}
""",
    "drawn_second": """
import time

def labelled(*, left, right):
    {pause}
    if isinstance(left, list) or isinstance(right, list):
        raise TypeError("a list")
    return f"{{left!r}} {{right!r}}"[-100:] + "-{version}"

def brittle(*, value):
    if value == {version}:
        raise TypeError("the one that it breaks at")
    return value
""",
}
"""By distribution."""
VERSIONS: Final = 3

PYTHON: Final = {
    "raised": "drawn_first", "parity": "drawn_first",
    "labelled": "drawn_second", "brittle": "drawn_second",
}  # fmt: skip
"""The distribution of each."""


def _add_one(value: Any, **_: Any) -> Any:
    if type(value) is not int:
        raise Wrong
    return value + 1


CEL: Final[dict[str, Callable[..., Any]]] = {
    "value + 1": _add_one,
    "left == null ? right : left": lambda left, right: right if left is None else left,
}

ARGUMENTS: Final = {
    **dict.fromkeys(("sum", "max", "count", "coalesce", "collect", "raised"), "values"),
    **dict.fromkeys(("subtract", "labelled", "left == null ? right : left"), "pair"),
    **dict.fromkeys(("parity", "brittle", "value + 1"), "value"),
}
"""Arguments of each function: a list `values`, the pair `left` and `right`, or one `value`."""


class Installed:
    """The versions of both distributions that are installed now."""

    def __init__(self, root: Path, seconds: float = 0.0) -> None:
        """Make all versions in `root`; calls of all but `brittle` take so many seconds."""
        self._root = root
        for name, source in SOURCES.items():
            for version in range(VERSIONS):
                directory = self._directory(name, version)
                directory.mkdir(parents=True)
                codes = [code for code, where in PYTHON.items() if where == name]
                pause = f"time.sleep({seconds})" if seconds else ""
                text = source.format(pause=pause, version=version)
                install(directory, name, text, {code: f"{name}:{code}" for code in codes})
        self.functions: dict[str, Callable[..., Any]] = {}
        """What each code computes, in plain Python."""
        self.reset()

    def reset(self) -> None:
        """Install the first versions."""
        self.versions = dict.fromkeys(SOURCES, 0)
        self._define()

    @property
    def path(self) -> list[str]:
        """Directories to be imported from."""
        return [str(self._directory(*each)) for each in self.versions.items()]

    def upgrade(self, chance: random.Random) -> set[str]:
        """Install another version of one distribution; the codes that compute something else."""
        name = chance.choice(sorted(SOURCES))
        others = set(range(VERSIONS)) - {self.versions[name]}
        self.versions[name] = chance.choice(sorted(others))
        self._define()
        return {code for code, where in PYTHON.items() if where == name}

    def _define(self) -> None:
        self.functions.update(FUNCTIONS)
        self.functions.update(CEL)
        for name, version in self.versions.items():
            found: dict[str, Any] = {}
            exec(SOURCES[name].format(pause="", version=version), found)  # noqa: S102 - ours
            self.functions.update({code: found[code] for code in PYTHON if code in found})

    def _directory(self, name: str, version: int) -> Path:
        return self._root / f"{name}-{version}"


NUMBERS: Final = range(4)
"""So few that a value is often set back."""
ODD: Final = [
    None, 1.0, 0.0, 0.5, 0.1, 0.7, 1e16, True, "a", "", [1], {"k": 1}, 2**53 + 1, 2**62,
]  # fmt: skip


class Drawing:
    """The values and functions of one graph, and random updates of them."""

    def __init__(self, chance: random.Random, sources: int, layers: int, width: int) -> None:
        self._chance = chance
        count = sources + layers * width
        self._values = [ulid(number) for number in range(count)]
        self._sources = self._values[:sources]
        self._below = {
            value_id: self._values[: sources + (number - sources) // width * width]
            for number, value_id in enumerate(self._values)
            if number >= sources
        }
        """Values in the layers below each dependent one."""
        self._funcs = {ulid(10_000 + number): code for number, code in enumerate(ARGUMENTS)}

    def define(self) -> list[AnyUpdate]:
        """All functions and values."""
        return [
            *(_function(func_id, code) for func_id, code in self._funcs.items()),
            *(PutValue(value_id=each, value=self._data()) for each in self._sources),
            *map(self._dependent, self._below),
        ]

    def edits(self, sheet: Sheet) -> list[AnyUpdate]:
        """A few updates of a graph that is now as `sheet` says."""
        return [self._edit(sheet) for _ in range(self._chance.randint(1, 4))]

    def _edit(self, sheet: Sheet) -> AnyUpdate:  # noqa: PLR0911 - one a kind
        source, dependent = self._chance.choice(self._sources), self._chance.choice([*self._below])
        func_id = self._chance.choice([*self._funcs])
        match self._chance.choices(range(8), (60, 8, 8, 6, 6, 4, 4, 4))[0]:
            case 0:
                return SetValue(value_id=source, value=self._data())
            case 1 if dependent in sheet.formulas:
                code = self._funcs[sheet.formulas[dependent][0]]
                inputs = self._inputs(code, self._values)  # some of which close a cycle
                return SetInputs(value_id=dependent, inputs=inputs)
            case 2:
                return self._dependent(dependent)
            case 3:
                return PutValue(value_id=source, value=self._data())
            case 4:
                return _function(func_id, self._chance.choice(_like(self._funcs[func_id])))
            case 5:
                return RemoveValue(value_id=self._chance.choice(self._values))
            case 6:
                return RemoveFunc(func_id=func_id)
            case _:
                return _function(func_id, self._funcs[func_id])

    def _dependent(self, value_id: str) -> PutValue:
        weights = [3 if code in PYTHON else 1 for code in self._funcs.values()]
        [(func_id, code)] = self._chance.choices([*self._funcs.items()], weights)
        inputs = self._inputs(code, self._below[value_id])
        return PutValue(value_id=value_id, func_id=func_id, inputs=inputs)

    def _inputs(self, code: str, among: list[str]) -> dict[str, Any]:
        near, chance = among[-20:], self._chance  # for long chains
        match ARGUMENTS[code]:
            case "values":
                return {"values": chance.choices(near, k=chance.randint(1, 3))}
            case "pair":
                return {"left": chance.choice(near), "right": chance.choice(near)}
            case name:
                return {name: chance.choice(near)}

    def _data(self) -> Any:
        return self._chance.choice(NUMBERS if self._chance.random() < 0.9 else ODD)


def _like(code: str) -> list[str]:
    """Codes that take the same arguments, and one that is none."""
    return ["no such", *(each for each in ARGUMENTS if ARGUMENTS[each] == ARGUMENTS[code])]


def _function(func_id: str, code: str) -> PutFunc:
    runtime = "python" if code in PYTHON else "cel" if code in CEL else "builtin"
    return PutFunc(func_id=func_id, name=code[:20], runtime=runtime, code=code)


def computed_in(graph: Graph) -> dict[str, str]:
    """Return status and value of each computed value of a graph, as `told`."""
    return told(
        {
            value.id: (
                value.status.value,
                value.message if value.status == "blocked" else value.value,
            )
            for value in graph.values.values()
            if value.func_id is not None
        }
    )


def told(state: dict[str, tuple[str, Any]]) -> dict[str, str]:
    """1, 1.0 and true as three different texts; of a failed value only that it is."""
    return {
        value_id: json.dumps([status, None if status == "failed" else what], sort_keys=True)
        for value_id, (status, what) in state.items()
    }
