"""Names similar to an unknown one, for its error message."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_COMPARED: Final = 20_000
"""Names that are compared with the unknown one, at most; that takes a second."""


def offer(name: str, known: Iterable[str], most: int = 5) -> str:
    """The end of an error message: at most so many similar names; empty if there are none."""
    text, names = name.casefold(), list(dict.fromkeys(known))
    similar = [each for each in names if text in each.casefold()][:most]
    similar = similar or get_close_matches(name, names[:_COMPARED], most)
    return f"; there is {', '.join(map(repr, similar))}" if similar else ""
