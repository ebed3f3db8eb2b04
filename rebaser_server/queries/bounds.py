"""How much questions may take of a process."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Of each process; `REBASER_QUERIES__…`."""

    waiting: int = 1_000
    """Questions of one kind that wait to be answered; what comes beyond is told to ask again."""
    waiting_bytes: int = 16 * 1024 * 1024
    """Their octets, headers included."""
    answer_bytes: int = 64 * 1024 * 1024
    """Octets of values in one answer; of more there is an error that says so."""
    kept_bytes: int = 512 * 1024 * 1024
    """Memory of the change sets that are kept for the next question, those asked for last."""
