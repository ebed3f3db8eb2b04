"""Deliberate faults, each against one statement that a page makes and names tests for.

A mutant is a change of one file: `old`, which the file has exactly once, becomes `new`. The tests
that the statement's row names have to fail with it. The tables lie beside this file: one for each
document that the JetStream layer follows, one for the rules of the protocol, one for faults that
must not come back, and in `parts` one for each part of the value graph, whose rules stand there.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.helpers.paths import ROOT

DOCUMENT: Final = ROOT / "tests" / "jetstream" / "statements.md"
RULES_PAGE: Final = Path(__file__).with_name("rules.md")
MENDED: Final = Path(__file__).with_name("faults.md")
TABLES: Final = Path(__file__).parent
RULES_TABLE: Final = "protocol"
"""The table whose statements are the rules of the protocol."""
FAULTS_TABLE: Final = "faults"
"""The table whose statements are faults that were mended."""
PARTS: Final = TABLES / "parts"
"""Folder of tables whose mutants say themselves which rule they break."""
_LAYER: Final = "rebaser_core/jetstream"
_TABLE: Final = re.compile(
    r"^### ADR-(\d+), [^\n]*\n\n\| Statement \| Shown by[^\n]*\n\|[-|]+\n((?:\|.*\n)+)",
    re.MULTILINE,
)
_NAMED_TABLE: Final = re.compile(
    r"^\| (rule|fault) \| shown by \| mutants \|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE
)
_TEST: Final = re.compile(r"`(test_\w+)`")
_NAME: Final = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class Row:
    """A statement and the tests that show it; none where it does not apply."""

    table: str
    statement: str
    tests: tuple[str, ...]
    mutants: tuple[str, ...] = ()
    """Names of a rule's or fault's mutants, those of the schedules among them."""


@dataclass(frozen=True)
class Mutant:
    table: str
    statement: str
    """Of its row."""
    file: str
    """Below the repository's root."""
    old: str
    new: str
    name: str = ""
    """Of a rule's or a fault's."""
    tests: tuple[str, ...] = field(default=())
    """Those of the row that must fail; all that the row names unless given."""

    def __str__(self) -> str:
        title = self.name or " ".join(self.new.split())[:60]
        return f"{self.table}: {self.statement} [{title}]"

    def apply(self, source: str) -> str:
        """Return the file with the fault.

        Raises:
            ValueError: the file does not have `old` exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} has it {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)


def read_rows() -> list[Row]:
    """Return the rows of all tables of statements."""
    named = [
        *read_named(RULES_PAGE.read_text(), RULES_TABLE),
        *read_named(MENDED.read_text(), FAULTS_TABLE),
    ]
    return [*read_statements(DOCUMENT.read_text()), *named, *_rows_of_parts()]


def _rows_of_parts() -> list[Row]:
    tests: dict[tuple[str, str], tuple[str, ...]] = {}
    for path in sorted(PARTS.glob("*.toml")):
        for entry in _entries(path):
            key = path.stem, entry["rule"]
            tests[key] = (*tests.get(key, ()), *entry["tests"])
    return [Row(table, rule, names) for (table, rule), names in tests.items()]


def read_statements(page: str) -> list[Row]:
    """Return the statements of documents that the JetStream layer follows."""
    return [
        Row(f"ADR-{adr}", statement, tuple(_TEST.findall(shown)))
        for adr, table in _TABLE.findall(page)
        for line in table.splitlines()
        for statement, shown in [_cells(line, 2)]
    ]


def read_named(page: str, table: str) -> list[Row]:
    """Return the rules or faults of the page's one table of them, and how they are shown."""
    [(_, lines)] = _NAMED_TABLE.findall(page)
    return [
        Row(table, statement, tuple(_TEST.findall(shown)), tuple(_NAME.findall(mutants)))
        for line in lines.splitlines()
        for statement, shown, mutants in [_cells(line, 3)]
    ]


def _cells(line: str, count: int) -> list[str]:
    return [cell.strip() for cell in line.strip("|").rsplit(" | ", count - 1)]


def read_mutants() -> list[Mutant]:
    """Return the mutants of all tables."""
    of_rules = {entry["name"]: entry for entry in _entries(TABLES / f"{RULES_TABLE}.toml")}
    return [
        _mutant(path.stem, entry, of_rules)
        for path in sorted(TABLES.rglob("*.toml"))
        for entry in _entries(path)
    ]


def _entries(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutant"]
    return entries


def _mutant(table: str, entry: dict[str, Any], of_rules: Mapping[str, dict[str, Any]]) -> Mutant:
    tests = {"tests": tuple(entry.get("tests", ()))}
    if table == RULES_TABLE:
        return Mutant(table, entry["rule"], **_patch(entry), **tests)
    if table == FAULTS_TABLE:
        patch = _patch(entry) if "file" in entry else _patch(of_rules[entry["name"]])
        return Mutant(table, entry["fault"], **patch, **tests)
    if "rule" in entry:
        return Mutant(table, statement=entry.pop("rule"), **entry | tests)
    adr = table.removeprefix("adr_")
    return Mutant(f"ADR-{adr}", **entry | {"file": f"{_LAYER}/{entry['file']}"} | tests)


def _patch(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("name", "file", "old", "new")}


def node_ids(names: tuple[str, ...]) -> list[str]:
    """Return where pytest finds tests of these names.

    Raises:
        LookupError: there is none of a name.
    """
    found = [(name, node) for name, node in _tests() if name in names]
    missing = set(names) - {name for name, _ in found}
    if missing:
        raise LookupError(f"no such test: {', '.join(sorted(missing))}")
    return [node for _, node in found]


@cache
def _tests() -> list[tuple[str, str]]:
    """Return all tests: the name of each, and what pytest calls it."""
    return [
        (name, f"{path.relative_to(ROOT)}::{name}")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
