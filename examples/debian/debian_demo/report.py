"""The result of the demo, for people and for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.terminal.lines import say
from rebaser_server.terminal.tables import Table, only_ascii

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BAR: Final = 20  # characters of the longest bar

QUESTION: Final = """\
Which packages of Debian 12 are exposed to a pending security fix, through how
few hops, and what changes once {package} is fixed?

A fix counts as pending where Debian's security archive has a version of a
package. Exposed are that package (0 hops), what depends on it (1 hop), what
depends on those (2 hops), and so on. Packages that depend on each other count
as one.
"""
ANSWER: Final = """\
At first {exposed_before:,} of {packages:,} packages are exposed.
Once {package} is fixed, {exposed_after:,} are, and for {distance_changed:,} packages the
nearest pending fix is further away than before or there is none left.
"""
NOT_PENDING: Final = """\
No fix was pending for {package}: marking it as fixed changes nothing.
"""
WORK: Final = """\
The graph has {values:,} values: what is known of each package, and what follows
from that for it and for all that depend on it. Recomputed by Rebaser, on Spark:
"""


def histogram(distances: Iterable[int | None]) -> dict[int, int]:
    """Hops → packages, in order of hops. None, for packages that are not exposed, is left out."""
    return dict(sorted(Counter(hops for hops in distances if hops is not None).items()))


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run: everything computed once, then `package` fixed and what depends on it again."""

    package: str
    pending: bool
    """Whether a fix was pending for `package` at all."""
    packages: int
    exposed_before: int
    exposed_after: int
    distance_changed: int
    """Packages whose nearest pending fix is further away afterwards, or gone."""
    distances_before: Mapping[int, int]
    """Hops → packages that many away from a pending fix: see `histogram`."""
    distances_after: Mapping[int, int]
    values: int
    affected_first: int
    affected_second: int
    recomputed_first: int
    recomputed_second: int
    seconds: Mapping[str, float]
    """Step → how long it took. Printed as they are, so named for a reader and in order."""

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints; programs rely on its keys."""
        return {
            "packages": self.packages,
            "exposed_before": self.exposed_before,
            "exposed_after": self.exposed_after,
            "distance_changed": self.distance_changed,
            "values": self.values,
            "recomputed_first": self.recomputed_first,
            "recomputed_second": self.recomputed_second,
            "seconds": {step: round(seconds, 3) for step, seconds in self.seconds.items()},
        }

    def show(self) -> None:
        """Print it for a person who is new to Rebaser."""
        self._say(QUESTION)
        self._say(ANSWER)
        if not self.pending:
            self._say(NOT_PENDING)
        self._histogram("#" if only_ascii() else "█").show()
        self._say(WORK)
        self._work().show()
        self._times().show()

    def _say(self, text: str) -> None:
        """Print the text, filled in, and an empty line."""
        say(*text.format_map(vars(self)).splitlines(), "")

    def _histogram(self, bar: str) -> Table:
        before, after = self.distances_before, self.distances_after
        most = max([1, *before.values(), *after.values()])
        table = _table("hops", "at first", "", "once fixed", "")
        for hops in sorted(before.keys() | after.keys()):
            first, second = before.get(hops, 0), after.get(hops, 0)
            bars = [bar * -(-BAR * count // most) for count in (first, second)]  # at least one mark
            table.add(str(hops), f"{first:,}", bars[0], f"{second:,}", bars[1])
        table.add_section()
        first, second = self.exposed_before, self.exposed_after
        table.add("exposed", f"{first:,}", self._share(first), f"{second:,}", self._share(second))
        first, second = self.packages - first, self.packages - second
        table.add("not", f"{first:,}", self._share(first), f"{second:,}", self._share(second))
        return table

    def _share(self, count: int) -> str:
        return f"{count / max(1, self.packages):.1%} of all"

    def _work(self) -> Table:
        table = _table("", "affected", "recomputed")
        table.add("at first", f"{self.affected_first:,}", f"{self.recomputed_first:,}")
        table.add("once fixed", f"{self.affected_second:,}", f"{self.recomputed_second:,}")
        return table

    def _times(self) -> Table:
        table = _table("step", "seconds")
        for step, seconds in self.seconds.items():
            table.add(step, f"{seconds:,.1f}")
        return table


def _table(label: str, *columns: str) -> Table:
    """Numbers to the right; a column without a heading holds what comments on the one before."""
    numbers = [place for place, column in enumerate(columns, start=1) if column]
    return Table(label, *columns, numbers=numbers, edge=False, ruled=True)
