"""Deliberate faults in `rebaser_core.jetstream`, each against one statement of its document.

A mutant is a change of one file: `old`, which the file has exactly once, becomes `new`. The tests
that the statement's row names have to fail with it. The tables lie beside this file, one for each
document that the layer follows.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.helpers.paths import ROOT

DOCUMENT: Final = ROOT / "docs" / "jetstream.md"
LAYER: Final = Path("rebaser_core/jetstream")
TESTS: Final = Path("tests/jetstream")
TABLES: Final = Path(__file__).parent
_TABLE: Final = re.compile(
    r"^### ADR-(\d+), [^\n]*\n\n\| Statement \| Shown by[^\n]*\n\|[-|]+\n((?:\|.*\n)+)",
    re.MULTILINE,
)
_TEST: Final = re.compile(r"`(test_\w+)`")


@dataclass(frozen=True)
class Row:
    """A statement of a document, and the tests that show it; none where it does not apply."""

    adr: int
    statement: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    adr: int
    statement: str
    file: str
    """Below the layer's directory."""
    old: str
    new: str
    tests: tuple[str, ...] = field(default=())
    """Those of the row that must fail; all that the row names unless given."""

    def __str__(self) -> str:
        return f"ADR-{self.adr}: {self.statement} [{' '.join(self.new.split())[:60]}]"

    def apply(self, source: str) -> str:
        """Return the file with the fault.

        Raises:
            ValueError: the file does not have `old` exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} has it {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)


def read_rows(document: str) -> list[Row]:
    """Return the rows of all tables of statements."""
    return [
        Row(int(adr), statement, tuple(_TEST.findall(shown)))
        for adr, table in _TABLE.findall(document)
        for line in table.splitlines()
        for statement, shown in [[cell.strip() for cell in line.strip("|").rsplit(" | ", 1)]]
    ]


def read_mutants() -> list[Mutant]:
    """Return the mutants of all tables."""
    return [
        Mutant(int(path.stem.removeprefix("adr_")), **_fields(entry))
        for path in sorted(TABLES.glob("adr_*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]


def _fields(entry: dict[str, object]) -> dict[str, object]:
    return {**entry, "tests": tuple(entry.get("tests", ()))}


def node_ids(names: tuple[str, ...]) -> list[str]:
    """Return where pytest finds tests of these names.

    Raises:
        LookupError: there is none of a name.
    """
    found = [
        f"{TESTS / path.name}::{name}"
        for path in sorted((ROOT / TESTS).glob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if name in names
    ]
    missing = set(names) - {each.rpartition("::")[2] for each in found}
    if missing:
        raise LookupError(f"no such test: {', '.join(sorted(missing))}")
    return found
