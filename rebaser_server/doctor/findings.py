"""What a check found, how bad that is, and what can be done about it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How much somebody has to care."""

    NOTE = "note"  # worth knowing; nothing is wrong
    WARNING = "warning"  # mends itself in time, or costs only room; can be mended now
    ERROR = "error"  # work is lost or stands still until somebody does something


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    """The name of the check, constant."""
    where: str
    """The stream, change set or store it is about."""
    what: str
    severity: Severity = Severity.WARNING
    remedy: str = ""
    """What to do, for people; empty where `repair` does it."""
    repair: Callable[[], Awaitable[None]] | None = None
    """Mends it, safely at any time; None if only a person can."""
    repaired: bool = False

    @property
    def matters(self) -> bool:
        return self.severity is not Severity.NOTE and not self.repaired

    def plain(self) -> dict[str, Any]:
        """As plain data, for programs."""
        return {
            "check": self.check,
            "where": self.where,
            "what": self.what,
            "severity": self.severity.value,
            "remedy": self.remedy or None,
            "repairable": self.repair is not None,
            "repaired": self.repaired,
        }
