"""Families of values: those whose names have one pattern, such as price/*/UK."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

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
