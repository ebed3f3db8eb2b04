"""`results.md` beside this file: the tables of each part, as its last full run wrote them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.machine import Machine
from benchmarks.tables import Table

FILE: Final = Path(__file__).with_name("results.md")

HEAD: Final = """# Measurements

For people who want the figures behind docs/performance.md and docs/scaling.md. Each part has the
tables of its last run, written by `make bench` and by the commands that these two pages show.
Ratios last; absolute times are those of one machine.
"""

_PART: Final = re.compile(r"^## (?P<name>.+)\n(?P<body>(?:(?!## ).*\n)*)", re.MULTILINE)


def record(part: str, machine: Machine, tables: Sequence[Table], file: Path = FILE) -> None:
    """Write the tables of a part, in place of those of the run before; other parts stay."""
    text = file.read_text() if file.exists() else ""
    parts = {found["name"]: found["body"] for found in _PART.finditer(text)}
    facts = "; ".join(f"{name}: {fact}" for name, fact in machine.facts.items())
    parts[part] = "\n" + "\n\n".join([facts, *(table.text().strip() for table in tables)]) + "\n"
    sections = (f"## {name}\n{body.rstrip()}\n" for name, body in parts.items())
    file.write_text("\n".join([HEAD, *sections]))
