"""Names similar to an unknown one, for its error message."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_OFFERED: Final = 5
"""Similar names that an error offers, at most."""
_COMPARED: Final = 20_000
"""Names that are compared with the unknown one, at most; that takes a second."""


def offer(name: str, known: Iterable[str]) -> str:
    """The end of an error message: names similar to the unknown one; empty if there are none."""
    text, names = name.casefold(), list(dict.fromkeys(known))
    similar = [each for each in names if text in each.casefold()][:_OFFERED]
    similar = similar or get_close_matches(name, names[:_COMPARED], _OFFERED)
    return f"; there is {', '.join(map(repr, similar))}" if similar else ""
