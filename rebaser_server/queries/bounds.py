"""How much memory and how many places queries may take of a process."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Of each process; `REBASER_QUERIES__…`."""

    waiting: int = 1_000
    """Queries of one kind that wait; clients of further ones get the reply to ask again."""
    waiting_bytes: int = 16 * 1024 * 1024
    """Their octets, headers included."""
    answer_bytes: int = 64 * 1024 * 1024
    """Octets of values in one reply; a reply with more is an error."""
    kept_bytes: int = 512 * 1024 * 1024
    """Memory of the change sets that are cached for the next query."""
    loaded_rows: int = 500_000
    """Rows of a table from which on a few values are read from it, not the change set loaded."""
