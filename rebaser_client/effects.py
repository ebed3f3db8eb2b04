"""Effects of a branch on computed values: by name pattern, in words, and for a spreadsheet.

Values whose names have one pattern, such as price/*/UK, are a family. The page, the command line
and notebooks show the same families, and ask before an apply with the same words.
"""

import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from rebaser_client.display import cut, table_text
from rebaser_core.errors import many
from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_core.table_values import is_table

NO_ROWS: Final[Mapping[str, str]] = MappingProxyType({})
"""Default where the differing rows of no table are known."""
MOST: Final = 12
"""Maximum number of names in one place of a pattern that are kept apart."""
_DIGITS: Final = re.compile(r"([0-9]+)")


def natural(name: str) -> list[str | int]:
    """Return a sort key by which `net/9` comes before `net/10`."""
    parts = _DIGITS.split(name.casefold())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def families(names: Sequence[str]) -> list[str]:
    """Return the pattern of each name's family, in the order of the names.

    A name is cut at its slashes. Where more than `MOST` names differ in one place, a star stands
    there; a part of the name is kept where only its digits differ. A name with a family to itself
    is its own pattern; no name has no pattern.
    """
    found = [""] * len(names)
    parts = [name.split("/") for name in names]
    by_length: dict[int, list[int]] = defaultdict(list)
    for member, name in enumerate(names):
        if name:
            by_length[len(parts[member])].append(member)
    groups = [("", 0, length, members) for length, members in by_length.items()]
    while groups:
        pattern, depth, length, members = groups.pop()
        by_part: dict[str, list[int]] = defaultdict(list)
        for member in members:
            by_part[parts[member][depth]].append(member)
        for star, those in _with_stars(by_part).items():
            whole = f"{pattern}/{star}" if depth else star
            if depth + 1 < length:
                groups.append((whole, depth + 1, length, those))
                continue
            for member in those:
                found[member] = whole
    return found


def _with_stars(by_part: dict[str, list[int]]) -> dict[str, list[int]]:
    """Members by the part that their pattern has: few of them, or a star."""
    if len(by_part) <= MOST:
        return by_part
    large = {part: members for part, members in by_part.items() if len(members) > MOST}
    kept = large if len(large) <= MOST else {}
    starred: dict[str, list[int]] = defaultdict(list)
    for part, members in by_part.items():
        if part not in kept:
            starred[_DIGITS.sub("*", part)].extend(members)
    if len(starred) > MOST:
        return kept | {"*": [member for members in starred.values() for member in members]}
    for part, members in kept.items():
        starred[part].extend(members)
    return starred


LARGEST: Final = 3
"""Number of moves of a family that are named."""
_BINS: Final = 12
"""Number of parts of a histogram."""


