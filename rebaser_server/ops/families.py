"""Families of values: those whose names have one pattern, such as price/*/UK."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

K = TypeVar("K")

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
    groups: list[tuple[list[str], list[int]]] = []
    by_length = _grouped((n for n, name in enumerate(names) if name), lambda n: len(parts[n]))
    groups.extend(([], members) for members in by_length.values())
    while groups:
        pattern, members = groups.pop()
        depth = len(pattern)
        told_apart = _told_apart(members, {member: parts[member][depth] for member in members})
        for star, those in told_apart.items():
            if len(parts[those[0]]) == depth + 1:
                for member in those:
                    found[member] = "/".join([*pattern, star])
            else:
                groups.append(([*pattern, star], those))
    return found


def _grouped(members: Iterable[int], key: Callable[[int], K]) -> dict[K, list[int]]:
    grouped: dict[K, list[int]] = defaultdict(list)
    for member in members:
        grouped[key(member)].append(member)
    return grouped


def _told_apart(members: list[int], part: Mapping[int, str]) -> dict[str, list[int]]:
    """Members by the part that their pattern has: few of them, or a star."""
    grouped = _grouped(members, part.__getitem__)
    if len(grouped) <= MOST:
        return grouped
    large = {each for each, those in grouped.items() if len(those) > MOST}
    if len(large) > MOST:
        large = set()
    kept = {each: grouped.pop(each) for each in large}
    rest = [member for those in grouped.values() for member in those]
    starred = _grouped(rest, lambda n: _DIGITS.sub("*", part[n]))
    return kept | (starred if len(starred) <= MOST else {"*": rest})
