"""What became of a schedule, and its trace: what is shown of one that failed."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.schedules.scenario import Plan


@dataclass
class Verdict:
    """Sound if there are no violations."""

    seed: object
    plan: Plan
    violations: list[str] = field(default_factory=list)
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    """Requests stored, results of DVUs included."""
    steps: int = 0
    seconds: float = 0.0
    """Virtual ones."""
    ownerships: int = 0

    @property
    def digest(self) -> str:
        """The same for the same trace."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()

    def lines(self) -> list[str]:
        return [f"{at:11.6f} " + " ".join(map(_text, what)) for at, *what in self.trace]

    def report(self) -> str:
        head, foot = f"seed {self.seed}: {self.plan}", f"seed {self.seed} violates:"
        return "\n".join([head, *self.lines(), foot, *self.violations])


def _text(what: Any) -> str:
    return what if isinstance(what, str) else repr(what)