@dataclass(frozen=True, slots=True)
class EffectFamily:
    """Computed values of one name pattern that differ, head beside branch."""

    pattern: str
    """The pattern; empty for values without a name."""
    size: int
    failed: int
    """Number of its values that fail, or are blocked, in the branch."""
    tables: bool
    """Whether one of its values is a table."""
    head: float | None
    """Sum in head, without the values that fail in the branch; None unless all are numbers."""
    branch: float | None
    """Sum in the branch; None unless all are numbers."""
    largest: Sequence[ComputedDifference]
    """Largest moves, at most `LARGEST`; its first values if none are numbers."""
    moves: "Histogram | None"
    """Percentages by which its numbers differ; None if none do."""

    @property
    def title(self) -> str:
        """The pattern as people read it: of one value its name."""
        [first, *others] = self.largest
        return self.pattern or ("values without a name" if others else first.name or first.id)

    @property
    def change(self) -> str:
        """Percentage by which the sum moves; empty if there is none."""
        return percentage(self.head, self.branch)

    def sides(self) -> tuple[str, str]:
        """Head and branch in few characters: the value if it is one, else sums if there are."""
        if self.size == 1:
            one = self.largest[0]
            return (
                result_brief(one.head, one.head_status),
                result_brief(one.branch, one.branch_status),
            )
        head, branch = ("" if side is None else brief(side) for side in (self.head, self.branch))
        return head, branch


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of values by the percentage that they moved."""

    bins: Sequence[int]
    """Numbers of values, from the greatest fall to the greatest rise."""
    least: float
    most: float
    zero: float | None
    """Place of no change between the first bin, 0, and the last, 1; None if all move one way."""


def by_pattern(differing: Sequence[ComputedDifference]) -> list[EffectFamily]:
    """Return the families of the values: those with failures first, then the largest."""
    members: dict[str, list[ComputedDifference]] = defaultdict(list)
    for pattern, each in zip(patterns_of(differing), differing, strict=True):
        members[pattern].append(each)
    found = [_family(pattern, those) for pattern, those in members.items()]
    return sorted(found, key=lambda one: (-one.failed, -one.size, natural(one.pattern)))


def patterns_of(differing: Sequence[ComputedDifference]) -> list[str]:
    """Return the pattern of each, in their order."""
    return families([each.name or "" for each in differing])


def _family(pattern: str, members: list[ComputedDifference]) -> EffectFamily:
    moves = [(each, move) for each in members if (move := _move(each)) is not None]
    failed = sum(map(is_failing, members))
    are_numbers = 0 < len(moves) == len(members) - failed
    by_size = [each for each, _ in sorted(moves, key=lambda pair: -abs(pair[1]))]
    return EffectFamily(
        pattern,
        len(members),
        failed,
        any(is_table(each.head) or is_table(each.branch) for each in members),
        total(each.head for each, _ in moves) if are_numbers else None,
        total(each.branch for each, _ in moves) if are_numbers else None,
        (by_size or members)[:LARGEST],
        _histogram([100 * move / abs(each.head) for each, move in moves if each.head]),
    )


def is_failing(one: ComputedDifference) -> bool:
    """Whether the value has no result in the branch."""
    return one.branch_status in ("failed", "blocked")


def is_number(data: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data)


def total(numbers: Iterable[Any]) -> float | None:
    """Return the sum; None unless all are finite numbers, and so is their sum."""
    listed = list(numbers)
    if not all(map(is_number, listed)):
        return None
    try:
        return math.fsum(listed)
    except OverflowError:
        return None


def _move(one: ComputedDifference) -> float | None:
    """Distance from head to branch; None unless both are numbers."""
    if is_failing(one) or not (is_number(one.head) and is_number(one.branch)):
        return None
    return float(one.branch) - float(one.head)


def _histogram(percentages: Sequence[float]) -> Histogram | None:
    if not percentages or not all(map(math.isfinite, percentages)):
        return None
    ordered = sorted(percentages)
    # what lies beyond these, counts in the first and the last part
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.02, 0.98))
    width = high - low or 1.0
    bins = [0] * _BINS
    for each in percentages:
        place = min(max((each - low) / width, 0.0), 1.0)
        bins[min(int(_BINS * place), _BINS - 1)] += 1
    zero = -low / width if low < 0 < high else None
    return Histogram(bins, ordered[0], ordered[-1], zero)


def side_text(data: Any) -> str:
    """Return a side of a difference as JSON, or a table in words; empty if there is none."""
    return "" if data is None else table_text(data) or json.dumps(data, ensure_ascii=False)


def result_text(data: Any, status: str | None) -> str:
    """Return a side of a computed difference: its status if it has no value, else as text."""
    if status in ("failed", "blocked"):
        return status
    return "null" if data is None and status else side_text(data)


_LARGE: Final = 1e15
"""Number from which on digits are not written out."""


def brief(number: float) -> str:
    """Return the number as people read a sum: six digits that count, with commas."""
    rounded = Decimal(f"{number:.6g}")
    return f"{rounded:.6g}" if abs(rounded) >= _LARGE else f"{rounded:,f}"


def percentage(head: Any, branch: Any) -> str:
    """Return the way from one number to another in percent; of nothing else."""
    if not (is_number(head) and is_number(branch)):
        return ""
    if head == branch:
        return "±0 %"
    if head == 0:
        return "from 0"
    share = 100 * (branch - head) / abs(head)
    digits = 1 if abs(share) < 10 else 0  # noqa: PLR2004
    return f"{share:+,.{digits}f} %"


_SHOWN: Final = 40
"""Maximum number of characters of a side in a sentence."""


def result_brief(data: Any, status: str | None) -> str:
    """Return a side of a computed difference in few characters; empty if there is none."""
    if is_number(data):
        return brief(data)
    return cut(result_text(data, status), _SHOWN)


def move_text(one: ComputedDifference, rows: Mapping[str, str] = NO_ROWS) -> str:
    """Return the value's name, and what it has in head and in the branch.

    `rows` says by id which rows of a table differ.
    """
    if one.id in rows:
        return f"{one.name or one.id}: {rows[one.id]}"
    head = result_brief(one.head, one.head_status) or "not there"
    branch = result_brief(one.branch, one.branch_status) or "removed"
    if head == branch and is_table(one.head):
        return f"{one.name or one.id}: {head}, others than before"
    return f"{one.name or one.id}: {head} → {branch}"


_TOLD: Final = 5
"""Maximum number of conflicts, of failures and of families that are put into words."""


def particulars(
    changes: Sequence[ChangedDefinition],
    differing: Sequence[ComputedDifference],
    unknown: str,
    rows: Mapping[str, str] = NO_ROWS,
) -> list[str]:
    """Say what applying a branch does: conflicts, values that fail, what is unknown, effects.

    `rows` says by id which rows of a table differ.
    """
    return [
        *_first([each for each in changes if each.both], _conflict),
        *_first(list(filter(is_failing, differing)), _failure),
        *([f"Not known yet: {unknown}."] if unknown else []),
        *_first(by_pattern(differing), lambda family: family_text(family, rows)),
    ]


def _first(those: Sequence[Any], say: Callable[[Any], str]) -> list[str]:
    more = len(those) - _TOLD
    return [*map(say, those[:_TOLD]), *([f"and {more:,} more"] if more > 0 else [])]


def _conflict(change: ChangedDefinition) -> str:
    yours = cut(side_text(change.branch), _SHOWN) or "removed"
    theirs = cut(side_text(change.head), _SHOWN) or "removed"
    name = change.name or change.id
    return f"Head changed {name}, too: yours {yours}, theirs {theirs}. Yours counts."


def _failure(one: ComputedDifference) -> str:
    return f"{one.name or one.id} will have no value: {one.branch_status}."


def family_text(family: EffectFamily, rows: Mapping[str, str] = NO_ROWS) -> str:
    """Say how many values of a family differ, and how far their sum moves.

    `rows` says by id which rows of a table differ.
    """
    if family.size == 1:
        return move_text(family.largest[0], rows)
    said = f"{family.title}: {many(family.size, 'value')}"
    if family.head is None or family.branch is None:
        return said
    return f"{said}, sum {brief(family.head)} → {brief(family.branch)}, {family.change}"


def question(edits: int, differing: int) -> str:
    """Return the question before an apply."""
    verb = "differs" if differing == 1 else "differ"
    return f"Apply {many(edits, 'edit')} to head? {many(differing, 'computed value')} {verb}."


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that spreadsheets compute."""


def effects_csv(differing: Sequence[ComputedDifference]) -> str:
    """Return the effects for a spreadsheet, in natural order; each value is JSON.

    A name that a spreadsheet would take for a formula has an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("value", "id", "head", "branch"))
    for each in sorted(differing, key=by_name):
        name = each.name or ""
        safe = f"'{name}" if name.startswith(_FORMULA) else name
        head = result_text(each.head, each.head_status) or "null"
        branch = result_text(each.branch, each.branch_status) or "null"
        writer.writerow((safe, each.id, head, branch))
    return text.getvalue()


def by_name(one: ChangedDefinition | ComputedDifference) -> list[str | int]:
    """Return the sort key of the natural order of names."""
    return natural(one.name or one.id)
