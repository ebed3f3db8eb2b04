"""A finding of a check: what is wrong, its severity, and its repair."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    NOTE = "note"  # information; nothing is wrong
    WARNING = "warning"  # repairs itself in time, or only costs space; can be repaired now
    ERROR = "error"  # work is lost, or stands still until a person acts


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """Name of the check; programs rely on it."""
    where: str
    """Stream, change set or store that it concerns."""
    what: str
    severity: Severity = Severity.WARNING
    remedy: str = ""
    """Remedy for a person; empty if `repair` does it."""
    repair: Callable[[], Awaitable[None]] | None = None
    """Function that repairs it, safely at any time; None if that needs a person."""
    repaired: bool = False

    @property
    def matters(self) -> bool:
        return self.severity is not Severity.NOTE and not self.repaired

    def plain(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "where": self.where,
            "what": self.what,
            "severity": self.severity.value,
            "remedy": self.remedy or None,
            "repairable": self.repair is not None,
            "repaired": self.repaired,
        }
