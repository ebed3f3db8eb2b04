"""What many power cuts amount to in numbers."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tests.chaos.history import Kind
from tests.powercut.verdict import Verdict

SAID_OF_A_LOSS: Final = ("confirmed messages lost", "confirmed messages may be lost")
"""Events that a daemon logs at its start."""


@dataclass
class CutFigures:
    """Of all cuts of a run."""

    cuts: int = 0
    with_loss: int = 0
    violated: int = 0
    acknowledged: int = 0
    lost: int = 0
    silent: int = 0
    """Cuts with a loss of which neither the daemon's start nor `rebaser doctor` says anything."""
    seconds: list[float] = field(default_factory=list)
    """Of each cut that lost something, from the first lost acknowledgement to the cut."""
    violations: Counter[str] = field(default_factory=Counter)
    """By rule, the cuts that broke it."""
    said: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)
    """Cuts by whether they came to rest, and streams that were lost."""

    def add(self, verdict: Verdict) -> None:
        """Count one cut."""
        self.cuts += verdict.cut.stands_for
        self.violated += bool(verdict.violations)
        self.with_loss += bool(verdict.lost)
        self.acknowledged += verdict.acknowledged
        self.lost += verdict.lost
        if verdict.lost:
            self.seconds.append(verdict.seconds)
            seen = verdict.aftermath
            is_said = any(event in seen.said for event in SAID_OF_A_LOSS)
            self.silent += not (is_said or seen.findings or seen.refused)
        self.violations.update({violation.rule for violation in verdict.violations})
        self.said.update(set(verdict.aftermath.said))
        self.findings.update(set(verdict.aftermath.findings))
        rests = [event.data for event in verdict.history.of(Kind.REST)]
        if verdict.aftermath.refused:
            self.standing["not started"] += 1
        else:
            self.standing["stuck" if any("stuck" in rest for rest in rests) else "at rest"] += 1
        for stream, last in verdict.aftermath.last.items():
            self.standing[f"{stream} lost"] += last is None

    def line(self, name: str) -> str:
        """After the life of that name."""
        return (
            f"{name}: {self.cuts} cuts so far, {self.acknowledged} requests acknowledged, "
            f"{self.lost} lost, violations after {self.violated}"
        )

    def text(self) -> str:
        """Everything."""
        lines = [
            f"{self.cuts} cuts; violations after {self.violated}, a loss after {self.with_loss}",
            f"{self.acknowledged} requests acknowledged, {self.lost} of them lost",
        ]
        if self.seconds:
            shown = (
                f"median {1000 * median(self.seconds):.0f}, worst {1000 * max(self.seconds):.0f}"
            )
            lines.append(f"ms of acknowledged requests lost, where any is: {shown}")
            lines.append(
                f"neither the start nor doctor says anything of the loss after {self.silent}"
            )
        for name in ("standing", "violations", "said", "findings"):
            counter: Counter[str] = getattr(self, name)
            shown = ", ".join(f"{n} {what}" for what, n in counter.most_common(12) if n)
            lines.append(f"{name}: {shown or 'none'}")
        return "\n".join(lines)
